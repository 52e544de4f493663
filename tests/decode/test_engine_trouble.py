"""Failures, interruptions and other people's conversations: the next request is as on a cold engine."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from collections.abc import Iterator

import pytest
import torch

from specchat.decode.drafters import Forward
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Finished, Round
from specchat.decode.ids import Ids
from specchat.decode.sampling import Sampling
from tests.fakes import Script, Watched, arbitrary, failing
from tests.oracle import GREEDY, reference
from tests.rigs import check_caches, collect, engine_of, noisy, runner, tiny

PROMPT = [0, 1, 2, 0, 1]
LAW, OTHER = arbitrary(1, 5), arbitrary(2, 5)
SETTINGS = Settings(4, GREEDY, "model", 12)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The log keeps an exception's traceback, and with it its frames; expected failures stay out of it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def pair(target: Forward | None = None, draft: Forward | None = None) -> Engine:
    return engine_of(target or Script(LAW, 5), draft or Script(OTHER, 5))


def right(prompt: list[int], n: int = 12) -> list[int]:
    return reference(Script(LAW, 5), prompt, n).ids


def check_next_turn(engine: Engine, committed: list[int]) -> None:
    """A follow-up on what was written, and an unrelated prompt, answer as a cold engine would."""
    for prompt in ([*committed, 3, 3], [4, 4, 0]):
        reply = collect(engine, prompt, SETTINGS)
        assert reply.ids == right(prompt) and reply.finished.reason == "length"


# -- exceptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("no such luck"), torch.OutOfMemoryError("out of memory")], ids=repr
)
@pytest.mark.parametrize("call", range(1, 10))
@pytest.mark.parametrize("drafter", ["model", "chain"])
def test_a_failing_target_ends_the_reply_with_a_sentence_and_harms_no_other(
    error: Exception, call: int, drafter: str
) -> None:
    """Before the first token (call 1 reads the prompt), in any round, near the budget's end."""
    engine = pair(failing(Script(LAW, 5), call, error))
    reply = collect(engine, PROMPT, Settings(4, GREEDY, drafter, 12))
    if reply.finished.reason == "length":
        assert call > engine.target.calls, "the failure was swallowed"  # type: ignore[attr-defined]
        return
    assert (reply.finished.reason, reply.finished.notice) == ("error", str(error))
    assert reply.ids == right(PROMPT)[: len(reply.ids)], "what was written before the failure stays"
    check_next_turn(engine, [*PROMPT, *reply.ids])


@pytest.mark.parametrize("call", range(1, 14))
@pytest.mark.parametrize("drafter", ["model", "chain"])
def test_a_failing_draft_leaves_the_reply_whole_with_a_notice_and_is_tried_again(
    call: int, drafter: str
) -> None:
    draft = failing(Script(OTHER, 5), call, RuntimeError("draft trouble"))
    engine = pair(draft=draft)
    reply = collect(engine, PROMPT, Settings(4, GREEDY, drafter, 12))
    assert reply.ids == right(PROMPT) and reply.finished.reason == "length"
    if draft.calls >= call:
        assert "draft trouble" in reply.finished.notice and "without it" in reply.finished.notice
    check_next_turn(engine, [*PROMPT, *reply.ids])
    assert draft.calls > call, "the next request did not try the draft again"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit()], ids=repr)
def test_an_interrupt_passes_through_and_still_leaves_only_committed_ids(stop: BaseException) -> None:
    engine, committed = pair(failing(Script(LAW, 5), 3, stop)), list(PROMPT)
    events = engine.generate(PROMPT, lambda: SETTINGS)
    first = next(events)
    assert isinstance(first, Round)
    committed.extend(token.id for token in first.tokens)
    with pytest.raises(type(stop)):
        next(events)
    check_caches(engine, committed, interrupted=True)
    check_next_turn(engine, committed)


def test_a_failing_stop_check_is_the_requests_error_alone() -> None:
    def stop(id: int) -> bool:
        raise ValueError("text trouble")

    engine = pair()
    reply = collect(engine, PROMPT, SETTINGS, stop)
    assert reply.finished.reason == "error" and "text trouble" in reply.finished.notice
    check_next_turn(engine, PROMPT)


def test_an_exception_without_words_still_says_its_kind() -> None:
    reply = collect(pair(failing(Script(LAW, 5), 2, MemoryError())), PROMPT, SETTINGS)
    assert reply.finished.notice == "MemoryError"


@pytest.mark.parametrize("who", ["target", "draft"])
def test_nothing_of_a_failed_request_stays_alive(who: str) -> None:
    """A kept exception would pin its frames, and with them whatever tensors they hold."""
    kept: list[weakref.ref[torch.Tensor]] = []

    class Leaky(Script):
        def forward(self, ids: Ids) -> torch.Tensor:
            rows = super().forward(ids)
            if len(self.ids) > 9:
                kept.append(weakref.ref(rows))
                raise torch.OutOfMemoryError("out of memory")
            return rows

    engine = pair(Leaky(LAW, 5)) if who == "target" else pair(draft=Leaky(OTHER, 5))
    collect(engine, PROMPT, SETTINGS)
    gc.collect()
    assert kept and all(ref() is None for ref in kept), "a tensor of the failed forward is still alive"


# -- interruptions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [3, 5, 7, 12])
@pytest.mark.parametrize("gamma", [1, 4])
def test_a_generator_closed_at_any_yield_leaves_only_committed_ids(budget: int, gamma: int) -> None:
    for rounds in range(1, budget + 1):
        engine, committed = pair(Watched(Script(LAW, 5)), Watched(Script(OTHER, 5))), list(PROMPT)
        events = engine.generate(PROMPT, lambda: Settings(gamma, GREEDY, "model", budget))
        for _, event in zip(range(rounds), events, strict=False):
            if isinstance(event, Round):
                committed.extend(token.id for token in event.tokens)
        calls = engine.target.calls  # type: ignore[attr-defined]
        events.close()  # type: ignore[attr-defined]
        assert engine.target.calls == calls, "closing started another forward"  # type: ignore[attr-defined]
        check_caches(engine, committed)
        check_next_turn(engine, committed)


def test_an_abandoned_generator_is_settled_when_it_is_forgotten() -> None:
    engine = pair()
    events = engine.generate(PROMPT, lambda: SETTINGS)
    first = next(events)
    assert isinstance(first, Round)
    del events
    gc.collect()
    check_caches(engine, [*PROMPT, *(token.id for token in first.tokens)])
    check_next_turn(engine, PROMPT)


@pytest.mark.parametrize("after", range(6))
def test_a_cancelled_reply_stops_before_the_next_forward_and_keeps_its_text(after: int) -> None:
    target = Watched(Script(LAW, 5))
    engine, rounds = pair(target), 0
    calls = 0

    def each(committed: list[int]) -> None:
        nonlocal rounds, calls
        rounds, calls = rounds + 1, target.calls

    reply = collect(
        engine, PROMPT, Settings(2, GREEDY, "model", 40), cancelled=lambda: rounds >= after, each=each
    )
    assert reply.finished.reason == "cancelled" and len(reply.rounds) == after
    assert target.calls == calls, "a forward began after the cancel"
    assert reply.ids == right(PROMPT, 40)[: len(reply.ids)]
    check_next_turn(engine, [*PROMPT, *reply.ids])


def test_a_cancel_while_a_long_prompt_is_read_stops_between_chunks() -> None:
    target, draft = Watched(Script(LAW, 5, 4000)), Watched(Script(OTHER, 5, 4000))
    prompt = [i % 5 for i in range(3000)]
    reply = collect(engine := pair(target, draft), prompt, SETTINGS, cancelled=lambda: target.calls >= 2)
    assert reply.finished.reason == "cancelled" and reply.ids == []
    assert target.calls == 2 and sum(target.rows) < 600 and draft.calls == 0
    assert collect(engine, prompt, SETTINGS).ids == right(prompt)
    assert sum(target.rows[2:]) < 3000, "what had been read before the cancel was read again"


# -- whose cache ------------------------------------------------------------------------------------------


def turns(engine: Engine, prompt: list[int], drafter: str = "model") -> tuple[list[int], int, int]:
    """Ids of a reply, prompt ids found in the cache, prompt ids read."""
    reply = collect(engine, prompt, Settings(4, GREEDY, drafter, 10))
    prefill = reply.rounds[0].prefill
    assert prefill is not None and all(event.prefill is None for event in reply.rounds[1:])
    return reply.ids, prefill.reused, prefill.read


def test_a_follow_up_an_edit_a_retry_and_a_branch_answer_as_a_cold_engine_and_read_only_what_is_new() -> None:
    system = [4, 3, 2, 1]
    engine = engine_of(runner(tiny()), runner(noisy()))

    def ask(prompt: list[int]) -> tuple[list[int], int, int]:
        ids, reused, read = turns(engine, prompt, "chain")
        cold = turns(engine_of(runner(tiny()), runner(noisy())), prompt, "chain")[0]
        assert ids == cold, "a warm cache changed the text"
        assert reused + read == len(prompt) - 1, (
            "all but the last prompt id is in the cache before the first round"
        )
        return ids, reused, read

    first, _, read = ask([*system, 10, 11, 12])
    assert read == 6
    second, _, read = ask([*system, 10, 11, 12, *first, 13, 14])
    assert read == 2, "a follow-up reads the last id of the reply and the new turn but its last"
    _, _, read = ask([*system, 10, 11, 12, *first, 13, 14])
    assert read == 0, "a retry reads nothing"
    _, reused, read = ask([*system, 10, 11, 12, *first, 20, 21])
    assert reused == 7 + len(first) and read == 1, "an edited turn reads from the edit on"
    _, reused, _ = ask([*system, 30, 31])
    assert reused == 4, "another branch keeps the common beginning"
    ask([*system, 10, 11, 12, *first, 13, 14, *second, 40])
    ask([50, 51])


def test_two_conversations_taking_turns_see_nothing_of_each_other() -> None:
    """Same system prompt, different secrets; the draft goes off and on and another drafter is chosen meanwhile."""
    engine = engine_of(runner(tiny()), runner(noisy()))
    a, b = [4, 3, 2, 1, 100, 101], [4, 3, 2, 1, 200, 201]
    for gamma, drafter in [(4, "model"), (0, "model"), (4, "chain"), (3, "ngram"), (4, "model")]:
        for prompt in (a, b):
            settings = Settings(gamma, GREEDY, drafter, 8)
            reply = collect(engine, prompt, settings)
            cold = collect(engine_of(runner(tiny()), runner(noisy())), prompt, settings)
            assert reply.ids == cold.ids
            assert [event.accepted for event in reply.rounds] == [event.accepted for event in cold.rounds]
            prompt += [*reply.ids, 7]


def test_a_twin_goes_on_accepting_everything_from_turn_to_turn() -> None:
    engine = pair(draft=Script(LAW, 5))
    prompt = list(PROMPT)
    for _ in range(5):
        reply = collect(engine, prompt, SETTINGS)
        assert all(event.accepted == event.drafted for event in reply.rounds)
        prompt += [*reply.ids, 3]


# -- ids and numbers that should not be -----------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, 3), Sampling(0.8, 0, 0.9)], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_fail_this_request_only(sampling: Sampling, bad: float) -> None:
    broken = [True]

    def law(prefix: tuple[int, ...]) -> list[float]:
        row = list(LAW(prefix))
        if broken[0] and len(prefix) > 8:
            row[2] = bad
        return row

    engine = pair(Script(law, 5))
    reply = collect(engine, PROMPT, Settings(3, sampling, "model", 20))
    assert reply.finished.reason == "error" and "not numbers" in reply.finished.notice
    broken[0] = False
    check_next_turn(engine, [*PROMPT, *reply.ids])


@pytest.mark.parametrize("more", [{}, {"adaptive": True}, {"confidence": 0.5}, {"guard": True}], ids=str)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, seed=1)], ids=str)
def test_a_draft_whose_logits_are_not_numbers_is_a_failed_draft(
    sampling: Sampling, more: dict[str, bool | float]
) -> None:
    engine = pair(draft=Script(lambda prefix: [math.nan] * 5, 5))
    reply = collect(engine, PROMPT, Settings(3, sampling, "model", 12, **more))  # type: ignore[arg-type]
    assert reply.finished.reason == "length" and "draft failed" in reply.finished.notice


def test_a_prompt_id_outside_the_table_fails_this_request_only() -> None:
    engine = engine_of(runner(tiny()), runner(noisy()))
    for bad in (275, 10**6, -1):
        for place in (0, 2, 4):
            prompt = [1, 2, 3, 4, 5]
            prompt[place] = bad
            reply = collect(engine, prompt, SETTINGS)
            assert reply.ids == [] and reply.finished.reason == "error" and str(bad) in reply.finished.notice
    assert collect(engine, [1, 2, 3], SETTINGS).ids == reference(tiny(), [1, 2, 3], 12).ids


def test_exactly_one_finished_and_it_is_last() -> None:
    for engine in (pair(), pair(failing(Script(LAW, 5), 3, ValueError("x")))):
        events = list(engine.generate(PROMPT, lambda: SETTINGS))
        assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
