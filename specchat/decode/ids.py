"""Ids on the host or on the device: what was drawn is fed on before the host has seen which id it is.

Reading a value makes the host wait for the device. So drafted ids stay tensors through a whole round, and the lists
that describe the caches hold `UNKNOWN` in their places until the round's one transfer has brought the values.
Between rounds no list holds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Ids = Sequence[int] | Tensor
"""Ids that the host knows, or int64 [n]: then it need not."""

UNKNOWN = -1
"""Stands for an id whose value the host does not know yet. No id equals it: whatever compares ids forgets it."""


def on(device: torch.device, ids: Ids) -> Tensor:
    """ids as int64 [n] on the device. What comes from the host is copied without waiting for the device."""
    if isinstance(ids, Tensor):
        return ids.to(device)
    if not ids:
        return torch.empty(0, dtype=torch.long, device=device)
    return torch.tensor(ids, dtype=torch.long, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def listed(ids: Ids) -> list[int]:
    """ids as the host can note them."""
    return [UNKNOWN] * len(ids) if isinstance(ids, Tensor) else list(ids)


def joined(known: Sequence[int], more: Ids) -> Ids:
    """known, then more; on the device if `more` is there."""
    return torch.cat([on(more.device, known), more]) if isinstance(more, Tensor) else [*known, *more]
