"""The search for the k largest: what torch finds, whatever the row looks like."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.decode import largest as decode_largest
from specchat.decode.largest import BLOCK, Search, by_blocks
from specchat.decode.sampling import Sampling, law_of
from specchat.model.search import MOST, largest

WIDE = BLOCK * 96


@pytest.mark.parametrize("search", [largest, by_blocks])
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([1, 2, 20, MOST, MOST + 1]), st.integers(1, 5),
    st.sampled_from([98, BLOCK, BLOCK + 1, 3000, WIDE]), st.sampled_from(["spread", "crowded", "rising", "ties", "few"]),
)  # fmt: skip
def test_the_largest_are_the_largest(
    search: Search, seed: int, k: int, rows: int, width: int, shape: str
) -> None:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, generator=rng)
    if shape == "crowded":
        # All of the largest in one block: the other blocks' largest are no guide to their second best.
        logits[:, width // 2 : width // 2 + BLOCK] += 20
    elif shape == "rising":
        logits = logits.sort(dim=-1).values
    elif shape == "ties":
        logits = logits.round()
    elif shape == "few":
        logits[:, 7:] = -torch.inf
    values, ids = search(logits, k)
    assert torch.equal(values, logits.topk(k).values)
    assert torch.equal(logits.gather(1, ids), values) and all(len(set(row.tolist())) == k for row in ids)


def test_of_equal_logits_the_lowest_id_comes_first() -> None:
    logits = torch.zeros(2, 3 * BLOCK)
    logits[1, [5, 200, 300]] = 1.0
    values, ids = largest(logits, 4)
    assert ids.tolist() == [[0, 1, 2, 3], [5, 200, 300, 0]] and values[1].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("place", [0, 3, BLOCK - 1, BLOCK, 3 * BLOCK - 1])
@pytest.mark.parametrize("others", [0.0, -math.inf, math.inf, 1e30])
def test_nan_anywhere_is_nan_everywhere_and_the_ids_are_ids(place: int, others: float) -> None:
    logits = torch.full((3, 3 * BLOCK), others)
    logits[1, place] = -torch.tensor(math.nan)
    values, ids = largest(logits, 5)
    assert values.isnan().all(-1).tolist() == [False, True, False]
    assert bool((ids >= 0).all()) and bool((ids < 3 * BLOCK).all())


def test_a_law_is_made_of_what_the_offered_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(2, 4 * BLOCK, generator=torch.Generator().manual_seed(3))
    plain = law_of(logits, [], Sampling(0.8, 5))
    asked: list[int] = []

    def noted(rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(k)
        return largest(rows, k)

    monkeypatch.setattr(decode_largest, "_offered", [])
    decode_largest.offer(noted)
    law = law_of(logits, [], Sampling(0.8, 5))
    assert asked == [5] and torch.equal(law.p, plain.p) and torch.equal(law.dense(512), plain.dense(512))
