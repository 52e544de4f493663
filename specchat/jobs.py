"""What goes into the worker and what comes out: a reply to write or another task, and the events of each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specchat.chat.conversation import Message
from specchat.chat.stream import Piece
from specchat.decode.engine import Settings
from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats

if TYPE_CHECKING:
    from specchat.pair import Pair

State = Literal["loading", "ready", "busy", "failed"]


class Live:
    """The settings in force, shared by a page (which sets them) and the engine (which reads them once a round)."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()

    def get(self) -> Settings:
        """The settings as they are now."""
        return self._settings

    def set(self, settings: Settings) -> None:
        """Takes effect at the next round of a reply in flight. Replaces one immutable value by another."""
        self._settings = settings


class Watch:
    """Reads the settings for one reply, once a round, and remembers what it read last."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.last = live.get()

    def __call__(self) -> Settings:
        """The settings as they are now."""
        self.last = self._live.get()
        return self.last


@dataclass(frozen=True, slots=True)
class Job:
    """A conversation to be continued. messages ends with the user's turn."""

    messages: tuple[Message, ...]
    live: Live
    system: str = ""
    stop_strings: tuple[str, ...] = ()
    compare_every: int = 0
    """Of so many rounds one is plain, for the yardstick; 0 is none."""


@dataclass(frozen=True, slots=True)
class Task:
    """Other work for the engine thread, as the lab has it: `run(pair, cancelled, put)`.

    What it puts arrives as `News`, what it returns as the last event, `Ended`. It asks `cancelled` at least once a
    round, and then returns what it has. An exception ends it with a sentence.
    """

    run: Callable[[Pair, Callable[[], bool], Callable[[object], None]], object]
    doing: str = "Measuring"
    """What the status line of other tabs says meanwhile."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Waiting: how many jobs are served before this one."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt is about to be read: its length in ids, whole turns dropped to make it fit, remarks."""

    prompt_tokens: int
    dropped_turns: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One round, and the text that each of its tokens completed."""

    round: Round
    pieces: tuple[Piece, ...]
    settings: Settings | None = None
    """What was in force in this round."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end. message is the reply as a turn of the conversation; finished.notice may hold a sentence."""

    finished: Finished
    message: Message
    stats: Stats
    tail: str = ""
    """The last piece of text, which no token completed (a held-back stop prefix, half a character)."""


@dataclass(frozen=True, slots=True)
class News:
    """Something that a task put."""

    value: object


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a task: what it returned, or a sentence that says why it could not. cancelled: it was asked to stop."""

    value: object = None
    problem: str = ""
    cancelled: bool = False


Event = Queued | Reading | Step | Done | News | Ended


class Handle:
    """A submitted job or task, from the caller's side."""

    def __init__(self, job: Job | Task, forget: Callable[[Handle], None]) -> None:
        self._forget = forget
        self.job = job
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self.done = threading.Event()

    def cancel(self) -> None:
        """Stops the job within one round (at once while it waits). Never blocks; may be called from any thread."""
        self._cancelled.set()
        self._forget(self)

    def cancelled(self) -> bool:
        """Whether cancel was called."""
        return self._cancelled.is_set()

    def events(self, timeout: float | None = None) -> Iterator[Event | None]:
        """Every event up to and including Done or Ended. With a timeout (seconds), None whenever that long nothing came."""
        while True:
            try:
                event = self._events.get(timeout=timeout)
            except queue.Empty:
                yield None
                continue
            yield event
            if isinstance(event, Done | Ended):
                return

    def drain(self) -> list[Event]:
        """What has arrived since the last call, without waiting."""
        found: list[Event] = []
        while True:
            try:
                found.append(self._events.get_nowait())
            except queue.Empty:
                return found

    def _put(self, event: Event) -> None:
        self._events.put(event)
        if isinstance(event, Done | Ended):
            self.done.set()

    def fail(self, sentence: str) -> None:
        """Ends it with a sentence, before its first token."""
        if isinstance(self.job, Task):
            self._put(Ended(problem=sentence))
        else:
            self._put(ended_before(Finished("error", 0, 0.0, 0, 0, sentence)))

    def drop(self) -> None:
        """Ends it as cancelled, before its first token."""
        if isinstance(self.job, Task):
            self._put(Ended(cancelled=True))
        else:
            self._put(ended_before(Finished("cancelled", 0, 0.0, 0, 0)))


def ended_before(finished: Finished) -> Done:
    """A reply that ended before its first token."""
    return Done(finished, Message("assistant", ""), Stats())


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a page shows before and between replies."""

    state: State
    message: str
    waiting: int
    seconds: float
    """Seconds since the state was entered."""
