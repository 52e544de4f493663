"""A failure costs one reply at most, is told in a sentence and leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from specchat.chat.conversation import Message
from specchat.pair import Pair
from specchat.worker import Done, Job, Live, Worker
from tests.fakes import Watched, failing
from tests.rigs import noisy, runner, tiny
from tests.worker.jobs import (
    GREEDY,
    cold,
    done_of,
    events_of,
    job,
    pair_of,
    shown,
    tensors,
)

PROBLEMS = [ValueError("no such luck"), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("call", [1, 2, 5])
def test_a_failing_target_ends_in_a_sentence_and_the_next_job_works(
    start: Callable[[Pair], Worker], problem: Exception, call: int
) -> None:
    """Before the first token (call 1 reads the prompt) and in the middle of the reply."""
    worker = start(pair_of(failing(runner(tiny(), 512), call, problem)))
    began = time.perf_counter()
    events = events_of(worker.submit(job()))
    assert time.perf_counter() - began < 5, "the error came late"
    done = events[-1]
    assert isinstance(done, Done) and done.finished.reason == "error" and done.finished.notice
    assert "Traceback" not in done.finished.notice
    if isinstance(problem, torch.OutOfMemoryError):
        assert done.finished.notice.startswith("Memory ran out."), "what to do, not the library's words"
    assert shown(events) == done.message.content, "the partial text is kept"
    assert (done.message.content != "") == (call > 2)
    assert done_of(worker.submit(job())).message == cold(job()).message
    assert worker.status().state in ("ready", "busy")


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
@pytest.mark.parametrize("call", [1, 3, 8])
def test_a_failing_draft_costs_a_notice_and_nothing_else(
    start: Callable[[Pair], Worker], problem: Exception, call: int
) -> None:
    worker = start(pair_of(draft=failing(runner(noisy(), 512), call, problem)))
    done = done_of(worker.submit(job()))
    assert done.message == cold(job()).message and done.finished.reason != "error"
    assert "draft failed" in done.finished.notice
    again = done_of(worker.submit(job("once more")))
    assert again.finished.notice == "" and again.stats.drafted > 0


def test_a_conversation_that_cannot_be_answered_says_why(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of())
    for task, words in [
        (Job((Message("user", "  "),), Live(GREEDY)), "no message to answer"),
        (Job((), Live(GREEDY)), "no message to answer"),
        (job("far too long " * 200), "fit"),
    ]:
        done = done_of(worker.submit(task))
        assert done.finished.reason == "error" and words in done.finished.notice.lower()
    assert done_of(worker.submit(job())).message == cold(job()).message


def test_nothing_of_a_failed_job_stays_alive(start: Callable[[Pair], Worker]) -> None:
    problems = iter(range(1, 10_000))
    target = Watched(runner(tiny(), 512), lambda call: _raise_at(call, problems))
    worker = start(pair_of(target))
    for _ in range(3):
        done_of(worker.submit(job()))
    before = tensors()
    for _ in range(10):
        assert done_of(worker.submit(job())).finished.reason == "error"
    assert abs(tensors() - before) <= 4, "failed jobs leave tensors behind"


def _raise_at(call: int, problems: Iterator[int]) -> None:
    if call % 4 == 0:
        raise torch.OutOfMemoryError(f"out of memory, {next(problems)}")
