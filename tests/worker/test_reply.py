"""One reply: its events, its text, its stop strings, and what it reads of a conversation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from specchat.chat.conversation import Message
from specchat.decode.engine import Settings
from specchat.decode.events import Round
from specchat.decode.guard import COMPARING
from specchat.decode.request import Request
from specchat.decode.sampling import Sampling
from specchat.pair import Pair
from specchat.reply import reply
from specchat.worker import Done, Event, Job, Live, Reading, Step, Worker
from specchat.yardstick import KEPT, LEAST
from tests.worker.jobs import (
    END,
    GREEDY,
    TOKENIZER,
    cold,
    done_of,
    events_of,
    job,
    pair_of,
    scripted,
    shown,
)


def test_a_reply_is_a_reading_then_rounds_then_one_end_and_its_pieces_are_its_text(
    start: Callable[[Pair], Worker],
) -> None:
    for settings in (
        GREEDY,
        Settings(0, Sampling(1.5, 0, seed=3), "model", 40),
        Settings(4, Sampling(1.5, 0, seed=3), "chain", 40),
    ):
        events = events_of(start(pair_of()).submit(job("tell me", settings)))
        assert isinstance(events[0], Reading) and isinstance(events[-1], Done)
        steps = [event for event in events if isinstance(event, Step)]
        assert len(steps) == len(events) - 2
        done = events[-1]
        assert shown(events) == done.message.content and done.message.role == "assistant"
        pieces = [piece for step in steps for piece in step.pieces]
        tokens = [token for step in steps for token in step.round.tokens]
        assert [piece.token for piece in pieces] == tokens, "every emitted token has one piece, in order"
        assert done.finished.emitted == done.stats.emitted == len(tokens)
        written = [token.id for token in tokens if token.id not in END]
        assert done.message.ids == tuple(written)
        assert done.message.content == TOKENIZER.decode(written, skip_special_tokens=True)
        prefill = steps[0].round.prefill
        assert prefill is not None and prefill.reused + prefill.read == events[0].prompt_tokens - 1


def test_the_terminal_gets_the_same_reply_without_a_worker(start: Callable[[Pair], Worker]) -> None:
    got: list[Event] = []
    here = reply(pair_of(), job(), lambda: False, got.append)
    there = done_of(start(pair_of()).submit(job()))
    assert here.message == there.message and shown([*got, here]) == there.message.content


def told(
    text: str, stops: tuple[str, ...], gamma: int, budget: int = 40
) -> tuple[list[Event], Done, list[int]]:
    pair, ids = scripted(text)
    events: list[Event] = []
    task = job(settings=Settings(gamma, Sampling(0.0), "model", budget), stop_strings=stops)
    done = reply(pair, task, lambda: False, events.append)
    written = [piece.token.id for event in events if isinstance(event, Step) for piece in event.pieces]
    assert pair.target.ids[-len(written) + 1 :] == written[:-1], "the cache ends where the reply ends"
    assert written == ids[: len(written)] and done.finished.emitted == done.stats.emitted == len(written)
    return [*events, done], done, written


@pytest.mark.parametrize("gamma", [0, 1, 8])
@pytest.mark.parametrize("place", range(8))
def test_a_stop_string_anywhere_in_a_block_ends_text_ids_and_count(gamma: int, place: int) -> None:
    """Two characters, two tokens, begun and completed at every place of a block of 8 (one lies across two)."""
    text = "z" * place + "#%" + "behind the stop"
    events, done, written = told(text, ("#%",), gamma)
    assert done.finished.reason == "stop"
    assert shown(events) == done.message.content == "z" * place
    assert len(written) == place + 2, "ids end at the token that completed the stop string"


def test_a_stop_string_that_does_not_come_true_is_shown_in_its_place() -> None:
    """Held back at a block's end, then a block that is kept whole: nothing may overtake it."""
    text = "ab#cd#%ef##gh" + "z" * 30
    for gamma in (0, 1, 2, 3, 5, 8):
        events, done, written = told(text, ("#%#", "##%"), gamma, 20)
        assert done.finished.reason == "length" and len(written) == 20
        assert shown(events) == TOKENIZER.decode(written), f"γ = {gamma}"


def test_a_budget_that_ends_inside_a_stop_string_shows_what_was_held_back() -> None:
    events, done, written = told("abc#%", ("#%!",), 8, 5)
    assert (done.finished.reason, shown(events), len(written)) == ("length", "abc#%", 5)


def test_a_stop_inside_the_budget_is_not_a_length() -> None:
    assert told("ab#defg", ("#",), 6, 5)[1].finished.reason == "stop"
    assert told("abcde#g", ("#",), 6, 5)[1].finished.reason == "length"


def test_conversations_that_take_turns_are_answered_as_if_alone(start: Callable[[Pair], Worker]) -> None:
    """One system prompt, two secrets, another drafter each time: every turn is a fresh pair's answer."""
    worker = start(pair_of())
    talks: dict[str, list[Message]] = {"heron": [], "basalt": []}
    plans = [(4, "model"), (0, "model"), (4, "chain"), (3, "ngram")]
    for turn, (gamma, drafter) in enumerate(plans):
        for secret, talk in talks.items():
            settings = Settings(gamma, Sampling(0.8, 30, seed=turn), drafter, 12)
            talk.append(Message("user", f"the word is {secret}" if not turn else f"turn {turn}"))
            task = Job(tuple(talk), Live(settings), system="be brief")
            events = events_of(worker.submit(task))
            done = events[-1]
            assert isinstance(done, Done) and done.message == cold(task).message
            prefill = next(event.round.prefill for event in events if isinstance(event, Step))
            reading = next(event for event in events if isinstance(event, Reading))
            assert prefill is not None and prefill.reused + prefill.read == reading.prompt_tokens - 1
            talk.append(done.message)


def test_a_follow_up_reads_only_what_is_new(start: Callable[[Pair], Worker]) -> None:
    pair, ids = scripted("a short reply")
    worker = start(pair)
    first = done_of(worker.submit(job(settings=Settings(4, Sampling(0.0), "model", len(ids)))))
    assert first.message.content == "a short reply"
    events = events_of(worker.submit(job("and", before=(Message("user", "hello"), first.message))))
    prefill = next(event.round.prefill for event in events if isinstance(event, Step))
    turn = "<|im_end|>\n<|im_start|>user\nand<|im_end|>\n<|im_start|>assistant\n"
    new = len(TOKENIZER(turn, add_special_tokens=False)["input_ids"])
    assert prefill is not None and prefill.read == new, "the reply's last id and the new turn but its last"


def test_a_plain_reply_becomes_the_yardstick(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of())
    done_of(worker.submit(job(settings=Settings(0, Sampling(2.0, 0, seed=1), "model", 30))))
    pair = worker.pair
    assert pair is not None and pair.plain_step_s > 0 and "last plain reply" in pair.plain_step_source
    memory = worker.memory()
    assert memory is not None and memory.kind == "RSS" and memory.caches > 0 and memory.target_weights > 0


def plain_rounds(events: Sequence[object]) -> list[Round]:
    """Of a reply, those without a proposal. (The last round is one where only one token is left to write.)"""
    return [e.round for e in events if isinstance(e, Step) and e.round.gamma == 0]


def compared(events: Sequence[object]) -> list[int]:
    """The indexes of those that are plain to be compared with."""
    return [event.index for event in plain_rounds(events) if event.choice == COMPARING]


def test_some_rounds_of_a_speculative_reply_are_plain_and_the_yardstick(
    start: Callable[[Pair], Worker],
) -> None:
    """One of so many, none of them the first; nothing is compared before there are a few."""
    pair = pair_of()
    at_start = pair.plain_step_s, pair.plain_step_source
    worker = start(pair)
    settings, seen = Settings(3, Sampling(2.0, 0, seed=1), "model", 50), 0
    for _ in range(4):
        events = events_of(worker.submit(replace(job(settings=settings), compare_every=8)))
        found = plain_rounds(events)
        rounds = sum(isinstance(e, Step) for e in events)
        assert compared(events) == list(range(2, rounds, 8)) and len(found) >= 2
        assert all(e.draft_forwards == 0 for e in found)
        seen += len(found)
        if seen >= LEAST:
            kept = min(seen, KEPT)
            assert pair.plain_step_source == f"measured among the rounds of the last replies ({kept} steps)"
            assert pair.plain_step_s == statistics.median(pair.plain_steps) and len(pair.plain_steps) == kept
        else:
            assert (pair.plain_step_s, pair.plain_step_source) == at_start
    done_of(worker.submit(job(settings=Settings(0, Sampling(2.0, 0, seed=1), "model", 30))))
    assert "last plain reply" in pair.plain_step_source and not pair.plain_steps


def test_nothing_is_compared_unasked_or_where_a_guard_does_it(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of())
    settings = Settings(3, Sampling(2.0, 0, seed=1), "model", 50)
    assert not compared(events_of(worker.submit(job(settings=settings))))
    for gamma, drafter in ((0, "model"), (3, "no such")):
        plain = replace(settings, gamma=gamma, drafter=drafter)
        assert not compared(events_of(worker.submit(replace(job(settings=plain), compare_every=4))))
    for guard in (False, True):
        request = Request([1], 1, bool, bool, torch.Generator(), settings, 0.0, 8)
        found = []
        for request.rounds in range(24):
            found.append(request.compares(replace(settings, guard=guard)))
        assert [i for i, compares in enumerate(found) if compares] == ([] if guard else [2, 10, 18])


def test_a_greedy_reply_is_the_same_with_and_without_comparing(start: Callable[[Pair], Worker]) -> None:
    worker = start(pair_of())
    settings = Settings(3, Sampling(0.0), "model", 50)
    texts = {
        done_of(worker.submit(replace(job(settings=settings), compare_every=every))).message.content
        for every in (0, 3, 8)
    }
    assert len(texts) == 1
