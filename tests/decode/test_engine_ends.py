"""Where a reply ends: end ids, stop strings, budget and context may fall anywhere inside a round."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specchat.decode.engine import Engine, Settings
from specchat.decode.stats import Stats
from tests.fakes import Forced, Script, Watched, arbitrary, writes
from tests.oracle import GREEDY, reference
from tests.rigs import Reply, collect, engine_of, runner, tiny

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
GAMMAS = (0, 1, 3, 5, 8, 16)


class StopAfter:
    """Says "stop" at the id that completes `ids`, and keeps what it was told, as a reply's text would."""

    def __init__(self, *ids: int) -> None:
        self.wanted = list(ids)
        self.told: list[int] = []

    def __call__(self, id: int) -> bool:
        self.told.append(id)
        return self.told[-len(self.wanted) :] == self.wanted


def forced(text: Sequence[int], blocks: Sequence[Sequence[int]], vocab: int = 32, **kwargs: object) -> Engine:
    """A target that writes `text` after [1, 1], a drafter that offers `blocks`."""
    target = Script(writes(text, 2, vocab), vocab, **kwargs)  # type: ignore[arg-type]
    return Engine(target, {"forced": Forced(blocks)}, frozenset())


def check_end(engine: Engine, reply: Reply, prompt: Sequence[int], ids: Sequence[int], reason: str) -> None:
    """Nothing behind the end: not emitted, counted, cached or kept."""
    assert reply.ids == list(ids)
    assert reply.finished.reason == reason
    assert reply.finished.emitted == Stats.of(reply.rounds).emitted == len(ids)
    assert engine.target.ids == [*prompt, *ids][:-1]
    assert reply.finished.target_cached == len(engine.target.ids)


@pytest.mark.parametrize("drafter", ["model", "chain"])
def test_an_end_id_anywhere_in_a_block_is_the_last_thing(drafter: str) -> None:
    """Each of 12 neighbouring places of a twin's text is declared the end, so it falls on every block place."""
    text = reference(tiny(), PROMPT, 24).ids
    hit = set()
    for i in range(4, 16):
        end = text.index(text[i])
        engine = engine_of(runner(tiny()), runner(tiny()), eos=[text[i]])
        reply = collect(engine, PROMPT, Settings(5, GREEDY, drafter, 24))
        check_end(engine, reply, PROMPT, text[: end + 1], "eos")
        last = reply.rounds[-1]
        hit.add(last.tokens[-1].position)
        if last.tokens[-1].origin == "accepted":
            assert last.drafted == last.accepted == len(last.tokens), "proposals behind the end are counted"
        follow = [*PROMPT, *reply.ids, 9, 10, 11]
        warm = collect(engine, follow, Settings(5, GREEDY, drafter, 8))
        cold = collect(
            engine_of(runner(tiny()), runner(tiny()), eos=[text[i]]), follow, Settings(5, GREEDY, drafter, 8)
        )
        assert warm.ids == cold.ids, "the next turn differs from a cold engine's"
    assert len(hit) >= 4, f"the end fell on the places {hit} only"


def test_of_several_end_ids_the_first_to_come_ends_the_reply() -> None:
    text = reference(tiny(), PROMPT, 24).ids
    for a, b in ((6, 9), (9, 6), (3, 11)):
        ends = {text[a], text[b]}
        first = next(i for i, id in enumerate(text) if id in ends)
        for gamma in GAMMAS:
            engine = engine_of(runner(tiny()), runner(tiny()), eos=sorted(ends))
            reply = collect(engine, PROMPT, Settings(gamma, GREEDY, "model", 24))
            check_end(engine, reply, PROMPT, text[: first + 1], "eos")


@pytest.mark.parametrize(("end", "origin"), [(3, "accepted"), (5, "bonus"), (2, "recovered")])
def test_an_end_id_ends_the_reply_whoever_wrote_it(end: int, origin: str) -> None:
    text = [10, 11, 12, 13, 14, 15, 16, 17]
    block = text[:5] if origin != "recovered" else [10, 11, 20, 13, 14]
    engine = Engine(Script(writes(text, 2, 32), 32), {"forced": Forced([block])}, frozenset({text[end]}))
    reply = collect(engine, [1, 1], Settings(5, GREEDY, "forced", 20))
    check_end(engine, reply, [1, 1], text[: end + 1], "eos")
    assert reply.rounds[-1].tokens[-1].origin == origin


def test_an_end_id_is_not_told_to_the_text_and_may_still_be_proposed() -> None:
    stop = StopAfter(99)
    engine = Engine(Script(writes([10, 11, 12], 2, 32), 32), {"f": Forced([[10, 11, 12]])}, frozenset({11}))
    reply = collect(engine, [1, 1], Settings(4, GREEDY, "f", 20), stop)
    assert stop.told == [10] and reply.ids == [10, 11] and reply.origins == "aa"


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("place", range(9))
def test_a_stop_anywhere_in_a_block_ends_ids_count_history_and_caches_at_its_last_id(
    gamma: int, place: int
) -> None:
    text = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
    engine = engine_of(Script(writes(text, 2, 32), 32), Script(writes(text, 2, 32), 32))
    stop = StopAfter(*text[max(0, place - 1) : place + 1])
    reply = collect(engine, [1, 1], Settings(gamma, GREEDY, "model", 10), stop)
    check_end(engine, reply, [1, 1], text[: place + 1], "stop")
    assert stop.told == reply.ids, "the text was told other ids than were emitted"


def test_a_stop_inside_the_budget_is_a_stop_and_one_behind_it_is_a_length() -> None:
    """Block [10, 11, STOP, 20, 21, 22] with a budget of 5; then STOP at place 6."""
    block = [10, 11, 30, 20, 21, 22]
    engine = forced(block, [block])
    reply = collect(engine, [1, 1], Settings(6, GREEDY, "forced", 5), StopAfter(30))
    check_end(engine, reply, [1, 1], [10, 11, 30], "stop")
    late = [10, 11, 12, 20, 21, 30]
    engine = forced(late, [late])
    reply = collect(engine, [1, 1], Settings(6, GREEDY, "forced", 5), StopAfter(30))
    check_end(engine, reply, [1, 1], late[:5], "length")


def test_a_stop_or_an_end_on_the_last_token_of_the_budget_is_not_a_length() -> None:
    text = [10, 11, 12, 13]
    reply = collect(forced(text, [text]), [1, 1], Settings(6, GREEDY, "forced", 3), StopAfter(12))
    assert (reply.ids, reply.finished.reason) == (text[:3], "stop")
    engine = Engine(Script(writes(text, 2, 32), 32), {"forced": Forced([text])}, frozenset({12}))
    reply = collect(engine, [1, 1], Settings(6, GREEDY, "forced", 3))
    assert (reply.ids, reply.finished.reason) == (text[:3], "eos")


@pytest.mark.parametrize("drafter", ["model", "ngram", "chain"])
def test_exactly_as_many_tokens_as_asked_for(drafter: str) -> None:
    text = reference(tiny(), PROMPT, 13).ids
    engine = engine_of(runner(tiny()), runner(tiny()))
    for n in range(1, 14):
        reply = collect(engine, PROMPT, Settings(4, GREEDY, drafter, n))
        check_end(engine, reply, PROMPT, text[:n], "length")
        for event, left in zip(reply.rounds, _left(reply, n), strict=True):
            assert event.gamma == min(4, left - 1), "γ is clipped to the budget less the target's own token"


def _left(reply: Reply, n: int) -> list[int]:
    """Budget left before each round."""
    left = []
    for event in reply.rounds:
        left.append(n)
        n -= len(event.tokens)
    return left


def test_one_token_needs_no_draft_call() -> None:
    draft = Watched(Script(arbitrary(1, 5), 5))
    engine = engine_of(Script(arbitrary(1, 5), 5), draft)
    reply = collect(engine, [0, 1, 2], Settings(4, GREEDY, "model", 1))
    assert len(reply.ids) == 1 and draft.rows == [2], "the draft was asked for a token nobody can use"
    assert reply.rounds[0].draft_forwards == 0


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("room", range(1, 9))
def test_the_context_may_end_anywhere_in_a_block(gamma: int, room: int) -> None:
    """With `room` ids left in the caches, room + 1 come out: the last one is never fed."""
    law, prompt = arbitrary(4, 5), [0, 1, 2, 3]
    capacity = len(prompt) + room
    engine = engine_of(Script(law, 5, capacity), Script(law, 5, capacity))
    right = reference(Script(law, 5), prompt, room + 1)
    reply = collect(engine, prompt, Settings(gamma, GREEDY, "model", 99))
    check_end(engine, reply, prompt, right.ids, "context")


def test_a_draft_with_a_shorter_context_stops_proposing_and_the_reply_goes_on() -> None:
    """The reply passes the draft's 12 places; and a prompt that is already longer needs no draft at all."""
    law = arbitrary(4, 5)
    right = reference(Script(law, 5), [0, 1, 2, 3], 40)
    target, draft = Script(law, 5), Watched(Script(law, 5, capacity=12))
    reply = collect(engine_of(target, draft), [0, 1, 2, 3], Settings(4, GREEDY, "model", 40))
    assert reply.ids == right.ids and len(draft.ids) <= 12 and "aaaa" in reply.origins
    assert reply.origins.endswith("p" * 25) and reply.finished.notice == ""
    prompt = [0, 1, 2, 3, *right.ids[:20]]
    calls = draft.calls
    follow = collect(engine_of(target, draft), prompt, Settings(4, GREEDY, "model", 15))
    assert follow.ids == right.ids[20:35] and draft.calls == calls


def test_a_prompt_that_fills_the_context_gets_one_token_and_a_longer_one_none() -> None:
    engine = engine_of(Script(arbitrary(4, 5), 5, 6), Script(arbitrary(4, 5), 5, 6))
    reply = collect(engine, [0, 1, 2, 3, 4, 0], Settings(4, GREEDY, "model", 9))
    assert len(reply.ids) == 1 and reply.finished.reason == "context"
    reply = collect(engine, [0, 1, 2, 3, 4, 0, 1], Settings(4, GREEDY, "model", 9))
    assert reply.ids == [] and reply.finished.reason == "context"


def test_an_empty_prompt_is_an_error_in_words() -> None:
    engine = engine_of(Script(arbitrary(4, 5), 5))
    events = list(engine.generate([], lambda: Settings()))
    assert events[-1].reason == "error" and "empty" in events[-1].notice  # type: ignore[union-attr]
