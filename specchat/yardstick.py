"""The plain step that every speed-up is told against: measured at start, then in the replies themselves.

A machine is not as fast at one time as at another. A step that was measured while it was busy would make
speculation look better for the rest of the day, and one behind a reply meets a browser that draws it. So now and then
a round of a reply is a plain one: as the others, it has the text, the page and the neighbours of that moment. The
median of the latest counts, of this reply and those before.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Protocol

from specchat.decode.events import Round
from specchat.decode.stats import Stats

EVERY = 24
"""Rounds of a speculative reply of which one is plain. That takes about 1 % of the speed."""

KEPT, LEAST = 9, 3
"""The latest of them count, from so many on."""

ENOUGH = 16
"""Plain rounds from which a reply is a yardstick itself."""


class Paced(Protocol):
    """A pair, as far as its plain step is concerned."""

    plain_step_s: float
    plain_step_source: str
    plain_steps: deque[float]


def no_steps() -> deque[float]:
    """Room for the seconds of the latest plain steps."""
    return deque(maxlen=KEPT)


def note(pair: Paced, event: Round) -> None:
    """Takes in a round, if it was a plain one. The first of a reply pays for waking up, one with new settings perhaps
    for another drafter that reads the text."""
    if event.index == 0 or event.settings_changed or event.gamma or event.draft_forwards:
        return
    pair.plain_steps.append(event.seconds)
    if len(pair.plain_steps) >= LEAST:
        pair.plain_step_s = statistics.median(pair.plain_steps)
        pair.plain_step_source = (
            f"measured among the rounds of the last replies ({len(pair.plain_steps)} steps)"
        )


def learn(pair: Paced, stats: Stats) -> None:
    """Takes in a whole reply, if it decoded plainly."""
    if stats.plain_rounds == stats.rounds >= ENOUGH:
        pair.plain_steps.clear()
        pair.plain_step_s = stats.plain_s / stats.plain_rounds
        pair.plain_step_source = f"measured in the last plain reply ({stats.plain_rounds} steps)"
