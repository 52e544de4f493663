"""Attention in chunks shared among threads: against torch's own, to the bit with any number of threads, and without OpenMP."""

from __future__ import annotations

import ctypes
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.np.numpy_support import carray
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from specchat.model import attention, team
from specchat.model.attention import CHUNK, Attention
from specchat.model.compiled import compiled, entry
from specchat.model.errors import sentence
from specchat.model.kernels import PIECE
from tests.model.test_few import close, floats, in_pieces

many = settings(max_examples=60, deadline=None, derandomize=True)

Parts = dict[str, NDArray[np.float32]]


def parts(seed: int, n: int, kv_heads: int, group: int, width: int, capacity: int) -> Parts:
    return {
        "q": floats(seed, kv_heads, n * group, width),
        "keys": floats(seed + 1, kv_heads, capacity, width),
        "values": floats(seed + 2, kv_heads, capacity, width),
    }


def attended(h: Parts, n: int, start: int, window: int, threads: int = 1) -> NDArray[np.float32]:
    kv_heads, rows, width = h["q"].shape
    out = np.full((n, kv_heads * rows // n * width), 7, np.float32)
    values = in_pieces(torch.from_numpy(h["values"])).memory.numpy()
    # Two layers, as each has its own cache and window; the first must leave nothing behind for the second.
    other = floats(99, *h["keys"].shape), floats(98, *values.shape), 3
    space = attention.scratch(*h["q"].shape, h["keys"].shape[1])
    space[:] = np.nan
    ours = Attention(h["q"], out, [other, (h["keys"], values, window)], space)
    ours.begin(start)
    ours(0, threads)
    ours(1, threads)
    ours.end()
    return out


def by_torch(h: Parts, n: int, start: int, window: int) -> Tensor:
    q, keys, values = (torch.from_numpy(each) for each in h.values())
    group, end = q.shape[1] // n, start + n
    rows, columns = torch.arange(start, end)[:, None], torch.arange(end)
    seen = (columns <= rows) & ((columns > rows - window) if window else True)
    out = F.scaled_dot_product_attention(q, keys[:, :end], values[:, :end], seen.repeat_interleave(group, 0))
    return out.view(q.shape[0], n, group, -1).permute(1, 0, 2, 3).reshape(n, -1)


starts = st.integers(0, 200) | st.sampled_from(
    [CHUNK - 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 2, 3 * CHUNK + 77]
)
windows = st.sampled_from([0, 0, 1, 3, 7, 64, CHUNK, 500])


@many
@given(
    st.integers(0, 2**20), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.sampled_from([8, 12, 64]),
    starts, windows, st.integers(1, 3),
)  # fmt: skip
def test_attention_over_texts_of_any_length_and_window(
    seed: int, n: int, kv_heads: int, group: int, width: int, start: int, window: int, threads: int
) -> None:
    h = parts(seed, n, kv_heads, group, width, start + n + 10)
    # What lies behind the text may be anything, and nobody looks at it.
    h["keys"][:, start + n :] = np.nan
    h["values"][:, start + n :] = np.nan
    close(attended(h, n, start, window, threads), by_torch(h, n, start, window))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**20), st.integers(1, 17), starts, windows)
def test_the_bits_are_the_same_with_any_number_of_threads_and_without_openmp(
    seed: int, n: int, start: int, window: int
) -> None:
    h = parts(seed, n, 3, 3, 64, start + n)
    found = [attended(h, n, start, window, threads) for threads in (1, 2, 3, 7)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_run", lambda: alone)
        found.append(attended(h, n, start, window))
    for each in found[1:]:
        assert (each == found[0]).all()


def alone(job: int, threads: int) -> None:
    attention._entry().ctypes(job)


@pytest.mark.parametrize("start", [10, CHUNK + 10, CHUNK - 1])
def test_what_is_no_number_in_the_text_is_none_in_what_sees_it(start: int) -> None:
    h = parts(0, 2, 1, 1, 8, start + 10)
    h["keys"][0, start + 1] = np.nan
    out = attended(h, 2, start, 0)
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all(), "row 0 stands before that place, row 1 on it"
    h["keys"][0, 3] = np.nan
    assert np.isnan(attended(h, 2, start, 0)).all(), "both see an early one, in whatever chunk they stand"
    out = attended(h, 2, start, 2)
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all(), "a window hides it"


def test_scores_far_apart_in_different_chunks_overflow_nowhere() -> None:
    """One chunk holds scores 3,000 above the other's: its weight is all, the other's nothing, and none is nan."""
    h = parts(0, 1, 1, 1, 8, 2 * CHUNK)
    h["keys"][:] = 0
    h["q"][:] = 100
    for first, sign in ((0, 1), (CHUNK, 1), (0, -1), (CHUNK, -1)):
        keys = h["keys"].copy()
        keys[:, first : first + CHUNK] = sign * 10.0
        close(
            attended(h | {"keys": keys}, 1, 2 * CHUNK - 1, 0),
            by_torch(h | {"keys": keys}, 1, 2 * CHUNK - 1, 0),
        )


JOBS = np.dtype([("next", np.int64), ("count", np.int64), ("taken", np.int64), ("asked", np.int64)])


@compiled
def _mark(jobs: NDArray[np.void]) -> None:
    job = jobs[0]
    taken = carray(team.pointer(job.taken), job.count, np.int64)
    while True:
        item = team.count_up(jobs.ctypes.data)
        if item >= len(taken):
            return
        taken[item] += 1


def _enter_mark(data: object) -> None:
    _mark(carray(data, 1, JOBS))


@compiled
def _meet(jobs: NDArray[np.void]) -> None:
    """Every piece waits until there is a second one under way, for some seconds at most; it marks whether there was."""
    job = jobs[0]
    taken = carray(team.pointer(job.taken), job.count, np.int64)
    item = team.count_up(jobs.ctypes.data)
    while team.count_up(jobs.ctypes.data + 24) < 300_000_000:
        if jobs[0].next >= 2:
            taken[item] = 1
            return


def _enter_meet(data: object) -> None:
    _meet(carray(data, 1, JOBS))


needs_openmp = pytest.mark.skipif(
    not sys.platform.startswith("linux") and team._parallel() is None,
    reason="torch brings no such OpenMP here",
)


@pytest.fixture(params=[pytest.param("OpenMP", marks=needs_openmp), "alone"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> team.Run:
    if request.param == "alone":
        monkeypatch.setattr(team, "_parallel", lambda: None)
    else:
        assert team._parallel() is not None
    return team.by_all(entry(_enter_mark))


@needs_openmp
def test_two_threads_work_at_the_same_time() -> None:
    taken = np.zeros(2, np.int64)
    job = np.array([(0, 2, taken.ctypes.data, 0)], JOBS)
    team.by_all(entry(_enter_meet))(job.ctypes.data, 2)
    assert (taken == 1).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_piece_is_taken_once_by_whatever_number_of_threads(run: team.Run, threads: int) -> None:
    for count in (0, 1, 7, 20_000):
        taken = np.zeros(count, np.int64)
        job = np.array([(0, count, taken.ctypes.data, 0)], JOBS)
        run(job.ctypes.data, threads)
        assert (taken == 1).all() and job["next"][0] >= count


def test_a_team_serves_whichever_thread_asks(run: team.Run) -> None:
    """The engine works in a thread of its own, and tests and tools in theirs, at the same time."""
    found: list[bool] = []

    def ask() -> None:
        for _ in range(200):
            taken = np.zeros(300, np.int64)
            job = np.array([(0, 300, taken.ctypes.data, 0)], JOBS)
            run(job.ctypes.data, 2)
            found.append(bool((taken == 1).all()))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 600 and all(found)


def test_where_torch_brings_no_such_openmp_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(path: str) -> object:
        raise OSError(path)

    team._parallel.cache_clear()
    try:
        monkeypatch.setattr(ctypes, "CDLL", nothing)
        assert team._parallel() is None, "no library"
        team._parallel.cache_clear()
        monkeypatch.setattr(ctypes, "CDLL", lambda path: object())
        assert team._parallel() is None, "a library without it"
    finally:
        team._parallel.cache_clear()


def test_a_thread_that_finds_no_memory_is_not_passed_over() -> None:
    h = parts(0, 1, 3, 1, 8, 10)
    values = in_pieces(torch.from_numpy(h["values"])).memory.numpy()
    layers = [(h["keys"], values, 0)] * 2
    ours = Attention(h["q"], np.zeros((1, 24), np.float32), layers, attention.scratch(3, 1, 8, 10))
    ours.begin(5)
    ours(0, 1)
    ours.end()
    ours._jobs["next"][1], ours._jobs["done"][1] = 3, 2  # one of three took a piece and came back without it
    with pytest.raises(MemoryError) as caught:
        ours.end()
    assert sentence(caught.value).startswith("Memory ran out. Close other programs")


@pytest.mark.parametrize("wrong", ["q", "out", "keys", "values", "scratch"])
def test_what_is_read_by_address_must_have_its_shape(wrong: str) -> None:
    right = {
        "q": floats(0, 2, 3, 8), "out": floats(0, 1, 48), "keys": floats(0, 2, 70, 8), "values": floats(0, 2, 2, 8, PIECE),
        "scratch": attention.scratch(2, 3, 8, 70),
    }  # fmt: skip

    def made(arrays: Parts) -> Attention:
        return Attention(
            arrays["q"], arrays["out"], [(arrays["keys"], arrays["values"], 0)], arrays["scratch"]
        )

    made(right)
    for bad in (right[wrong][..., :-1], right[wrong].astype(np.float64), np.asfortranarray(right[wrong])):
        if (
            wrong in ("out", "scratch")
            and bad.flags.c_contiguous
            and bad.dtype == np.float32
            and bad.size == right[wrong].size
        ):
            continue  # a single row lies side by side either way
        with pytest.raises(ValueError, match="read by address"):
            made(right | {wrong: bad})
