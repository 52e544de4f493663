"""The kernels between the products: each against torch's own formula, and whole passes with and without them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

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
    """In processes of their own, over a copy of the loops: what numba keeps is cut short, or of another state of them."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    room = Path(compiled.__file__).parent
    package = tmp_path / "kept"
    package.mkdir()
    (package / "__init__.py").touch()
    names = ("loops", "compiled", "team", "kernels", "attention")
    for name in names:
        text = (room / f"{name}.py").read_text(encoding="utf-8").replace("specchat.model", "kept")
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    program = """
import numpy as np
from kept import attention, kernels
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

    def run() -> dict[str, bytes]:
        path = os.pathsep.join((str(tmp_path), str(room.parents[1])))
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.stdout == "True\n"
        return {file.name: file.read_bytes() for file in package.rglob("*.nb[ic]")}

    first = run()
    assert run() == first, "what was kept was not used"
    # One that others are made of, while those have to be made anew; what C calls.
    for damaged, gone in (("kernels.products", "attention.*.nb*"), ("attention._enter", "kernels.gate*")):
        for index in list(package.rglob("*.nbi")):
            if index.name.startswith(damaged):
                index.write_bytes(index.read_bytes()[:40])
        for file in list(package.rglob(gone)):
            file.unlink()
        run()  # what it could still read it does not keep again
        found = run()
        assert all(len(file) > 40 for file in found.values()) and run() == found, "it was not made anew"
    changed = (package / "kernels.py").read_text(encoding="utf-8").replace("PIECE = 64", "PIECE = 32")
    (package / "kernels.py").write_text(changed, encoding="utf-8")
    assert run().keys() == first.keys(), "it is made anew, and what the old state left is deleted"


def test_kernels_work_where_nothing_can_be_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**how: object) -> object:
        if how.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda kernel: kernel

    monkeypatch.setattr(compiled, "njit", nowhere)
    assert compiled.compiled(len) is len
