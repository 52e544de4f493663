"""What leaves the engine: one `Round` per round, then exactly one `Finished`.

The panel, the stats line, the token lens and every benchmark are computed from these alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["accepted", "recovered", "bonus", "plain"]
"""Who wrote a token. accepted: the draft proposed it and the target kept it. recovered: the target's
replacement at the first rejection. bonus: the target's extra token when every proposal was kept.
plain: the target's token in a round without any proposal (γ = 0, or the drafter had nothing)."""

Reason = Literal["eos", "stop", "length", "context", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token and how it came about.

    p is the target's probability of this id at this place, q the drafter's (None unless the
    token was proposed), both after temperature, filters and penalties. position is the place
    in the round's block, from 0.
    """

    id: int
    origin: Origin
    p: float
    q: float | None
    position: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The proposal that the target turned down, at its place in the block (the later ones were never judged)."""

    id: int
    p: float
    q: float
    position: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """How the prompt got into the target's cache: ids found there, ids newly read, seconds."""

    reused: int
    read: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """One draft phase, one target forward, one verdict.

    drafted counts the proposals that count: all of the block, unless an end (EOS, stop string)
    fell inside it; then only those up to the end. So accepted ≤ drafted ≤ gamma, and a token
    behind an end is neither emitted nor counted. tokens holds what was emitted, in order:
    len(tokens) is accepted + 1, or accepted when an accepted token ended the reply.
    Times are wall-clock seconds; host_s is what the other three do not explain. On a CUDA device the three are
    times of its own queue, since the host does not wait for their ends.
    """

    index: int
    tokens: tuple[Token, ...]
    rejected: Rejected | None
    gamma: int
    """γ in force this round (after clipping to the budget and the context). With adaptive γ it is what the block came to,
    and 1 where proposals were allowed and none was worth making."""
    drafted: int
    accepted: int
    drafter: str
    """Which drafter proposed: "model", "ngram", … or "" when nothing was proposed."""
    target_forwards: int
    draft_forwards: int
    draft_s: float
    verify_s: float
    sample_s: float
    host_s: float
    at: float
    """Seconds from the start of the request to the end of this round."""
    settings_changed: bool = False
    """True when this round ran with other settings than the one before it."""
    prefill: Prefill | None = None
    """Only on the first round."""
    discarded: tuple[int, ...] = ()
    """Proposed ids behind the first rejection: never judged, kept for the token lens."""
    choice: str = ""
    """Why γ was what it was, in words, when it was chosen by measurements; "" when it was fixed."""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the round, prefill excluded."""
        return self.draft_s + self.verify_s + self.sample_s + self.host_s


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request: why, and what it left in the caches (ids held by target and draft)."""

    reason: Reason
    emitted: int
    seconds: float
    target_cached: int
    draft_cached: int
    notice: str = ""
    """A sentence for the person when something happened that they should know (a drafter failed and
    the reply went on plainly, the draft's context was full, an error's text)."""
