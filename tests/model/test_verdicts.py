"""The compiled verdict and draw: with the same random numbers exactly what `decode` does by torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specchat.decode import offered, verdict
from specchat.decode.drafters import Proposal
from specchat.decode.law import Law
from specchat.decode.sampling import Sampling, draw, law_of
from specchat.model import verdicts
from specchat.model.search import shares

VOCAB = 40


def laws(rows: int, k: int, seed: int, shape: str) -> Law:
    """Over k of the ids, in order; `sharp`: some entries are 0."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, VOCAB, generator=rng) * (60 if shape == "sharp" else 1.5)
    if shape == "broken":
        logits[seed % rows, 3] = math.nan
    return law_of(logits, [], Sampling(0.7, top_k=k))


def both_ways(p: Law, draft: Proposal, seed: int) -> tuple[Tensor, Tensor]:
    """By torch, then compiled; the generators must have come equally far."""
    rngs = [torch.Generator().manual_seed(seed) for _ in range(2)]
    offered._offers[:] = []
    by_torch = verdict.judge(p, draft, rngs[0])
    offered.offer(offered.Offer(shares, verdicts.draw, verdicts.judge))
    compiled = verdict.judge(p, draft, rngs[1])
    offered._offers[:] = []
    assert torch.equal(rngs[0].get_state(), rngs[1].get_state()), "other random numbers were used"
    return by_torch, compiled


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**20), st.integers(0, 6), st.sampled_from([1, 2, 5, 20]), st.sampled_from([1, 3, 20]),
    st.sampled_from(["flat", "sharp", "broken"]), st.sampled_from(["of its own", "the target's", "certain"]),
)  # fmt: skip
def test_the_verdict(seed: int, n: int, k: int, draft_k: int, shape: str, kind: str) -> None:
    p = laws(n + 1, k, seed, shape)
    q = {"of its own": laws(n, draft_k, seed + 1, "flat"), "the target's": p.first(n), "certain": None}[kind]
    if q is None or n == 0:
        drafted, q = torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed)), None
    else:
        rng = torch.Generator().manual_seed(seed)
        drafted = torch.cat([draw(Law(q.p[i : i + 1], q.ids[i : i + 1]), rng) for i in range(n)])
    by_torch, compiled = both_ways(p, Proposal(drafted, q, n, "x"), seed)
    assert math.isnan(compiled[0]) == math.isnan(by_torch[0]), "whether a row was no law"
    if not math.isnan(by_torch[0]):
        assert torch.equal(compiled[1:], by_torch[1:])
        torch.testing.assert_close(compiled[0], by_torch[0], atol=1e-6, rtol=1e-6)
    else:
        assert compiled[2] in p.ids, "an id all the same, which nobody will read"


def test_a_draft_that_was_no_law_is_told() -> None:
    p, q = laws(3, 4, 0, "flat"), laws(2, 4, 1, "flat")
    q = Law(torch.where(torch.tensor([[False], [True]]), math.nan, q.p), q.ids)
    for packed in both_ways(p, Proposal(q.ids[:, 0].clone(), q, 2, "x"), 0):
        it = verdict.read(packed)
        assert it.sound and not it.draft_sound


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 2**20), st.sampled_from([1, 2, 20]), st.sampled_from(["flat", "sharp"]))
def test_an_id_is_drawn(seed: int, k: int, shape: str) -> None:
    law = laws(1, k, seed, shape)
    by_torch = draw(law, torch.Generator().manual_seed(seed))
    offered.offer(offered.Offer(shares, verdicts.draw, verdicts.judge))
    compiled = draw(law, torch.Generator().manual_seed(seed))
    offered._offers[:] = []
    assert torch.equal(compiled, by_torch)


@pytest.mark.parametrize("point", [0.0, 0.5, 1 - 2**-53])
def test_what_has_no_chance_is_never_drawn(point: float) -> None:
    """Not even at the ends of the interval that a uniform number is taken from."""
    law = Law(torch.tensor([[0.0, 0.1, 0.0, 0.3, 0.6, 0.0]]), torch.arange(10, 16).view(1, 6))
    assert verdicts.draw(law, torch.tensor(point, dtype=torch.float64)).item() in (11, 13, 14)
    none = torch.zeros(0)
    packed = verdicts.judge(law, None, none.long(), none, torch.tensor(point, dtype=torch.float64))
    assert int(packed[2]) in (11, 13, 14) and packed[3] > 0


def test_laws_of_another_kind_are_left_to_torch() -> None:
    offered.offer(offered.Offer(shares, verdicts.draw, verdicts.judge))
    few, dense = laws(2, 5, 0, "flat"), Law(torch.full((1, VOCAB), 1 / VOCAB))
    assert offered.for_laws(few) is not None and offered.for_laws(few, few) is not None
    assert offered.for_laws(dense) is None and offered.for_laws(few, dense) is None
    assert offered.for_laws(Law(few.p.double(), few.ids)) is None
    wide = Law(torch.ones(1, 2 * offered.MOST_PAIRS), torch.arange(2 * offered.MOST_PAIRS).view(1, -1))
    assert offered.for_laws(wide) is None, "compared pair by pair it would take longer"
