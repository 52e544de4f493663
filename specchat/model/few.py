"""The blocks for a few rows on a CPU: products by torch, what stands between them by `kernels` and `attention`.

The same arithmetic as `Stack` itself, which serves long prompts and GPUs; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.decode.settings import MAX_GAMMA
from specchat.model import attention, kernels
from specchat.model.attention import Attention
from specchat.model.cache import Pieces, Rows
from specchat.model.compact_weights import Layer, Weights

MOST_ROWS = MAX_GAMMA + 1
"""A block is no longer. Of longer pieces of a prompt most of the time is arithmetic, not bookkeeping."""

LayerCache = tuple[Rows, Rows | Pieces]
"""Keys and values of one layer."""


@dataclass(frozen=True, slots=True)
class Shared:
    """One piece of memory, for torch and for the kernels."""

    tensor: Tensor
    array: NDArray[np.float32]

    @classmethod
    def zeros(cls, *shape: int) -> Shared:
        tensor = torch.zeros(shape)
        return cls(tensor, tensor.numpy())


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for a pass of n rows: every pass of n rows of a stack overwrites it, and nothing of it is handed out."""

    normed: Shared
    """[n, d]"""
    q: Shared
    """[kv_heads, n·group, head_dim]"""
    seen: Shared
    """[n, heads·head_dim]"""
    attention: Attention
    """From q to seen."""
    opened: Shared
    """[n, inner]: between the two halves of the MLP"""


@dataclass(frozen=True, slots=True)
class Block:
    """One layer, with its scales and its cache as arrays: see `kernels.place`."""

    layer: Layer
    norm: NDArray[np.float32]
    mlp_norm: NDArray[np.float32]
    head_scale: NDArray[np.float32]
    turns: NDArray[np.float32]
    keys: NDArray[np.float32]
    values: NDArray[np.float32]


@dataclass(slots=True)
class Few:
    """Passes of few rows over the cache of a `Stack`, whose values lie in `Pieces`."""

    weights: Weights
    capacity: int
    caches: Sequence[LayerCache]
    turns: Tensor
    """[capacity, 2, 1, head_dim], `stack.turns_of`."""
    _blocks: tuple[Block, ...] = field(init=False)
    _rooms: dict[int, Room] = field(default_factory=dict)
    _scratch: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        kernels.prepare()
        attention.prepare()
        w = self.weights
        rows = MOST_ROWS * w.heads // w.kv_heads
        self._scratch = attention.scratch(w.kv_heads, rows, w.head_dim, self.capacity)
        none = np.zeros((0, 1), np.float32)
        turns = self.turns[:, :, 0].numpy()
        self._blocks = tuple(
            Block(
                layer=layer,
                norm=_floats(layer.norm),
                mlp_norm=_floats(layer.mlp_norm),
                head_scale=none if layer.qk_norm is None else _floats(layer.qk_norm),
                turns=turns if layer.rotary else turns[:0],
                keys=cache[0].memory.numpy(),
                values=cache[1].memory.numpy(),
            )
            for layer, cache in zip(self.weights.layers, self.caches, strict=True)
        )

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """x [n, d] (overwritten) -> [n, d] through all blocks; keys and values go to the places from `start` on."""
        w, n, eps = self.weights, len(x), self.weights.eps
        room = self._rooms.get(n) or self._make(n)
        rows, normed = x.numpy(), room.normed.array
        threads = torch.get_num_threads()
        room.attention.begin(start)
        more: NDArray[np.float32] | None = None
        for i, block in enumerate(self._blocks):
            layer = block.layer
            if more is None:
                kernels.norm(rows, block.norm, eps, normed)
            else:
                kernels.add_norm(rows, more, block.norm, eps, normed)
            qkv = layer.qkv(room.normed.tensor).view(n, -1, w.head_dim).numpy()
            turns = block.turns[start : start + n]
            kernels.place(qkv, turns, block.head_scale, eps, block.keys, block.values, start, room.q.array)
            room.attention(i, threads)
            kernels.add_norm(rows, layer.out(room.seen.tensor).numpy(), block.mlp_norm, eps, normed)
            kernels.gate(layer.gate_up(room.normed.tensor).numpy(), room.opened.array)
            more = layer.down(room.opened.tensor).numpy()
        room.attention.end()
        assert more is not None
        rows += more
        return x

    def _make(self, n: int) -> Room:
        w = self.weights
        d, wide = w.table.shape[1], w.heads * w.head_dim
        inner = self._blocks[0].layer.gate_up(torch.zeros(1, d)).shape[1] // 2
        q, seen = Shared.zeros(w.kv_heads, n * w.heads // w.kv_heads, w.head_dim), Shared.zeros(n, wide)
        layers = [(block.keys, block.values, block.layer.window or 0) for block in self._blocks]
        room = Room(
            normed=Shared.zeros(n, d),
            q=q,
            seen=seen,
            attention=Attention(q.array, seen.array, layers, self._scratch),
            opened=Shared.zeros(n, inner),
        )
        self._rooms[n] = room
        return room


def _floats(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().contiguous().numpy()
