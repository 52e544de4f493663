"""The plain step that every speed-up is told against: measured at start, and again behind speculative replies.

A machine is not as fast at one time as at another. A step that was measured while it was busy would make
speculation look better for the rest of the day. So the worker takes a few where a reply has ended by itself and
nobody waits, and the median of the latest counts; they may come from replies of different lengths.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from specchat.decode.drafters import Forward
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Round
from specchat.decode.sampling import Sampling
from specchat.decode.stats import Stats

log = logging.getLogger(__name__)

FEW = 3
"""Plain steps taken after a reply."""

CALM_S = 0.3
"""Seconds before they begin: the page is drawing the reply that has just ended, on the same cores."""

KEPT = 9
"""The latest of them count."""

ENOUGH = 16
"""Plain rounds from which a reply is a yardstick itself."""


class Paced(Protocol):
    """A pair, as far as its plain step is concerned."""

    @property
    def target(self) -> Forward: ...

    plain_step_s: float
    plain_step_source: str
    plain_steps: deque[float]


def no_steps() -> deque[float]:
    """Room for the seconds of the latest plain steps."""
    return deque(maxlen=KEPT)


def learn(pair: Paced, stats: Stats) -> None:
    """Takes the steps of a reply that decoded plainly."""
    if stats.plain_rounds == stats.rounds >= ENOUGH:
        pair.plain_steps.clear()
        pair.plain_step_s = stats.plain_s / stats.plain_rounds
        pair.plain_step_source = f"measured in the last plain reply ({stats.plain_rounds} steps)"


def look_again(pair: Paced, stats: Stats, sampling: Sampling, cancelled: Callable[[], bool]) -> None:
    """A few plain steps behind the reply that has just ended; the cache is left as it was.

    Drawn as the reply was. Nothing after a plain reply (see `learn`), or where there is no room. `cancelled` ends it
    between two steps: somebody waits. Raises nothing: it is an extra.
    """
    try:
        if stats.plain_rounds < stats.rounds and _calm(cancelled):
            pair.plain_steps.extend(_steps(pair.target, sampling, cancelled))
    except Exception:
        log.exception("the plain step could not be measured again")
    if pair.plain_steps:
        pair.plain_step_s = statistics.median(pair.plain_steps)
        pair.plain_step_source = f"measured after the last replies ({len(pair.plain_steps)} steps)"


def _calm(cancelled: Callable[[], bool]) -> bool:
    """Waits; False as soon as somebody else waits too."""
    until = time.monotonic() + CALM_S
    while time.monotonic() < until:
        if cancelled():
            return False
        time.sleep(0.01)
    return True


def _steps(target: Forward, sampling: Sampling, cancelled: Callable[[], bool]) -> list[float]:
    """Seconds of up to FEW plain steps behind what is cached, which are forgotten again."""
    held = len(target.ids)
    if not target.can_rollback or not 0 < held < target.capacity - FEW:
        return []
    settings = Settings(0, sampling, max_new_tokens=FEW + 1)
    engine = Engine(target, {}, frozenset())
    try:
        events = list(engine.generate([*target.ids, target.ids[-1]], lambda: settings, cancelled=cancelled))
    finally:
        target.rollback(max(0, len(target.ids) - held))
    # The first round of a request pays for waking up.
    return [event.seconds for event in events[1:] if isinstance(event, Round)]
