"""Top-k on a CPU, compiled; with `verdicts` what `decode.offered` is offered."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specchat.decode import largest
from specchat.decode.largest import BLOCK
from specchat.decode.offered import Offer, offer
from specchat.model import ahead, verdicts
from specchat.model.compiled import compiled, first_call
from specchat.model.kernels import LEAST, exp
from specchat.model.store import Progress, silent

MOST = 96
"""More than so many are left to torch, which sorts better than it searches."""


def serve(device: torch.device, progress: Progress = silent) -> None:
    """Sampling takes it from now on; nothing to do where laws lie on a CUDA device."""
    if device.type == "cuda":
        return
    ahead.finish(progress)
    prepare()
    offer(Offer(shares, verdicts.draw, verdicts.judge))


def prepare() -> None:
    """Compiles everything that is offered, or takes it from disk."""
    values, ids = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int64)
    first_call(_search, np.zeros((1, 2), np.float32), values, ids)
    first_call(_soften, values, np.float32(1))
    verdicts.prepare()


def shares(logits: Tensor, k: int, temperature: float) -> tuple[Tensor, Tensor]:
    """As `decode.largest.shares`. Of equal logits the lowest id comes first."""
    if logits.dtype != torch.float32 or k > MOST:
        return largest.by_torch(logits, k, temperature)
    shape = (len(logits), k)
    values, ids = torch.empty(shape), torch.empty(shape, dtype=torch.long)
    _search(logits.contiguous().numpy(), values.numpy(), ids.numpy())
    _soften(values.numpy(), np.float32(1 / temperature))
    return values, ids


@compiled
def _soften(values: NDArray[np.float32], scale: Any) -> None:
    """The softmax of each row times scale, largest entry first, in its place; below e^-87 of the largest it is 0."""
    n, k = values.shape
    for i in range(n):
        top, total = values[i, 0], np.float32(0)
        for j in range(k):
            x = (values[i, j] - top) * scale
            values[i, j] = np.float32(0) if x <= LEAST else exp(x)
            total += values[i, j]
        for j in range(k):
            values[i, j] /= total


@compiled
def _above(block: NDArray[np.float32], least: Any) -> int:
    """How many entries are larger than `least`, or nan."""
    count = np.int32(0)
    for j in range(len(block)):
        count += np.int32(not block[j] <= least)
    return int(count)


@compiled
def _search(logits: NDArray[np.float32], values: NDArray[np.float32], ids: NDArray[np.int64]) -> None:
    """Row by row, block by block; a block without an entry larger than the k-th so far is left at once."""
    n, width = logits.shape
    k = values.shape[1]
    for i in range(n):
        count = 0
        for first in range(0, width, BLOCK):
            block = logits[i, first : min(first + BLOCK, width)]
            if count == k and not _above(block, values[i, k - 1]):
                continue
            for j in range(len(block)):
                x = block[j]
                if x != x:
                    count = -1
                    break
                if count == k and x <= values[i, k - 1]:
                    continue
                place = count if count < k else k - 1
                count = min(count + 1, k)
                while place > 0 and x > values[i, place - 1]:
                    values[i, place], ids[i, place] = values[i, place - 1], ids[i, place - 1]
                    place -= 1
                values[i, place], ids[i, place] = x, first + j
            if count < 0:
                break
        if count < 0:
            for j in range(k):
                values[i, j], ids[i, j] = np.nan, j
