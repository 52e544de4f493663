"""The verdict: its exact law (the uniform draws integrated out) is the target's, whatever was drafted from."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from specchat.decode.law import Law
from specchat.decode.sampling import Sampling, law_of, probs, verify
from tests.oracle import exact_verdict, library_law, uniforms

exhaustive = hypothesis_settings(max_examples=25, deadline=None, derandomize=True)
EXACT = 1e-6


def law_of_one(p: Tensor, q: Tensor | None, proposals: list[float]) -> list[float]:
    """The law of the first id with γ = 1: x is proposed with proposals[x], then judged. p [V], q [V]."""
    law = [0.0] * len(p)
    for x, weight in enumerate(proposals):
        if weight == 0:
            continue
        rows = torch.stack([p, torch.full_like(p, 1 / len(p))])
        verdict = exact_verdict(rows, None if q is None else q.unsqueeze(0), [x])
        for (accepted, following), chance in verdict.items():
            law[x if accepted else following] += weight * chance
    return law


def refused(p: Tensor, q: Tensor) -> float:
    """Probability that the one proposal, drawn from q, is refused."""
    rows = torch.stack([p, p])
    return sum(
        weight
        * sum(c for (accepted, _), c in exact_verdict(rows, q.unsqueeze(0), [x]).items() if not accepted)
        for x, weight in enumerate(q.tolist())
        if weight
    )


def weights(size: int) -> st.SearchStrategy[Tensor]:
    """A law over `size` ids, zeros and near-zeros included."""
    entry = st.sampled_from([0.0, 1e-9, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
    return (
        st.lists(entry, min_size=size, max_size=size)
        .filter(lambda row: sum(row) > 0.005)
        .map(lambda row: torch.tensor(row) / sum(row))
    )


@exhaustive
@given(st.data(), st.integers(2, 4))
def test_one_drafted_id_leaves_exactly_the_targets_law(data: st.DataObject, size: int) -> None:
    p, q = data.draw(weights(size)), data.draw(weights(size))
    assert law_of_one(p, q, q.tolist()) == pytest.approx(p.tolist(), abs=EXACT)


@exhaustive
@given(st.data(), st.integers(2, 4))
def test_a_draft_of_certainty_leaves_exactly_the_targets_law(data: st.DataObject, size: int) -> None:
    """n-grams and greedy drafts: whatever is proposed, and however it was chosen, p comes out."""
    p, chosen = data.draw(weights(size)), data.draw(weights(size))
    assert law_of_one(p, None, chosen.tolist()) == pytest.approx(p.tolist(), abs=EXACT)


settings_with_all_filters = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 1.6]),
    top_k=st.sampled_from([0, 2, 3]),
    top_p=st.sampled_from([0.5, 0.8, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    presence_penalty=st.sampled_from([0.0, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
)


def logits_table(seed: int, size: int) -> Tensor:
    """One row for the empty prefix and one for each first id: [1 + size, size]."""
    return torch.randn(1 + size, size, generator=torch.Generator().manual_seed(seed)) * 1.5


@exhaustive
@given(settings_with_all_filters, st.integers(0, 2**20), st.integers(3, 4))
def test_two_drafted_ids_leave_exactly_the_targets_joint_law_with_every_filter_and_penalty(
    sampling: Sampling, seed: int, size: int
) -> None:
    """γ = 2, enumerated over both proposals, all verdicts and the replacement. The truth is the library's."""
    target, draft, history = logits_table(seed, size), logits_table(seed + 1, size), [0, 1, 0]

    def rows(table: Tensor, first: int) -> Law:
        return law_of(table[[0, 1 + first]], [*history, first], sampling)

    right: dict[tuple[int, int], float] = {}
    p_first = library_law(target[0], history, sampling)
    for a, b in itertools.product(range(size), repeat=2):
        second = library_law(target[1 + a], [*history, a], sampling)
        right[a, b] = float(p_first[a] * second[b])
    law = dict.fromkeys(right, 0.0)
    for a, b in itertools.product(range(size), repeat=2):
        q = rows(draft, a)
        drawn = float(q.chances(torch.tensor([a, b])).prod())
        if drawn == 0:
            continue
        # What follows two kept proposals is summed over.
        p = law_of(torch.cat([target[[0, 1 + a]], torch.zeros(1, size)]), [*history, a, b], sampling)
        for (accepted, following), chance in exact_verdict(p, q, [a, b]).items():
            if accepted == 0:
                after = library_law(target[1 + following], [*history, following], sampling)
                for second in range(size):
                    law[following, second] += drawn * chance * float(after[second])
            else:
                law[a, b if accepted == 2 else following] += drawn * chance
    for text, due in right.items():
        assert law[text] == pytest.approx(due, abs=3e-6), f"the text {text} at {sampling}"


# -- single cases with their right value ---------------------------------------------------------------


def test_the_q_that_is_judged_is_the_q_that_was_sampled() -> None:
    """Top-k 2 of both sides. Raw q in the judgement would give (0.469, 0.531, 0) and 15.6 % refused."""
    sampling = Sampling(1.0, top_k=2)
    p = probs(torch.tensor([[0.36, 0.6, 0.04]]).log(), [], sampling)[0]
    q = probs(torch.tensor([[0.5, 0.3, 0.2]]).log(), [], sampling)[0]
    assert q.tolist() == pytest.approx([0.625, 0.375, 0.0])
    assert law_of_one(p, q, q.tolist()) == pytest.approx([0.375, 0.625, 0.0], abs=EXACT)
    assert refused(p, q) == pytest.approx(0.25, abs=EXACT), "more accepted than that is no sign of health"


def test_a_greedy_draft_is_judged_as_certainty() -> None:
    """Always 0, judged with its softmax 0.7, would give (0.857, 0.143)."""
    assert law_of_one(torch.tensor([0.6, 0.4]), None, [1.0, 0.0]) == pytest.approx([0.6, 0.4], abs=EXACT)
    one_hot = torch.tensor([1.0, 0.0])
    assert law_of_one(torch.tensor([0.6, 0.4]), one_hot, [1.0, 0.0]) == pytest.approx([0.6, 0.4], abs=EXACT)


def test_the_replacement_is_drawn_from_the_normalised_difference() -> None:
    """A softmax over the difference would give (0.521, 0.289, 0.189): a forbidden id 19 % of the time."""
    p, q = torch.tensor([0.9, 0.1, 0.0]), torch.tensor([0.1, 0.1, 0.8])
    assert law_of_one(p, q, q.tolist()) == pytest.approx([0.9, 0.1, 0.0], abs=EXACT)


def test_an_empty_difference_falls_back_to_the_targets_law() -> None:
    one_hot = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    law = exact_verdict(one_hot, one_hot[:1], [0])
    assert law == pytest.approx({(0, 0): 0.0, (0, 1): 1.0, (0, 2): 0.0}, abs=EXACT)
    certain = exact_verdict(torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), None, [0])
    assert certain[0, 2] == pytest.approx(1.0, abs=EXACT)


@pytest.mark.parametrize("q", [None, torch.tensor([[0.5, 0.5, 0.0]])], ids=["certainty", "a law"])
def test_an_impossible_proposal_is_refused_even_at_a_draw_of_zero(q: Tensor | None) -> None:
    p = torch.tensor([[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]])
    with uniforms([0.0], 0.0):
        accepted, following, *_ = verify(Law(p), None if q is None else Law(q), [0], torch.Generator())
    assert accepted == 0 and following in (1, 2)


def test_a_proposal_as_likely_as_the_draft_says_is_kept_even_at_the_largest_draw() -> None:
    p = torch.tensor([[0.3, 0.7], [0.5, 0.5]])
    with uniforms([1 - 2**-24], 0.0):
        assert verify(Law(p), Law(p[:1]), [0], torch.Generator())[0] == 1


def test_the_temperature_asked_for_is_the_temperature_judged_with() -> None:
    """p at T = 1 is (0.5, 0.3, 0.2); at T = 0.5 it is (0.658, 0.237, 0.105), whatever q."""
    p = probs(torch.tensor([[0.5, 0.3, 0.2]]).log(), [], Sampling(0.5, 0))[0]
    right = [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38]
    for q in (torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.05, 0.05, 0.9])):
        assert law_of_one(p, q, q.tolist()) == pytest.approx(right, abs=EXACT)


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_the_replacement_stands_at_the_first_refused_place(gamma: int) -> None:
    """One-hot target rows: the target's ids are 0, 1, 2, …; the draft is wrong from place j on."""
    width = gamma + 2
    p = torch.eye(width)[: gamma + 1]
    for j in range(gamma + 1):
        drafted = [place if place < j else width - 1 for place in range(gamma)]
        for q in (None, torch.nn.functional.one_hot(torch.tensor(drafted), width).float()):
            got = verify(Law(p), None if q is None else Law(q), drafted, torch.Generator().manual_seed(0))
            assert got[:2] == (j, j), f"wrong from place {j} of {gamma}: {got}"


def test_nothing_behind_the_first_refusal_is_counted() -> None:
    p = torch.eye(6)[:5]
    assert verify(Law(p), None, [0, 5, 2, 3], torch.Generator())[0] == 1, "kept, refused, kept, kept counts 1"


@pytest.mark.parametrize("certain", [True, False])
def test_behind_a_draft_that_was_kept_whole_the_next_id_is_drawn_from_the_last_row_of_p(
    certain: bool,
) -> None:
    p = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]])
    law = exact_verdict(p, None if certain else p[:2], [1, 2])
    kept = sum(chance for (accepted, _), chance in law.items() if accepted == 2)
    assert kept == pytest.approx(0.5 * 0.8 if certain else 1.0, abs=EXACT)
    assert [law[2, id] / kept for id in range(3)] == pytest.approx([0.6, 0.3, 0.1], abs=1e-5)


def test_without_a_proposal_the_next_id_is_drawn_from_p() -> None:
    law = exact_verdict(torch.tensor([[0.2, 0.5, 0.3]]), None, [])
    assert law == pytest.approx({(0, 0): 0.2, (0, 1): 0.5, (0, 2): 0.3}, abs=EXACT)


@exhaustive
@given(st.data(), st.integers(2, 4), st.integers(1, 4))
def test_equal_laws_accept_everything(data: st.DataObject, size: int, n: int) -> None:
    rows = torch.stack([data.draw(weights(size)) for _ in range(n + 1)])
    drafted = [int(row.argmax()) for row in rows[:n]]
    accepted = sum(chance for (k, _), chance in exact_verdict(rows, rows[:n], drafted).items() if k == n)
    assert accepted == pytest.approx(1.0, abs=EXACT)
