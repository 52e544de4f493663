"""What every tab behind the chat is, and how one follows a task of the lab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from specchat.ui.desk import Desk
from specchat.ui.session import Session
from specchat.ui.sidebar import Controls
from specchat.ui.stream import batches
from specchat.worker import Ended, Event, News, Queued, Task


class Tab(Protocol):
    """Built inside its `gr.Tab`; `wire` binds its handlers."""

    def __init__(self, desk: Desk, controls: Controls) -> None: ...

    def wire(self) -> None: ...


def follow(desk: Desk, session: Session, name: str, task: Task) -> Iterator[list[Event]]:
    """Submits a task and yields its events as they come, [] now and then when there are none; the last is `Ended`.

    name: what `stop` ends it by; one task of a name at a time for a session (a second one yields nothing). A
    closed tab cancels it.
    """
    if name in session.tasks:
        return
    handle = session.tasks[name] = desk.worker.submit(task)
    try:
        yield from batches(handle)
    finally:
        handle.cancel()
        session.tasks.pop(name, None)


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
