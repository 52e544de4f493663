"""Many conversations of one target at once: a cache for each, one id a step for any of them.

Reading the weights is most of a single conversation's step; sixty that are stepped together share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from specchat.model.compact import CompactDecoder
from specchat.model.compact_weights import Layer, Weights
from specchat.model.linear import Brain, Linear, has_bfloat16
from specchat.model.stack import Norm, rotate_, turns_of


class BatchDecoder:
    """`slots` caches of `capacity` places over the target's weights; the target's own cache stays as it is."""

    def __init__(self, target: CompactDecoder, slots: int, capacity: int) -> None:
        self.weights = in_bulk(target.weights)
        self.device = target.device
        self.capacity = capacity
        self.lengths = [0] * slots
        """Ids in each cache."""
        w = self.weights
        # Places of a slot lie side by side: its attention reads one piece of memory.
        shape = (len(w.layers), 2, slots, w.kv_heads, capacity, w.head_dim)
        self._cache = torch.empty(shape, dtype=w.dtype, device=self.device)
        self._turns = turns_of(w, capacity)
        self._norms = [(Norm(layer.norm, w.eps), Norm(layer.mlp_norm, w.eps)) for layer in w.layers]
        self._norm = Norm(w.norm, w.eps)

    @torch.inference_mode()
    def step(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Appends ids[i] to slots[i], each slot at most once; hidden states [n, d] behind the final norm."""
        w, n = self.weights, len(ids)
        assert len(set(slots)) == n and all(self.lengths[slot] < self.capacity for slot in slots)
        where = torch.tensor(slots, device=self.device)
        places = torch.tensor([self.lengths[slot] for slot in slots], device=self.device)
        turns = self._turns[places]
        x = w.table[torch.tensor(ids, device=self.device)].to(w.dtype)
        for layer, (norm, mlp_norm), cache in zip(w.layers, self._norms, self._cache, strict=True):
            qkv = layer.qkv(norm(x)).view(n, -1, w.head_dim)
            qk = qkv[:, : w.heads + w.kv_heads]
            if layer.qk_norm is not None:
                qk.copy_(F.rms_norm(qk, (w.head_dim,), None, w.eps) * layer.qk_norm)
            if layer.rotary:
                rotate_(qk, turns)
            cache[0, where, :, places] = qk[:, w.heads :]
            cache[1, where, :, places] = qkv[:, w.heads + w.kv_heads :]
            x += layer.out(self._attend(qk[:, : w.heads], layer, cache, slots))
            gate, up = layer.gate_up(mlp_norm(x)).chunk(2, dim=-1)
            x += layer.down(F.silu(gate).mul_(up))
        for slot in slots:
            self.lengths[slot] += 1
        return self._norm(x)

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """float32 [n, head rows] from states that `step` returned."""
        return self.weights.head(states).float()

    @torch.inference_mode()
    def copy(self, source: int, slot: int) -> None:
        """Makes a slot's cache that of another."""
        n = self.lengths[source]
        self._cache[:, :, slot, :, :n] = self._cache[:, :, source, :, :n]
        self.lengths[slot] = n

    def _attend(self, q: Tensor, layer: Layer, cache: Tensor, slots: Sequence[int]) -> Tensor:
        """q [n, heads, head_dim], cache [2, slots, kv_heads, capacity, head_dim] -> [n, heads·head_dim].

        One slot after the other: each reads as much as it holds. A single masked product over all reads the
        longest one's length for every slot, and takes half as long again (measured on a CPU, 64 slots).
        """
        n = len(q)
        q = q.reshape(n, self.weights.kv_heads, -1, self.weights.head_dim)
        seen = torch.empty_like(q)
        for i, slot in enumerate(slots):
            end = self.lengths[slot] + 1
            first = 0 if layer.window is None else max(0, end - layer.window)
            keys, values = cache[:, slot, None, :, first:end]
            seen[i] = F.scaled_dot_product_attention(q[i : i + 1], keys, values)[0]
        return seen.view(n, -1)


def in_bulk(weights: Weights) -> Weights:
    """The same weights for many rows a step: bfloat16 blocks where the CPU multiplies that itself, twice as fast.

    The output head stays as it is: bfloat16 would round logits by up to an eighth.
    """
    if weights.table.device.type != "cpu" or not has_bfloat16():
        return weights
    d, heads = weights.table.shape[1], weights.heads * weights.head_dim

    def block(layer: Layer) -> Layer:
        inner = layer.gate_up(torch.zeros(1, d)).shape[1] // 2
        return replace(
            layer,
            qkv=_brain(layer.qkv, d),
            out=_brain(layer.out, heads),
            gate_up=_brain(layer.gate_up, d),
            down=_brain(layer.down, inner),
        )

    return replace(weights, layers=tuple(map(block, weights.layers)))


def _brain(linear: Linear, width: int) -> Linear:
    """Any linear map packed anew; its bias is what it makes of zeros."""
    bias = linear(torch.zeros(1, width))[0]
    return Brain(linear.rows(torch.arange(len(bias))).float(), bias if bool(bias.any()) else None)
