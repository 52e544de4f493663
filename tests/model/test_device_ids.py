"""Ids that come as a tensor: the same passes as with ids of the host, noted as unknown until someone tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specchat.decode.drafters import Forward, common_prefix, reuse
from specchat.decode.ids import UNKNOWN, joined, listed, on
from specchat.model import graphs, stack
from specchat.model.compact import CompactDecoder
from specchat.model.errors import ContextFull
from tests.model.test_graphs import Tapes, recorded, silent
from tests.model.test_head import IDS, decoder, head_for, some_states
from tests.oracle import full_logits
from tests.reads import Reads
from tests.rigs import runner, tiny
from tests.tiny import TINY_VOCAB

CPU = torch.device("cpu")


def compact() -> CompactDecoder:
    return CompactDecoder.from_module(tiny(), TINY_VOCAB, 64, "float32")


def replayed() -> CompactDecoder:
    return recorded(compact(), Tapes())


MAKERS: dict[str, Callable[[], Forward]] = {
    "compact": compact,
    "replayed": replayed,
    "runner": lambda: runner(tiny(), 64),
    "recurrent": lambda: runner(tiny("mamba"), 64),
}


def tensor(*ids: int) -> Tensor:
    return torch.tensor(ids)


@pytest.mark.parametrize("maker", list(MAKERS))
def test_a_forward_of_device_ids_is_that_of_the_same_ids_and_notes_them_as_unknown(maker: str) -> None:
    known, blind = MAKERS[maker](), MAKERS[maker]()
    for block in (IDS[:3], IDS[3:4], IDS[4:9], IDS[9:10]):
        right = known.forward(block)
        assert torch.equal(blind.forward(tensor(*block)), right)
    assert known.ids == IDS[:10] and blind.ids == [UNKNOWN] * 10
    blind.ids[:] = IDS[:10]
    assert torch.equal(blind.forward(IDS[10:12]), known.forward(IDS[10:12]))


@pytest.mark.parametrize("maker", ["compact", "replayed", "runner"])
def test_what_is_unknown_is_forgotten_by_whoever_compares(maker: str) -> None:
    model = MAKERS[maker]()
    model.forward(IDS[:5])
    model.forward(tensor(*IDS[5:8]))
    assert common_prefix(model.ids, IDS) == 5
    assert reuse(model, IDS) == 5 and model.ids == IDS[:5]
    again = model.forward(IDS[5:9])
    torch.testing.assert_close(again, full_logits(tiny(), IDS[:9])[5:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("maker", ["compact", "replayed", "runner"])
def test_a_pass_over_device_ids_reads_none_of_them(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "MOST_ROWS", 0)  # as on a GPU: a CPU's kernels read from memory that is theirs
    model = MAKERS[maker]()
    for rows in (1, 3):
        model.forward(IDS[:rows])  # the library looks some things up once, and recordings are made
        model.forward(tensor(*IDS[:rows]))
    with torch.inference_mode(), Reads() as reads:
        model.forward(tensor(7))
        model.forward(tensor(7, 8, 9))
    assert reads.found == []


@pytest.mark.parametrize("maker", ["compact", "replayed", "runner"])
def test_an_unknown_id_without_a_row_is_harmless_and_too_many_are_refused_as_ever(maker: str) -> None:
    """On a GPU a look-up outside of a table kills the process's context."""
    model = MAKERS[maker]()
    for stray in (-5, 10**6):
        assert bool(model.forward(tensor(1, stray, 2)).isfinite().all())
    with pytest.raises(ContextFull):
        model.forward(torch.zeros(60, dtype=torch.long))
    with pytest.raises(ValueError, match="at least one id"):
        model.forward(torch.zeros(0, dtype=torch.long))
    assert len(model.ids) == 6


@pytest.mark.parametrize("recorded", [False, True])
def test_a_heads_feed_takes_device_ids(recorded: bool) -> None:
    target = decoder()
    states = some_states(target, 6)
    heads = head_for(target), head_for(target)
    if recorded:
        heads[1].use_graphs(Tapes(), silent)
    for at, end in ((0, 3), (3, 4), (4, 6)):
        right = heads[0].feed(states[at:end], IDS[at:end])
        found = heads[1].feed(states[at:end], tensor(*IDS[at:end]))
        torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
    assert heads[1].length == 6


def test_ids_of_both_kinds_share_one_record() -> None:
    tapes = Tapes()
    model = recorded(compact(), tapes)
    for block in ([1], tensor(2), [3], tensor(4, 5), [6, 7]):
        model.forward(block)
    assert tapes.recorded == 2 and tapes.replayed == 5


@pytest.fixture(autouse=True)
def _one_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "SHORTEST", 64)


def test_ids_are_joined_where_the_unknown_ones_are() -> None:
    assert joined([1, 2], (3,)) == [1, 2, 3] and joined([1], ()) == [1]
    both = joined([1, 2], tensor(3))
    assert isinstance(both, Tensor) and both.tolist() == [1, 2, 3] and both.dtype == torch.long
    assert listed((4, 5)) == [4, 5] and listed(both) == [UNKNOWN] * 3
    assert on(CPU, ()).dtype == torch.long and on(CPU, both) is both
