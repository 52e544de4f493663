"""Searching and drawing by blocks gives what searching and drawing through the whole row gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.decode.largest import BLOCK
from specchat.decode.sampling import BadLogits, Sampling, checked, probs, sample
from tests.oracle import uniforms

WIDE = BLOCK * 96


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_found_wherever_it_lies(bad: float) -> None:
    for place in (0, BLOCK - 1, WIDE // 2 + 3, WIDE - 1):
        logits = torch.zeros(1, WIDE)
        logits[0, place] = bad
        with pytest.raises(BadLogits):
            checked(probs(logits, [], Sampling(top_k=20)))


def test_a_draw_by_blocks_follows_the_weights() -> None:
    """χ² over 12,000 draws, 60 cells of which many share a block; α = 1e-6, fixed seed."""
    rng = torch.Generator().manual_seed(7)
    weights = torch.zeros(WIDE)
    places = torch.cat([torch.arange(30) * 7, torch.arange(30) * 311 + 1000])
    weights[places] = torch.rand(60, generator=rng) + 0.2
    law = weights / weights.sum()
    draws = torch.tensor([sample(weights, rng) for _ in range(12_000)])
    counts = torch.bincount(draws, minlength=WIDE)
    assert int(counts[weights == 0].sum()) == 0, "a weight of 0 was drawn"
    expected = law[places] * len(draws)
    statistic = ((counts[places] - expected) ** 2 / expected).sum()
    assert float(torch.special.gammaincc(torch.tensor(59 / 2), statistic / 2)) > 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_a_weight_of_zero_is_never_drawn_however_few_there_are(seed: int, some: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weights = torch.zeros(WIDE)
    weights[torch.randint(WIDE, (some,), generator=rng)] = torch.rand(some, generator=rng) * 1e-6 + 1e-30
    assert float(weights[sample(weights, rng)]) > 0


def test_a_draw_at_the_very_end_of_a_block_is_not_behind_it() -> None:
    """The block's own sum and the running one may differ in the last bit; the block ends with weights of 0."""
    for seed in range(200):
        # Over many orders of magnitude: sums of like numbers would be exact.
        weights = 10 ** (-14 * torch.rand(WIDE, generator=torch.Generator().manual_seed(seed)))
        weights[6 * BLOCK - 5 :] = 0
        with uniforms([], 1 - 2**-53):
            assert float(weights[sample(weights, torch.Generator())]) > 0


@pytest.mark.parametrize("width", [1, 5, WIDE])
def test_a_draw_from_no_law_is_in_the_range(width: int) -> None:
    """It is fed to a model before anyone has seen that it means nothing."""
    rng = torch.Generator().manual_seed(0)
    for weights in (torch.full((width,), float("nan")), torch.zeros(width)):
        assert 0 <= int(sample(weights, rng)) < width


@pytest.mark.parametrize("width", [40, WIDE])
@pytest.mark.parametrize(
    "sampling", [Sampling(0.0), Sampling(), Sampling(0.8, 0), Sampling(0.8, 0, 0.9, 0.01)]
)
def test_a_bad_row_is_nan_from_end_to_end_and_its_neighbours_are_laws(sampling: Sampling, width: int) -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        logits = torch.randn(3, width, generator=torch.Generator().manual_seed(1))
        logits[1] = bad if bad < 0 else logits[1].scatter(0, torch.tensor(3), bad)
        law = probs(logits, [], sampling)
        assert bool(law[1].isnan().all())
        torch.testing.assert_close(law[[0, 2]].sum(-1), torch.ones(2))
