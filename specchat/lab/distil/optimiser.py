"""Muon for the matrices, AdamW for the norms: more learned from each batch, which is what a CPU's hour is short of.

Muon (Jordan et al. 2024) takes the momentum's nearest orthogonal matrix as its step, found by five Newton-Schulz
iterations, so that all directions of a matrix learn at one rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.lab.distil.network import Net
from specchat.model.linear import has_bfloat16

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_MOMENTUM = 0.95
_BETAS = (0.9, 0.95)
_DECAY = 0.01


class Optimiser:
    """One step a batch; its whole state is a dictionary of tensors."""

    def __init__(self, net: Net, matrix_rate: float, norm_rate: float) -> None:
        self.net = net
        self.rates = matrix_rate, norm_rate
        self.state: dict[str, Tensor] = {"steps": torch.zeros(())}
        for name, weight in net.named_parameters():
            self.state[f"first.{name}"] = torch.zeros_like(weight)
            if weight.dim() == 1:
                self.state[f"second.{name}"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, share: float) -> None:
        """Applies the gradients at `share` of the peak rates, and clears them."""
        self.state["steps"] += 1
        for name, weight in self.net.named_parameters():
            assert weight.grad is not None
            if weight.dim() == 1:
                self._adam(name, weight, self.rates[1] * share)
            else:
                self._muon(name, weight, self.rates[0] * share)
            weight.grad = None

    def _muon(self, name: str, weight: Tensor, rate: float) -> None:
        gradient, momentum = weight.grad, self.state[f"first.{name}"]
        assert gradient is not None
        momentum.mul_(_MOMENTUM).add_(gradient)
        wanted = gradient.add(momentum, alpha=_MOMENTUM)
        for part, direction in zip(self.net.parts(name, weight), self.net.parts(name, wanted), strict=True):
            scale = max(1.0, part.shape[0] / part.shape[1]) ** 0.5
            scale *= self.net.pace(name)
            part.mul_(1 - rate * _DECAY).add_(_orthogonal(direction), alpha=-rate * scale)

    def _adam(self, name: str, weight: Tensor, rate: float) -> None:
        gradient, steps = weight.grad, float(self.state["steps"])
        first, second = self.state[f"first.{name}"], self.state[f"second.{name}"]
        assert gradient is not None
        first.lerp_(gradient, 1 - _BETAS[0])
        second.lerp_(gradient.square(), 1 - _BETAS[1])
        spread = (second / (1 - _BETAS[1] ** steps)).sqrt_().add_(1e-8)
        weight.addcdiv_(first / (1 - _BETAS[0] ** steps), spread, value=-rate * self.net.pace(name))


def _orthogonal(matrix: Tensor) -> Tensor:
    """Near the orthogonal matrix nearest to this one: singular values between about 0.7 and 1.2."""
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    if has_bfloat16():
        x = x.bfloat16()  # the iteration is made for it (Jordan et al. 2024)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return (x.T if tall else x).float()
