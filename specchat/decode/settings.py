"""Everything that may change while a reply is being written."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.decode.sampling import Sampling

MAX_GAMMA = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """Read once a round.

    gamma 0 is plain decoding on the same path. drafter names one of the engine's drafters;
    a name the engine does not have proposes nothing.
    """

    gamma: int = 4
    """Proposals a round; with `adaptive` the most there may be."""
    sampling: Sampling = field(default_factory=Sampling)
    drafter: str = "chain"
    max_new_tokens: int = 512
    draft_sampling: Sampling | None = None
    """For the lab: what the draft is sampled with instead of `sampling`, its seed aside. The reply keeps the
    target's law, as the verdict is made with the law that was really sampled from."""
    confidence: float = 0.0
    """The draft stops proposing where its most likely next token has less than this probability; 0 is off."""
    adaptive: bool = False
    """Each block goes on, up to `gamma`, while one more proposal is expected to pay. Times decide, so a seed no longer
    repeats the text."""
    guard: bool = False
    """Speculation rests while plain decoding is measured to be faster. Times decide here too."""

    def __post_init__(self) -> None:
        if not isinstance(self.gamma, int) or not 0 <= self.gamma <= MAX_GAMMA:
            raise ValueError(f"gamma is {self.gamma}; it must be a whole number between 0 and {MAX_GAMMA}.")
        if not isinstance(self.max_new_tokens, int) or self.max_new_tokens < 1:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens}; it must be a whole number, 1 or more."
            )
        if not isinstance(self.confidence, int | float) or not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is {self.confidence}; it must be between 0 (off) and 1.")
        for name in ("adaptive", "guard"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be True or False.")
        if self.draft_sampling is not None and not isinstance(self.draft_sampling, Sampling):
            raise ValueError(f"draft_sampling is {self.draft_sampling}; it must be a Sampling or None.")
