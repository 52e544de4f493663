"""One prompt in two or three lanes on the same loaded pair: off, on, on with other settings.

Lanes run one after another, so that none slows the other, each from cold caches and with the same seed. Between
repeats their order is rotated: a machine that grows slower or faster meets all of them alike. A short warm-up of
each lane comes first and is not counted. The first lane is what the others are compared with; with `plain`
settings it is the engine's plain path, without a forward of the draft and without even starting it.
"""

from __future__ import annotations

import logging
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specchat.chat.stream import ReplyStream
from specchat.decode.engine import Settings
from specchat.decode.events import Round
from specchat.decode.stats import Stats
from specchat.lab.measure import Sample, measure
from specchat.lab.race_texts import Comparison, Text, compare
from specchat.model.errors import sentence

if TYPE_CHECKING:
    from specchat.pair import Pair

log = logging.getLogger(__name__)

MOST_LANES, MOST_REPEATS = 3, 5
WARM_TOKENS = 8
"""Tokens of each lane's warm-up."""

Cancelled = Callable[[], bool]
Put = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Lane:
    """A name and the settings to run with. Their seed and penalties are those of every lane."""

    name: str
    settings: Settings


def plain(settings: Settings) -> Settings:
    """The same sampling and length without any speculation."""
    return Settings(0, settings.sampling, settings.drafter, settings.max_new_tokens)


@dataclass(frozen=True, slots=True)
class Began:
    """News: a lane begins to run. done: runs finished before it, of `runs` in all (warm-ups not counted)."""

    lane: int
    repeat: int
    warming: bool
    done: int
    runs: int


@dataclass(frozen=True, slots=True)
class Lap:
    """News: a round has ended. at: seconds since the run began. text: what the round added."""

    lane: int
    repeat: int
    at: float
    emitted: int
    tok_per_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Comparing:
    """News: all lanes have run; their texts are being compared."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One round for the replay: when it ended (seconds since the request), and the text of each of its tokens."""

    at: float
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One lane, once, to its end. tail: text that no token completed."""

    lane: int
    repeat: int
    sample: Sample
    beats: tuple[Beat, ...]
    tail: str = ""

    @property
    def stats(self) -> Stats:
        """What was counted."""
        return self.sample.stats

    @property
    def text(self) -> str:
        """The whole reply."""
        return "".join(piece for beat in self.beats for piece in beat.pieces) + self.tail


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of one number over the repeats."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """At least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Race:
    """What came of it. runs: the finished ones, in the order in which they ran. problem: why it ended early."""

    lanes: tuple[Lane, ...]
    repeats: int
    seed: int
    """Of the first repeat; each further repeat has the next one."""
    runs: tuple[Run, ...]
    comparisons: tuple[Comparison, ...] = ()
    problem: str = ""
    cancelled: bool = False

    def of(self, lane: int) -> list[Run]:
        """A lane's finished runs."""
        return [run for run in self.runs if run.lane == lane]

    def heat(self, repeat: int) -> list[Run]:
        """The finished runs of one repeat, by lane."""
        return sorted((run for run in self.runs if run.repeat == repeat), key=lambda run: run.lane)

    def spread(self, lane: int, number: Callable[[Stats], float]) -> Spread | None:
        """One number of a lane over its repeats; None when it has not finished any."""
        values = [number(run.stats) for run in self.of(lane)]
        return Spread.of(values) if values else None

    def gain(self, lane: int) -> Spread | None:
        """A lane's tok/s over the first lane's in the same repeat; None when no repeat has both."""
        base = {run.repeat: run.stats.tok_per_s for run in self.of(0)}
        ratios = [
            run.stats.tok_per_s / base[run.repeat] for run in self.of(lane) if base.get(run.repeat, 0.0) > 0
        ]
        return Spread.of(ratios) if ratios else None

    def compared(self, lane: int, repeat: int) -> Comparison | None:
        """A lane's text against the first lane's, in one repeat."""
        return next((c for c in self.comparisons if (c.lane, c.repeat) == (lane, repeat)), None)


def order(lanes: int, repeat: int) -> list[int]:
    """Which lane runs when: rotated by one from repeat to repeat."""
    return [(repeat + place) % lanes for place in range(lanes)]


def race(
    pair: Pair, ids: Sequence[int], lanes: Sequence[Lane], repeats: int, cancelled: Cancelled, put: Put,
    stop_strings: Sequence[str] = (),
) -> Race:  # fmt: skip
    """Runs every lane `repeats` times on the prompt. Puts Began, Lap, Run and Comparing as it goes.

    stop_strings: texts that end a reply, beside the end-of-sequence ids; a chat format made up for a base model has some.
    Without a seed, one is drawn for all lanes. Cancelled or failed, it keeps the runs that were finished; a failure
    is told in `problem`. Raises ValueError when the lanes cannot be compared.
    """
    check(lanes, repeats)
    seed = lanes[0].settings.sampling.seed
    running = _Running(
        pair, list(ids), tuple(lanes), repeats, secrets.randbelow(2**31) if seed is None else seed,
        tuple(stop_strings),
    )  # fmt: skip
    problem = ""
    try:
        running.go(cancelled, put)
    except Exception as caught:
        log.exception("the race failed")
        problem = sentence(caught)
    return Race(
        running.lanes, repeats, running.seed, tuple(running.runs), tuple(running.comparisons), problem, cancelled()
    )  # fmt: skip


def check(lanes: Sequence[Lane], repeats: int) -> None:
    """Raises ValueError with a sentence: how many lanes and repeats, and one law for all texts."""
    if not 1 <= len(lanes) <= MOST_LANES:
        raise ValueError(f"A race has one to {MOST_LANES} lanes, not {len(lanes)}.")
    if not 1 <= repeats <= MOST_REPEATS:
        raise ValueError(f"A race has one to {MOST_REPEATS} repeats, not {repeats}.")
    if any(lane.settings.sampling != lanes[0].settings.sampling for lane in lanes):
        raise ValueError("All lanes must sample alike, or their texts could not be compared.")


class _Running:
    """A race while it runs."""

    def __init__(
        self, pair: Pair, ids: list[int], lanes: tuple[Lane, ...], repeats: int, seed: int, stop_strings: tuple[str, ...]
    ) -> None:  # fmt: skip
        self.stop_strings = stop_strings
        self.pair, self.ids, self.lanes, self.repeats, self.seed = pair, ids, lanes, repeats, seed
        self.runs: list[Run] = []
        self.comparisons: list[Comparison] = []

    def go(self, cancelled: Cancelled, put: Put) -> None:
        """Warm-ups, runs, comparisons; returns early when cancelled."""
        for lane in order(len(self.lanes), 0):
            if cancelled():
                return
            put(self._began(lane, 0, warming=True))
            short = self._settings(lane, 0)
            short = replace(short, max_new_tokens=min(WARM_TOKENS, short.max_new_tokens))
            measure(self.pair, self.ids, short, cancelled)
        for repeat in range(self.repeats):
            for lane in order(len(self.lanes), repeat):
                if cancelled():
                    break
                put(self._began(lane, repeat, warming=False))
                run = self._run(lane, repeat, cancelled, put)
                if run is not None:
                    self.runs.append(run)
                    put(run)
        put(Comparing())
        self._compare(cancelled)

    def _began(self, lane: int, repeat: int, warming: bool) -> Began:
        return Began(lane, repeat, warming, len(self.runs), len(self.lanes) * self.repeats)

    def _settings(self, lane: int, repeat: int) -> Settings:
        settings = self.lanes[lane].settings
        return replace(settings, sampling=replace(settings.sampling, seed=self.seed + repeat))

    def _run(self, lane: int, repeat: int, cancelled: Cancelled, put: Put) -> Run | None:
        """One lane from a cold prompt to its end; None when it was cancelled before."""
        stream = ReplyStream(self.pair.tokenizer, self.pair.eos_ids, self.stop_strings)
        beats: list[Beat] = []
        stats = Stats()

        def see(event: Round) -> None:
            stats.add(event)
            pieces = tuple(piece.text for piece in stream.pieces(event))
            beats.append(Beat(event.at, pieces))
            put(Lap(lane, repeat, event.at, stats.emitted, stats.tok_per_s, "".join(pieces)))

        sample = measure(self.pair, self.ids, self._settings(lane, repeat), cancelled, see, stop=stream.stop)
        if sample.finished is None or sample.finished.reason == "cancelled":
            return None
        return Run(lane, repeat, sample, tuple(beats), stream.finish())

    def _compare(self, cancelled: Cancelled) -> None:
        """Every text against the first lane's of its repeat."""
        first = {run.repeat: run for run in self.runs if run.lane == 0}
        known: dict[tuple[Text, Text], Comparison] = {}
        for run in self.runs:
            base = first.get(run.repeat)
            if run.lane == 0 or base is None:
                continue
            texts = Text.of(base.sample), Text.of(run.sample)
            if texts not in known:  # Greedy repeats write the same again.
                known[texts] = compare(
                    self.pair, self.ids, *texts, self.lanes[0].settings.sampling, cancelled
                )
            self.comparisons.append(replace(known[texts], lane=run.lane, repeat=run.repeat))
