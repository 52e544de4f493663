"""The head over a real (tiny) target: blocks against one at a time, chains, the file, and who is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from specchat.decode.engine import Engine, Settings
from specchat.decode.head_drafter import HeadDrafter
from specchat.decode.sampling import Sampling
from specchat.lab.distil.network import HeadNet, Packed
from specchat.lab.distil.start import shape_for
from specchat.model.compact import CompactDecoder
from specchat.model.errors import BadCheckpoint, ContextFull, ModelError, PairMismatch
from specchat.model.head import StateHead
from specchat.model.head_file import load_head, save_head
from specchat.model.linear import Precision
from tests.oracle import GREEDY, reference
from tests.rigs import collect
from tests.tiny import TINY_VOCAB, tiny_model

SUBSET = torch.arange(0, TINY_VOCAB, 2)
IDS = [(7 * i) % 90 for i in range(24)]


def decoder(precision: Precision = "float32", capacity: int = 128, **overrides: object) -> CompactDecoder:
    return CompactDecoder.from_module(tiny_model("llama", **overrides), TINY_VOCAB, capacity, precision)  # type: ignore[arg-type]


def net_for(target: CompactDecoder, seed: int = 0) -> HeadNet:
    """Random weights in all places, so that none can be forgotten unnoticed."""
    net = HeadNet(shape_for(target))
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            noise = torch.randn(weight.shape, generator=rng)
            weight.copy_(1 + 0.2 * noise if "norm" in name else noise * weight.shape[-1] ** -0.5)
    return net


def head_for(target: CompactDecoder, seed: int = 0) -> StateHead:
    net = net_for(target, seed)
    return StateHead(net.shape, dict(net.named_parameters()), SUBSET, target)


def some_states(target: CompactDecoder, n: int) -> Tensor:
    target.keep_states = True
    target.reset()
    target.forward([*IDS, 5][:n])
    assert target.states is not None
    return target.states[:n].clone()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_pairs_fed_in_blocks_give_what_one_at_a_time_gives(precision: Precision) -> None:
    target = decoder(precision)
    head, states = head_for(target), some_states(target, len(IDS))
    whole = head.feed(states, IDS)
    head.reset()
    single = torch.cat([head.feed(states[i : i + 1], IDS[i : i + 1]) for i in range(len(IDS))])
    head.reset()
    blocks = torch.cat([head.feed(states[:9], IDS[:9]), head.feed(states[9:], IDS[9:])])
    torch.testing.assert_close(single, whole, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(blocks, whole, atol=2e-5, rtol=1e-4)


def test_what_was_rolled_back_leaves_no_trace() -> None:
    target = decoder()
    head, states = head_for(target), some_states(target, len(IDS))
    head.feed(states[:10], IDS[:10])
    right = head.feed(states[10:12], IDS[10:12])
    head.rollback(2)
    head.feed(states[:5], IDS[:5])
    head.rollback(5)
    assert head.length == 10
    assert torch.equal(head.feed(states[10:12], IDS[10:12]), right)


def test_more_pairs_than_fit_are_refused_before_anything_is_written() -> None:
    target = decoder(capacity=8)
    head, states = head_for(target), some_states(target, 8)
    head.feed(states[:6], IDS[:6])
    with pytest.raises(ContextFull, match="holds 8"):
        head.feed(states[:3], IDS[:3])
    assert head.length == 6 and head.feed(states[6:8], IDS[6:8]).shape == states[:2].shape


@pytest.mark.parametrize("base", [0, 1, 7, 20])
def test_training_unrolls_exactly_what_drafting_does(base: int) -> None:
    """From a true pair on, the head lives on its own states; training sees the same in one pass over the text."""
    target = decoder()
    net, states = net_for(target), some_states(target, len(IDS))
    table = target.weights.table.float()
    pairs = Packed(states, table[torch.tensor(IDS)], table[:1], (len(IDS),))
    with torch.no_grad():
        unrolled = net.unroll(pairs, 4)
    head = StateHead(net.shape, dict(net.named_parameters()), SUBSET, target)
    state = head.feed(states[: base + 1], IDS[: base + 1])[-1:]
    for step in range(4):
        if base + step >= len(IDS):
            break
        if step:
            state = head.feed(state, [IDS[base + step]])
        torch.testing.assert_close(state[0], unrolled[step][base + step], atol=5e-3, rtol=5e-3)


def test_conversations_packed_together_do_not_see_each_other() -> None:
    target = decoder()
    net, states = net_for(target), some_states(target, len(IDS))
    embedded = target.weights.table.float()[torch.tensor(IDS)]
    with torch.no_grad():
        together = net.unroll(Packed(states, embedded, embedded[:2], (10, 14)), 3)
        first = net.unroll(Packed(states[:10], embedded[:10], embedded[:1], (10,)), 3)
        second = net.unroll(Packed(states[10:], embedded[10:], embedded[:1], (14,)), 3)
        deep = net.unroll(Packed(states, embedded, embedded[:2], (10, 14)), 3, deep=1)
    for step in range(3):
        torch.testing.assert_close(
            together[step], torch.cat([first[step], second[step]]), atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(deep[step][:10], first[step], atol=1e-5, rtol=1e-5)
    assert [len(out) for out in deep] == [24, 10, 10]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_its_logits_are_the_targets_own_rows(precision: Precision, tied: bool) -> None:
    target = decoder(precision, tie_word_embeddings=tied)
    head, states = head_for(target), some_states(target, 5)
    target.reset()
    own = target.forward(IDS[:5])[:, SUBSET]
    torch.testing.assert_close(head.logits(states), own, atol=2e-2, rtol=1e-2)
    assert head.logits(states).dtype == torch.float32


@pytest.mark.parametrize("gamma", range(1, 6))
def test_greedy_text_is_the_targets_own_whatever_the_head_says(gamma: int) -> None:
    target = decoder()
    engine = Engine(target, {"head": HeadDrafter(target, head_for(target))}, frozenset())
    right = reference(tiny_model("llama"), IDS[:9], 40)
    reply = collect(engine, IDS[:9], Settings(gamma, GREEDY, "head", 40))
    right.check(reply.ids, f"γ = {gamma}")
    assert reply.finished.notice == "" and all(event.drafted for event in reply.rounds[:5])
    follow = [*IDS[:9], *reply.ids, 9, 10]
    warm = collect(engine, follow, Settings(gamma, GREEDY, "head", 10))
    reference(tiny_model("llama"), follow, 10).check(warm.ids, "second turn")


def test_the_same_seed_writes_the_same_text_on_warm_and_cold_caches() -> None:
    target = decoder()
    engine = Engine(target, {"head": HeadDrafter(target, head_for(target))}, frozenset())
    settings = Settings(3, Sampling(1.0, 0, seed=4), "head", 30)
    first, again = collect(engine, IDS[:9], settings), collect(engine, IDS[:9], settings)
    assert first.ids == again.ids and first.finished.notice == ""


# -- the file -----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    target = decoder()
    net = net_for(target)
    path = tmp_path / "head.safetensors"
    save_head(path, net.shape, dict(net.named_parameters()), SUBSET, target.weights.table, "tiny")
    return path


def test_a_saved_head_comes_back(saved: Path) -> None:
    target = decoder()
    head, states = load_head(saved, target), some_states(target, len(IDS))
    assert head.shape == shape_for(target) and torch.equal(head.subset, SUBSET)
    expected = head_for(target).feed(states, IDS)
    torch.testing.assert_close(head.feed(states, IDS), expected, atol=1e-2, rtol=1e-2)
    half = sum(weight.numel() for weight in net_for(target).parameters()) * 2
    assert saved.stat().st_size < half + 20_000, "something of the target's was stored as well"
    assert head.weight_bytes > 0 and head.cache_bytes > 0


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _noise(path: Path) -> None:
    path.write_bytes(b"\x00" * 400)


def _change(path: Path, edit: Callable[[dict[str, Tensor], dict[str, str]], object]) -> None:
    with safe_open(path, "pt") as file:
        about = dict(file.metadata())
    tensors = load_file(path)
    edit(tensors, about)
    save_file(tensors, path, about)


def _pop(path: Path) -> None:
    _change(path, lambda tensors, about: tensors.pop("down"))


def _nan(path: Path) -> None:
    _change(path, lambda tensors, about: tensors["join"].fill_(float("nan")))


def _version(path: Path) -> None:
    _change(path, lambda tensors, about: about.update(format="specchat-head-0"))


def _shapeless(path: Path) -> None:
    _change(path, lambda tensors, about: about.update(shape="{}"))


@pytest.mark.parametrize("harm", [_cut, _noise, _pop, _nan, _version, _shapeless, Path.unlink])
def test_a_damaged_file_is_named_in_a_sentence(saved: Path, harm: Callable[[Path], None]) -> None:
    harm(saved)
    with pytest.raises(BadCheckpoint, match=r"head\.safetensors.*[a-z].*\.$"):
        load_head(saved, decoder())


def _more_ids(path: Path) -> None:
    _change(path, lambda tensors, about: tensors["subset"].add_(TINY_VOCAB))


def short_head() -> CompactDecoder:
    """A target whose output head ends before some of the head's ids."""
    return CompactDecoder.from_module(tiny_model("llama"), 100, 128, "float32")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (lambda: decoder(hidden_size=128), "128"),
        (lambda: decoder(seed=5), "other weights"),
        (lambda: short_head(), "vocabulary"),
    ],
)
def test_a_head_made_for_another_target_is_refused(
    saved: Path, target: Callable[[], CompactDecoder], says: str
) -> None:
    with pytest.raises(PairMismatch, match=rf"made for tiny.*{says}") as refusal:
        load_head(saved, target())
    assert isinstance(refusal.value, ModelError)


def test_ids_beyond_the_targets_vocabulary_are_refused(saved: Path) -> None:
    _more_ids(saved)
    with pytest.raises(PairMismatch, match="vocabulary"):
        load_head(saved, decoder())
