"""The engine thread: loads the pair, then answers one job at a time, in order of arrival.

The models belong to this thread alone. Callers get a handle with an unbounded queue of events, so
delivery never blocks; whatever goes wrong arrives as a last `Done` with a sentence, and the thread goes on.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specchat.chat.template import NothingToAnswer, PromptTooLong
from specchat.jobs import (
    Done,
    Ended,
    Event,
    Handle,
    Job,
    Live,
    News,
    Queued,
    Reading,
    State,
    Step,
    Task,
    WorkerStatus,
)
from specchat.model.errors import ModelError, sentence
from specchat.reply import reply

if TYPE_CHECKING:
    # Not at run time: it brings transformers, which a page that is still coming up does not need yet.
    from specchat.pair import Memory, Pair

__all__ = [
    "Done", "Ended", "Event", "Handle", "Job", "Live", "News", "Queued", "Reading", "Step", "Task", "Worker",
    "WorkerStatus",
]  # fmt: skip

log = logging.getLogger(__name__)

CLOSING = "SpecChat is shutting down."

Load = Callable[[Callable[[str], None]], "Pair"]
"""Loads a pair and reports its progress in sentences; runs in the engine thread."""


@dataclass(slots=True)
class _Shared:
    """What other threads see, under one lock."""

    state: State = "loading"
    message: str = "Starting"
    since: float = field(default_factory=time.perf_counter)
    waiting: deque[Handle] = field(default_factory=deque)
    pair: Pair | None = None
    closed: bool = False
    exchange: tuple[Load, Future[str]] | None = None
    """How to load another pair as soon as nothing is being written, and where to tell how it went."""


class Worker:
    """Owns the pair."""

    _current: Handle | None = None
    """The job being answered."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._shared = _Shared()
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -- for every other thread -------------------------------------------------------------------

    def submit(self, job: Job | Task) -> Handle:
        """Queues a reply or a task. Its first event may be Queued; its last is always Done, or Ended for a task."""
        handle = Handle(job, self._forget)
        with self._wake:
            shared = self._shared
            if shared.state == "failed" or shared.closed:
                handle.fail(CLOSING if shared.closed else shared.message)
                return handle
            ahead = len(shared.waiting) + (shared.state == "busy")
            shared.waiting.append(handle)
            if ahead or shared.state == "loading":
                handle._put(Queued(ahead))
            self._wake.notify()
        return handle

    def exchange(self, load: Load) -> Future[str]:
        """Loads another pair when the reply in flight has ended; what waits is answered by the new one.

        The old pair goes first, so that both need not fit in memory. If the new one cannot be had, the old one is
        loaded again. The future runs while the pair is loaded and then holds "", or a sentence that says why not.
        Until it runs it can be cancelled, as another exchange and the end of the program do.
        """
        future: Future[str] = Future()
        with self._wake:
            self._withdraw()
            self._shared.exchange = load, future
            if self._shared.closed:
                self._withdraw()
            self._wake.notify_all()
        return future

    def status(self) -> WorkerStatus:
        """A consistent snapshot."""
        with self._wake:
            shared, now = self._shared, time.perf_counter()
            return WorkerStatus(shared.state, shared.message, len(shared.waiting), now - shared.since)

    @property
    def pair(self) -> Pair | None:
        """The loaded pair, for its name, drafters and sizes; None while loading. Its models are not to be called."""
        return self._shared.pair

    def memory(self) -> Memory | None:
        """Where the memory is; None while loading."""
        pair = self._shared.pair
        return None if pair is None else pair.memory()

    def wait_ready(self, timeout: float) -> bool:
        """Blocks until the pair is loaded (True) or failed or the time is over (False). For terminals and tests."""
        with self._wake:
            self._wake.wait_for(lambda: self._shared.state != "loading", timeout)
            return self._shared.state in ("ready", "busy")

    def close(self, timeout: float = 10) -> None:
        """Ends the thread after the job in flight is cancelled; waiting jobs end with a sentence."""
        with self._wake:
            self._shared.closed = True
            self._shared.message = CLOSING
            self._withdraw()
            for handle in (*self._shared.waiting, *([self._current] if self._current else [])):
                handle._cancelled.set()
            self._wake.notify_all()
        self._thread.join(timeout)

    def _forget(self, handle: Handle) -> None:
        """A waiting job that was cancelled ends now, without waiting for its turn."""
        with self._wake:
            if handle not in self._shared.waiting:
                return
            self._shared.waiting.remove(handle)
            self._renumber()
        handle.drop()

    # -- the engine thread ------------------------------------------------------------------------

    def _run(self) -> None:
        self._open(self._load)
        shared = self._shared
        while True:
            with self._wake:
                self._wake.wait_for(self._wanted)
                if shared.closed:
                    break
                exchange, shared.exchange = shared.exchange, None
                if exchange is None:
                    handle = self._current = shared.waiting.popleft()
                    self._renumber()
                    doing = handle.job.doing if isinstance(handle.job, Task) else "Answering"
                    self._enter("busy", doing)
            if exchange is not None:
                if exchange[1].set_running_or_notify_cancel():
                    exchange[1].set_result(self._exchange(exchange[0]))
                continue
            assert shared.pair is not None
            self._answer(shared.pair, handle)
            del handle
            with self._wake:
                self._current = None
                if shared.state == "busy":
                    self._enter("ready", "Ready")
        self._drain(CLOSING)

    def _wanted(self) -> bool:
        """Whether the engine thread has something to do."""
        shared = self._shared
        return bool(shared.waiting or shared.closed or shared.exchange)

    def _exchange(self, load: Load) -> str:
        """Says why the new pair is not there, "" if it is."""
        from specchat.model.memory import give_back

        before = self._load if self._shared.pair is not None else None
        with self._wake:
            self._shared.pair = None
            self._enter("loading", "Making room for the new pair")
        give_back()
        problem = self._open(load, last=before is None)
        if not problem:
            self._load = load
        elif before is not None:
            with self._wake:
                self._enter("loading", "Loading the pair from before again")
            lost = self._open(before)
            told = f"Nor could the pair from before: {lost}" if lost else "The pair from before is back."
            self._progress(f"The new pair could not be loaded: {problem} {told}")
        return problem

    def _open(self, load: Load, last: bool = True) -> str:
        """Loads; a sentence when it fails. last: there is nothing else to try, so what waits is told."""
        try:
            pair = load(self._progress)
            with self._wake:
                self._shared.pair = pair
                self._enter("ready", "Ready")
            return ""
        except Exception as problem:
            # What a person can mend (a wrong path, no room) is a sentence; anything else deserves its traceback.
            log.error("loading failed: %s", problem, exc_info=not isinstance(problem, ModelError))
            said = sentence(problem)
        gc.collect()
        if last:
            with self._wake:
                self._enter("failed", said)
            self._drain(said)
        return said

    def _progress(self, message: str) -> None:
        with self._wake:
            self._shared.message = message

    def _enter(self, state: State, message: str) -> None:
        self._shared.state, self._shared.message, self._shared.since = state, message, time.perf_counter()
        self._wake.notify_all()

    def _renumber(self) -> None:
        busy = self._current is not None
        for place, handle in enumerate(self._shared.waiting):
            handle._put(Queued(place + busy))

    def _answer(self, pair: Pair, handle: Handle) -> None:
        """One job, whatever happens ending in one last event."""
        problem, job = None, handle.job
        try:
            if isinstance(job, Task):
                value = job.run(pair, handle.cancelled, lambda value: handle._put(News(value)))
                handle._put(Ended(value, cancelled=handle.cancelled()))
            else:
                handle._put(reply(pair, job, handle.cancelled, handle._put))
        except (PromptTooLong, NothingToAnswer) as caught:
            problem = str(caught)
        except Exception as caught:
            log.exception("the reply or task failed")
            problem = sentence(caught)
        if problem is not None:
            # Outside the except block: the traceback, with the frames and tensors it pins, is gone by now.
            gc.collect()
            handle.fail(problem)

    def _drain(self, said: str) -> None:
        """Everything that waits ends with a sentence."""
        with self._wake:
            for handle in self._shared.waiting:
                handle.fail(said)
            self._shared.waiting.clear()

    def _withdraw(self) -> None:
        """Forgets an exchange that has not begun. Under the lock."""
        if self._shared.exchange is not None:
            self._shared.exchange[1].cancel()
            self._shared.exchange = None
