"""What speculation should gain, from α, γ and the cost of each part (Leviathan et al. 2023, section 3)."""

from __future__ import annotations


def expected_accepted(alpha: float, gamma: int) -> float:
    """Mean accepted length when each proposal is kept with probability α: α(1 - α^γ) / (1 - α), 0…γ."""
    _check(alpha, gamma)
    return float(gamma) if alpha == 1 else alpha * (1 - alpha**gamma) / (1 - alpha)


def expected_tokens(alpha: float, gamma: int) -> float:
    """Mean tokens a round, the target's own included: (1 - α^(γ+1)) / (1 - α), 1…γ+1."""
    return expected_accepted(alpha, gamma) + 1


def expected_speedup(alpha: float, gamma: int, c: float, v: float = 1.0, offered: float = 1.0) -> float:
    """Speed over plain decoding. c: a draft step over a plain target step; v: a verification over a plain step.

    offered: the share of rounds that have a proposal at all (n-grams often have none); the others are plain steps.
    """
    if c < 0 or v <= 0:
        raise ValueError(f"c is {c} and v is {v}; c must be 0 or more and v above 0.")
    if not 0 <= offered <= 1:
        raise ValueError(f"The share of rounds with a proposal is {offered}; it must be between 0 and 1.")
    tokens = 1 + offered * expected_accepted(alpha, gamma)
    return tokens / (offered * (gamma * c + v) + 1 - offered)


def alpha_of(mean_accepted: float, gamma: int) -> float:
    """The α at which the expected accepted length is the measured one (bisection to 1e-9)."""
    if not 0 <= mean_accepted <= gamma:
        raise ValueError(f"A mean accepted length of {mean_accepted} is impossible at γ = {gamma}.")
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_accepted(middle, gamma) < mean_accepted else (low, middle)
    return (low + high) / 2


def _check(alpha: float, gamma: int) -> None:
    if not 0 <= alpha <= 1 or gamma < 0:
        raise ValueError(f"α is {alpha} and γ is {gamma}; α must be between 0 and 1, γ 0 or more.")
