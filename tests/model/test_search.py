"""The search for the k largest: what torch finds, whatever the row looks like."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.decode import offered
from specchat.decode.largest import BLOCK, by_blocks
from specchat.decode.sampling import Sampling, law_of
from specchat.model import verdicts
from specchat.model.search import MOST, shares

WIDE = BLOCK * 96


def by_torch(logits: torch.Tensor, k: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    values, ids = logits.topk(k)
    return (values / temperature).softmax(-1), ids


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([1, 2, 20, MOST, MOST + 1]), st.integers(1, 5),
    st.sampled_from([98, BLOCK, BLOCK + 1, 3000, WIDE]), st.sampled_from(["spread", "crowded", "rising", "ties", "few"]),
    st.sampled_from([0.02, 0.6, 1.7]),
)  # fmt: skip
def test_the_law_over_the_largest(
    seed: int, k: int, rows: int, width: int, shape: str, temperature: float
) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, width, generator=rng)
    if shape == "crowded":
        # All of the largest in one block: the other blocks' largest are no guide to their second best.
        logits[:, width // 2 : width // 2 + BLOCK] += 20
    elif shape == "rising":
        logits = logits.sort(dim=-1).values
    elif shape == "ties":
        logits = logits.round()
    elif shape == "few":
        logits[:, 7:] = -torch.inf
    right, _ = by_torch(logits, k, temperature)
    p, ids = shares(logits, k, temperature)
    torch.testing.assert_close(p, right, atol=1e-7, rtol=1e-4)
    assert torch.equal(logits.gather(1, ids), logits.topk(k).values)
    assert all(len(set(row.tolist())) == k for row in ids)
    assert bool((p[logits.gather(1, ids) == -torch.inf] == 0).all()), "what has no logit has no chance"
    values, places = by_blocks(logits, k)
    assert torch.equal(values, logits.topk(k).values) and torch.equal(logits.gather(1, places), values)


def test_of_equal_logits_the_lowest_id_comes_first() -> None:
    logits = torch.zeros(2, 3 * BLOCK)
    logits[1, [5, 200, 300]] = 1.0
    p, ids = shares(logits, 4, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3], [5, 200, 300, 0]] and p[0].tolist() == [0.25] * 4


@pytest.mark.parametrize("place", [0, 3, BLOCK - 1, BLOCK, 3 * BLOCK - 1])
@pytest.mark.parametrize("others", [0.0, -math.inf, 1e30])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_what_is_no_number_is_nan_everywhere_and_the_ids_are_ids(
    place: int, others: float, bad: float
) -> None:
    logits = torch.full((3, 3 * BLOCK), others)
    logits[1, place] = bad
    p, ids = shares(logits, 5, 0.6)
    assert bool(p[1].isnan().all()), "no law at all is told by nan"
    assert bool(p[[0, 2]].isnan().all()) == (others == -math.inf), (
        "a row of nothing but -inf is no law either"
    )
    assert bool((ids >= 0).all()) and bool((ids < 3 * BLOCK).all())


def test_a_law_is_made_of_what_was_offered() -> None:
    logits = torch.randn(2, 4 * BLOCK, generator=torch.Generator().manual_seed(3))
    plain = law_of(logits, [], Sampling(0.8, 5))
    asked: list[int] = []

    def noted(rows: torch.Tensor, k: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(k)
        return shares(rows, k, temperature)

    offered.offer(offered.Offer(noted, verdicts.draw, verdicts.judge))
    law = law_of(logits, [], Sampling(0.8, 5))
    assert asked == [5]
    torch.testing.assert_close(law.dense(4 * BLOCK), plain.dense(4 * BLOCK), atol=1e-7, rtol=2e-5)
