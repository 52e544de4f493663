"""The plain step that every speed-up is told against: measured at start, and again after each reply.

A machine is not as fast at one time as at another. A step that was measured while it was busy would make
speculation look better for the rest of the day, so a few are taken where a reply has just ended: same text, same
cache, same moment.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Finished, Round
from specchat.decode.sampling import Sampling
from specchat.decode.stats import Stats
from specchat.model.errors import ModelError

if TYPE_CHECKING:
    from specchat.drafts import Model
    from specchat.pair import Pair

log = logging.getLogger(__name__)

FEW = 3
"""Plain steps taken after a reply."""

KEPT = 9
"""The latest of them count."""

ENOUGH = 16
"""Plain rounds from which a reply is a yardstick itself."""


def warm_up(pair: Pair, steps: int = 10) -> None:
    """One short speculative reply and a plain one, so that the first reply of a person is a warm one.

    Raises ModelError when the target cannot write at all; a draft that fails is a note.
    """
    ids = pair.tokenizer("The quick brown fox", add_special_tokens=False)["input_ids"]

    def rounds(gamma: int) -> list[Round]:
        settings = Settings(gamma, Sampling(seed=0), pair.default_drafter, steps)
        events = list(pair.engine.generate(ids, lambda: settings))
        last = events[-1]
        if isinstance(last, Finished) and last.reason == "error":
            raise ModelError(f"{pair.target_name} does not work here: {last.notice}")
        if isinstance(last, Finished) and last.notice and gamma and pair.target.can_rollback:
            pair.notes = (*pair.notes, last.notice)
        return [event for event in events if isinstance(event, Round)]

    rounds(2)
    plain = rounds(0)
    # Medians over the later steps: the first ones still pay for buffers and threads.
    later = [r.seconds for r in plain[2:]] or [r.seconds for r in plain]
    pair.plain_step_s = statistics.median(later) if later else 0.0
    pair.plain_step_source = f"measured at start ({len(later)} steps on a short text)"


def learn(pair: Pair, stats: Stats) -> None:
    """Takes the steps of a reply that decoded plainly."""
    if stats.plain_rounds == stats.rounds >= ENOUGH:
        pair.plain_steps.clear()
        pair.plain_step_s = stats.plain_s / stats.plain_rounds
        pair.plain_step_source = f"measured in the last plain reply ({stats.plain_rounds} steps)"


def look_again(pair: Pair, stats: Stats, cancelled: Callable[[], bool]) -> None:
    """A few plain steps behind the reply that has just ended; the cache is left as it was.

    Nothing after a plain reply, which was measured itself, or where there is no room. `cancelled` ends it between
    two steps: somebody waits. Raises nothing: it is an extra.
    """
    try:
        if stats.plain_rounds < stats.rounds:
            pair.plain_steps.extend(_steps(pair.target, cancelled))
    except Exception:
        log.exception("the plain step could not be measured again")
    if pair.plain_steps:
        pair.plain_step_s = statistics.median(pair.plain_steps)
        pair.plain_step_source = f"measured after the last replies ({len(pair.plain_steps)} steps)"


def _steps(target: Model, cancelled: Callable[[], bool]) -> list[float]:
    """Seconds of up to FEW plain steps behind what is cached, which are forgotten again."""
    held = len(target.ids)
    if not target.can_rollback or not 0 < held < target.capacity - FEW:
        return []
    settings = Settings(0, Sampling(seed=0), max_new_tokens=FEW + 1)
    engine = Engine(target, {}, frozenset())
    try:
        events = list(engine.generate([*target.ids, target.ids[-1]], lambda: settings, cancelled=cancelled))
    finally:
        target.rollback(max(0, len(target.ids) - held))
    # The first round of a request pays for waking up.
    return [event.seconds for event in events[1:] if isinstance(event, Round)]
