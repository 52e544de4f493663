"""The engine thread: loading, order, live settings, stopping, closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.model.errors import BadCheckpoint
from specchat.pair import Pair
from specchat.worker import Done, Queued, Step, Worker
from tests.fakes import Watched, slow
from tests.rigs import runner, tiny
from tests.worker.jobs import (
    SOON,
    TOKENIZER,
    cold,
    done_of,
    done_text,
    events_of,
    idle,
    job,
    pair_of,
    shown,
    steps_until,
    tensors,
)


def test_jobs_are_answered_one_at_a_time_in_order_and_know_their_place(
    start: Callable[[Pair], Worker],
) -> None:
    gate = threading.Event()
    target = Watched(runner(tiny(), 512), lambda call: gate.wait(SOON) and None)
    worker = start(pair_of(target))
    handles = [worker.submit(job(text)) for text in ("one", "two", "three")]
    time.sleep(0.05)
    assert worker.status().state == "busy" and worker.status().waiting == 2
    gate.set()
    ends = []
    for handle in handles:
        ends.append((events_of(handle), worker.status()))
    assert [done_text(events) for events, _ in ends] == [
        cold(job(text)).message.content for text in ("one", "two", "three")
    ]
    last = [event.ahead for event in ends[2][0] if isinstance(event, Queued)]
    assert last == sorted(last, reverse=True) and (last[0], last[-1]) == (2, 1), "the number ahead goes down"
    assert worker.status().waiting == 0


def test_settings_of_a_reply_in_flight_apply_at_its_next_round(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of(slow(runner(tiny(), 512), 0.01)))
    task = job(settings=Settings(4, Sampling(0.0), "model", 60))
    handle, rounds, switched = worker.submit(task), [], None
    for event in handle.events(SOON):
        if isinstance(event, Step):
            rounds.append(event.round)
            if len(rounds) == 3:
                task.live.set(Settings(1, Sampling(0.0), "model", 60))
                switched = event.round.index
    assert switched is not None
    gammas = [event.gamma for event in rounds]
    changed = [event.index for event in rounds if event.settings_changed]
    assert gammas[:3] == [4, 4, 4] and 1 in gammas and len(changed) == 1
    assert changed[0] - switched <= 2 and set(gammas[changed[0] :]) <= {0, 1}
    text = cold(job(settings=Settings(4, Sampling(0.0), "model", 60))).message.content
    assert (
        "".join(TOKENIZER.decode([t.id for r in rounds for t in r.tokens], skip_special_tokens=True)) == text
    )


def test_a_job_may_come_while_the_models_are_loading() -> None:
    gate = threading.Event()

    def load(progress: Callable[[str], None]) -> Pair:
        assert threading.current_thread().name == "engine", "models are loaded where they are used"
        progress("Reading weights")
        gate.wait(SOON)
        return pair_of()

    worker = Worker(load)
    handle = worker.submit(job())
    assert not worker.wait_ready(0.05) and worker.pair is None and worker.memory() is None
    assert worker.status().state == "loading" and worker.status().message == "Reading weights"
    gate.set()
    assert done_of(handle).message == cold(job()).message
    assert worker.wait_ready(SOON) and worker.status().state in ("ready", "busy") and worker.pair is not None
    worker.close()


def test_a_pair_that_cannot_be_loaded_answers_every_job_with_the_reason() -> None:
    gate = threading.Event()

    def load(progress: Callable[[str], None]) -> Pair:
        gate.wait(SOON)
        raise BadCheckpoint("The file x is truncated; fetch it again.")

    worker = Worker(load)
    waiting = worker.submit(job())
    gate.set()
    for handle in (waiting, worker.submit(job())):
        done = done_of(handle)
        assert done.finished.reason == "error" and "truncated" in done.finished.notice
    assert not worker.wait_ready(SOON) and worker.status().state == "failed"
    assert "truncated" in worker.status().message
    assert done_of(worker.submit(job())).finished.reason == "error"
    worker.close()


def test_stop_takes_effect_within_a_round_and_keeps_the_partial_text(start: Callable[[Pair], Worker]) -> None:
    target = slow(runner(tiny(), 512), 0.02)
    worker = start(pair_of(target))
    long = Settings(2, Sampling(0.0), "model", 400)
    handle = worker.submit(job(settings=long))
    before = steps_until(handle, 3)
    calls = target.calls
    handle.cancel()
    rest = events_of(handle)
    assert target.calls - calls <= 1, "a round was begun after the stop"
    done = rest[-1]
    assert isinstance(done, Done) and done.finished.reason == "cancelled"
    assert shown([*before, *rest]) == done.message.content != ""
    assert done.finished.emitted == done.stats.emitted >= 3
    follow = job("go on", before=(*handle.job.messages, done.message))
    assert done_of(worker.submit(follow)).message == cold(follow).message, (
        "the next turn differs from a cold engine's"
    )
    handle.cancel()
    assert handle.drain() == [], "a second stop does nothing"


def test_a_waiting_job_that_is_stopped_ends_at_once(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of(slow(runner(tiny(), 512), 0.02)))
    running = worker.submit(job(settings=Settings(0, Sampling(0.0), "model", 400)))
    first, second = worker.submit(job("a")), worker.submit(job("b"))
    steps_until(running, 1)
    first.cancel()
    assert done_of(first).finished.reason == "cancelled" and not running.done.is_set()
    assert [event.ahead for event in second.drain() if isinstance(event, Queued)][-1] == 1
    running.cancel()
    assert done_of(second).message == cold(job("b")).message


def test_fifty_stopped_and_abandoned_replies_leave_nothing_behind(start: Callable[[Pair], Worker]) -> None:
    """Some are stopped, some never read at all: threads and tensors stay as many as they were."""
    worker = start(pair_of())
    done_of(worker.submit(job()))
    threads = threading.active_count()
    counts = []
    for cycle in range(50):
        handle = worker.submit(job(f"number {cycle}", Settings(3, Sampling(1.0, seed=cycle), "chain", 60)))
        if cycle % 2:
            steps_until(handle, 1)
        handle.cancel()
        assert handle.done.wait(SOON), "a job whose events nobody reads never ended"
        del handle
        if cycle in (9, 49):
            done_of(worker.submit(job()))
            idle(worker)
            counts.append(tensors())
    assert threading.active_count() == threads
    assert abs(counts[1] - counts[0]) <= 4, f"{counts[1] - counts[0]} more tensors after 40 more cycles"
    assert done_of(worker.submit(job())).message == cold(job()).message


def test_a_reply_that_nobody_reads_still_ends(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of())
    unread = worker.submit(job())
    assert unread.done.wait(SOON)
    assert done_of(worker.submit(job())).message == done_of(unread).message


def test_closing_stops_the_job_in_flight_and_tells_those_that_wait(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of(slow(runner(tiny(), 512), 0.02)))
    running = worker.submit(job(settings=Settings(0, Sampling(0.0), "model", 400)))
    waiting = worker.submit(job())
    steps_until(running, 1)
    worker.close()
    assert done_of(running).finished.reason == "cancelled"
    for handle in (waiting, worker.submit(job())):
        assert "shutting down" in done_of(handle).finished.notice, "waiting, or submitted after the end"
    assert not worker._thread.is_alive()
