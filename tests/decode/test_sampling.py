"""The law of the next id: against the library's own processors, at the edges of every setting, on bad logits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from specchat.decode.sampling import BadLogits, Sampling, checked, probs, sample
from tests.oracle import library_law, uniforms

exhaustive = hypothesis_settings(max_examples=150, deadline=None, derandomize=True)

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.05, 0.5, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 3, 5, 1000]),
    top_p=st.sampled_from([0.0, 0.3, 0.7, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.8, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.3]),
)


def normal(seed: int, rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 2


@exhaustive
@given(samplings, st.integers(0, 2**20), st.integers(3, 30), st.integers(1, 4), st.integers(0, 8))
def test_the_law_is_that_of_the_librarys_own_processors(
    sampling: Sampling, seed: int, width: int, rows: int, before: int
) -> None:
    logits = normal(seed, rows, width)
    rng = torch.Generator().manual_seed(seed + 1)
    history = torch.randint(0, width, (before + rows - 1,), generator=rng).tolist()
    law = probs(logits, history, sampling)
    for row in range(rows):
        right = library_law(logits[row], history[: before + row], sampling)
        torch.testing.assert_close(law[row], right, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("spread", [0.01, 0.5, 3.0], ids=["nearly flat", "broad", "peaked"])
@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, 0, 0.9), Sampling(1.0, 0, 0.999), Sampling(1.0, 0, 1.0, 0.02)], ids=str
)
def test_a_nucleus_wider_than_the_first_guess_is_still_whole(spread: float, sampling: Sampling) -> None:
    """Only the head of the vocabulary is sorted when that is enough; here it often is not."""
    logits = normal(3, 2, 3000) * spread
    law = probs(logits, [], sampling)
    for row in range(2):
        right = library_law(logits[row], [], sampling)
        assert int((law[row] > 0).sum()) == pytest.approx(int((right > 0).sum()), abs=2), (
            "the number of kept ids differs by more than rounding of the running sum explains"
        )
        torch.testing.assert_close(law[row], right, atol=2e-6, rtol=1e-3)


def test_every_row_of_a_block_is_penalised_on_its_own_history_and_nothing_else() -> None:
    sampling = Sampling(1.0, 0, repetition_penalty=1.3, presence_penalty=0.8, frequency_penalty=0.5)
    logits, history = normal(5, 4, 6), [1, 4, 1, 2, 2, 5]
    block = probs(logits, history, sampling)
    for row in range(4):
        alone = probs(logits[row : row + 1], history[: 3 + row], sampling)
        assert torch.equal(block[row], alone[0]), f"row {row} sees another history in a block than alone"
    again = probs(logits, history, sampling)
    assert torch.equal(block, again), "a call left a trace in the next"


def test_penalties_do_not_write_into_the_logits_or_the_history() -> None:
    logits, history = normal(6, 3, 6), [1, 2, 3]
    kept, said = logits.clone(), list(history)
    probs(logits, history, Sampling(0.7, 3, 0.9, 0.1, 1.3, 0.8, 0.5))
    assert torch.equal(logits, kept) and history == said


@exhaustive
@given(samplings, st.integers(0, 2**20), st.integers(2, 5))
def test_a_row_has_the_same_law_to_the_last_bit_in_a_block_and_alone(
    sampling: Sampling, seed: int, rows: int
) -> None:
    """Draft rows are made one at a time, target rows in a block: two numeric paths would not be aligned."""
    logits, history = normal(seed, rows, 12), list(range(rows + 2))
    block = probs(logits, history, sampling)
    for row in range(rows):
        alone = probs(logits[row : row + 1], history[: 3 + row], sampling)[0]
        assert torch.equal(block[row], alone)


EDGES = [
    {"temperature": t, "top_k": k, "top_p": top_p, "min_p": min_p}
    for t, k, top_p, min_p in itertools.product(
        [0.0, 1e-6, 1e-4, 1.0, 5.0], [0, 1, 7, 8, 10**9], [0.0, 1e-4, 1.0], [0.0, 1.0]
    )
]


def test_no_setting_at_its_edge_gives_nan_or_an_empty_law() -> None:
    only_one = torch.full((8,), -math.inf)
    only_one[5] = -3.0
    huge = torch.tensor([3e4, -3e4, 0, 1, 2, 3, 4, 2.9e4])
    rows = torch.stack([normal(1, 1, 8)[0], only_one, huge, torch.zeros(8)])
    for edge in EDGES:
        law = probs(rows, [], Sampling(**edge))
        assert bool(law.isfinite().all()) and bool((law >= 0).all()), f"not a law at {edge}"
        torch.testing.assert_close(law.sum(-1), torch.ones(4), atol=1e-5, rtol=0, msg=f"sum at {edge}")
        assert law[1, 5] == 1, f"the only allowed id lost its probability at {edge}"
        if edge["top_p"] <= 1e-4 or edge["min_p"] == 1 or edge["top_k"] == 1 or edge["temperature"] <= 1e-6:
            assert law[0, rows[0].argmax()] == 1, f"not the argmax at {edge}"


@pytest.mark.parametrize("top_k", [8, 9, 10**9])
def test_a_top_k_of_the_whole_vocabulary_or_more_changes_nothing(top_k: int) -> None:
    logits = normal(2, 3, 8)
    off = probs(logits, [0, 1], Sampling(0.8, 0))
    torch.testing.assert_close(probs(logits, [0, 1], Sampling(0.8, top_k)), off, atol=0, rtol=0)


def test_the_smallest_sampled_temperature_is_the_argmax_too() -> None:
    """Just above and just below the greedy threshold nothing jumps."""
    logits = normal(8, 5, 12)
    below, above = (probs(logits, [], Sampling(t, 0)) for t in (0.9e-5, 1.1e-5))
    torch.testing.assert_close(below, above)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, top_k=1), Sampling(1e-6, 0, 0.5)], ids=str)
def test_an_exact_tie_goes_to_the_lowest_id(sampling: Sampling) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    law = probs(logits, [0, 0], sampling)
    assert law.argmax(-1).tolist() == [1, 0] and law.amax(-1).tolist() == [1.0, 1.0]


def test_ids_without_a_logit_never_come_out() -> None:
    """A head without these rows: -inf, and no penalty, filter or temperature brings them back."""
    logits = torch.cat([normal(4, 3, 6), torch.full((3, 4), -math.inf)], dim=-1)
    for edge in EDGES:
        law = probs(logits, [1, 8, 9, 2], Sampling(**edge, repetition_penalty=1.5, presence_penalty=-2.0))
        assert float(law[:, 6:].sum()) == 0, f"an id beyond the head has probability at {edge}"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.0), Sampling(0.7, 3), Sampling(0.7, 0), Sampling(0.7, 0, 0.9), Sampling(0.7, 0, 1, 0.1)],
)
def test_logits_that_are_not_numbers_are_a_clear_error(bad: float, sampling: Sampling) -> None:
    logits = normal(4, 3, 6)
    logits[1, 2] = bad
    with pytest.raises(BadLogits, match=r"not numbers.*float32"):
        checked(probs(logits, [1, 2], sampling))


def test_a_row_without_any_allowed_id_is_a_clear_error() -> None:
    with pytest.raises(BadLogits):
        checked(probs(torch.full((1, 5), -math.inf), [], Sampling(0.7)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1),
        ("top_p", 1.1), ("top_p", -0.1), ("top_p", math.nan), ("min_p", 2.0), ("min_p", math.nan),
        ("repetition_penalty", 0.0), ("repetition_penalty", math.nan), ("repetition_penalty", math.inf),
        ("presence_penalty", math.nan), ("frequency_penalty", math.inf),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_with_a_sentence(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; it must be .*"):
        Sampling(**{name: value})


def test_sampling_is_one_immutable_value() -> None:
    with pytest.raises(AttributeError):
        Sampling().temperature = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "weights", [[0.0, 0.3, 0.0, 0.7, 0.0], [0.0, 2.0, 0.0], [1e-30, 1.0], [0.0, 0.0, 5e-20]]
)
def test_an_id_of_weight_zero_is_never_drawn_even_at_the_ends(weights: list[float]) -> None:
    for point in (0.0, 2**-53, 0.5, 1 - 2**-53):
        with uniforms([], point):
            assert weights[sample(torch.tensor(weights), torch.Generator())] > 0


def test_the_draw_is_proportional_to_the_weights() -> None:
    """On an even grid of 10 000 draws each id comes out in its share, to one draw in 10 000."""
    weights = torch.tensor([1.0, 0.0, 5.0, 2.0])
    counts = [0, 0, 0, 0]
    for step in range(10_000):
        with uniforms([], (step + 0.5) / 10_000):
            counts[sample(weights, torch.Generator())] += 1
    assert counts == pytest.approx([1250, 0, 6250, 2500], abs=1)
