"""What stands between the products of a block, compiled by numba: for a few rows on a CPU.

torch takes some forty operations a block for it, each of a microsecond's work and several microseconds' bookkeeping:
at 135 million weights a third of a step. Here it is five calls. One thread, float32, C-contiguous arrays; sums may be
taken in another order than torch's, and what is no number stays none. Compiled by `prepare`, then kept on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specchat.model.compiled import compiled, first_call

Floats = NDArray[np.float32]

PIECE = 64
"""Places whose keys are read together."""


@compiled
def norm(x: Floats, scale: Floats, eps: float, out: Floats) -> None:
    """out [n, d] = x / sqrt(mean(x²) + eps) · scale, row by row."""
    n, d = x.shape
    for i in range(n):
        row, to = x[i], out[i]
        square = np.float32(0)
        for j in range(d):
            square += row[j] * row[j]
        size = np.float32(1 / math.sqrt(square / d + eps))
        for j in range(d):
            to[j] = row[j] * size * scale[j]


@compiled
def add_norm(x: Floats, more: Floats, scale: Floats, eps: float, out: Floats) -> None:
    """x += more, then as `norm`; all [n, d]."""
    n, d = x.shape
    for i in range(n):
        row, add = x[i], more[i]
        for j in range(d):
            row[j] += add[j]
    norm(x, scale, eps, out)


@compiled
def place(
    qkv: Floats, turns: Floats, head_scale: Floats, eps: float, keys: Floats, values: Floats, start: int, q: Floats
) -> None:  # fmt: skip
    """Puts keys and values of n rows into the cache from `start` on, and queries where attention wants them.

    qkv [n, heads + 2·kv_heads, head_dim]; keys, values [kv_heads, capacity, head_dim]; q [kv_heads, n·group,
    head_dim], a query head's rows side by side with those that share its keys. turns [n, 2, head_dim], as of
    `stack.turns_of`, or [0, …] for no rotation; head_scale [heads + kv_heads, head_dim] for a norm of each head, or
    [0, …] for none.
    """
    n, parts, width = qkv.shape
    kv_heads = keys.shape[0]
    heads = parts - 2 * kv_heads
    group, half = heads // kv_heads, width // 2
    for i in range(n):
        for h in range(heads + kv_heads):
            row = qkv[i, h]
            to = q[h // group, i * group + h % group] if h < heads else keys[h - heads, start + i]
            if len(head_scale):
                square = np.float32(0)
                for j in range(width):
                    square += row[j] * row[j]
                size = np.float32(1 / math.sqrt(square / width + eps))
                for j in range(width):
                    row[j] *= size * head_scale[h, j]
            if len(turns):
                cos, sin = turns[i, 0], turns[i, 1]
                for j in range(half):
                    a, b = row[j], row[j + half]
                    to[j] = a * cos[j] + b * sin[j]
                    to[j + half] = b * cos[j + half] + a * sin[j + half]
            else:
                for j in range(width):
                    to[j] = row[j]
        for h in range(kv_heads):
            # A loop: the compiler takes seconds over the assignment of a slice.
            row, to = qkv[i, heads + kv_heads + h], values[h, start + i]
            for j in range(width):
                to[j] = row[j]


LEAST = np.float32(-87)
"""Below it e^x is next to nothing."""


def _power(x: Any) -> Any:
    """e^x for x of at most 87: 2^whole · e^rest, a polynomial for the rest (Cephes). Relative error below 2e-7; nan stays."""
    x = LEAST if x < LEAST else x
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    rest = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    e = np.float32(1.9875691500e-4)
    e = e * rest + np.float32(1.3981999507e-3)
    e = e * rest + np.float32(8.3334519073e-3)
    e = e * rest + np.float32(4.1665795894e-2)
    e = e * rest + np.float32(1.6666665459e-1)
    e = e * rest + np.float32(5.0000001201e-1)
    e = e * rest * rest + rest + np.float32(1)
    return e * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


exp = njit(inline="always")(_power)


def _largest(row: Floats) -> Any:
    """The largest entry; any, if one is nan: the softmax is nan then all the same."""
    top = row[0]
    for t in range(len(row)):
        top = max(top, row[t])
    return top


_top = njit(fastmath=True)(_largest)


@compiled
def _softmax(row: Floats, scale: Any) -> None:
    """The softmax of row · scale, in its place. (Loops from 0 on: others are not vectorised, as an index may be negative.)"""
    top, total = _top(row), np.float32(0)
    for t in range(len(row)):
        e = exp((row[t] - top) * scale)
        row[t] = e
        total += e
    part = np.float32(1) / total
    for t in range(len(row)):
        row[t] *= part


Attend = Callable[[Floats, Floats, Floats, int, int, int, Floats, Floats], None]


@cache
def attention(width: int) -> Attend:
    """Attention for heads of this width, which the compiler must know to keep a row in registers: a function
    (q, keys, values, start, group, window, scores, out) of n rows at the places from `start` on.

    q as `place` leaves it; keys, values [kv_heads, capacity, width]; a row sees its own place and those before it,
    window of them at most (0: all). scores [n·group, at least the places up to the last row's]: scratch. out [n, heads·width].
    """
    scale = np.float32(1 / math.sqrt(width))

    @compiled
    def attend(
        q: Floats, keys: Floats, values: Floats, start: int, group: int, window: int, scores: Floats, out: Floats
    ) -> None:  # fmt: skip
        n = len(out)
        rows, last = n * group, start + n
        seen = np.empty((rows, width), np.float32)
        lowest = max(0, start + 1 - window) if window else 0
        for h in range(len(q)):
            query, key, value = q[h], keys[h], values[h]
            # By pieces of the text, which stay in the nearest cache while every row passes over them.
            for piece in range(lowest, last, PIECE):
                for r in range(rows):
                    end = min(start + r // group + 1, piece + PIECE)
                    whole = piece + max(0, end - piece) // 4 * 4
                    for t in range(piece, whole, 4):
                        a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
                        for j in range(width):
                            x = query[r, j]
                            a += x * key[t, j]
                            b += x * key[t + 1, j]
                            c += x * key[t + 2, j]
                            d += x * key[t + 3, j]
                        scores[r, t] = a
                        scores[r, t + 1] = b
                        scores[r, t + 2] = c
                        scores[r, t + 3] = d
                    for t in range(whole, end):
                        a = np.float32(0)
                        for j in range(width):
                            a += query[r, j] * key[t, j]
                        scores[r, t] = a
            for r in range(rows):
                end = start + r // group + 1
                first = max(0, end - window) if window else 0
                _softmax(scores[r, first:end], scale)
                scores[r, lowest:first] = 0
                scores[r, end:last] = 0
                seen[r] = 0
            for piece in range(lowest, last, PIECE):
                end = min(piece + PIECE, last)
                whole = piece + (end - piece) // 8 * 8
                for r in range(rows):
                    for t in range(piece, whole, 8):
                        a, b, c, d = scores[r, t], scores[r, t + 1], scores[r, t + 2], scores[r, t + 3]
                        e, f, g, k = scores[r, t + 4], scores[r, t + 5], scores[r, t + 6], scores[r, t + 7]
                        for j in range(width):
                            seen[r, j] += (
                                a * value[t, j] + b * value[t + 1, j] + c * value[t + 2, j]
                                + d * value[t + 3, j] + e * value[t + 4, j] + f * value[t + 5, j]
                                + g * value[t + 6, j] + k * value[t + 7, j]
                            )  # fmt: skip
                    for t in range(whole, end):
                        a = scores[r, t]
                        for j in range(width):
                            seen[r, j] += a * value[t, j]
            for r in range(rows):
                base = (h * group + r % group) * width
                for j in range(width):
                    out[r // group, base + j] = seen[r, j]

    return attend


@compiled
def collect(seen: Floats, group: int, out: Floats) -> None:
    """out [n, heads·head_dim] from attention's rows seen [n·group, kv_heads, head_dim]."""
    _, kv_heads, width = seen.shape
    for i in range(out.shape[0]):
        for h in range(kv_heads * group):
            row = seen[i * group + h % group, h // group]
            for j in range(width):
                out[i, h * width + j] = row[j]


@compiled
def gate(both: Floats, out: Floats) -> None:
    """out [n, inner] = silu(first half) · second half of both [n, 2·inner]."""
    n, inner = out.shape
    for i in range(n):
        for j in range(inner):
            g = both[i, j]
            x = -LEAST if g < LEAST else -g
            out[i, j] = g / (np.float32(1) + exp(x)) * both[i, inner + j]


@cache
def prepare(width: int) -> None:
    """Compiles all of them, or takes them from disk: that should be no part of anyone's measured step."""

    def zeros(*shape: int) -> Floats:
        return np.zeros(shape, np.float32)

    x, scale, eps = zeros(1, width), zeros(width), 1e-5
    heads, one = zeros(1, 1, width), zeros(1, 3, width)
    first_call(place, one, zeros(1, 2, width), zeros(2, width), eps, heads, heads, 0, heads)
    first_call(norm, x, scale, eps, x)
    first_call(add_norm, x, x, scale, eps, x)
    first_call(attention(width), heads, heads, heads, 0, 1, 0, zeros(1, 1), x)
    first_call(collect, heads, 1, x)
    first_call(gate, zeros(1, 2 * width), x)
