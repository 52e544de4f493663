"""The short probe before a tuning run, and the curve that it predicts.

α: the proposals that were kept, of those decided on their own (the estimate that a window of γ does not bias).
c: drafting one token over a plain round. v(γ): judging γ + 1 rows (forward and verdict) over judging one;
measured at a few γ, straight lines between. All of it before anything of the run is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specchat.decode.engine import MAX_GAMMA
from specchat.decode.events import Round
from specchat.lab.theory import expected_accepted, expected_speedup

PROBED = (1, 3, 8)
"""The γ at which judging is timed."""

ROUNDS = 12
"""Rounds of each run of the probe."""

Run = Callable[[int], Sequence[Round]]
"""The rounds of a short run at a γ, on some prompt."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the probe measured, and what follows from it by the formula.

    plain_s: seconds of a plain round. judging: (γ, v). offered: the share of rounds that had a proposal.
    by_place: of the proposals decided on their own at each place of the block, the share that was kept.
    """

    alpha: float
    c: float
    plain_s: float
    judging: tuple[tuple[int, float], ...]
    offered: float = 1.0
    rounds: int = 0
    by_place: tuple[float, ...] = ()

    def v(self, gamma: int) -> float:
        """Judging γ + 1 rows over judging one: between the measured points, and beyond the last by its slope."""
        points = [(0, 1.0), *self.judging]
        if len(points) == 1:
            return 1.0
        low, high = next((pair for pair in pairwise(points) if gamma <= pair[1][0]), (points[-2], points[-1]))
        slope = (high[1] - low[1]) / (high[0] - low[0])
        # Beyond the last point nothing was measured: it does not get cheaper there.
        return max(1e-6, low[1] + (slope if gamma <= high[0] else max(0.0, slope)) * (gamma - low[0]))

    def accepted(self, gamma: int) -> float:
        """Expected mean accepted length."""
        return self.offered * expected_accepted(self.alpha, gamma)

    def speedup(self, gamma: int) -> float:
        """Expected speed over plain decoding."""
        return expected_speedup(self.alpha, gamma, self.c, self.v(gamma), self.offered) if gamma else 1.0

    def tok_per_s(self, gamma: int) -> float:
        """Expected tokens per second."""
        return self.speedup(gamma) / self.plain_s

    def best(self, limit: int = MAX_GAMMA) -> int:
        """The γ ≥ 1 at which the curve is highest; the smallest of equals."""
        return max(range(1, limit + 1), key=lambda gamma: (round(self.speedup(gamma), 9), -gamma))


def prediction_of(data: Mapping[str, object]) -> Prediction:
    """The prediction whose fields these are; ValueError when they are none."""
    try:
        fields = dict(data)
        fields["judging"] = tuple((int(g), float(v)) for g, v in data["judging"])  # type: ignore[attr-defined]
        fields["by_place"] = tuple(data["by_place"])  # type: ignore[arg-type]
        return Prediction(**fields)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"This is no prediction ({problem!r}).") from problem


def predict(plain: Sequence[Round], drafted: Mapping[int, Sequence[Round]]) -> Prediction:
    """From the rounds of the probe: plain ones, and for each probed γ those with it in force.

    Raises ValueError when there was no plain round: nothing can be compared with.
    """
    if not plain:
        raise ValueError("The probe has no plain round: there is nothing to compare with.")
    one_row = statistics.median([r.verify_s + r.sample_s for r in plain])
    plain_s = statistics.median([r.seconds for r in plain])
    rounds = [r for found in drafted.values() for r in found]
    proposed = [r for r in rounds if r.drafted]
    reached, kept = _places(proposed)
    judging = tuple(
        (gamma, statistics.median([r.verify_s + r.sample_s for r in found if r.drafted]) / one_row)
        for gamma, found in sorted(drafted.items())
        if any(r.drafted for r in found)
    )
    return Prediction(
        alpha=sum(kept) / sum(reached) if reached else 0.0,
        c=_per_proposal(proposed) / plain_s,
        plain_s=plain_s,
        judging=judging,
        offered=len(proposed) / len(rounds) if rounds else 0.0,
        rounds=len(plain) + len(rounds),
        by_place=tuple(k / r for k, r in zip(kept, reached, strict=True) if r),
    )


def _places(rounds: Sequence[Round]) -> tuple[list[int], list[int]]:
    """For each place: proposals decided on their own, and those of them that were kept."""
    places = max((r.drafted for r in rounds), default=0)
    reached = [sum(i < r.drafted and i <= r.accepted for r in rounds) for i in range(places)]
    kept = [sum(i < r.accepted for r in rounds) for i in range(places)]
    return reached, kept


def _per_proposal(rounds: Sequence[Round]) -> float:
    """Seconds of drafting for one proposal: the median for each link of a chain, by how much each proposed. 0 of nothing.

    Medians, as everywhere here: another program's moments are not the pair's.
    """
    links = {r.drafter: [other for other in rounds if other.drafter == r.drafter] for r in rounds}
    weighted = [
        sum(r.drafted for r in found) * statistics.median([r.draft_s / r.drafted for r in found])
        for found in links.values()
    ]
    return sum(weighted) / sum(r.drafted for r in rounds) if rounds else 0.0


def probe(runs: Sequence[Run], speculate: bool = True) -> Prediction | None:
    """The whole probe: each run plainly, at every probed γ, and plainly again, so that a drift weighs on neither side.

    None when it was cut off (a run gave nothing).
    """
    plain: list[Round] = []
    drafted: dict[int, list[Round]] = {gamma: [] for gamma in PROBED} if speculate else {}
    for run in runs:
        for gamma, found in ((0, plain), *drafted.items(), (0, plain)):
            rounds = run(gamma)
            if not rounds:
                return None
            # The last round may be cut short by the end of the reply.
            found += [r for r in rounds if r.gamma == gamma]
    return predict(plain, drafted)
