"""Who proposes, on its own: n-grams, a model's cache book-keeping, a chain of both."""

from __future__ import annotations

import pytest
import torch

from specchat.decode.drafters import (
    ChainDrafter,
    ModelDrafter,
    Proposal,
    common_prefix,
    read_prompt,
    reuse,
)
from specchat.decode.ngrams import NgramDrafter
from specchat.decode.sampling import Sampling, probs
from tests.fakes import Forced, Script, Watched, arbitrary
from tests.oracle import GREEDY

RNG = torch.Generator().manual_seed(0)


def yes() -> bool:
    return True


def ids_of(proposal: Proposal) -> list[int]:
    return [int(id) for id in proposal.ids]


def ngram(text: list[int], n: int, **sizes: int) -> tuple[int, ...]:
    drafter = NgramDrafter(**sizes)
    drafter.start(text)
    return drafter.propose(n, GREEDY, RNG).ids


def test_ngrams_propose_what_followed_the_last_occurrence_of_the_longest_ending() -> None:
    assert ngram([1, 2, 3, 4, 9, 1, 2, 3], 3) == (4, 9, 1)
    assert ngram([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 1) == (9,), "three ids of context beat two, though earlier"
    assert ngram([2, 3, 7, 0, 2, 3, 8, 0, 2, 3], 2) == (8, 0), "of equal contexts the latest counts"


def test_ngrams_go_on_with_the_repetition_past_the_end_of_the_text() -> None:
    assert ngram([5, 6, 5, 6], 5) == (5, 6, 5, 6, 5)
    assert ngram([4, 4, 4], 4) == (4, 4, 4, 4)


@pytest.mark.parametrize("text", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_ngrams_offer_nothing_where_nothing_repeats(text: list[int]) -> None:
    assert ngram(text, 4) == ()


def test_ngrams_offer_certainty_and_never_more_than_asked() -> None:
    drafter = NgramDrafter()
    drafter.start([1, 2, 3, 1, 2])
    for n in range(5):
        proposal = drafter.propose(n, GREEDY, RNG)
        assert len(proposal.ids) == n and proposal.q is None and proposal.forwards == 0


def test_ngrams_told_in_pieces_propose_as_if_told_at_once() -> None:
    rng = torch.Generator().manual_seed(5)
    text = torch.randint(0, 3, (60,), generator=rng).tolist()
    pieces = NgramDrafter()
    pieces.start(text[:1])
    for end in range(2, len(text) + 1):
        pieces.commit(text[end - 1 : end])
        assert pieces.propose(4, GREEDY, RNG).ids == ngram(text[:end], 4)
    pieces.start([1, 2])
    assert pieces.propose(4, GREEDY, RNG).ids == (), "an earlier text is still remembered"


def drafter_over(law_seed: int = 1, capacity: int = 64) -> tuple[ModelDrafter, Watched]:
    model = Watched(Script(arbitrary(law_seed, 5), 5, capacity))
    return ModelDrafter(model), model


def test_a_model_proposes_from_the_law_it_hands_over() -> None:
    """q has the row each id was drawn from, with the drafts before it in the history."""
    sampling = Sampling(0.8, 3, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.3)
    drafter, _ = drafter_over()
    text = [0, 1, 2]
    drafter.start(text, yes)
    proposal = drafter.propose(4, sampling, torch.Generator().manual_seed(2))
    assert proposal.forwards == 4 and proposal.q is not None and len(proposal.q) == 4
    ids = ids_of(proposal)
    for i, id in enumerate(ids):
        before = [*text, *ids[:i]]
        right = probs(torch.tensor([arbitrary(1, 5)(tuple(before))]), before, sampling)[0]
        assert torch.equal(proposal.q.dense(5)[i], right) and right[id] > 0


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_after_every_verdict_the_cache_is_a_prefix_of_the_committed_text(gamma: int) -> None:
    for accepted in range(gamma + 1):
        drafter, model = drafter_over()
        drafter.start([0, 1, 2], yes)
        text = [0, 1, 2]
        for _ in range(4):
            ids = ids_of(drafter.propose(gamma, GREEDY, RNG))
            follow = [*ids[:accepted], (ids[accepted] + 1) % 5 if accepted < gamma else 3]
            drafter.commit(follow, ids)
            text += follow
            pending = 2 if accepted == gamma else 1
            assert model.ids == text[:-pending], f"{accepted} of {gamma} kept"
        assert max(model.rows) <= 2, "a round re-reads what it had"


def test_an_interrupted_proposal_is_taken_back() -> None:
    drafter, model = drafter_over()
    drafter.start([0, 1, 2], yes)
    drafter.propose(4, GREEDY, RNG)
    drafter.commit(())
    assert model.ids == [0, 1, 2][: len(model.ids)] and drafter.committed == [0, 1, 2]


@pytest.mark.parametrize("capacity", range(4, 10))
def test_a_model_never_proposes_beyond_its_own_context(capacity: int) -> None:
    drafter, model = drafter_over(capacity=capacity)
    drafter.start([0, 1, 2], yes)
    ids = ids_of(drafter.propose(5, GREEDY, RNG))
    assert len(ids) == min(5, capacity - 2) and len(model.ids) <= capacity
    full = drafter_over(capacity=capacity)[0]
    full.start([0] * (capacity + 1), yes)
    assert full.propose(5, GREEDY, RNG).ids == () and full.cached() == 0


def test_a_chain_takes_the_first_that_offers_and_tells_everyone() -> None:
    first, second = Forced([[], [1], []]), Forced([[2, 2], [3]])
    chain = ChainDrafter(first, second)
    chain.start([0], yes)
    assert chain.propose(2, GREEDY, RNG).ids == (2, 2)
    assert chain.propose(2, GREEDY, RNG).ids == (1,) and second.asked == [2], "the free one was enough"
    chain.commit([1, 4])
    assert first.committed == second.committed == [0, 1, 4]
    assert chain.propose(2, GREEDY, RNG).ids == (3,)
    assert chain.propose(2, GREEDY, RNG).ids == ()


def test_reuse_keeps_the_common_beginning_and_leaves_an_id_to_feed() -> None:
    model = Watched(Script(arbitrary(1, 5), 5))
    model.forward([0, 1, 2, 3, 4])
    assert reuse(model, [0, 1, 2, 3, 4, 0]) == 5 and model.rollbacks == []
    assert reuse(model, [0, 1, 2, 3, 4]) == 4 and model.ids == [0, 1, 2, 3]
    assert reuse(model, [0, 1, 4]) == 2 and model.ids == [0, 1]
    assert reuse(model, [3]) == 0 and model.ids == []


def test_a_state_that_cannot_be_rolled_back_is_kept_whole_or_dropped() -> None:
    model = Script(arbitrary(1, 5), 5, can_rollback=False)
    model.forward([0, 1, 2])
    assert reuse(model, [0, 1, 2, 4]) == 3 and model.ids == [0, 1, 2]
    assert reuse(model, [0, 1, 4, 4]) == 0 and model.ids == []


def test_reading_a_prompt_stops_between_chunks() -> None:
    model = Watched(Script(arbitrary(1, 5), 5, capacity=2000))
    answers = iter([True, True, False])
    assert read_prompt(model, [1] * 1000, lambda: next(answers)) == len(model.ids) == sum(model.rows) < 999
    assert len(model.rows) == 2 and read_prompt(model, [1] * 1000, yes) == 999 - sum(model.rows[:2])


def test_common_prefix() -> None:
    assert [
        common_prefix(a, b) for a, b in [([], [1]), ([1, 2], [1, 2, 3]), ([1, 2], [1, 3]), ([2], [1])]
    ] == [0, 2, 1, 0]
