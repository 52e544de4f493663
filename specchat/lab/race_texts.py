"""Where the texts of two lanes part, and why: a numerical tie, a fault, or other draws from the same law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specchat.chat.stream import text_of
from specchat.decode.events import Reason
from specchat.decode.sampling import Sampling
from specchat.lab.agreement import Margin, first_difference, parting
from specchat.lab.measure import Sample, forget

if TYPE_CHECKING:
    from specchat.pair import Pair

Verdict = Literal["identical", "cut", "tie", "different", "sampling", "unknown"]
"""identical: id for id. cut: alike as far as the shorter one goes. tie: greedy, and rounding decides between the two
ids. different: greedy, and it does not: a fault. sampling: the lanes drew otherwise, which they may. unknown: greedy,
but the race was stopped before the target was asked."""


@dataclass(frozen=True, slots=True)
class Text:
    """A lane's reply: its ids, the target's probability of each when it was written, and how it ended."""

    ids: tuple[int, ...]
    chances: tuple[float, ...]
    reason: Reason

    @classmethod
    def of(cls, sample: Sample) -> Text:
        """The reply of a run that has ended."""
        tokens = [token for event in sample.rounds for token in event.tokens]
        assert sample.finished is not None
        return cls(tuple(t.id for t in tokens), tuple(t.p for t in tokens), sample.finished.reason)


@dataclass(frozen=True, slots=True)
class Wrote:
    """What one lane wrote at the place where they part. p: the target's probability of it, filters applied."""

    id: int
    text: str
    p: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict on one lane's text against the first lane's, in one repeat."""

    verdict: Verdict
    place: int | None = None
    """Where they part: a token of the reply, from 0. None: identical."""
    first: Wrote | None = None
    """What the first lane wrote there; None when its text had ended."""
    other: Wrote | None = None
    margin: Margin | None = None
    """The target's two best ids there; only where greedy texts part."""
    reason: Reason | None = None
    """How the shorter of the two ended, for "cut"."""
    lane: int = 0
    repeat: int = 0


def compare(
    pair: Pair, prompt: Sequence[int], first: Text, other: Text, sampling: Sampling, cancelled: Callable[[], bool]
) -> Comparison:  # fmt: skip
    """Finds the first difference; where greedy texts part, the target is asked once more, fed plainly.

    sampling: the law that both followed. Runs the target unless cancelled.
    """
    place = first_difference(first.ids, other.ids)
    if place is None:
        return Comparison("identical")
    if place == min(len(first.ids), len(other.ids)):
        shorter = first if place == len(first.ids) else other
        return Comparison("cut", place, reason=shorter.reason)
    wrote = _wrote(pair, first, place), _wrote(pair, other, place)
    if not sampling.greedy:
        return Comparison("sampling", place, *wrote)
    if cancelled():
        return Comparison("unknown", place, *wrote)
    forget(pair)
    found = parting(pair, prompt, first.ids, other.ids, sampling)
    assert found is not None
    return Comparison("tie" if found.tie else "different", place, *wrote, margin=found.margin)


def _wrote(pair: Pair, text: Text, place: int) -> Wrote:
    id = text.ids[place]
    shown = "the end of the reply" if id in pair.eos_ids else text_of(pair.tokenizer, [id])
    return Wrote(id, shown or f"token {id}", text.chances[place])
