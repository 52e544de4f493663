"""Work that is no reply, and another pair in place of the old one."""

from __future__ import annotations

import threading
import weakref
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


def broken(progress: Callable[[str], None]) -> Pair:
    raise ValueError("No such folder.")


def test_an_exchange_tells_when_it_is_over_and_how_it_went(start: Callable[[Pair], Worker]) -> None:
    worker, new = start(pair_of()), pair_of()
    assert worker.exchange(lambda progress: new).result(SOON) == ""
    assert worker.pair is new
    assert worker.exchange(broken).result(SOON) == "No such folder."
    assert worker.pair is new, "the one that was chosen last and worked is loaded again"


def test_the_reply_in_flight_ends_first_and_the_exchange_can_be_withdrawn_until_then(
    start: Callable[[Pair], Worker],
) -> None:
    old, new = pair_of(), pair_of()
    worker = start(old)
    go, began, seen = threading.Event(), threading.Event(), []

    def run(pair: Pair, *_: object) -> object:
        began.set()
        go.wait(SOON)
        seen.append(pair is old and worker.pair is old)
        return None

    task = worker.submit(Task(run))
    assert began.wait(SOON)
    first, second = worker.exchange(broken), worker.exchange(broken)
    assert first.cancelled(), "a later choice takes the place of an earlier one"
    assert second.cancel()
    third = worker.exchange(lambda progress: new)
    assert not third.running()
    go.set()
    assert list(task.events())[-1] == Ended()
    assert third.result(SOON) == "" and seen == [True] and worker.pair is new


def test_a_failed_start_is_not_tried_again_when_another_choice_fails_too() -> None:
    tries = []

    def start(progress: Callable[[str], None]) -> Pair:
        tries.append(1)
        raise ValueError("The first one is not there.")

    worker = Worker(start)
    assert not worker.wait_ready(SOON)
    assert worker.exchange(broken).result(SOON) == "No such folder."
    assert (worker.status().state, worker.status().message, tries) == ("failed", "No such folder.", [1])
    pair = pair_of()
    assert worker.exchange(lambda progress: pair).result(SOON) == ""
    assert done_of(worker.submit(job())).message == cold(job()).message
    worker.close()


def test_when_neither_pair_can_be_had_both_reasons_are_told_and_the_thread_goes_on() -> None:
    pair, tries = pair_of(), []

    def once(progress: Callable[[str], None]) -> Pair:
        tries.append(1)
        if len(tries) > 1:
            raise ValueError("The disk is gone.")
        return pair

    worker = Worker(once)
    assert worker.wait_ready(SOON)
    assert worker.exchange(broken).result(SOON) == "No such folder."
    status = worker.status()
    assert status.state == "failed" and worker.pair is None
    assert "No such folder." in status.message and "The disk is gone." in status.message
    assert worker.exchange(lambda progress: pair).result(SOON) == ""
    worker.close()


def test_closing_ends_an_exchange_that_waits() -> None:
    worker = Worker(lambda progress: pair_of())
    began = threading.Event()

    def run(pair: Pair, cancelled: Callable[[], bool], put: Callable[[object], None]) -> object:
        began.set()
        while not cancelled():
            threading.Event().wait(0.01)
        return None

    worker.submit(Task(run))
    assert began.wait(SOON)
    waiting = worker.exchange(broken)
    worker.close()
    assert waiting.cancelled() and worker.exchange(broken).cancelled()


def test_the_old_pair_is_gone_before_the_new_one_is_loaded() -> None:
    pair = pair_of()
    target, alive = weakref.ref(pair.target), []
    worker = Worker(lambda progress: pair_of())
    assert worker.wait_ready(SOON)
    assert worker.exchange(lambda progress, kept=[pair]: kept.pop()).result(SOON) == ""
    del pair
    done_of(worker.submit(job()))

    def load(progress: Callable[[str], None]) -> Pair:
        alive.append(target() is not None)
        return pair_of()

    assert worker.exchange(load).result(SOON) == ""
    assert alive == [False]
    worker.close()
