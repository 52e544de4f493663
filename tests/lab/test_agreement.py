"""Where two texts part, and whether that is a tie."""

from __future__ import annotations

import pytest
import torch

from specchat.decode.sampling import Sampling
from specchat.lab.agreement import TIE, first_difference, margin_at, parting
from tests.fakes import Script, arbitrary, constant, logs
from tests.oracle import full_logits
from tests.rigs import tiny
from tests.worker.jobs import pair_of

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("a", "b", "place"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [4], 0)],
)
def test_the_first_difference(a: list[int], b: list[int], place: int | None) -> None:
    assert first_difference(a, b) == first_difference(b, a) == place


def test_the_margin_is_the_gap_of_the_two_largest_logits() -> None:
    pair = pair_of()
    row = full_logits(tiny(), PROMPT)[-1].double()
    values, ids = row.topk(2)
    found = margin_at(pair, PROMPT)
    assert (found.top, found.second) == tuple(ids.tolist())
    assert found.gap == pytest.approx(float(values[0] - values[1]), abs=1e-3)
    assert found.p_top == pytest.approx(float(torch.softmax(row, -1)[ids[0]]), abs=1e-4)
    assert 0 <= found.noise < 1e-3 and pair.target.ids == PROMPT


def test_penalties_count_for_the_margin() -> None:
    script = pair_of(Script(constant([0.6, 0.3, 0.1]), 3), Script(constant([0.6, 0.3, 0.1]), 3))
    assert margin_at(script, [0, 1, 2]).top == 0
    assert margin_at(script, [0, 2, 2], Sampling(0.0, presence_penalty=2.0)).top == 1


def test_a_tie_is_named_and_a_difference_is_not_one() -> None:
    even = logs([0.4, 0.4, 0.2])
    pair = pair_of(Script(lambda prefix: even, 3), Script(arbitrary(0, 3), 3))
    tie = parting(pair, [0, 1], [2, 0], [2, 1])
    assert tie is not None and tie.tie and tie.place == 1 and tie.margin.gap < TIE
    third = parting(pair, [0, 1], [2, 0], [2, 2])
    assert third is not None and not third.tie, "an id that is not among the best two is no tie"
    ended = parting(pair, [0, 1], [2], [2, 1])
    assert ended is not None and not ended.tie and ended.first is None
    clear = pair_of(Script(constant([0.6, 0.3, 0.1]), 3), Script(arbitrary(0, 3), 3))
    different = parting(clear, [0, 1], [0], [1])
    assert (
        different is not None and not different.tie and different.margin.gap == pytest.approx(0.693, abs=1e-2)
    )
    assert parting(clear, [0, 1], [0], [0]) is None
