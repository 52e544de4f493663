"""Blocks with their cache: rows of hidden states in, rows of hidden states out.

What our own decoder and a draft head have in common. Knows no ids, no embedding and no head; positions are given,
so that forgetting is giving an earlier one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from specchat.model.compact_weights import Layer, Weights


class Stack:
    """The blocks of `weights` over one buffer of keys and values, allocated up front."""

    def __init__(self, weights: Weights, capacity: int) -> None:
        self.weights = weights
        device = weights.frequencies.device
        # empty, not zeros: pages are taken from the system only when they are written.
        shape = (len(weights.layers), 2, weights.kv_heads, capacity, weights.head_dim)
        self._cache = torch.empty(shape, dtype=weights.dtype, device=device)
        self._columns = torch.arange(capacity, device=device)
        self._turns = turns_of(weights, capacity)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values at full length (a CPU commits them only as they are used)."""
        return self._cache.numel() * self._cache.element_size()

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """x [n, d] (overwritten) -> hidden states [n, d] before the final norm; writes places start… of the cache."""
        w, n = self.weights, len(x)
        turns = self._turns[start : start + n]
        masks: dict[int | None, tuple[int, Tensor | None]] = {}
        for layer, cache in zip(w.layers, self._cache, strict=True):
            if layer.window not in masks:
                masks[layer.window] = self._visible(start, n, layer.window)
            first, mask = masks[layer.window]
            qkv = layer.qkv(rms(x, layer.norm, w.eps)).view(n, -1, w.head_dim)
            x += layer.out(self._attend(qkv, layer, cache, turns, start, first, mask))
            gate, up = layer.gate_up(rms(x, layer.mlp_norm, w.eps)).chunk(2, dim=-1)
            x += layer.down(F.silu(gate).mul_(up))
        return x

    def _attend(
        self,
        qkv: Tensor,
        layer: Layer,
        cache: Tensor,
        turns: Tensor,
        start: int,
        first: int,
        mask: Tensor | None,
    ) -> Tensor:
        """qkv [n, heads + 2·kv_heads, head_dim], cache [2, kv_heads, capacity, head_dim] -> [n, heads·head_dim].

        Queries that share a key head become rows of one product, so keys are read once and never repeated.
        """
        w = self.weights
        n, both = qkv.shape[0], w.heads + w.kv_heads
        qk = qkv[:, :both]
        if layer.qk_norm is not None:
            qk.copy_(F.rms_norm(qk, (w.head_dim,), None, w.eps) * layer.qk_norm)
        if layer.rotary:
            rotate_(qk, turns)
        end = start + n
        cache[:, :, start:end] = qkv[:, w.heads :].view(n, 2, w.kv_heads, w.head_dim).permute(1, 2, 0, 3)
        group = w.heads // w.kv_heads
        q = qkv[:, : w.heads].reshape(n, w.kv_heads, group, w.head_dim).transpose(0, 1)
        q = q.reshape(1, w.kv_heads, n * group, w.head_dim)
        keys, values = cache[:, None, :, first:end]
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return seen.view(w.kv_heads, n, group * w.head_dim).transpose(0, 1).reshape(n, -1)

    def _visible(self, start: int, n: int, window: int | None) -> tuple[int, Tensor | None]:
        """The first cached position any of n rows sees, and the mask [n·group, columns] (None: all see all)."""
        first = 0 if window is None else max(0, start - window + 1)
        if n == 1:
            return first, None
        rows = self._columns[start : start + n, None]
        columns = self._columns[first : start + n]
        hidden = columns > rows
        if window is not None:
            hidden |= columns <= rows - window
        mask = torch.zeros(hidden.shape, dtype=self.weights.dtype, device=hidden.device)
        mask.masked_fill_(hidden, float("-inf"))
        return first, mask.repeat_interleave(self.weights.heads // self.weights.kv_heads, dim=0)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of each row, scaled by weight."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


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
