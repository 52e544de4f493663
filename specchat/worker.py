"""The engine thread: loads the pair, then answers one job at a time, in order of arrival.

The models belong to this thread alone. Callers get a handle with an unbounded queue of events, so
delivery never blocks; whatever goes wrong arrives as a last `Done` with a sentence, and the thread goes on.
"""

from __future__ import annotations

import gc
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specchat.chat.conversation import Message
from specchat.chat.stream import ReplyStream
from specchat.chat.template import NothingToAnswer, PromptTooLong
from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats
from specchat.jobs import Done, Event, Job, Live, Queued, Reading, State, Step, WorkerStatus
from specchat.model.errors import ModelError, readable, sentence

if TYPE_CHECKING:
    # Not at run time: it brings transformers, which a page that is still coming up does not need yet.
    from specchat.pair import Memory, Pair

__all__ = [
    "Done",
    "Event",
    "Handle",
    "Job",
    "Live",
    "Queued",
    "Reading",
    "Step",
    "Worker",
    "WorkerStatus",
    "reply",
]

log = logging.getLogger(__name__)


CLOSING = "SpecChat is shutting down."


class Handle:
    """A submitted job, from the caller's side."""

    def __init__(self, worker: Worker, job: Job) -> None:
        self._worker = worker
        self.job = job
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self.done = threading.Event()

    def cancel(self) -> None:
        """Stops the job within one round (at once while it waits). Never blocks; may be called from any thread."""
        self._cancelled.set()
        self._worker._forget(self)

    def cancelled(self) -> bool:
        """Whether cancel was called."""
        return self._cancelled.is_set()

    def events(self, timeout: float | None = None) -> Iterator[Event | None]:
        """Every event up to and including Done. With a timeout (seconds), None whenever that long nothing came."""
        while True:
            try:
                event = self._events.get(timeout=timeout)
            except queue.Empty:
                yield None
                continue
            yield event
            if isinstance(event, Done):
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
        if isinstance(event, Done):
            self.done.set()


@dataclass(slots=True)
class _Shared:
    """What other threads see, under one lock."""

    state: State = "loading"
    message: str = "Starting"
    since: float = field(default_factory=time.perf_counter)
    waiting: deque[Handle] = field(default_factory=deque)
    pair: Pair | None = None
    closed: bool = False


class Worker:
    """Owns the pair. `load` runs in the engine thread and reports its progress in sentences."""

    _current: Handle | None = None
    """The job being answered."""

    def __init__(self, load: Callable[[Callable[[str], None]], Pair]) -> None:
        self._load = load
        self._shared = _Shared()
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -- for every other thread -------------------------------------------------------------------

    def submit(self, job: Job) -> Handle:
        """Queues a job. Its first event may be Queued; its last is always Done."""
        handle = Handle(self, job)
        with self._wake:
            shared = self._shared
            if shared.state == "failed" or shared.closed:
                handle._put(_failed(CLOSING if shared.closed else shared.message))
                return handle
            ahead = len(shared.waiting) + (shared.state == "busy")
            shared.waiting.append(handle)
            if ahead or shared.state == "loading":
                handle._put(Queued(ahead))
            self._wake.notify()
        return handle

    def status(self) -> WorkerStatus:
        """A consistent snapshot."""
        with self._wake:
            shared = self._shared
            return WorkerStatus(
                shared.state, shared.message, len(shared.waiting), time.perf_counter() - shared.since
            )

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
        handle._put(_ended(Finished("cancelled", 0, 0.0, 0, 0)))

    # -- the engine thread ------------------------------------------------------------------------

    def _run(self) -> None:
        pair = self._open()
        if pair is None:
            return
        while True:
            with self._wake:
                self._current = None
                self._wake.wait_for(lambda: bool(self._shared.waiting) or self._shared.closed)
                if self._shared.closed:
                    break
                handle = self._current = self._shared.waiting.popleft()
                self._renumber()
                self._enter("busy", "Answering")
            self._answer(pair, handle)
            del handle
            with self._wake:
                if self._shared.state == "busy":
                    self._enter("ready", "Ready")
        self._drain_closed()

    def _open(self) -> Pair | None:
        try:
            pair = self._load(self._progress)
            with self._wake:
                self._shared.pair = pair
                self._enter("ready", "Ready")
            return pair
        except Exception as problem:
            # What a person can mend (a wrong path, no room) is a sentence; anything else deserves its traceback.
            log.error("loading failed: %s", problem, exc_info=not isinstance(problem, ModelError))
            with self._wake:
                self._enter("failed", sentence(problem))
                for handle in self._shared.waiting:
                    handle._put(_failed(self._shared.message))
                self._shared.waiting.clear()
            return None

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
        """One job, whatever happens ending in one Done."""
        problem = None
        try:
            done = reply(pair, handle.job, handle.cancelled, handle._put)
        except (PromptTooLong, NothingToAnswer) as caught:
            problem = str(caught)
        except Exception as caught:
            log.exception("the reply failed")
            problem = sentence(caught)
        if problem is not None:
            # Outside the except block: the traceback, with the frames and tensors it pins, is gone by now.
            gc.collect()
            done = _failed(problem)
        handle._put(done)

    def _drain_closed(self) -> None:
        with self._wake:
            for handle in self._shared.waiting:
                handle._put(_failed(CLOSING))
            self._shared.waiting.clear()


def reply(pair: Pair, job: Job, cancelled: Callable[[], bool], put: Callable[[Event], None]) -> Done:
    """Messages to ids, rounds to text: one reply on the calling thread (the terminal uses it without a worker)."""
    room = pair.room(job.live.get().max_new_tokens)
    prompt = pair.template.encode(job.messages, job.system, room)
    put(Reading(len(prompt.ids), prompt.dropped_turns, prompt.notes))
    stream = ReplyStream(pair.tokenizer, pair.eos_ids, (*job.stop_strings, *prompt.stop_strings))
    stats, problem = Stats(), ""
    try:
        for event in pair.engine.generate(prompt.ids, job.live.get, stream.stop, cancelled):
            if isinstance(event, Round):
                stats.add(event)
                put(Step(event, stream.pieces(event)))
            else:
                finished = event
    except Exception as caught:
        log.exception("the reply failed")
        problem = sentence(caught)
    if problem:
        finished = Finished("error", stats.emitted, stats.elapsed_s, 0, 0, problem)
    elif finished.reason == "error":
        finished = replace(finished, notice=readable(finished.notice))
    tail = stream.finish()
    pair.learn(stats)
    return Done(finished, stream.message(), stats, tail)


def _failed(sentence: str) -> Done:
    return _ended(Finished("error", 0, 0.0, 0, 0, sentence))


def _ended(finished: Finished) -> Done:
    """A job that ended before its first token."""
    return Done(finished, Message("assistant", ""), Stats())
