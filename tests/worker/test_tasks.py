"""Work that is no reply, and another pair in place of the old one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from specchat.pair import Pair
from specchat.worker import Ended, News, Queued, Task, Worker
from tests.worker.jobs import SOON, cold, done_of, job, pair_of


def last_of(worker: Worker, task: Task) -> Ended:
    *_, last = worker.submit(task).events()
    assert isinstance(last, Ended)
    return last


def test_a_task_runs_in_the_engine_thread_with_the_pair_and_reports(start: Callable[[Pair], Worker]) -> None:
    pair = pair_of()
    worker = start(pair)

    def run(given: Pair, cancelled: Callable[[], bool], put: Callable[[object], None]) -> object:
        assert given is pair and threading.current_thread().name == "engine" and not cancelled()
        assert worker.status().message == "Racing"
        put("half way")
        return 42

    events = [e for e in worker.submit(Task(run, "Racing")).events() if not isinstance(e, Queued)]
    assert events == [News("half way"), Ended(42)]
    assert done_of(worker.submit(job())).message == cold(job()).message


def test_a_task_that_fails_is_a_sentence_and_the_next_job_works(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of())
    last = last_of(worker, Task(lambda *_: 1 / 0))
    assert last.value is None and "division" in last.problem
    assert done_of(worker.submit(job())).message == cold(job()).message


def test_a_task_is_cancelled_in_flight_and_while_it_waits(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of())
    began, stopped = threading.Event(), threading.Event()

    def run(_: Pair, cancelled: Callable[[], bool], put: Callable[[object], None]) -> object:
        began.set()
        while not cancelled():
            stopped.wait(0.01)
        return "so far"

    first = worker.submit(Task(run))
    assert began.wait(SOON)
    second = worker.submit(Task(run))
    second.cancel()
    assert list(second.events())[-1] == Ended(cancelled=True)
    first.cancel()
    assert list(first.events())[-1] == Ended("so far", cancelled=True)


def test_another_pair_takes_the_place_of_the_old_one(start: Callable[[Pair], Worker]) -> None:
    old, new = pair_of(), pair_of()
    worker = start(old)
    seen = []

    def load(progress: Callable[[str], None]) -> Pair:
        seen.append(worker.pair)
        progress("Fetching")
        return new

    worker.exchange(load)
    assert done_of(worker.submit(job())).message == cold(job()).message
    assert worker.pair is new
    assert seen == [None], "the old pair went before the new one came"


def test_a_pair_that_cannot_be_had_brings_the_old_one_back_with_the_reason() -> None:
    pair, tries = pair_of(), []

    def load(progress: Callable[[str], None]) -> Pair:
        tries.append(1)
        return pair

    def broken(progress: Callable[[str], None]) -> Pair:
        raise ValueError("No such folder.")

    worker = Worker(load)
    assert worker.wait_ready(SOON)
    worker.exchange(broken)
    assert done_of(worker.submit(job())).message == cold(job()).message
    assert worker.pair is pair and len(tries) == 2
    worker.close()


def test_after_a_failed_start_another_pair_can_still_be_chosen() -> None:
    worker = Worker(lambda progress: 1 / 0)  # type: ignore[arg-type, return-value]
    assert not worker.wait_ready(SOON)
    assert worker.status().state == "failed"
    assert last_of(worker, Task(lambda *_: None)).problem
    pair = pair_of()
    worker.exchange(lambda progress: pair)
    with worker._wake:
        assert worker._wake.wait_for(lambda: worker._shared.state == "ready", SOON)
    assert done_of(worker.submit(job())).message == cold(job()).message
    worker.close()


def test_the_reason_is_told_when_the_old_pair_is_back() -> None:
    pair = pair_of()
    worker = Worker(lambda progress: pair)
    assert worker.wait_ready(SOON)

    def broken(progress: Callable[[str], None]) -> Pair:
        raise ValueError("No such folder.")

    worker.exchange(broken)
    with worker._wake:
        assert worker._wake.wait_for(lambda: "No such folder" in worker._shared.message, SOON)
    status = worker.status()
    assert status.state == "ready" and "back" in status.message
    worker.close()
