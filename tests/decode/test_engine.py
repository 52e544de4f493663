"""Rounds under greedy decoding: the text is plain text, twins accept everything, caches stay with the text."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from specchat.decode.drafters import Proposal
from specchat.decode.engine import MAX_GAMMA, Engine, Settings
from specchat.decode.sampling import Sampling, probs
from specchat.decode.stats import Stats
from tests.fakes import Forced, Law, Script, Watched, arbitrary, writes
from tests.oracle import GREEDY, Reference, full_logits, reference
from tests.rigs import collect, drafts_of, engine_of, noisy, runner, tiny
from tests.tiny import tiny_model

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
"""Repeats itself, so that n-grams have something to propose."""
EVERY_GAMMA = range(MAX_GAMMA + 1)
PENALTIES = {
    "repetition": Sampling(0.0, repetition_penalty=1.3),
    "presence": Sampling(0.0, presence_penalty=0.8),
    "frequency": Sampling(0.0, frequency_penalty=0.5),
}


@cache
def plain(n: int, penalty: str = "") -> Reference:
    return reference(tiny(), PROMPT, n, PENALTIES[penalty] if penalty else GREEDY)


@pytest.mark.parametrize(
    ("who", "drafter"),
    [("twin", "model"), ("noisy", "model"), ("stranger", "model"), ("noisy", "ngram"), ("noisy", "chain")],
)
def test_greedy_text_is_plain_text_for_every_gamma_and_every_drafter(who: str, drafter: str) -> None:
    draft = {"twin": tiny(), "noisy": noisy(), "stranger": tiny(seed=9)}[who]
    n = 10 if who == "stranger" else 20
    engine = engine_of(runner(tiny()), runner(draft))
    accepted = 0
    for gamma in EVERY_GAMMA:
        reply = collect(engine, PROMPT, Settings(gamma, GREEDY, drafter, n))
        plain(n).check(reply.ids, f"{who} {drafter}, γ = {gamma}")
        accepted += Stats.of(reply.rounds).accepted
        assert all(event.gamma <= gamma for event in reply.rounds)
    if who != "stranger" and drafter == "model":
        assert accepted > 0, "nothing was ever accepted: the test says little"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drafter", ["model", "ngram", "chain"])
def test_greedy_text_is_plain_text_on_tables_that_agree_now_and_then(seed: int, drafter: str) -> None:
    law, other = arbitrary(seed, 3, 0.8), arbitrary(seed + 100, 3, 0.4)

    def mixed(prefix: tuple[int, ...]) -> list[float]:
        return [a + b for a, b in zip(law(prefix), other(prefix), strict=True)]

    right = reference(Script(law, 3), [0, 1, 2, 0, 1], 30)
    engine = engine_of(Script(law, 3), Script(mixed, 3))
    for gamma in EVERY_GAMMA:
        reply = collect(engine, [0, 1, 2, 0, 1], Settings(gamma, GREEDY, drafter, 30))
        assert reply.ids == right.ids, f"γ = {gamma}"


@pytest.mark.parametrize("gamma", [*range(1, 9), MAX_GAMMA])
def test_a_twin_has_every_draft_accepted_for_200_tokens_and_its_cache_stays_exact(gamma: int) -> None:
    """A draft cache that drifts keeps the text right and loses acceptance; so its logits are compared too."""
    model = tiny()
    engine = engine_of(runner(model), runner(model))
    draft = drafts_of(engine)[0].model
    checked = 0

    def compare(committed: list[int]) -> None:
        nonlocal checked
        pending = len(committed) - len(draft.ids)
        assert pending in (1, 2), f"{pending} ids are pending in the draft; 1, or 2 after a full acceptance"
        if checked % 4 == 0:
            mine = draft.forward(committed[-pending:])
            draft.rollback(pending)
            right = full_logits(model, committed)[-pending:]
            torch.testing.assert_close(mine, right, atol=1e-4, rtol=0, msg="the draft's cache has drifted")
        checked += 1

    reply = collect(engine, PROMPT, Settings(gamma, GREEDY, "model", 200), each=compare)
    assert len(reply.ids) == 200 and checked == len(reply.rounds)
    for event in reply.rounds:
        assert event.accepted == event.drafted == event.gamma, (
            f"round {event.index} turned a twin's draft down"
        )
    assert all(event.gamma == gamma for event in reply.rounds[:-1]), "only the budget's end may clip γ"


@pytest.mark.parametrize("gamma", [1, 4, MAX_GAMMA])
def test_a_twin_has_every_draft_accepted_when_sampling_too(gamma: int) -> None:
    """With a fixed seed; a fresh one would meet a rounding difference about once in 10 000 runs."""
    sampling = Sampling(0.9, 20, 0.95, 0.02, 1.1, 0.2, 0.1, seed=4)
    engine = engine_of(runner(tiny()), runner(tiny()))
    reply = collect(engine, PROMPT, Settings(gamma, sampling, "model", 100))
    assert Stats.of(reply.rounds).acceptance_rate == 1


@pytest.mark.parametrize("penalty", list(PENALTIES))
@pytest.mark.parametrize("who", ["twin", "noisy"])
def test_penalties_count_what_is_committed_and_nothing_else(penalty: str, who: str) -> None:
    draft = tiny() if who == "twin" else noisy()
    right = plain(30, penalty)
    assert right.ids != plain(30).ids, "this penalty changes nothing here, so nothing is tested"
    engine = engine_of(runner(tiny()), runner(draft))
    for gamma in (1, 2, 4, 8):
        reply = collect(engine, PROMPT, Settings(gamma, PENALTIES[penalty], "model", 30))
        right.check(reply.ids, f"{penalty}, {who}, γ = {gamma}")
        if who == "twin":
            assert Stats.of(reply.rounds).acceptance_rate == 1, "the draft sees another history"


@pytest.mark.parametrize("who", ["model", "ngram", "chain", "none"])
def test_an_exact_tie_takes_the_lowest_id_on_every_path(who: str) -> None:
    def law(prefix: tuple[int, ...]) -> list[float]:
        first = (len(prefix) + sum(prefix)) % 3
        return [2.0 if id in (first, first + 2) else 0.0 for id in range(5)]

    right = reference(Script(law, 5), [4, 4], 20)
    assert set(right.gaps) == {0.0}
    for gamma in (0, 1, 4):
        engine = engine_of(Script(law, 5), Script(law, 5))
        assert collect(engine, [4, 4], Settings(gamma, GREEDY, who, 20)).ids == right.ids


def test_in_half_precision_a_difference_stands_only_where_two_logits_almost_tie() -> None:
    """bfloat16: a block of rows takes another kernel than one row. Each id is the row's maximum within 0.1."""
    model = tiny_model("llama").to(torch.bfloat16)
    engine = engine_of(runner(model), runner(model))
    for start in range(3):
        prompt = PROMPT[start:]
        reply = collect(engine, prompt, Settings(4, GREEDY, "model", 60))
        rows = full_logits(model, [*prompt, *reply.ids])[len(prompt) - 1 : -1]
        behind = rows.amax(-1) - rows.gather(-1, torch.tensor(reply.ids).unsqueeze(-1)).squeeze(-1)
        assert float(behind.max()) <= 0.1, "an id far from its row's maximum was emitted"


# -- forced patterns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0, seed=3)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("certain", [True, False], ids=["certainty", "with q"])
@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_a_rejection_at_any_place_emits_the_drafts_before_it_and_the_targets_own_id(
    sampling: Sampling, certain: bool, gamma: int
) -> None:
    """Target writes 1 2 3 …; the draft is wrong at place j only, so a wrong row or place would show."""
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    for j in range(gamma + 1):
        block = [text[i] if i != j else 0 for i in range(gamma)]
        q = None if certain else torch.full((gamma, 8), 1 / 8)
        target = Watched(Script(writes(text, 2, 8), 8))
        drafter = Forced([block], q)
        engine = Engine(target, {"forced": drafter}, frozenset())
        reply = collect(engine, [7, 7], Settings(gamma, sampling, "forced", 10))
        assert reply.ids == text, f"wrong at place {j} of {gamma}: {reply.ids}"
        first = reply.rounds[0]
        assert [token.id for token in first.tokens] == text[: min(j, gamma) + 1]
        assert (first.drafted, first.accepted) == (gamma, j)
        assert len(target.rollbacks) and drafter.commits[0] == tuple(text[: j + 1])
        if j < gamma:
            assert first.rejected is not None and (first.rejected.id, first.rejected.position) == (0, j)
            assert first.rejected.p == 0 and first.discarded == tuple(block[j + 1 :])
            assert reply.origins.startswith("a" * j + "rp")
        else:
            assert first.rejected is None and reply.origins.startswith("a" * gamma + "bp")


def test_a_proposal_shorter_than_gamma_is_judged_as_it_is() -> None:
    target = Script(writes([1, 2, 3, 4, 5], 1, 8), 8)
    engine = Engine(target, {"forced": Forced([[1], [], [4, 5]])}, frozenset())
    reply = collect(engine, [7], Settings(4, GREEDY, "forced", 5))
    assert reply.ids == [1, 2, 3, 4, 5] and reply.origins == "abpab"
    assert [event.drafted for event in reply.rounds] == [1, 0, 1]


def test_every_token_carries_the_probabilities_it_was_judged_with() -> None:
    """p of the target after temperature and filters at its own place; q only for what was proposed."""
    target, draft, sampling = arbitrary(1, 4), arbitrary(2, 4), Sampling(0.7, 3, 0.9, seed=1)
    reply = collect(engine_of(Script(target, 4), Script(draft, 4)), [0], Settings(3, sampling, "model", 60))

    def chance(law: Law, text: list[int], id: int) -> object:
        row = probs(torch.tensor([list(law(tuple(text)))]), text, sampling)[0]
        return pytest.approx(float(row[id]), abs=1e-6)

    text = [0]
    for event in reply.rounds:
        if event.rejected:
            before = [*text, *(token.id for token in event.tokens[: event.accepted])]
            assert event.rejected.q == chance(draft, before, event.rejected.id)
            assert event.rejected.p == chance(target, before, event.rejected.id)
        for token in event.tokens:
            assert token.p == chance(target, text, token.id)
            assert token.q == (chance(draft, text, token.id) if token.origin == "accepted" else None)
            text.append(token.id)
    assert {"a", "r", "b"} <= set(reply.origins), "not every kind of token was seen"


def test_plain_decoding_is_one_row_of_one_target_forward_a_token_and_no_draft_call() -> None:
    target, draft = Watched(Script(arbitrary(1, 5), 5)), Watched(Script(arbitrary(1, 5), 5))
    reply = collect(engine_of(target, draft), [0, 1, 2, 3], Settings(0, GREEDY, "chain", 12))
    assert target.rows == [3, *[1] * 12] and draft.calls == 0
    assert reply.origins == "p" * 12 and all(event.draft_forwards == 0 for event in reply.rounds)


def test_a_round_is_one_target_forward_over_the_drafts_and_one_more_row() -> None:
    target, draft = Watched(Script(arbitrary(1, 5), 5)), Watched(Script(arbitrary(1, 5), 5))
    reply = collect(engine_of(target, draft), [0, 1, 2, 3], Settings(4, GREEDY, "model", 15))
    assert target.rows == [3, 5, 5, 5] and draft.rows == [3, 1, 1, 1, 1, *[2, 1, 1, 1] * 2]
    assert [event.draft_forwards for event in reply.rounds] == [4, 4, 4]


def test_a_drafter_that_reads_the_targets_states_finds_those_of_all_committed_ids_but_the_last() -> None:
    """The script's states are their own places."""
    target = Script(writes([1, 2, 3, 4, 5, 6, 7], 3, 8), 8)
    target.keep_states = True
    drafter = Forced([[1, 2, 0], [5, 6], [0]])
    seen: list[list[float]] = []
    offer = drafter.propose

    def watched(n: int, sampling: Sampling, rng: torch.Generator, confidence: float = 0.0) -> Proposal:
        assert target.states is not None
        seen.append(target.states[: len(drafter.committed) - 1].squeeze(-1).tolist())
        return offer(n, sampling, rng)

    drafter.propose = watched  # type: ignore[method-assign]
    collect(Engine(target, {"forced": drafter}, frozenset()), [0, 0, 0], Settings(3, GREEDY, "forced", 7))
    assert [len(places) for places in seen] == [2, 5, 6, 7]
    assert all(places == list(range(len(places))) for places in seen)
