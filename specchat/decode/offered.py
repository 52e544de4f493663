"""Another room may offer to do in one step, on a CPU, what takes many small operations of torch.

This room knows torch only. Who offers must do the same with the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.decode.law import Law

MOST_PAIRS = 1 << 12
"""Pairs of entries of two laws, up to which comparing one with one is what is offered."""


@dataclass(frozen=True, slots=True)
class Offer:
    """All laws are over a few ids, float32 on a CPU."""

    shares: Callable[[Tensor, int, float], tuple[Tensor, Tensor]]
    """See `largest.shares`."""
    draw: Callable[[Law, Tensor], Tensor]
    """An id [1] by a law of one row, for a uniform float64 of no dimensions: as `sampling.draw`."""
    judge: Callable[[Law, Law | None, Tensor, Tensor, Tensor], Tensor]
    """The verdict on drafted ids [n] by p of n + 1 rows and q of n, for uniform numbers [n] and one of no dimensions:
    as `verdict.judge`."""


_offers: list[Offer] = []
"""For the whole process: laws are plain values, and nobody who holds one knows a pair."""


def offer(what: Offer) -> None:
    """From now on it is done this way."""
    _offers[:] = [what]


def for_logits(logits: Tensor) -> Offer | None:
    """What is offered for them."""
    return _offers[0] if _offers and logits.device.type == "cpu" else None


def for_laws(p: Law, q: Law | None = None) -> Offer | None:
    """What is offered for a law, or for two that are compared. q None: certainty."""
    if not _offers or not _small(p) or (q is not None and not _small(q)):
        return None
    pairs = p.p.shape[1] * (1 if q is None else q.p.shape[1])
    return _offers[0] if pairs <= MOST_PAIRS else None


def _small(law: Law) -> bool:
    return law.ids is not None and law.p.device.type == "cpu" and law.p.dtype == torch.float32
