"""The kernels between the products: each against torch's own formula, and whole passes with and without them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from specchat.model import compiled, kernels, stack
from specchat.model.cache import Pieces, Rows
from specchat.model.compact import CompactDecoder
from specchat.model.errors import ContextFull
from specchat.model.threads import Threads
from tests.model.test_compact import CASES, VOCAB, module, some_ids

many = settings(max_examples=60, deadline=None, derandomize=True)
EPS = 1e-5


def floats(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape, scale=2).astype(np.float32)


def close(got: NDArray[np.float32], right: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(got), right, atol=2e-5, rtol=2e-5)


@many
@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(1, 70))
def test_a_sum_and_its_norm(seed: int, n: int, d: int) -> None:
    x, more, scale, out = (
        floats(seed, n, d),
        floats(seed + 1, n, d),
        floats(seed + 2, d),
        np.zeros((n, d), np.float32),
    )
    total = torch.from_numpy(x + more)
    kernels.add_norm(x, more, scale, EPS, out)
    close(x, total)
    close(out, F.rms_norm(total, (d,), torch.from_numpy(scale), EPS))


@many
@given(st.integers(0, 2**20), st.integers(1, 4), st.integers(1, 70))
def test_a_gate_is_silu_times_the_other_half(seed: int, n: int, inner: int) -> None:
    both, out = floats(seed, n, 2 * inner) * 20, np.zeros((n, inner), np.float32)
    kernels.gate(both, out)
    opening, up = torch.from_numpy(both).chunk(2, -1)
    torch.testing.assert_close(torch.from_numpy(out), F.silu(opening) * up, atol=1e-4, rtol=2e-5)


def test_a_gate_at_the_ends_of_its_range() -> None:
    """Where e^-g would overflow or vanish the limit stands, and nan is nan."""
    ends = [-1e30, -200.0, -88.0, -87.0, 0.0, 87.0, 88.0, 200.0, 1e30, math.nan]
    both, out = np.array([ends + [1.0] * len(ends)], np.float32), np.zeros((1, len(ends)), np.float32)
    kernels.gate(both, out)
    right = F.silu(torch.tensor(ends))
    assert np.isnan(out[0, -1])
    torch.testing.assert_close(torch.from_numpy(out[0, :-1]), right[:-1], atol=1e-6, rtol=1e-6)


def in_pieces(values: Tensor) -> Pieces:
    """Of values [kv_heads, capacity, width], what there is no room for being nan."""
    pieces = Pieces.empty(*values.shape)
    pieces.memory.fill_(math.nan)
    pieces.put(slice(0, values.shape[1]), values)
    return pieces


@many
@given(
    st.integers(0, 2**20),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_queries_keys_and_values_go_to_their_places(
    seed: int, n: int, kv_heads: int, group: int, turned: bool, scaled: bool
) -> None:
    count, width, start = kv_heads * group, 8, 62  # across the end of a piece
    qkv = floats(seed, n, count + 2 * kv_heads, width)
    angles = torch.from_numpy(floats(seed + 1, n, width // 2))
    cos, sin = angles.cos(), angles.sin()
    turns = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)
    scale = torch.from_numpy(floats(seed + 2, count + kv_heads, width))
    right = torch.from_numpy(qkv.copy())
    qk = right[:, : count + kv_heads]
    if scaled:
        qk.copy_(F.rms_norm(qk, (width,), None, EPS) * scale)
    if turned:
        stack.rotate_(qk, turns[:, :, None])
    keys, before = floats(3, kv_heads, 70, width), torch.from_numpy(floats(4, kv_heads, 70, width))
    pieces, keys_before, q = (
        in_pieces(before),
        keys.copy(),
        np.zeros((kv_heads, n * group, width), np.float32),
    )
    none = np.zeros((0, 2, width), np.float32)
    kernels.place(
        qkv, turns.numpy() if turned else none, scale.numpy() if scaled else none[:, 0], EPS, keys,
        pieces.memory.numpy(), start, q,
    )  # fmt: skip
    values = pieces.seen(0, 70).numpy()
    close(keys[:, start : start + n], right[:, count : count + kv_heads].transpose(0, 1))
    close(values[:, start : start + n], right[:, count + kv_heads :].transpose(0, 1))
    close(
        q,
        right[:, :count].view(n, kv_heads, group, width).transpose(0, 1).reshape(kv_heads, n * group, width),
    )
    for now, then in ((keys, keys_before), (values, before.numpy())):
        now[:, start : start + n] = then[:, start : start + n]
        assert (now == then).all(), "another place was written"


@many
@given(st.integers(0, 2**20), st.integers(0, 150), st.integers(1, 60), st.integers(0, 70))
def test_what_lies_in_pieces_is_what_lies_in_rows(seed: int, start: int, n: int, first: int) -> None:
    shape = (2, 3, 210, 4)
    rows, pieces = Rows(torch.zeros(shape)), Pieces.empty(*shape)
    pieces.memory.zero_()
    new = torch.from_numpy(floats(seed, 2, 3, n, 4))
    scattered = torch.from_numpy(np.random.default_rng(seed).permutation(210)[:n])
    for cache in (rows, pieces):
        cache.put(slice(start, start + n), new)
        cache.put(scattered, new + 1)
        cache[1].wipe(first, first + 5)
    assert torch.equal(rows.seen(first, 210), pieces.seen(first, 210))
    assert pieces.seen(first, first + 3).stride()[-2:] == (4, 1), "rows one behind the other"
    assert torch.equal(rows[0].seen(first, first + 1), pieces[0].seen(first, first + 1))


@pytest.mark.parametrize("case", CASES)
def test_a_pass_is_that_of_torch_alone_for_every_family(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = module(case), some_ids(120)
    with_them, without = (CompactDecoder.from_module(model, VOCAB, 160, "float32") for _ in range(2))
    monkeypatch.setattr(without._stack, "_few", None)
    assert with_them._stack._few is not None
    at = 0
    for rows in (1, 2, 5, 32, 33, 1, 17, 3, 1):
        for each in (with_them, without):
            each.forward(some_ids(4, seed=at))
            each.rollback(4)
        got, right = (each.forward(ids[at : at + rows]) for each in (with_them, without))
        torch.testing.assert_close(got, right, atol=5e-5, rtol=1e-4)
        at += rows


def test_a_pass_reaches_the_last_place_and_two_decoders_take_turns_over_the_same_weights() -> None:
    model, ids = module("llama"), some_ids(40)
    one = CompactDecoder.from_module(model, VOCAB, 40, "float32")
    other = CompactDecoder(one.weights, VOCAB, 40, one.name)
    right = CompactDecoder.from_module(model, VOCAB, 40, "float32").forward(ids)
    texts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for at in (0, 17, 34, 35, 38):
        rows = {0: 17, 17: 17, 34: 1, 35: 3, 38: 2}[at]
        for each, text in zip((one, other), texts, strict=True):
            text.append(each.forward(ids[at : at + rows]))
    for text in texts:
        torch.testing.assert_close(torch.cat(text), right, atol=5e-5, rtol=1e-4)
    with pytest.raises(ContextFull):
        one.forward([1])


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_numbers_of_threads_that_agree_give_the_same_bits_for_every_block(kv_heads: int) -> None:
    """With one key head torch's attention, which reads prompts, may not; then they must not be said to agree."""
    model = module("llama", num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=64)
    decoder = CompactDecoder.from_module(model, VOCAB, 1200, "float32")
    before = torch.get_num_threads()
    try:
        agree = decoder.agrees(Threads(1, 2))
        assert agree or kv_heads == 1
        if agree:
            decoder.read(some_ids(1100))
            for rows in range(1, 18):
                found = []
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    found.append(decoder.forward(some_ids(rows)))
                    decoder.rollback(rows)
                assert torch.equal(*found), f"{rows} rows"
    finally:
        torch.set_num_threads(before)


def test_what_was_kept_of_a_kernel_may_be_damaged_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own, over a copy of the source: what numba keeps is cut short, or of another state of it."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    room = Path(compiled.__file__).parents[1]
    package = tmp_path / "copied"
    for source in (room / "__init__.py", *room.glob("model/*.py"), *room.glob("decode/*.py")):
        copy = package / source.relative_to(room)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(
            source.read_text(encoding="utf-8").replace("from specchat", "from copied"), encoding="utf-8"
        )
    program = """
import numpy as np
from copied.model import attention, kernels
kernels.prepare()
attention.prepare()
keys = np.random.default_rng(0).normal(size=(1, 128, 8)).astype(np.float32)
out = np.zeros((1, 8), np.float32)
values = keys.reshape(1, 128 // kernels.PIECE, kernels.PIECE, 8).swapaxes(2, 3).copy()
one = attention.Attention(keys[:, 99:100].copy(), out, [(keys, values, 0)], attention.scratch(1, 1, 8, 128))
one.begin(99)
one(0, 1)
weights = np.exp(keys[0, :100] @ keys[0, 99] / 8**0.5)
print(np.abs(out[0] - weights @ keys[0, :100] / weights.sum()).max() < 1e-5)
"""

    def run() -> dict[str, int]:
        """Of each file that is kept when it was written, by its name within the folder of this state."""
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.stdout == "True\n"
        cache = package / "model" / "__pycache__"
        assert len(list(cache.glob("loops-*"))) <= 1
        return {
            "/".join(file.relative_to(cache).parts[1:]): file.stat().st_mtime_ns
            for file in cache.rglob("*.nb[ic]")
        }

    def damage(name: str) -> None:
        (index,) = package.rglob(f"*{name}*.nbi")
        index.write_bytes(index.read_bytes()[:40])

    first = run()
    assert len(first) >= 20 and any("_enter" in name for name in first)
    damage("attention._enter")  # what C calls
    assert not run().items() & first.items(), "a part that is damaged takes all with it"
    second = run()
    assert any("_enter" in name for name in second)
    # A part of others, while those have to be made anew.
    damage("kernels.products")
    for file in package.rglob("attention.*.nb[ic]"):
        file.unlink()
    third = run()
    assert any("_work" in name for name in third) and not third.items() & second.items()
    changed = (package / "model" / "kernels.py").read_text(encoding="utf-8")
    assert "PIECE = 64" in changed
    (package / "model" / "kernels.py").write_text(
        changed.replace("PIECE = 64", "PIECE = 32"), encoding="utf-8"
    )
    fourth = run()
    assert fourth.keys() == first.keys() and run() == fourth, "what is whole is used, not made anew"


@pytest.mark.parametrize(
    ("errors", "forgets"),
    [
        ([], False),
        ([OSError("disk full")] * 3, False),  # keeping failed, of one part after another
        ([EOFError("cut short")], True),
        ([PermissionError("what was kept cannot be read")] * (compiled.TRIES - 1), True),
    ],
)
def test_a_first_call_goes_on_without_what_was_kept(
    errors: list[Exception], forgets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(compiled.loops, "folder", lambda: kept)
    left = list(errors)

    def kernel() -> None:
        if left:
            raise left.pop()

    compiled.first_call(kernel)
    assert not left and kept.exists() != forgets


def test_what_is_wrong_with_a_kernel_itself_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled.loops, "folder", lambda: tmp_path)
    calls = []

    def kernel() -> None:
        calls.append(1)
        raise MemoryError

    with pytest.raises(MemoryError):
        compiled.first_call(kernel)
    assert len(calls) == 1 and tmp_path.exists()


def test_where_nothing_can_be_kept_kernels_work_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.loops, "folder", lambda: None)

    def one_more(x: int) -> int:
        return x + 1

    def nothing(data: object) -> None:
        return

    kernel = compiled.compiled(one_more)
    compiled.first_call(kernel, 1)
    assert kernel(2) == 3 and not kernel.stats.cache_path  # type: ignore[attr-defined]
    compiled.entry(nothing).ctypes(0)


def test_the_folder_is_the_first_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops = compiled.loops
    real, asked = loops._writable, []

    def found(*writable: bool) -> Path | None:
        answers = list(writable)
        asked.clear()
        monkeypatch.setattr(loops, "_writable", lambda place: asked.append(place) or answers.pop(0))
        return cast(Callable[[], Path | None], loops.folder.__wrapped__)()

    monkeypatch.setattr(loops, "_tidy", lambda beside, name: None)
    monkeypatch.setenv("SPECCHAT_CACHE", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    beside = found(True)
    assert beside is not None and beside.parent.name == "__pycache__" and loops.stamp() in beside.name
    assert found(False, True) == tmp_path / beside.name
    assert found(False, False) is None
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    assert found(True) == tmp_path / "given" / beside.name
    assert found(False) is None and len(asked) == 1, "who says where gets it there or nowhere"
    (tmp_path / "file").touch()
    assert real(tmp_path / "new") and not real(tmp_path / "file" / "below")
