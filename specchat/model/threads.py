"""How many threads share a forward: every core, or all but one; what is measured to be faster now.

A forward is some hundred products one after another, and the threads wait for each other behind each. On a quiet
machine two cores verify five rows in two thirds of the time; while the page, its browser or anything else takes
one of them in turns, that waiting may cost several times what it gains. So both numbers are timed, on forwards of the
same rows, one is in use, and the other is tried again now and then. Only the target's forwards are timed; the draft,
and reading a prompt, have the number that the last of them had. Results are the same bits with either: `agree` makes
sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.decode.estimates import OUTLIER, Mean
from specchat.model.cores import LOAN, cores

FADE = 0.93
"""What a forward still counts when one more of its kind has passed."""

FIRST = 8
"""Forwards before the first trial of every core."""

TRIAL = 4
"""Forwards of a trial."""

GAIN = 0.97
"""A trial has to take at most this share of the usual time to take over."""

PATIENCE = 4.0
"""Usual forwards that every core may lose against all but one, net of gains since the sum was last 0, before all but
one is tried; half of it ends a trial of every core."""

REST, LONGEST_REST = 12, 256
"""Forwards after a failed trial of every core; each failure doubles them, up to the longest."""

LONG = 48
"""So many forwards with every core show that they are not in vain: if they are given up then, it is as for the first
time. A browser that draws a reply's beginning takes a core for some tenths of a second, and no longer."""

AGAIN = 256
"""Forwards between two looks at all but one, while every core is in use."""

LENDS_S = 0.025
"""A forward that takes longer leaves no core alone when asked: what is drawn on it takes 10 to 20 ms."""


@dataclass(slots=True)
class Threads:
    """Chooses before each short forward, and learns from each. `use` is told a number of threads when it changes.

    A number is judged by what its forwards take together, never by a single slow one: a page that is brought up to
    date several times a second slows some of them down, and every core may still be the faster choice.
    """

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
    """Of the trial: each forward's time in parts of the usual one."""
    _until: int = FIRST
    _rest: int = REST
    _lent: bool = False
    """Whether this forward leaves a core alone that it would have used."""
    _last: float = 0.0
    """Seconds of the last one that did not."""
    _span: int = 0
    """Forwards since every core came into use."""
    _lost: float = 0.0
    """Usual forwards that every core has lost against all but one, or a trial against what it would replace
    (a cumulative sum, Page 1954)."""

    def begin(self) -> None:
        """A forward begins."""
        wide = self.wide != bool(self._trying)
        self._lent = LOAN.give() and wide and self._last < LENDS_S
        count = self.every if wide and not self._lent else self.few
        if count != self.used():
            self.use(count)

    def __str__(self) -> str:
        return f"{self.few} or {self.every}"

    def learn(self, rows: int, seconds: float) -> None:
        """It has ended. One that lent a core says nothing of either number."""
        if self._lent:
            # Drafts, and reading a prompt, have what the last forward leaves.
            self._lent = False
            self.use(self.every)
            return
        self._last = seconds
        if self._trying:
            self._try(rows, seconds)
            if not self._trying:
                self._lost = 0.0
            return
        other = self._usual(False, rows) if self.wide else 0.0
        self._lost = max(0.0, self._lost + _excess(seconds, other))
        self._span += self.wide
        self._add(self.wide, rows, seconds)
        self._until -= 1
        if self._until <= 0 or self._lost >= PATIENCE:
            self._forget(wide=not self.wide)
            self._trying, self._ratios, self._lost = TRIAL, [], 0.0

    def _add(self, wide: bool, rows: int, seconds: float) -> None:
        mean = self._means.setdefault((wide, rows), Mean())
        mean.add(mean.cut(seconds), FADE)

    def _forget(self, wide: bool) -> None:
        self._means = {key: mean for key, mean in self._means.items() if key[0] != wide}

    def _usual(self, wide: bool, rows: int) -> float:
        """Seconds of such a forward with that number, from the nearest number of rows seen; 0 of none.

        More rows than were seen may take a tenth more each.
        """
        seen = [(abs(at - rows), at, mean) for (each, at), mean in self._means.items() if each == wide]
        if not seen:
            return 0.0
        _, at, mean = min(seen, key=lambda each: each[:2])
        return mean.value * (1 + 0.1 * max(0, rows - at))

    def _try(self, rows: int, seconds: float) -> None:
        self._trying -= 1
        known = self._means.get((self.wide, rows))
        if known is not None:
            self._ratios.append(seconds / known.value)
        usual = self._usual(self.wide, rows)
        self._lost += _excess(seconds, usual)
        if not self.wide and self._lost > PATIENCE / 2:
            self._trying = 0
            self._lose()
            return
        # What it takes from now on is judged by this, if it takes over.
        self._add(not self.wide, rows, min(seconds, OUTLIER * usual) if usual else seconds)
        if self._trying:
            return
        if not self._ratios:
            self._until = FIRST
        elif sum(self._ratios) >= GAIN * len(self._ratios):
            self._lose()
        elif self.wide:
            self._narrow()
        else:
            self.wide, self._until, self._span = True, AGAIN, 0

    def _lose(self) -> None:
        """A trial of the other number was no gain."""
        if self.wide:
            self._until, self._rest = AGAIN, REST
        else:
            self._narrow()

    def _narrow(self) -> None:
        """All but one from now on; the more often this comes, the longer until every core is tried again."""
        if self.wide and self._span >= LONG:
            self._rest = REST
        self.wide = False
        self._until, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)


def _excess(seconds: float, usual: float) -> float:
    """What a forward took beyond the usual, in usual forwards; of an outlier no more than counts. 0 of nothing known."""
    return min(seconds / usual, OUTLIER) - 1 if usual else 0.0


_chosen: list[int | Threads] = []
"""What `in_use` tells."""


def in_use() -> int | str:
    """How many threads forwards have; "1 or 2" where that is measured. torch would tell each thread its own number."""
    chosen = _chosen[0] if _chosen else torch.get_num_threads()
    return chosen if isinstance(chosen, int) else str(chosen)


def settle(chosen: int | Threads) -> None:
    """From now on forwards have so many threads, or as many as are chosen."""
    _chosen[:] = [chosen]
    LOAN.lenders = isinstance(chosen, Threads)
    if isinstance(chosen, int):
        torch.set_num_threads(chosen)


def default_threads() -> int:
    """Every core but one: page and browser need it."""
    return max(1, cores() - 1)


def measured_threads() -> Threads | None:
    """The choice for this machine; None with a single core."""
    few, every = default_threads(), cores()
    return Threads(few, every) if every > few else None


def agree(threads: Threads, results: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether results are the same bits with either number: else a seed would not repeat a text."""

    def bits(count: int) -> list[Tensor]:
        threads.use(count)
        return [result.clone() for result in results()]

    try:
        return all(map(torch.equal, bits(threads.few), bits(threads.every)))
    finally:
        threads.use(threads.few)
