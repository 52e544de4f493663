"""Where keys and values of a text lie: as rows, or in pieces of the text, turned sideways.

torch wants rows. The kernel for attention takes a weighted sum of values over the text, which is fastest where places
are neighbours in memory; and pieces, because memory is read fastest in long stretches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.model.kernels import PIECE


@dataclass(frozen=True, slots=True)
class Rows:
    """memory [..., capacity, head_dim]"""

    memory: Tensor

    def put(self, places: Tensor | slice, new: Tensor) -> None:
        """Writes new [..., n, head_dim] to n places."""
        if isinstance(places, slice):
            self.memory[..., places, :] = new
        else:
            self.memory.index_copy_(-2, places, new)

    def seen(self, first: int, end: int) -> Tensor:
        """[..., end - first, head_dim], without copying."""
        return self.memory[..., first:end, :]

    def wipe(self, first: int, end: int) -> None:
        """Zeroes places, whatever stands there."""
        self.memory[..., first:end, :] = 0

    def __getitem__(self, index: int) -> Rows:
        return Rows(self.memory[index])


@dataclass(frozen=True, slots=True)
class Pieces:
    """memory [..., pieces, head_dim, PIECE]; the same things to do with it."""

    memory: Tensor

    @classmethod
    def empty(cls, *shape: int) -> Pieces:
        """Room for [..., capacity, head_dim], float32 on a CPU."""
        *heads, capacity, width = shape
        return cls(torch.empty((*heads, -(-capacity // PIECE), width, PIECE)))

    def put(self, places: Tensor | slice, new: Tensor) -> None:
        at = torch.arange(places.start, places.stop) if isinstance(places, slice) else places
        self.memory[..., at // PIECE, :, at % PIECE] = new.movedim(-2, 0)

    def seen(self, first: int, end: int) -> Tensor:
        """A copy, as rows that lie one behind the other."""
        before = first // PIECE
        pieces = self.memory[..., before : -(-end // PIECE), :, :]
        rows = pieces.transpose(-1, -2).contiguous().flatten(-3, -2)
        return rows[..., first - before * PIECE : end - before * PIECE, :]

    def wipe(self, first: int, end: int) -> None:
        at = torch.arange(first, end)
        self.memory[..., at // PIECE, :, at % PIECE] = 0

    def __getitem__(self, index: int) -> Pieces:
        return Pieces(self.memory[index])
