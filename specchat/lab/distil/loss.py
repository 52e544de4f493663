"""The two distributions, pulled together: KL divergence and total variation, with the gradient written out.

What is judged is a few hundred rows by thousands of columns, several times a batch; autograd would keep and pass
over each of these tables half a dozen times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specchat.model.linear import has_bfloat16


@dataclass(frozen=True, slots=True)
class LossWeights:
    """KL(p‖q) in nats, total variation ½ Σ|p-q| (= 1 - chance of acceptance)."""

    kl: float = 1.0
    tv: float = 0.5


class Divergence(torch.autograd.Function):
    """Σ over rows of weights.kl · KL(p‖q) + weights.tv · TV(p, q), divided by the number of rows.

    outputs [m, d]; head [V, d], already divided by the temperature; places, p [m, k]. Also returns, without
    gradient, the mean chance of acceptance Σ min(p, q).
    """

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, head: Tensor, places: Tensor, p: Tensor, weights: LossWeights
    ) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q = outputs @ head.T
        q.sub_(q.amax(-1, keepdim=True))
        known = places >= 0
        places = places.clamp(min=0)
        log_q = q.gather(-1, places)
        total = q.exp_().sum(-1, keepdim=True)
        log_q -= total.log()
        q_here = log_q.exp().masked_fill(~known, 0.0)
        kept = torch.minimum(p, q_here).sum(-1)
        kl = (torch.special.xlogy(p, p) - p * log_q).sum(-1)
        loss = weights.kl * kl + weights.tv * (1 - kept)
        # d loss / d q, times q, on the places of p; elsewhere the loss depends on q through its sum alone.
        pull = -weights.kl * p - weights.tv * q_here * (q_here < p)
        m = len(outputs)
        q.mul_(pull.sum(-1, keepdim=True).neg_().div_(total))
        q.scatter_add_(-1, places, pull.masked_fill(~known, 0.0))
        ctx.save_for_backward(_product(q, head).div_(m))
        return loss.mean(), kept.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (own,) = ctx.saved_tensors
        return own * gradient, None, None, None, None


def _product(gradient: Tensor, head: Tensor) -> Tensor:
    """gradient @ head. It may be rounded to 8 bits, where that is faster: the noise of a batch is larger."""
    if gradient.dtype == torch.float32 and gradient.device.type == "cpu" and has_bfloat16():
        return (gradient.bfloat16() @ head.bfloat16()).float()
    return gradient @ head
