"""What the past rounds say about the next one: how far a proposal goes, and what each part of a round takes.

No torch, no clock: everything comes from `Round` records. Old rounds fade, so that a new kind of text, a longer
context or a busier machine is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specchat.decode.events import Round
from specchat.decode.settings import MAX_GAMMA

FADE = 0.985
"""What a round still counts when one more has passed: half after 46 rounds."""

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


@dataclass(slots=True)
class Reach:
    """How far something goes within the places 1…γ, by the product-limit estimate (Kaplan & Meier 1958).

    γ cuts off what would have gone further, so a place counts only where it was decided: every place before it was
    taken, and γ let it be tried. `first` is assumed for place 1 before anything was seen, and a place that was
    hardly ever tried is taken for as good as the one before it.
    """

    first: float
    weight: float = 3.0
    """Rounds that such an assumption is worth."""
    tried: list[float] = field(default_factory=lambda: [0.0] * MAX_GAMMA)
    taken: list[float] = field(default_factory=lambda: [0.0] * MAX_GAMMA)
    _unit: float = 1.0
    """What the latest round counts in `tried` and `taken`."""

    def learn(self, length: int, limit: int) -> None:
        """One more round: `length` places of at most `limit` were taken."""
        # The new round counts more instead of all others less: that spares touching every place.
        self._unit /= FADE
        for place in range(min(length + 1, limit)):
            self.tried[place] += self._unit
        for place in range(min(length, limit)):
            self.taken[place] += self._unit
        if self._unit > 1e6:
            self.forget(1.0)

    def forget(self, left: float) -> None:
        """What was learnt counts only `left` times as much from now on."""
        self.tried = [count * left / self._unit for count in self.tried]
        self.taken = [count * left / self._unit for count in self.taken]
        self._unit = 1.0

    def chances(self, gamma: int) -> list[float]:
        """Entry k - 1: the probability that at least k of γ places are taken."""
        rate, reached, found = self.first, 1.0, []
        weight = self.weight * self._unit
        for place in range(gamma):
            rate = (self.taken[place] + weight * rate) / (self.tried[place] + weight)
            reached *= rate
            found.append(reached)
        return found


@dataclass(slots=True)
class Turn:
    """Notices that lengths are no longer what they were expected to be, upwards or downwards (Page's CUSUM, 1954)."""

    up: float = 0.0
    down: float = 0.0

    def seen(self, length: int, chances: Sequence[float]) -> bool:
        """One more length where `chances` (see Reach.chances) were expected; True when the text has turned."""
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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a round with each γ (the index, from 0) is expected to bring and to take."""

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]

    def speed(self, gamma: int) -> float:
        """Expected tokens a second; 0 when nothing is known."""
        return self.tokens[gamma] / self.seconds[gamma] if self.seconds[gamma] > 0 else 0.0


@dataclass(slots=True)
class Estimates:
    """Acceptance by place, and the times of drafting and judging, of one drafter."""

    kept: Reach = field(default_factory=lambda: Reach(0.6))
    drafted: Reach = field(default_factory=lambda: Reach(1.0))
    """A draft may stop before γ: its confidence, or nothing to offer."""
    forwards: Reach = field(default_factory=lambda: Reach(1.0))
    """A chain's free link takes none of the draft's forwards."""
    forward: Mean = field(default_factory=Mean)
    judging: Judging = field(default_factory=Judging)
    turn: Turn = field(default_factory=Turn)
    _chances: list[float] = field(default_factory=list)
    """What was last expected of `kept`."""

    def learn(self, event: Round) -> None:
        """One more round. The times of a request's first one do not count: it warms up."""
        gamma, drafted = event.gamma, event.drafted
        ended = event.accepted == len(event.tokens)
        if gamma:
            # Where the reply ended inside the block, what stood behind is unknown.
            limit = drafted if ended else gamma
            if len(self._chances) < limit:
                self._chances = self.kept.chances(limit)
            if self.turn.seen(event.accepted, self._chances[:limit]):
                self._chances = []
                for reach in (self.kept, self.drafted, self.forwards):
                    reach.forget(TURNED)
            self.kept.learn(event.accepted, limit)
            self.drafted.learn(drafted, limit)
            self.forwards.learn(event.draft_forwards, gamma)
        if event.index == 0 or ended:
            return
        if event.draft_forwards:
            self.forward.add(self.forward.cut(event.draft_s / event.draft_forwards))
        self.judging.learn(drafted + 1, event.verify_s + event.sample_s + event.host_s)

    def forget_text(self) -> None:
        """Other sampling, another confidence: what was accepted before says little. The times stay."""
        fresh = Estimates()
        self.kept, self.drafted, self.forwards, self.turn = (
            fresh.kept,
            fresh.drafted,
            fresh.forwards,
            fresh.turn,
        )

    def outlook(self, most: int) -> Outlook:
        """Expected tokens and seconds of a round for each γ from 0 to `most`."""
        judging = self.judging.upto(most + 1)
        kept, drafted = self.kept.chances(most), self.drafted.chances(most)
        self._chances = kept
        forwards, step = self.forwards.chances(most), self.forward.value
        tokens, seconds = [1.0], [judging[0]]
        stopped = drafting = 0.0
        reached = 1.0
        for place in range(most):
            # Rows of the verification: those that stopped before this place, and the rest, which get here.
            stopped += (reached - drafted[place]) * judging[place]
            reached = drafted[place]
            drafting += forwards[place] * step
            tokens.append(tokens[-1] + kept[place])
            seconds.append(stopped + reached * judging[place + 1] + drafting)
        return Outlook(tuple(tokens), tuple(seconds))


def words(outlook: Outlook, gammas: Sequence[int]) -> str:
    """ "γ 3: 69.8, plain: 43.1", in tok/s."""
    return ", ".join(f"{f'γ {gamma}' if gamma else 'plain'}: {outlook.speed(gamma):.1f}" for gamma in gammas)
