"""The law of the next id: over the whole vocabulary, or over the few ids that a filter left.

With top-k 20 a law has twenty entries that are not 0. Spread over 49,152 columns it would be written and read a dozen
times a round, each time through memory that the models' weights have just filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PAIRS = 1 << 14
"""Pairs of entries that are compared one with one; for more it is better to sort."""


@dataclass(frozen=True, slots=True)
class Law:
    """n laws, one a row. p: float32 [n, k], the probability of each entry; ids: int64 [n, k], the id of each entry,
    none twice in a row, or None where the entries are the ids themselves and k is the vocabulary.

    What is in no entry has probability 0. A row sums to 1, or is nan from end to end: then it is no law.
    """

    p: Tensor
    ids: Tensor | None = None

    def __len__(self) -> int:
        return len(self.p)

    def first(self, n: int) -> Law:
        """The first n of them."""
        return Law(self.p[:n], None if self.ids is None else self.ids[:n])

    def row(self, at: Tensor) -> Law:
        """One of them, [1, k]; at: int64 without dimensions, whose value nobody need know."""
        return Law(self.p.index_select(0, at), None if self.ids is None else self.ids.index_select(0, at))

    def chances(self, ids: Tensor) -> Tensor:
        """The probability [m] of each of ids [m] in its own row, the first m rows."""
        column = ids.unsqueeze(-1)
        if self.ids is None:
            return self.p[: len(ids)].gather(-1, column).squeeze(-1)
        return (self.p[: len(ids)] * (self.ids[: len(ids)] == column)).sum(-1)

    def at(self, other: Law) -> Tensor:
        """The probabilities [1, k] that this law, of one row, gives to the entries of another of one row."""
        if self.ids is None:
            return self.p if other.ids is None else self.p.gather(1, other.ids)
        if other.ids is None:
            return torch.zeros_like(other.p).scatter_(1, self.ids, self.p)
        if self.ids.numel() * other.ids.numel() <= PAIRS:
            return (self.p.view(-1, 1) * (self.ids.view(-1, 1) == other.ids)).sum(0, keepdim=True)
        ordered, order = self.ids[0].sort()
        place = torch.searchsorted(ordered, other.ids).clamp(max=len(order) - 1)
        return self.p[0][order][place] * (ordered[place] == other.ids)

    def dense(self, width: int) -> Tensor:
        """[n, width], a column for each id. A row that is no law is nan from end to end."""
        if self.ids is None:
            return self.p
        # 0 for a law, nan for none: an entry of it times 0.
        return (self.p[:, :1] * 0).expand(-1, width).scatter(1, self.ids, self.p)


def certain(ids: Tensor) -> Law:
    """For each of ids [n] the law that gives it everything."""
    return Law(torch.ones(len(ids), 1, device=ids.device), ids.view(-1, 1))


def stacked(laws: Sequence[Law]) -> Law:
    """All rows one below the other. The laws must be of one kind: over as many entries, with ids or without."""
    ids = [law.ids for law in laws if law.ids is not None]
    return Law(torch.cat([law.p for law in laws]), torch.cat(ids) if ids else None)
