"""Which turns of a long conversation stay in the prompt.

If only as many turns went as must, then once the context is full one more would go at every message; the prompt
would begin differently each time and nothing of it would still be in the caches. So room is made for several
turns at once, and the prompts after that begin alike. Nothing is remembered between prompts: the conversation is
replayed from its first message, and what was dropped then is dropped now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LOW_WATER = 0.75
"""How full, of what the system prompt leaves, the room is at most after turns were dropped."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A rendered conversation in tokens. A turn's messages have one size each, so later turns change neither."""

    head: int
    """Whatever stands before the first turn: the system prompt, for one."""
    asked: Sequence[int]
    """Per turn, the message that opens it."""
    answered: Sequence[int]
    """Per turn, what follows up to the next one; for the last turn, what asks for the reply."""


def first_kept(sizes: Sizes, room: int) -> int:
    """The first turn still in the prompt after every message was fitted into `room` tokens, one by one.

    The last turn always is. Its prompt may be larger than `room` when it alone is.
    """
    low = sizes.head + LOW_WATER * (room - sizes.head)
    first, before = 0, sizes.head
    for turn, (asked, answered) in enumerate(zip(sizes.asked, sizes.answered, strict=True)):
        prompt = before + asked + sizes.answered[-1]
        if prompt > room:
            while first < turn and prompt > low:
                gone = sizes.asked[first] + sizes.answered[first]
                before, prompt, first = before - gone, prompt - gone, first + 1
        before += asked + answered
    return first


def left_out(turns: int) -> str:
    """The sentence that says so."""
    what = "the oldest turn was" if turns == 1 else f"the {turns} oldest turns were"
    return f"The conversation no longer fits in the model's context, so {what} left out."
