"""A law by its few entries is the law it is as a table: chances, tables, and what `verify` makes of it."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.decode import law as law_module
from specchat.decode.law import Law, certain, stacked
from specchat.decode.sampling import BadLogits, Sampling, checked, draw, law_of
from tests.oracle import exact_verdict

WIDTH = 5
exhaustive = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def tables(draw: st.DrawFn, rows: int) -> torch.Tensor:
    """[rows, WIDTH] of laws, zeros included."""
    entry = st.sampled_from([0.0, 1e-6, 0.1, 0.3, 0.7, 1.0])
    row = st.lists(entry, min_size=WIDTH, max_size=WIDTH).filter(lambda r: sum(r) > 0.05)
    table = torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)))
    return table / table.sum(-1, keepdim=True)


def listed(table: torch.Tensor, seed: int) -> Law:
    """The same laws by their entries, in an order of each row's own."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(WIDTH, generator=rng) for _ in table])
    return Law(table.gather(1, ids), ids)


def short(table: torch.Tensor, k: int) -> Law:
    """Only the k largest entries, renormalised."""
    p, ids = table.topk(k)
    return Law(p / p.sum(-1, keepdim=True), ids)


@exhaustive
@given(st.data(), st.integers(0, 2**20), st.integers(1, 2))
def test_a_verdict_is_the_same_however_the_laws_are_written(data: st.DataObject, seed: int, n: int) -> None:
    p, q = data.draw(tables(n + 1)), data.draw(tables(n))
    drafted = [int(row.argmax()) for row in q]
    right = exact_verdict(p, q, drafted)
    for mine in (p, listed(p, seed)):
        for draft in (q, listed(q, seed + 1)):
            law = exact_verdict(mine, draft, drafted)
            assert set(law) >= {case for case, chance in right.items() if chance > 1e-6}
            for case, chance in law.items():
                assert chance == pytest.approx(right.get(case, 0.0), abs=2e-6)


@pytest.mark.parametrize("pairs", [0, 1 << 14], ids=["sorted", "one with one"])
@exhaustive
@given(st.data(), st.integers(0, 2**20), st.integers(1, WIDTH), st.integers(1, WIDTH))
def test_laws_that_list_other_ids_and_other_numbers_of_them_are_judged_like_their_tables(
    pairs: int, data: st.DataObject, seed: int, few: int, fewer: int
) -> None:
    """As top-k leaves them: the target's and the draft's largest entries are not the same ids."""
    p, q = (short(data.draw(tables(rows)), k) for rows, k in ((2, few), (1, fewer)))
    drafted = [int(q.ids[0, seed % fewer])]  # type: ignore[index]
    if float(q.p[0, seed % fewer]) == 0:
        drafted = [int(q.ids[0, 0])]  # type: ignore[index]
    right = exact_verdict(p.dense(WIDTH), q.dense(WIDTH), drafted)
    with mock.patch.object(law_module, "PAIRS", pairs):
        for draft in (q, q.dense(WIDTH)):
            for case, chance in exact_verdict(p, draft, drafted).items():
                assert chance == pytest.approx(right.get(case, 0.0), abs=2e-6)


@exhaustive
@given(st.data(), st.integers(0, 2**20))
def test_certainty_is_one_entry_and_judged_like_its_table(data: st.DataObject, seed: int) -> None:
    p, ids = data.draw(tables(2)), torch.tensor([seed % WIDTH])
    one_hot = torch.nn.functional.one_hot(ids, WIDTH).float()
    assert torch.equal(certain(ids).dense(WIDTH), one_hot)
    right = exact_verdict(p, one_hot, ids.tolist())
    for mine in (p, listed(p, seed)):
        for draft in (None, certain(ids)):
            for case, chance in exact_verdict(mine, draft, ids.tolist()).items():
                assert chance == pytest.approx(right.get(case, 0.0), abs=2e-6)


def test_entries_and_table_agree_on_every_chance_and_what_is_not_listed_has_none() -> None:
    law = Law(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([[4, 1], [0, 2]]))
    table = law.dense(WIDTH)
    assert table.tolist() == [[0, 0.25, 0, 0, 0.75], [0.5, 0, 0.5, 0, 0]]
    for id in range(WIDTH):
        ids = torch.tensor([id, id])
        assert (
            torch.equal(law.chances(ids), Law(table).chances(ids))
            and float(law.chances(ids)[1]) == table[1, id]
        )
    first, second = law.row(torch.tensor(0)), law.row(torch.tensor(1))
    assert first.at(Law(table[:1])).tolist() == table[:1].tolist()
    assert Law(table[1:]).at(first).tolist() == [[0, 0]] and second.at(second).tolist() == [[0.5, 0.5]]
    assert torch.equal(stacked([first, second]).dense(WIDTH), table) and len(law.first(1)) == 1


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, 3), Sampling(0.7, 3, 0.9, 0.1)], ids=str)
def test_filters_leave_few_entries_and_bad_rows_stay_nan_from_end_to_end(sampling: Sampling) -> None:
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(2))
    logits[1, 7] = torch.nan
    law = law_of(logits, [], sampling)
    assert law.p.shape == (3, 1 if sampling.greedy else 3) and law.ids is not None
    assert bool(law.p[1].isnan().all()) and bool(law.dense(400)[1].isnan().all())
    assert law.chances(torch.tensor([0, 0, 0])).isnan().tolist() == [False, True, False]
    with pytest.raises(BadLogits):
        checked(law.dense(400))
    # It is fed to a model before anyone has seen that it means nothing.
    assert 0 <= int(draw(law.row(torch.tensor(1)), torch.Generator())) < 400
