"""What one call of `Engine.generate` keeps between its rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from specchat.decode.drafters import Drafter
from specchat.decode.events import Prefill
from specchat.decode.settings import Settings


@dataclass(slots=True)
class Request:
    """The committed text, prompt first, and how far this request has come."""

    committed: list[int]
    prompt: int
    stop: Callable[[int], bool]
    cancelled: Callable[[], bool]
    rng: torch.Generator
    settings: Settings
    began: float
    compare_every: int = 0
    """See `Engine.generate`."""
    rounds: int = 0
    drafter: Drafter | None = None
    broken: set[str] = field(default_factory=set)
    """Names of drafters that failed in this request."""
    prefill: Prefill | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def emitted(self) -> int:
        return len(self.committed) - self.prompt

    def compares(self, settings: Settings) -> bool:
        """Whether the next round is a plain one only so that there is something to compare with."""
        every = self.compare_every
        return every > 0 and not settings.guard and self.rounds % every == every // 4

    def go_on(self) -> bool:
        """For whatever reads in chunks."""
        return not self.cancelled()
