"""Top-k: the k largest of a row of logits, and the law over them."""

from __future__ import annotations

from torch import Tensor

from specchat.decode.offered import for_logits

BLOCK = 128
"""Entries of a row that are looked at together where only a few of them matter."""


def shares(logits: Tensor, k: int, temperature: float) -> tuple[Tensor, Tensor]:
    """The softmax of each row's k largest logits over the temperature, in order, and their ids.

    logits: [n, V] float32, k at most V -> [n, k] float32 and int64. A row with nan or +inf, or nothing but -inf,
    becomes nan, k times.
    """
    offer = for_logits(logits)
    return (by_torch if offer is None else offer.shares)(logits, k, temperature)


def by_torch(logits: Tensor, k: int, temperature: float) -> tuple[Tensor, Tensor]:
    """The same where nothing was offered, or where it has no use."""
    values, ids = by_blocks(logits, k)
    return (values / temperature).softmax(dim=-1), ids


def by_blocks(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, in order, and their ids. On a CPU what is among them is looked for in the k blocks
    with the largest maxima: a pass over the row for its maxima costs a fraction of a search through all of it."""
    rows, width = logits.shape
    if logits.device.type != "cpu" or width % BLOCK or 4 * k * BLOCK > width:
        return logits.topk(k, dim=-1)
    blocks = logits.view(rows, -1, BLOCK)
    best = blocks.amax(dim=-1).topk(k, dim=-1).indices
    found = blocks.gather(1, best[..., None].expand(-1, -1, BLOCK)).flatten(1)
    values, places = found.topk(k, dim=-1)
    return values, best.gather(1, places // BLOCK).mul_(BLOCK).add_(places % BLOCK)
