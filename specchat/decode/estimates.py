"""What the past rounds say about the next one: how likely a proposal is kept, and what each part of a round takes.

No torch, no clock: everything comes from `Round` records. Old rounds fade, so that a new kind of text, a longer
context or a busier machine is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FADE = 0.985
"""What a round still counts when one more has passed: half after 46 rounds."""

FIRST, FIRST_WEIGHT = 0.6, 3.0
"""The chance that a proposal is kept, assumed before anything was seen, and the proposals that this is worth."""

LEVELS = 10
"""Classes of how sure a draft was."""

DEEPEST = 7
"""From this place on, places count as one."""

TURN_SLACK, TURN_ALARM = 0.5, 5.0
"""Standard deviations: what a round may be off, and the sum at which the text is taken for another one. By chance
this comes about once in some hundreds of rounds, and costs little then."""

TURNED = 0.15
"""What the rounds before still count when the text has turned."""

SLOPE, SLOPE_SPREAD = 0.03, 0.08
"""What a further row is assumed to add to a verification, and how far from that it may be, in shares of its time."""

STEP_SPREAD = 0.1
"""How far one number of rows may lie from the line through all, in shares of its time: kernels have their steps."""

OUTLIER = 3.0
"""A time counts as at most this many times the mean so far."""

Key = tuple[str, int, bool]
"""Proposals that are counted together: by which kind of draft, in which place (or, with True, how sure it was)."""

LOOKS, TAKEN = -1, -2
"""In place of the class: all proposals of a kind that was looked at, those refused too; and those taken among them."""


def key_of(kind: str, place: int, sure: float | None) -> Key:
    """The class of a proposal: by how sure the draft is where that is known, else by its place, from 0."""
    if sure is None:
        return kind, min(place, DEEPEST), False
    return kind, min(int(sure * LEVELS), LEVELS - 1), True


def of_kind(kind: str) -> Key:
    """All that was looked at of a kind. Its chance is that of being taken, and then kept."""
    return kind, LOOKS, True


@dataclass(slots=True)
class Rates:
    """The chance that a proposal is kept, given that all before it in its block were, by classes (see Key).

    A proposal counts only where it was decided: every one before it was kept. What is behind the first rejection
    says nothing (Kaplan & Meier 1958). A class that was hardly ever seen is taken for like its kind; a place, for
    like the place before it.
    """

    counts: dict[Key, list[float]] = field(default_factory=dict)
    """Decided and kept, of each class; the same of all looks of a kind, and looks and those taken (LOOKS, TAKEN)."""
    _unit: float = 1.0
    """What the latest round counts."""

    def learn(self, keys: Sequence[Key], kept: int, refused: Key | None = None) -> None:
        """One more round: of the proposals in these classes so many were kept. refused: looked at, and not made."""
        # The new round counts more instead of all others less: that spares touching every class.
        self._unit /= FADE
        for place, key in enumerate(keys[: kept + 1]):
            self._count(key, place < kept)
            if key[2]:
                self._count(of_kind(key[0]), place < kept)
                self._count((key[0], TAKEN, True), True)
        # Whether a place behind a rejection would have been taken says something of the draft, but not of what counts.
        if refused is not None and refused[2] and kept >= len(keys):
            self._count(of_kind(refused[0]), False)
            self._count((refused[0], TAKEN, True), False)
        if self._unit > 1e6:
            self.forget(1.0)

    def forget(self, left: float) -> None:
        """What was learnt counts only `left` times as much from now on."""
        for count in self.counts.values():
            count[:] = [number * left / self._unit for number in count]
        self._unit = 1.0

    def kinds(self) -> set[str]:
        """Kinds of draft of which something was decided."""
        return {kind for kind, _, _ in self.counts}

    def taken(self, kind: str) -> float:
        """The share of looks at a kind that were taken."""
        return self._towards((kind, TAKEN, True), 1.0)

    def chance(self, key: Key) -> float:
        """The probability that a proposal of this class is kept."""
        kind, level, sure = key
        if sure and level >= 0:
            usual = min(1.0, self.chance(of_kind(kind)) / max(self.taken(kind), 0.01))
            return self._towards(key, (usual + (level + 0.5) / LEVELS) / 2)
        return self._towards(key, self.chance((kind, level - 1, False)) if level > 0 else FIRST)

    def _count(self, key: Key, kept: bool) -> None:
        count = self.counts.setdefault(key, [0.0, 0.0])
        count[0] += self._unit
        count[1] += self._unit * kept

    def _towards(self, key: Key, assumed: float) -> float:
        """The rate that was counted, moved towards what is assumed, the less the more was counted."""
        weight = FIRST_WEIGHT * self._unit
        decided, kept = self.counts.get(key, (0.0, 0.0))
        return (kept + weight * assumed) / (decided + weight)


@dataclass(slots=True)
class Turn:
    """Notices that lengths are no longer what they were expected to be, upwards or downwards (Page's CUSUM, 1954)."""

    up: float = 0.0
    down: float = 0.0

    def seen(self, length: int, chances: Sequence[float]) -> bool:
        """One more length, where entry k of `chances` was expected to be that of k + 1 or more; True when it has turned."""
        mean = sum(chances)
        square = sum((2 * k + 1) * chance for k, chance in enumerate(chances))
        strange = (length - mean) / max(square - mean * mean, 0.05) ** 0.5
        self.up = max(0.0, self.up + strange - TURN_SLACK)
        self.down = max(0.0, self.down - strange - TURN_SLACK)
        if max(self.up, self.down) < TURN_ALARM:
            return False
        self.up = self.down = 0.0
        return True


@dataclass(slots=True)
class Mean:
    """A mean in which old values fade."""

    total: float = 0.0
    count: float = 0.0

    @property
    def value(self) -> float:
        """The mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0

    def cut(self, value: float) -> float:
        """The value, or the most that one may count: a page that woke up says nothing about the model."""
        return min(value, OUTLIER * self.value) if self.count > 2 else value

    def add(self, value: float, fade: float = FADE) -> None:
        """One more value; the earlier ones fade by `fade`."""
        self.total, self.count = self.total * fade + value, self.count * fade + 1


@dataclass(slots=True)
class Judging:
    """Seconds of a round beside drafting, by the rows of its verification (1 is a plain step).

    Each row's mean is drawn towards a straight line through all of them, the more so the noisier the clock is and
    the less the row was seen; the line's slope is drawn towards `SLOPE` in the same way. So a busy machine makes the
    estimates cautious instead of wild.
    """

    by_rows: dict[int, Mean] = field(default_factory=dict)
    noise: Mean = field(default_factory=lambda: Mean(5 * 0.1**2, 5))
    """Squared relative distance of a round's seconds from what was expected."""

    def learn(self, rows: int, seconds: float) -> None:
        """One more round."""
        for other in self.by_rows.values():
            other.total, other.count = other.total * FADE, other.count * FADE
        mean = self.by_rows.setdefault(rows, Mean())
        seconds = mean.cut(seconds)
        if mean.count > 1:
            self.noise.add((seconds / mean.value - 1) ** 2)
        mean.add(seconds, 1.0)

    def upto(self, rows: int) -> list[float]:
        """Entry r - 1: seconds with r rows, 1…rows. All 0 before anything was seen."""
        seen = [(at, mean.count, mean.value) for at, mean in self.by_rows.items() if mean.count > 1e-3]
        weight = sum(count for _, count, _ in seen)
        if not weight:
            return [0.0] * rows
        at = sum(count * r for r, count, _ in seen) / weight
        level = sum(count * value for _, count, value in seen) / weight
        spread = sum(count * (r - at) ** 2 for r, count, _ in seen)
        slope = sum(count * (r - at) * (value - level) for r, count, value in seen)
        drawn, noise = self.noise.value / SLOPE_SPREAD**2, self.noise.value / STEP_SPREAD**2
        slope = max(0.0, (slope + drawn * SLOPE * level) / (spread + drawn))
        found = []
        for r in range(1, rows + 1):
            line = max(level + slope * (r - at), 0.1 * level)
            mean = self.by_rows.get(r)
            found.append((mean.total + noise * line) / (mean.count + noise) if mean else line)
        return found
