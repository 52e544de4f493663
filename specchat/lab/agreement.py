"""Do two greedy texts agree? Where they part, was it a numerical tie or a difference?

A verification reads several rows at once, plain decoding one: sums in another order, so logits differ in their last
digits. Where the two best ids lie closer together than that, either may win, and neither is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from specchat.decode.drafters import read_prompt, reuse
from specchat.decode.sampling import Sampling, checked, probs

if TYPE_CHECKING:
    from specchat.pair import Pair

TIE = 1e-3
"""Two logits closer than this are a tie in any arithmetic: float32 sums of a model this deep differ by about 1e-4."""

NOISE_FACTOR = 4.0
"""Also a tie: logits closer than this many times the rounding measured at that very place."""

BLOCK = 5
"""Rows of the block whose last one is compared with the same row read alone: a verification with γ = 4."""

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Margin:
    """The target's two best ids after a prefix, penalties applied: their probabilities at temperature 1."""

    top: int
    second: int
    gap: float
    """Difference of the two logits, 0 or more."""
    p_top: float
    p_second: float
    noise: float = 0.0
    """How far the logits of the same place lie apart, read as one row and within a block; 0 when not measured."""

    @property
    def tie_below(self) -> float:
        """The gap up to which this place is a tie."""
        return max(TIE, NOISE_FACTOR * self.noise)

    @property
    def tie(self) -> bool:
        """Whether rounding decides which of the two is written."""
        return self.gap <= self.tie_below


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts part: the place in the reply (from 0), what each wrote there (None: it had ended)."""

    place: int
    first: int | None
    second: int | None
    margin: Margin

    @property
    def tie(self) -> bool:
        """Both wrote one of the two best ids, and rounding decides between these."""
        wrote = {self.first, self.second}
        return self.margin.tie and wrote == {self.margin.top, self.margin.second}


def first_difference(a: Ids, b: Ids) -> int | None:
    """The first place at which two replies differ (where the shorter ends, if that is all); None: identical."""
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return None if place == len(a) == len(b) else place


@torch.inference_mode()
def margin_at(pair: Pair, prefix: Ids, sampling: Sampling | None = None) -> Margin:
    """The two best ids after prefix (at least one id). Runs the target; its cache then holds the prefix.

    sampling: its penalties count, its temperature and filters do not.
    """
    law = replace(sampling or Sampling(), temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    target, prefix = pair.target, list(prefix)

    def row(block: int) -> torch.Tensor:
        head = prefix[: len(prefix) - block + 1]
        reuse(target, head)
        read_prompt(target, head)
        logits = target.forward(prefix[len(target.ids) :])[-1:]
        return checked(probs(logits.cpu(), prefix, law))[0].double()

    alone = row(1)
    noise = 0.0
    if target.can_rollback and len(prefix) > BLOCK:
        others = row(BLOCK)
        best = alone.topk(2).indices
        noise = float((alone[best].log() - others[best].log()).abs().max())
    values, ids = alone.topk(2)
    p_top, p_second = float(values[0]), float(values[1])
    gap = math.log(p_top / p_second) if p_second > 0 else math.inf
    return Margin(int(ids[0]), int(ids[1]), gap, p_top, p_second, noise if math.isfinite(noise) else 0.0)


def parting(pair: Pair, prompt: Ids, a: Ids, b: Ids, sampling: Sampling | None = None) -> Parting | None:
    """Where two greedy replies to a prompt part, and by how little; None when they are identical."""
    place = first_difference(a, b)
    if place is None:
        return None
    margin = margin_at(pair, [*prompt, *a[:place]], sampling)
    return Parting(place, a[place] if place < len(a) else None, b[place] if place < len(b) else None, margin)
