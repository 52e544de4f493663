"""What stands between the products of a block, compiled by numba: for a few rows on a CPU.

torch takes some forty operations a block for it, each of a microsecond's work and several microseconds' bookkeeping:
at 135 million weights a third of a step. Here it is four calls, and one of `attention`. One thread, float32,
C-contiguous arrays; sums may be taken in another order than torch's, and what is no number stays none. Compiled by
`prepare`, then kept on disk.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specchat.model.compiled import compiled, first_call

Floats = NDArray[np.float32]

PIECE = 64
"""Places whose values lie together: for each number of a value, that of all the places side by side."""


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

    qkv [n, heads + 2·kv_heads, head_dim]; keys [kv_heads, capacity, head_dim]; values [kv_heads, pieces, head_dim, PIECE];
    q [kv_heads, n·group, head_dim], a query head's rows side by side with those that share its keys. turns [n, 2,
    head_dim], as of `stack.turns_of`, or [0, …] for no rotation; head_scale [heads + kv_heads, head_dim] for a norm of
    each head, or [0, …] for none.
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
            row, to = qkv[i, heads + kv_heads + h], values[h, (start + i) // PIECE]
            for j in range(width):
                to[j, (start + i) % PIECE] = row[j]


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


@compiled
def clear(row: Floats) -> None:
    """A loop: the compiler takes seconds over the assignment of a slice."""
    for i in range(len(row)):
        row[i] = 0


@njit(inline="always")
def _add(to: Floats, at: int, a: Any, b: Any, c: Any, d: Any) -> None:
    to[at] += a
    to[at + 1] += b
    to[at + 2] += c
    to[at + 3] += d


@compiled
def products(a: Floats, at: int, b: Floats, bt: int, length: int, out: Floats, to: int) -> None:
    """out[:, to:] += a[:, at:] · b[:, bt:]ᵀ over `length` columns: three rows by four, so that each that was read serves
    several products. (Rows are cut one by one: what is cut from several at once is not known to lie together.)"""
    n, m = len(a), len(b)
    threes, fours = n // 3 * 3, m // 4 * 4
    for c in range(0, fours, 4):
        k, k1, k2, k3 = (
            b[c, bt : bt + length], b[c + 1, bt : bt + length], b[c + 2, bt : bt + length], b[c + 3, bt : bt + length]
        )  # fmt: skip
        o = to + c
        for r in range(0, threes, 3):
            x, y, z = a[r, at : at + length], a[r + 1, at : at + length], a[r + 2, at : at + length]
            x0, x1, x2, x3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            y0, y1, y2, y3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            z0, z1, z2, z3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for i in range(len(x)):
                x0 += x[i] * k[i]
                x1 += x[i] * k1[i]
                x2 += x[i] * k2[i]
                x3 += x[i] * k3[i]
                y0 += y[i] * k[i]
                y1 += y[i] * k1[i]
                y2 += y[i] * k2[i]
                y3 += y[i] * k3[i]
                z0 += z[i] * k[i]
                z1 += z[i] * k1[i]
                z2 += z[i] * k2[i]
                z3 += z[i] * k3[i]
            _add(out[r], o, x0, x1, x2, x3)
            _add(out[r + 1], o, y0, y1, y2, y3)
            _add(out[r + 2], o, z0, z1, z2, z3)
        for r in range(threes, n):
            x = a[r, at : at + length]
            x0, x1, x2, x3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for i in range(len(x)):
                x0 += x[i] * k[i]
                x1 += x[i] * k1[i]
                x2 += x[i] * k2[i]
                x3 += x[i] * k3[i]
            _add(out[r], o, x0, x1, x2, x3)
    for c in range(fours, m):
        k = b[c, bt : bt + length]
        for r in range(n):
            x, x0 = a[r, at : at + length], np.float32(0)
            for i in range(len(x)):
                x0 += x[i] * k[i]
            out[r, to + c] += x0


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
def prepare() -> None:
    """Compiles all of them, or takes them from disk: that should be no part of anyone's measured step."""
    width = 8

    def zeros(*shape: int) -> Floats:
        return np.zeros(shape, np.float32)

    x, scale, eps = zeros(1, width), zeros(width), 1e-5
    heads, one = zeros(1, 1, width), zeros(1, 3, width)
    first_call(
        place, one, zeros(1, 2, width), zeros(2, width), eps, heads, zeros(1, 1, width, PIECE), 0, heads
    )
    first_call(norm, x, scale, eps, x)
    first_call(add_norm, x, x, scale, eps, x)
    first_call(gate, zeros(1, 2 * width), x)
