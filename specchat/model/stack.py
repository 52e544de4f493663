"""Blocks with their cache: rows of hidden states in, rows of hidden states out.

What our own decoder and a draft head have in common. Knows no ids, no embedding and no head; positions are given,
so that forgetting is giving an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specchat.model.cache import Pieces, Rows
from specchat.model.compact_weights import Layer, Weights
from specchat.model.few import MOST_ROWS, Few, LayerCache


@dataclass(frozen=True, slots=True)
class View:
    """What rows see: the cached places first…end, and of those what the mask [n·group, end - first] leaves (None: all).

    Row i·group + g of a mask is that of row i for the g-th of the queries that share a key head.
    """

    first: int
    end: int
    mask: Tensor | None


class Stack:
    """The blocks of `weights` over one buffer of keys and values, allocated up front."""

    def __init__(self, weights: Weights, capacity: int) -> None:
        self.weights = weights
        device = weights.frequencies.device
        on_cpu = device.type == "cpu" and weights.dtype == torch.float32
        # empty, not zeros: pages are taken from the system only when they are written.
        shape = (len(weights.layers), weights.kv_heads, capacity, weights.head_dim)
        keys = torch.empty(shape, dtype=weights.dtype, device=device)
        self._keys, self._values = (
            Rows(keys),
            Pieces.empty(*shape) if on_cpu else Rows(torch.empty_like(keys)),
        )
        self._columns = torch.arange(capacity, device=device)
        self._turns = turns_of(weights, capacity)
        norms = [
            (Norm(layer.norm, weights.eps), Norm(layer.mlp_norm, weights.eps)) for layer in weights.layers
        ]
        caches = [(self._keys[i], self._values[i]) for i in range(len(weights.layers))]
        self._each = tuple(zip(weights.layers, norms, caches, strict=True))
        self._few = Few(weights, capacity, caches, self._turns) if on_cpu else None

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values at full length (a CPU commits them only as they are used, by whole pieces)."""
        keys = self._keys.memory
        return 2 * keys.numel() * keys.element_size()

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """x [n, d] (overwritten) -> hidden states [n, d] before the final norm; writes places start… of the cache."""
        n = len(x)
        if self._few is not None and n <= MOST_ROWS:
            return self._few(x, start)
        return self._blocks(x, slice(start, start + n), lambda window: self._visible(start, n, window))

    def fixed(self, x: Tensor, places: Tensor, columns: int) -> Tensor:
        """As a call, for recording: the places [n] are read on the device, and no shape depends on them.

        Attends to the first `columns` places of the cache and hides what lies behind each row. Hidden places must
        hold numbers all the same (nan times a weight of 0 is nan): `wipe` the cache before the first use.
        """
        rows, seen = places[:, None], self._columns[:columns]
        return self._blocks(x, places, lambda window: View(0, columns, self._mask(rows, seen, window)))

    def wipe(self, first: int, end: int) -> None:
        """Zeroes places of the cache, whatever stands there."""
        self._keys.wipe(first, end)
        self._values.wipe(first, end)

    def _blocks(self, x: Tensor, places: slice | Tensor, look: Callable[[int | None], View]) -> Tensor:
        """x [n, d] (overwritten) -> [n, d] through all blocks; keys and values go to `places` of the cache."""
        w, n = self.weights, len(x)
        turns = self._turns[places]
        views: dict[int | None, View] = {}
        for layer, (norm, mlp_norm), cache in self._each:
            if layer.window not in views:
                views[layer.window] = look(layer.window)
            qkv = layer.qkv(norm(x)).view(n, -1, w.head_dim)
            x += layer.out(self._attend(qkv, layer, cache, turns, places, views[layer.window]))
            gate, up = layer.gate_up(mlp_norm(x)).chunk(2, dim=-1)
            x += layer.down(F.silu(gate).mul_(up))
        return x

    def _attend(
        self,
        qkv: Tensor,
        layer: Layer,
        cache: LayerCache,
        turns: Tensor,
        places: slice | Tensor,
        view: View,
    ) -> Tensor:
        """qkv [n, heads + 2·kv_heads, head_dim] -> [n, heads·head_dim].

        Queries that share a key head become rows of one product, so keys are read once and never repeated.
        """
        w = self.weights
        n, both = qkv.shape[0], w.heads + w.kv_heads
        qk = qkv[:, :both]
        if layer.qk_norm is not None:
            qk.copy_(F.rms_norm(qk, (w.head_dim,), None, w.eps) * layer.qk_norm)
        if layer.rotary:
            rotate_(qk, turns)
        new = qkv[:, w.heads :].view(n, 2, w.kv_heads, w.head_dim).permute(1, 2, 0, 3)
        for cached, added in zip(cache, new, strict=True):
            cached.put(places, added)
        group = w.heads // w.kv_heads
        q = qkv[:, : w.heads].reshape(n, w.kv_heads, group, w.head_dim).transpose(0, 1)
        q = q.reshape(1, w.kv_heads, n * group, w.head_dim)
        keys, values = (cached.seen(view.first, view.end)[None] for cached in cache)
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=view.mask)
        return seen.view(w.kv_heads, n, group * w.head_dim).transpose(0, 1).reshape(n, -1)

    def _visible(self, start: int, n: int, window: int | None) -> View:
        """What n rows from place `start` on see."""
        first, end = 0 if window is None else max(0, start - window + 1), start + n
        rows, columns = self._columns[start:end, None], self._columns[first:end]
        return View(first, end, None if n == 1 else self._mask(rows, columns, window))

    def _mask(self, rows: Tensor, columns: Tensor, window: int | None) -> Tensor:
        """Places [n, 1] and [columns] -> [n·group, columns]: 0 where a row sees a column, -inf where it does not."""
        hidden = columns > rows
        if window is not None:
            hidden |= columns <= rows - window
        mask = torch.zeros(hidden.shape, dtype=self.weights.dtype, device=hidden.device)
        mask.masked_fill_(hidden, float("-inf"))
        return mask.repeat_interleave(self.weights.heads // self.weights.kv_heads, dim=0)


class Norm:
    """Root-mean-square norm of each row [n, d], scaled by weight [d].

    torch composes it of nine operations on a CPU, a tenth of a small model's step. There it is taken in four:
    x / hypot(|x|, sqrt(d·eps)), times sqrt(d)·weight.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps
        self._short = weight.device.type == "cpu" and weight.dtype == torch.float32
        if self._short:
            self._scaled = weight * len(weight) ** 0.5
            self._least = torch.tensor((len(weight) * eps) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._short:
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.div(x, torch.hypot(size, self._least)).mul_(self._scaled)


def turns_of(weights: Weights, capacity: int) -> Tensor:
    """Cosines and signed sines of every position [capacity, 2, 1, head_dim] (frequencies in float32, as trained)."""
    angles = torch.arange(capacity, device=weights.frequencies.device).float()[:, None] * weights.frequencies
    cos, sin = angles.cos() * weights.rotary_scale, angles.sin() * weights.rotary_scale
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)[:, :, None]


def rotate_(qk: Tensor, turns: Tensor) -> None:
    """Turns the pairs (i, i + head_dim/2) of each head [n, heads, head_dim] by their position, in place.

    turns [n, 2, 1, head_dim], rows of `turns_of`. In float32, whatever the type.
    """
    swapped = qk.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    if qk.dtype == torch.float32:
        qk.mul_(turns[:, 0]).addcmul_(swapped, turns[:, 1])
    else:
        qk.copy_(torch.addcmul(qk.float() * turns[:, 0], swapped.float(), turns[:, 1]))
