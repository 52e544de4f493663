"""Recorded passes against the eager ones. In a CUDA graph's place stands a tape of the very operations, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from specchat.decode.engine import Engine, Settings
from specchat.decode.head_drafter import HeadDrafter
from specchat.decode.sampling import Sampling
from specchat.model import graphs
from specchat.model.catalog import PairOptions
from specchat.model.compact import CompactDecoder
from specchat.model.errors import UnsupportedModel
from specchat.model.graphs import MAX_ROWS, CudaReplayer, Replayer, columns_for
from specchat.model.head import StateHead
from specchat.model.linear import Precision
from specchat.pair import open_pair
from tests.model.test_head import head_for
from tests.rigs import collect
from tests.tiny import TINY_VOCAB, save_tiny, tiny_model

CAPACITY = 90
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")  # this mistral's window is 8 places
FORBIDDEN = ("_local_scalar_dense", "item", "nonzero", "lift_fresh", "equal", "unique", "layout", "to.device")
"""Operations that wait for the device or copy from the host: a real recording would fail at them."""


class Tape(TorchDispatchMode):
    """Notes every operation with the tensors it was given, and does those again.

    As in a CUDA graph, no Python runs at a replay: numbers and shapes are those of the recording, tensors made
    outside are the same memory, tensors made inside are made anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(func) for name in FORBIDDEN), f"{func} cannot be recorded"
        out = func(*args, **(kwargs or {}))
        self.notes.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        made: dict[int, Tensor] = {}
        for func, args, kwargs, then in self.notes:
            args, kwargs = tree_map(lambda x: made.get(id(x), x), (args, kwargs))
            _pair(then, func(*args, **kwargs), made)


def _pair(then: Any, now: Any, made: dict[int, Tensor]) -> None:
    if isinstance(then, Tensor):
        made[id(then)] = now
    elif isinstance(then, tuple | list):
        for a, b in zip(then, now, strict=True):
            _pair(a, b, made)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: int(x[0]),
        lambda x: bool((x > 1).any()),
        lambda x: torch.tensor([1, 2]),
        lambda x: x.nonzero(),
        lambda x: x.to("cpu"),
        lambda x: torch.equal(x, x),
    ],
)
def test_the_tape_refuses_what_waits_for_the_device(work: Callable[[Tensor], object]) -> None:
    with torch.inference_mode(), Tape(), pytest.raises(AssertionError, match="cannot be recorded"):
        work(torch.arange(3))


class Tapes:
    """The replayer of these tests: counts what it records and replays."""

    def __init__(self, fail_after: int = 10**6) -> None:
        self.fail_after = fail_after
        self.recorded = 0
        self.replayed = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        for _ in range(graphs.WARM_UPS):
            work()
        if self.recorded == self.fail_after:
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with advice.")
        self.recorded += 1
        tape = Tape()
        with tape:
            work()

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return replay


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns 16, 32, 64, 90: four stretches in a text of a few seconds."""
    monkeypatch.setattr(graphs, "SHORTEST", 16)


def decoder(kind: str = "llama", precision: Precision = "float32", **overrides: object) -> CompactDecoder:
    return CompactDecoder.from_module(tiny_model(kind, **overrides), TINY_VOCAB, CAPACITY, precision)  # type: ignore[arg-type]


def silent(_: str) -> None:
    """Nothing is expected to be told."""
    pytest.fail("a recording failed")


def memories(model: CompactDecoder | StateHead) -> tuple[Tensor, Tensor]:
    """Its keys and values."""
    return model._stack._keys.memory, model._stack._values.memory


def recorded(model: CompactDecoder, tapes: Replayer) -> CompactDecoder:
    """A second cache over the same weights, which replays. Its buffer starts full of nan: the worst that memory holds."""
    twin = model.first_layers(len(model.weights.layers))
    for memory in memories(twin):
        memory.fill_(float("nan"))
    twin.use_graphs(tapes, silent)
    return twin


def some_ids(n: int, seed: int) -> list[int]:
    return torch.randint(0, TINY_VOCAB, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def close(a: Tensor, b: Tensor) -> None:
    # Logits have a deviation of about 3: 1e-5 of it is float32's own noise.
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_recorded_pass_equals_the_eager_one(kind: str) -> None:
    """Blocks of 1 to 6 rows, some taken back, over every border between stretches up to the last place."""
    eager, tapes = decoder(kind), Tapes()
    static = recorded(eager, tapes)
    eager.keep_states = static.keep_states = True
    kept: list[tuple[Tensor, Tensor]] = []
    for model in (eager, static):
        model.read(some_ids(7, seed=0))
    step = 0
    while len(eager.ids) < CAPACITY:
        step += 1
        n = min(1 + step % 6, CAPACITY - len(eager.ids))
        block = some_ids(n, seed=step)
        logits, again = eager.forward(block), static.forward(block)
        close(again, logits)
        kept.append((again, again.clone()))
        back = step % 3 if len(eager.ids) < CAPACITY else 0
        for model in (eager, static):
            model.rollback(min(back, n))
    assert static.ids == eager.ids
    assert eager.states is not None and static.states is not None
    close(static.states[: len(static.ids)], eager.states[: len(eager.ids)])
    assert all(torch.equal(then, copy) for then, copy in kept), (
        "logits of an earlier pass changed under its caller"
    )
    assert tapes.replayed == step
    assert {columns for _, columns in static._static._recorded._replays} == {16, 32, 64, 90}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_cuda_graph_equals_the_eager_pass(kind: str) -> None:
    module = tiny_model(kind).to("cuda")  # type: ignore[arg-type]
    eager = CompactDecoder.from_module(module, TINY_VOCAB, CAPACITY, "float32")
    static = recorded(eager, CudaReplayer(eager.device))
    step = 0
    while len(eager.ids) < CAPACITY:
        step += 1
        block = some_ids(min(1 + step % 6, CAPACITY - len(eager.ids)), seed=step)
        expected, got = eager.forward(block), static.forward(block)
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)  # other kernels than on a CPU
        for model in (eager, static):
            model.rollback(min(step % 3, len(block)) if len(eager.ids) < CAPACITY else 0)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_it_does_so_with_packed_weights_too(kind: str, precision: Precision) -> None:
    eager = decoder(kind, precision)
    static = recorded(eager, Tapes())
    for block in (some_ids(5, 1), some_ids(1, 2), some_ids(6, 3), some_ids(1, 4), some_ids(6, 5)):
        expected = eager.forward(block)
        close_enough = (
            1e-4 if precision == "float16" else 5e-2
        )  # int8: a last bit can move an activation one step
        assert (static.forward(block) - expected).abs().max() < close_enough


def test_nothing_is_recorded_twice_and_no_buffer_moves() -> None:
    tapes = Tapes()
    static = recorded(decoder(), tapes)
    inner = static._static
    assert inner is not None
    buffers = (inner._states, inner._logits, inner._recorded._numbers, *memories(static))
    before = [buffer.data_ptr() for buffer in buffers]
    for seed in range(3):
        static.reset()
        for n in (1, 4, 1, 4, 3):
            static.forward(some_ids(n, seed))
    assert tapes.recorded == 3 and tapes.replayed == 15
    now = (inner._states, inner._logits, inner._recorded._numbers, *memories(static))
    assert [buffer.data_ptr() for buffer in now] == before
    static.forward(some_ids(4, 9))  # places 13 to 16: the last of the first stretch is one of them
    assert tapes.recorded == 4, "a new stretch needs a record of its own"


def test_prompts_are_not_recorded_and_both_ways_share_the_cache() -> None:
    eager, tapes = decoder("qwen3"), Tapes()
    static = recorded(eager, tapes)
    for block in (
        some_ids(MAX_ROWS + 1, 0),
        some_ids(2, 1),
        some_ids(MAX_ROWS + 5, 2),
        some_ids(MAX_ROWS, 3),
    ):
        close(static.forward(block), eager.forward(block))
    assert tapes.replayed == 2


def test_a_nan_that_was_taken_back_does_not_return() -> None:
    """A weight of 0 times nan is nan: a recorded pass reads places behind its rows, so they are cleaned."""
    eager = decoder()
    static = recorded(eager, Tapes())
    block = some_ids(5, 0)
    for forget in (lambda: static.rollback(6), static.reset):
        static.forward(some_ids(6, 1))
        for cached in (static._stack._keys, static._stack._values):  # as a pass that overflowed leaves them
            cached.put(slice(0, 6), torch.full_like(cached.seen(0, 6), float("nan")))
        forget()
        eager.reset()
        close(static.forward(block), eager.forward(block))
        static.reset()


@pytest.mark.parametrize("works_for", [0, 2])
def test_a_recording_that_fails_is_told_once_and_everything_goes_on(works_for: int) -> None:
    eager, tapes, told = decoder(), Tapes(fail_after=works_for), list[str]()
    static = eager.first_layers(2)
    static.use_graphs(tapes, told.append)
    for seed, n in enumerate((1, 2, 3, 1, 4, 2)):
        block = some_ids(n, seed)
        close(static.forward(block), eager.forward(block))
    assert static.ids == eager.ids
    assert told == [
        "CUDA graphs are off: a pass of the model could not be recorded "
        "(operation not permitted when stream is capturing)."
    ]
    assert tapes.replayed == works_for and tapes.recorded == works_for


def test_the_heads_feed_is_recorded_too() -> None:
    target = decoder()
    target.keep_states = True
    ids = some_ids(60, 0)
    target.read(ids)
    assert target.states is not None
    eager, static, tapes = head_for(target), head_for(target), Tapes()
    for memory in memories(static):
        memory.fill_(float("nan"))
    static.use_graphs(tapes, silent)
    at, step = 0, 0
    kept: list[tuple[Tensor, Tensor]] = []
    while at < 50:
        step += 1
        n = 1 + step % 6
        found = [head.feed(target.states[at : at + n], ids[at : at + n]) for head in (eager, static)]
        close(found[1], found[0])
        close(static.logits(found[1]), eager.logits(found[0]))
        for guess in (7, 8):  # on its own states, then taken back
            found = [head.feed(out[-1:], [guess]) for head, out in zip((eager, static), found, strict=True)]
            close(found[1], found[0])
        kept.append((found[1], found[1].clone()))
        eager.rollback(2)
        static.rollback(2)
        at += n
    assert static.length == eager.length == at
    assert all(torch.equal(then, copy) for then, copy in kept)
    shapes = static._static._recorded._replays
    assert tapes.recorded == len(shapes) < tapes.replayed == 3 * step


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_reply_is_the_same_and_moved_sliders_record_nothing(temperature: float) -> None:
    """The engine over both ways with one seed: γ and temperature change on the way; a second reply records nothing."""

    def reply(target: CompactDecoder, head: StateHead, seed: int) -> list[int]:
        turns = iter(range(1000))

        def settings() -> Settings:
            sampling = Sampling(temperature=temperature and temperature + 0.1 * (next(turns) % 3), seed=seed)
            return Settings((0, 1, 3, 5)[next(turns) % 4], sampling, "model", 40)

        engine = Engine(target, {"model": HeadDrafter(target, head)}, frozenset())
        return collect(engine, some_ids(8, 1), settings).ids

    eager, tapes = decoder(), Tapes()
    static, heads = recorded(eager, tapes), [head_for(eager), head_for(eager)]
    heads[1].use_graphs(tapes, silent)
    assert reply(static, heads[1], 3) == reply(eager, heads[0], 3)
    before = tapes.recorded
    static.reset()
    heads[1].reset()
    assert reply(static, heads[1], 3) and tapes.recorded == before


def test_the_stretches_double_up_to_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "SHORTEST", 512)
    ends = (1, 512, 513, 1024, 1025, 5000, 5001)
    assert [columns_for(end, 5001) for end in ends] == [512, 512, 1024, 1024, 2048, 5001, 5001]
    assert columns_for(20, 64) == 64


def test_it_is_off_unless_asked_for_and_refused_off_cuda(tmp_path: Path) -> None:
    assert not PairOptions().cuda_graphs
    options = PairOptions(str(save_tiny(tmp_path)), "none", "cpu", context=64)
    with pytest.raises(UnsupportedModel, match=r"--cuda-graphs needs a CUDA device, and this runs on cpu"):
        open_pair(replace(options, cuda_graphs=True), lambda _: None)


def test_a_pair_hands_it_to_both_models_and_to_its_twin(tmp_path: Path) -> None:
    tapes = Tapes()
    pair = open_pair(PairOptions(str(save_tiny(tmp_path)), "self", "cpu", context=64), lambda _: None)
    assert isinstance(pair.target, CompactDecoder) and isinstance(pair.draft, CompactDecoder)
    pair.use_graphs(tapes)
    assert pair.draft._static is not None
    pair.warm_up()
    assert tapes.replayed > 0 and not any("CUDA" in note for note in pair.notes)
    done = tapes.replayed
    pair.twin().forward([1, 2, 3])
    assert tapes.replayed == done + 1


def test_a_target_of_the_librarys_class_is_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, tiny_model("gpt2"))
    pair = open_pair(PairOptions(str(folder), "ngram", "cpu", context=64), lambda _: None)
    with pytest.raises(UnsupportedModel, match=r"needs a Llama-, Mistral- or Qwen-like target"):
        pair.use_graphs(Tapes())
