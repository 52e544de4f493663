"""How many threads share a forward: every core, or all but one; what is measured to be faster now.

A forward is some hundred products one after another, and the threads wait for each other behind each. On a quiet
machine two cores verify five rows in two thirds of the time; while the page, its browser or anything else takes
one of them in turns, that waiting may cost several times what it gains. So both are timed, by the rows of a forward,
and the slower one is tried again now and then. Results are the same bits with either: `agree` makes sure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil
import torch
from torch import Tensor

from specchat.decode.estimates import OUTLIER, Mean

FADE = 0.85
"""What a forward still counts when one more of its kind has passed."""

FIRST = 8
"""Forwards before the first trial of every core."""

TRIAL = 3
"""Forwards of a trial."""

GAIN = 0.97
"""A trial has to take at most this share of the usual time to take over."""

COLLAPSE = 1.5
"""A forward that takes so many times the usual is slow: it ends a trial, and two of them end the use of every core."""

REST, LONGEST_REST = 32, 2048
"""Forwards after a failed trial of every core; each failure doubles them, up to the longest."""

AGAIN = 256
"""Forwards between two looks at all but one, while every core is in use."""


@dataclass(slots=True)
class Threads:
    """Chooses before each short forward, and learns from each. `use` is told a number of threads when it changes."""

    few: int
    every: int
    use: Callable[[int], None] = torch.set_num_threads
    used: Callable[[], int] = torch.get_num_threads
    wide: bool = False
    """Whether every core is in use, trials aside."""
    _means: dict[tuple[bool, int], Mean] = field(default_factory=dict)
    _trying: int = 0
    """Forwards left of a trial of the other number."""
    _ratios: list[float] = field(default_factory=list)
    _until: int = FIRST
    _rest: int = REST
    _slow: int = 0
    """Slow forwards one after another."""

    def begin(self) -> None:
        """A forward begins."""
        count = self.every if self.wide != bool(self._trying) else self.few
        if count != self.used():
            self.use(count)
        _latest[:] = [count]

    def __str__(self) -> str:
        return f"{self.few} or {self.every}, by measurement"

    def learn(self, rows: int, seconds: float) -> None:
        """It has ended."""
        if self._trying:
            self._try(rows, seconds)
            return
        usual = self._usual(rows) or seconds
        self._slow = self._slow + 1 if seconds > COLLAPSE * usual else 0
        self._means.setdefault((self.wide, rows), Mean()).add(min(seconds, OUTLIER * usual), FADE)
        self._until -= 1
        if self.wide and self._slow >= 2:
            self._switch()
        elif self._until <= 0:
            self._trying, self._ratios = TRIAL, []

    def _usual(self, rows: int) -> float:
        """Seconds of such a forward with the number in use, from the nearest number of rows seen; 0 of none."""
        seen = [(abs(at - rows), mean.value) for (wide, at), mean in self._means.items() if wide == self.wide]
        return min(seen, default=(0, 0.0))[1]

    def _try(self, rows: int, seconds: float) -> None:
        self._trying -= 1
        known = self._means.get((self.wide, rows))
        if known is not None:
            self._ratios.append(seconds / known.value)
        if self._ratios and self._ratios[-1] > COLLAPSE:
            self._trying = 0
        if self._trying:
            return
        if self._ratios and sum(self._ratios) < GAIN * len(self._ratios):
            self._switch()
        elif self.wide:
            self._until, self._rest = AGAIN, REST
        else:
            self._fail()

    def _switch(self) -> None:
        """The other number from now on; what it took when it was last in use is forgotten."""
        self.wide, self._slow = not self.wide, 0
        self._means = {key: mean for key, mean in self._means.items() if key[0] != self.wide}
        if self.wide:
            self._until = AGAIN
        else:
            self._fail()

    def _fail(self) -> None:
        """Every core has lost: the longer until it is tried again."""
        self._until, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)


_latest: list[int] = []
"""What `in_use` tells: one number, or none while nobody chooses."""


def in_use() -> int:
    """Threads that the latest forward had, whichever thread asks: torch would tell each thread its own number."""
    return _latest[0] if _latest else torch.get_num_threads()


def fix(count: int) -> None:
    """So many threads from now on, for whatever runs next."""
    torch.set_num_threads(count)
    _latest.clear()


def default_threads() -> int:
    """Every core but one: page and browser need it."""
    return max(1, _cores() - 1)


def _cores() -> int:
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return min(cores, allowed)


def measured_threads() -> Threads | None:
    """The choice for this machine; None with a single core."""
    few, every = default_threads(), _cores()
    return Threads(few, every) if every > few else None


def agree(threads: Threads, forward: Callable[[int], Tensor], rows: Sequence[int] = (1, 2, 5, 16)) -> bool:
    """Whether forwards of so many rows give the same bits with either number: else a seed would not repeat a text."""

    def bits(count: int, n: int) -> Tensor:
        threads.use(count)
        return forward(n).clone()

    try:
        return all(torch.equal(bits(threads.few, n), bits(threads.every, n)) for n in rows)
    finally:
        threads.use(threads.few)
