"""What the live panel knows: the reply's statistics, its last rounds, whether it pays."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from specchat.decode.events import Round
from specchat.decode.stats import Stats

RECENT = 48
"""Rounds shown in the strip."""

WINDOW_S = 3.0
"""Seconds over which "just now" is measured."""

ENOUGH = 8
"""Rounds with a proposal before a verdict on speculation."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One round of the strip: how many tokens it gave, how many of them the draft wrote, and when."""

    emitted: int
    accepted: int
    at: float
    changed: bool


@dataclass(frozen=True, slots=True)
class Change:
    """The moment new settings took effect."""

    round: int
    at: float


Verdict = Literal["off", "early", "unknown", "wins", "even", "loses"]


@dataclass(slots=True)
class Meter:
    """One reply as the panel sees it. Fed by `add`, read by the panel; no text, no tensors."""

    stats: Stats = field(default_factory=Stats)
    ticks: deque[Tick] = field(default_factory=lambda: deque(maxlen=RECENT))
    changes: list[Change] = field(default_factory=list)
    gamma: int = 0
    """γ of the last round."""
    choice: str = ""
    """Why it was that; "" when it was fixed."""

    def add(self, event: Round) -> None:
        """Takes in one more round."""
        self.stats.add(event)
        self.gamma, self.choice = event.gamma, event.choice
        self.ticks.append(Tick(len(event.tokens), event.accepted, event.at, event.settings_changed))
        if event.settings_changed:
            self.changes.append(Change(event.index, event.at))

    @property
    def just_now(self) -> float:
        """tok/s over the last few seconds of the reply."""
        if len(self.ticks) < 2:
            return self.stats.tok_per_s
        last = self.ticks[-1].at
        window = [tick for tick in self.ticks if last - tick.at <= WINDOW_S]
        if len(window) < 2:
            window = list(self.ticks)[-2:]
        seconds = window[-1].at - window[0].at
        return sum(tick.emitted for tick in window[1:]) / seconds if seconds > 0 else 0.0

    def speed_up(self, plain_step_s: float) -> float | None:
        """Tokens per second spent inside rounds × seconds of a plain round; None while either is missing.

        Like with like: a plain step is timed inside its round too, so what passes between rounds counts in neither.
        """
        spent = sum(self.stats.time_split().values())
        if plain_step_s <= 0 or self.stats.rounds < 2 or spent <= 0:
            return None
        return self.stats.emitted / spent * plain_step_s

    def verdict(self, plain_step_s: float) -> Verdict:
        """Does speculation pay in this reply? Only ever from measurements."""
        if self.stats.rounds and self.stats.drafted == 0 and self.stats.largest_gamma == 0:
            return "off"
        if self.stats.speculative_rounds < ENOUGH:
            return "early"
        gain = self.speed_up(plain_step_s)
        if gain is None:
            return "unknown"
        return "wins" if gain > 1.03 else "loses" if gain < 0.97 else "even"
