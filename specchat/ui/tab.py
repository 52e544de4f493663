"""What every tab behind the chat is, and how one follows a task of the lab."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Protocol

from gradio.components import Component

from specchat.decode.settings import Settings
from specchat.ui.desk import Desk, status_line
from specchat.ui.session import Session
from specchat.ui.sidebar import Controls
from specchat.ui.stream import batches
from specchat.worker import Ended, Event, News, Queued, Task

if TYPE_CHECKING:
    from specchat.pair import Pair

log = logging.getLogger(__name__)

Updates = dict[Component, object]

OTHER_PAIR = "Another pair is loaded: run it again."
"""Said when something measured with one pair is to be put in force on another."""

PRESSED = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-act]');
  if (button) trigger('select', {n: Number(button.dataset.n)});
});
"""
"""Reports which button of a board was pressed: a number, never text."""


class Tab(Protocol):
    """Built inside its `gr.Tab`; `wire` binds its handlers."""

    def __init__(self, desk: Desk, controls: Controls) -> None: ...

    def wire(self) -> None: ...


def conduct(
    desk: Desk,
    session: Session,
    name: str,
    task: Task,
    opening: Callable[[], Updates],
    underway: Callable[[list[Event]], Updates],
    closing: Callable[[Ended | None], Updates],
    refused: Updates,
) -> Iterator[Updates]:
    """Submits a task and yields what the tab shows of it: opening, underway for each batch of events, closing.

    name: what `stop` ends it by; a session has one task of a name at a time, and a second one is `refused` before
    anything of it is shown. An error in showing becomes the problem that `closing` tells. A closed tab cancels it.
    """
    with session.lock:
        free = name not in session.tasks
        if free:
            handle = session.tasks[name] = desk.worker.submit(task)
    if not free:
        yield refused
        return
    last: Ended | None = None
    try:
        yield opening()
        for batch in batches(handle):
            last = ended(batch)
            seen = underway(batch)
            if last is None:
                yield seen
    except Exception as problem:
        log.exception("showing a task of the lab failed: %s", name)
        last = Ended(problem=not_shown(problem))
    finally:
        handle.cancel()
        session.tasks.pop(name, None)
    try:
        seen = closing(last)
    except Exception as problem:
        log.exception("showing a result of the lab failed: %s", name)
        seen = closing(Ended(problem=not_shown(problem)))
    yield seen


def stop(session: Session, name: str) -> None:
    """Ends the session's task of this name within a round, if there is one; it then returns what it has."""
    handle = session.tasks.get(name)
    if handle is not None:
        handle.cancel()


def news(batch: list[Event]) -> list[object]:
    """What the task put."""
    return [event.value for event in batch if isinstance(event, News)]


def ended(batch: list[Event]) -> Ended | None:
    """The task's end, if it is in this batch."""
    return batch[-1] if batch and isinstance(batch[-1], Ended) else None


def ahead(batch: list[Event]) -> int | None:
    """How many jobs are served before this task, if that is news."""
    waits = [event.ahead for event in batch if isinstance(event, Queued)]
    return waits[-1] if waits else None


def waiting(desk: Desk, waits: int, what: str) -> str:
    """The status line of a task that is not served yet. what: is to be done, as in "race"."""
    now = desk.worker.status()
    if now.state == "loading":
        return status_line("loading", f"Loading: {now.message.rstrip('.')}. The {what} comes next.")
    before = f"{waits} replies or measurements are" if waits > 1 else "a reply or another measurement is"
    return status_line("queued", f"Waiting: {before} finished first, so that nothing disturbs the {what}.")


def not_shown(problem: Exception) -> str:
    """A sentence for a fault in the page itself."""
    return f"The page could not show it ({type(problem).__name__}); the terminal has the details."


def sentence(title: str, text: str) -> str:
    """A board with nothing but a sentence to show."""
    return f'<p class="sc-error" role="alert"><b>{escape(title)}</b> {escape(text)}</p>'


def fitting(settings: Settings, pair: Pair) -> Settings:
    """The settings with a drafter that this pair has: its first in place of one that it has not."""
    known = settings.drafter in pair.drafters
    return settings if known else replace(settings, drafter=pair.default_drafter)


def is_loaded(desk: Desk, number: int) -> bool:
    """Is the pair of this number (`Pair.number`) the one that is loaded?"""
    pair = desk.worker.pair
    return pair is not None and pair.number == number
