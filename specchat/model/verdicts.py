"""Drawing by a law of a few ids, and the verdict on a draft, compiled: what `decode.offered` is offered.

By torch a verdict is some forty operations on twenty numbers each, after a pass over the weights that has driven all
of them out of the processor's caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.decode.law import Law
from specchat.model.compiled import compiled, first_call

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]


def prepare() -> None:
    """Compiles both, or takes them from disk."""
    p, ids, one = np.ones((2, 1), np.float32), np.zeros((2, 1), np.int64), np.zeros(1, np.int64)
    point = np.zeros((), np.float64)
    first_call(_draw, p, ids, point, one)
    first_call(_judge, p, ids, p[:1], ids[:1], one, p[0], point, np.zeros(7))


def draw(law: Law, point: Tensor) -> Tensor:
    """As `decode.offered.Offer.draw`."""
    found = torch.empty(1, dtype=torch.long)
    p, ids = _arrays(law)
    _draw(p, ids, point.numpy(), found.numpy())
    return found


def judge(p: Law, q: Law | None, drafted: Tensor, u: Tensor, point: Tensor) -> Tensor:
    """As `decode.offered.Offer.judge`."""
    packed = torch.empty(4 + 3 * len(drafted), dtype=torch.float64)
    _judge(
        *_arrays(p),
        *(_CERTAIN if q is None else _arrays(q)),
        drafted.numpy(),
        u.numpy(),
        point.numpy(),
        packed.numpy(),
    )
    return packed


_CERTAIN = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.int64)
"""Stands for a draft that was certain of each proposal."""


def _arrays(law: Law) -> tuple[Floats, Ids]:
    assert law.ids is not None
    return law.p.contiguous().numpy(), law.ids.contiguous().numpy()


@compiled
def _met(weights: Floats, running: Doubles, point: Any) -> int:
    """The first entry whose running sum exceeds the part `point` of all of it: one of weight 0 is never met."""
    total = 0.0
    for j in range(len(weights)):
        total += weights[j]
        running[j] = total
    last = len(weights) - 1
    # The sum as it was stored: added up in another order it might differ.
    least = point * running[last]
    for j in range(last):
        if running[j] > least:
            return j
    return last


@compiled
def _draw(p: Floats, ids: Ids, point: Doubles, found: Ids) -> None:
    found[0] = ids[0, _met(p[0], np.empty(p.shape[1], np.float64), point[()])]


@compiled
def _chance(p: Floats, ids: Ids, id: int) -> Any:
    """The probability of an id by one row of a law."""
    total = np.float32(0)
    for j in range(len(ids)):
        if ids[j] == id:
            total += p[j]
    return total


@compiled
def _judge(
    p: Floats, ids: Ids, q: Floats, q_ids: Ids, drafted: Ids, u: Floats, point: Doubles, packed: Doubles
) -> None:  # fmt: skip
    """See `decode.verdict.read` for what is packed, and `decode.sampling.verify` for the law."""
    n, k = len(drafted), p.shape[1]
    certain = len(q) == 0
    accepted, rows = n, 0.0
    for i in range(n):
        id = drafted[i]
        by_target = _chance(p[i], ids[i], id)
        by_draft = np.float32(1) if certain else _chance(q[i], q_ids[i], id)
        if accepted == n and not u[i] * by_draft < by_target:
            accepted = i
        packed[4 + i], packed[4 + n + i], packed[4 + 2 * n + i] = id, by_target, by_draft
    for i in range(n + 1):
        rows += p[i, 0]
    own, weights, left = p[accepted], np.empty(k, np.float32), np.float32(0)
    for j in range(k):
        weight = own[j]
        if accepted < n:
            id = ids[accepted, j]
            if not certain:
                weight -= _chance(q[accepted], q_ids[accepted], id)
            elif id == drafted[accepted]:
                weight -= np.float32(1)
        weights[j] = np.float32(0) if weight < 0 else weight
        left += weights[j]
    if not left > 0:
        for j in range(k):
            weights[j] = own[j]
    met = _met(weights, np.empty(k, np.float64), point[()])
    packed[0], packed[1], packed[2], packed[3] = rows, accepted, ids[accepted, met], own[met]
