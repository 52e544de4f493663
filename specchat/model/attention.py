"""Attention of a few rows over a long text on a CPU, compiled by numba and shared among torch's threads.

A text is cut into chunks; each is attended to on its own, as if there were no other, and what came out is joined by
how much weight each has (as FlashAttention and Flash-Decoding do: Dao et al. 2022, 2023). So a step over a long text is
bounded by how fast all cores together read keys and values, and not one alone. Where the cuts are depends on the places
only, so the result is the same bits with any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from specchat.model.compiled import compiled, entry, first_call
from specchat.model.kernels import PIECE, Floats, clear, exp, products
from specchat.model.team import Run, by_all, count_up, pointer

CHUNK = 4 * PIECE
"""Places of a chunk: it and the scores of a block's rows fit into a core's own cache, and 2,000 places give every core some."""

PADDING = 16
"""Columns added to scratch, so that its rows do not fall onto each other in the processor's cache."""

NOTHING = np.float32(-3e38)
"""The largest score of a row that sees nothing of a chunk."""

FIELDS = (
    "next", "done", "joined", "start", "window", "heads", "n", "group", "width", "capacity",
    "q", "keys", "values", "seen", "sums", "out",
)  # fmt: skip
"""Of one layer's attention: the next chunk and how many are done; 1 when all are joined; then as of `Attention`; then
addresses of the arrays."""

JOB = np.dtype([(name, np.int64) for name in FIELDS])
NEXT, DONE = (JOB.itemsize // len(FIELDS) * FIELDS.index(name) for name in ("next", "done"))
"""Where a job has them, in bytes."""


def _largest(row: Floats) -> Any:
    """The largest entry; any, if one is nan: the sum is nan then all the same."""
    top = row[0]
    for t in range(len(row)):
        top = max(top, row[t])
    return top


_top = njit(fastmath=True)(_largest)


@compiled
def _weigh(row: Floats, scale: Any) -> tuple[Any, Any]:
    """Leaves e^((row - largest) · scale) in row; returns largest · scale, and the sum. (Loops from 0 on: others are not
    vectorised, as an index may be negative.)"""
    top, total = _top(row), np.float32(0)
    for t in range(len(row)):
        e = exp((row[t] - top) * scale)
        row[t] = e
        total += e
    return top * scale, total


@compiled
def _chunk(
    q: Floats, keys: Floats, values: Floats, first: int, end: int, start: int, group: int, window: int, scores: Floats,
    seen: Floats, sums: Floats,
) -> None:  # fmt: skip
    """What the rows of one key head see of the places first…end, which lie in one chunk.

    q [rows, width], keys [capacity, width], values [pieces, width, PIECE]; rows as of `Attention`. scores [rows, CHUNK]:
    scratch. seen [rows, width]: values, each as often as e^(score - largest); sums [rows, 2]: that largest, and the sum
    of those weights.
    """
    rows, width = q.shape
    scale, base = np.float32(1 / math.sqrt(width)), first // CHUNK * CHUNK
    zero = 0 * first  # a literal would have the products compiled for it alone
    for r in range(rows):
        clear(scores[r, first - base : end - base])
        clear(seen[r])
    products(q, zero, keys[first:end], zero, width, scores, first - base)
    for r in range(rows):
        place = start + r // group
        to = min(end, place + 1)
        since = max(first, place + 1 - window) if window else first
        if since < to:
            sums[r, 0], sums[r, 1] = _weigh(scores[r, since - base : to - base], scale)
        else:
            since, to = end, end
            sums[r, 0], sums[r, 1] = NOTHING, np.float32(0)
        clear(scores[r, first - base : since - base])
        clear(scores[r, to - base : end - base])
    for piece in range(first // PIECE, (end + PIECE - 1) // PIECE):
        at = max(first, piece * PIECE)
        length = min(end, piece * PIECE + PIECE) - at
        products(scores, at - base, values[piece], at % PIECE, length, seen, zero)


@compiled
def _join(seen: Floats, sums: Floats, group: int, out: Floats) -> None:
    """out [n, heads·width] from what was seen of each chunk: seen [kv_heads, chunks, rows, width], sums of the same."""
    kv_heads, chunks, rows, width = seen.shape
    for h in range(kv_heads):
        for r in range(rows):
            top, total = sums[h, 0, r, 0], np.float32(0)
            for c in range(chunks):
                top = max(top, sums[h, c, r, 0])
            for c in range(chunks):
                total += exp(sums[h, c, r, 0] - top) * sums[h, c, r, 1]
            begin = (h * group + r % group) * width
            to = out[r // group, begin : begin + width]
            clear(to)
            for c in range(chunks):
                part, share = seen[h, c, r], exp(sums[h, c, r, 0] - top) / total
                for j in range(len(to)):
                    to[j] += share * part[j]


@compiled
def _work(jobs: Any) -> None:
    """Takes chunks of jobs[0] until none is left; whoever finishes the last one joins them."""
    job = jobs[0]
    heads, n, group, width, start = job.heads, job.n, job.group, job.width, job.start
    last, rows = start + n, n * group
    lowest = max(0, start + 1 - job.window) if job.window else 0
    before = lowest // CHUNK
    chunks = (last + CHUNK - 1) // CHUNK - before
    q = carray(pointer(job.q), (heads, rows, width), np.float32)
    keys = carray(pointer(job.keys), (heads, job.capacity, width), np.float32)
    values = carray(
        pointer(job.values), (heads, (job.capacity + PIECE - 1) // PIECE, width, PIECE), np.float32
    )
    seen = carray(pointer(job.seen), (heads, chunks, rows, width), np.float32)
    sums = carray(pointer(job.sums), (heads, chunks, rows, 2), np.float32)
    item = count_up(jobs.ctypes.data + NEXT)
    if item >= heads * chunks:
        return
    scores = np.empty((rows, CHUNK + PADDING), np.float32)
    while item < heads * chunks:
        h, c = item % heads, item // heads
        first, end = max(lowest, (before + c) * CHUNK), min(last, (before + c + 1) * CHUNK)
        _chunk(q[h], keys[h], values[h], first, end, start, group, job.window, scores, seen[h, c], sums[h, c])
        if count_up(jobs.ctypes.data + DONE) == heads * chunks - 1:
            _join(seen, sums, group, carray(pointer(job.out), (n, heads * group * width), np.float32))
            job.joined = 1
        item = count_up(jobs.ctypes.data + NEXT)


def _enter(data: Any) -> None:
    _work(carray(data, 1, JOB))


def scratch(kv_heads: int, rows: int, width: int, capacity: int) -> Floats:
    """Room for what is seen of each chunk; any number of `Attention` with at most so many rows may share it."""
    # empty: pages are taken from the system only when they are written.
    return np.empty(kv_heads * -(-capacity // CHUNK) * rows * (width + 2), np.float32)


@dataclass(slots=True)
class Attention:
    """Attention of n rows, layer by layer; a row sees its own place and those before it, window of them at most (0: all).

    q, keys and values as `kernels.place` leaves them: q [kv_heads, rows, width] with n·group rows, a row's queries that
    share keys side by side; keys [kv_heads, capacity, width]; values [kv_heads, pieces, width, PIECE]. out [n, heads·width].
    """

    q: Floats
    out: Floats
    layers: Sequence[tuple[Floats, Floats, int]]
    """Keys, values and window of each."""
    scratch: Floats
    _jobs: NDArray[Any] = field(init=False)
    _addresses: list[int] = field(init=False)
    """Of the jobs."""
    _run: Run = field(init=False)

    def __post_init__(self) -> None:
        n, (heads, rows, width) = len(self.out), self.q.shape
        capacity = self.layers[0][0].shape[1]
        keys, values = (heads, capacity, width), (heads, -(-capacity // PIECE), width, PIECE)
        least = scratch(heads, rows, width, capacity).shape
        shapes = [(self.q, self.q.shape), (self.out, (n, heads * rows // n * width))]
        shapes += [(self.scratch, max(least, self.scratch.shape))]
        shapes += [pair for layer in self.layers for pair in zip(layer[:2], (keys, values), strict=True)]
        for array, shape in shapes:
            if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
                raise ValueError(
                    f"{array.dtype} {array.shape} where float32 {shape}, side by side, is read by address"
                )
        jobs = np.zeros(len(self.layers), JOB)
        jobs["heads"], jobs["n"], jobs["group"], jobs["width"] = heads, n, rows // n, width
        jobs["capacity"] = capacity
        jobs["q"], jobs["out"] = self.q.ctypes.data, self.out.ctypes.data
        jobs["seen"] = self.scratch.ctypes.data
        jobs["sums"] = jobs["seen"] + self.scratch.itemsize * (least[0] // (width + 2) * width)
        for job, (layer_keys, layer_values, window) in zip(jobs, self.layers, strict=True):
            job["keys"], job["values"], job["window"] = (
                layer_keys.ctypes.data,
                layer_values.ctypes.data,
                window,
            )
        self._jobs = jobs
        self._addresses = [jobs.ctypes.data + i * JOB.itemsize for i in range(len(jobs))]
        self._run = _run()

    def begin(self, start: int) -> None:
        """The rows stand at the places from start on, in every layer; each is asked once then."""
        self._jobs["next"], self._jobs["done"], self._jobs["joined"] = 0, 0, 0
        self._jobs["start"] = start

    def __call__(self, layer: int, threads: int) -> None:
        """out = the attention of q in that layer."""
        self._run(self._addresses[layer], threads)

    def end(self) -> None:
        """Raises MemoryError if a layer that was asked has no result: a thread that finds no memory can only stop."""
        if (self._jobs["joined"] != (self._jobs["next"] > 0)).any():
            raise MemoryError("out of memory for attention")


@cache
def _entry() -> Any:
    return entry(_enter)


@cache
def _run() -> Run:
    return by_all(_entry())


@cache
def prepare() -> None:
    """Compiles all of it, or takes it from disk: that should be no part of anyone's measured step."""
    first_call(_work, np.zeros(1, JOB))
    _run()
