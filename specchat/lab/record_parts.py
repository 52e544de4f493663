"""What a saved reply consists of: plain values, readable without torch, a tokenizer or a model.

A record file is JSON lines in UTF-8. For each reply, in this order:

- the head: {"format": "specchat-record", "version": 1, …}, everything known before the first round;
- for each round {"round": {…}, "texts": […], "turned_down": […]}: all of `decode.events.Round`, the text that each
  of its tokens completed, and the texts of the proposals from the first rejection on;
- before a round that ran with other settings {"settings": {…}, "from_round": n}, counted from 0;
- the end: {"finished": {…}, "tail": "…", "stats": {…}}; tail is the last text, which no token completed.

A file may hold several replies, one after another. Whoever reads it ignores fields and lines it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from specchat.decode.events import Finished, Round
from specchat.decode.stats import Stats

FORMAT = "specchat-record"
VERSION = 1

Scalar = str | int | float | bool | None
Values = Mapping[str, object]
"""Scalars by name; one level of Values inside (`sampling` in settings)."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the conversation. role: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """`pair.Memory` as it was while the reply was written, bytes."""

    kind: str
    target_weights: int
    draft_weights: int
    caches: int
    used: int
    free: int


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Which two models wrote it, where, how precisely, and the plain step that speed-ups are told against."""

    target: str
    draft: str = ""
    device: str = ""
    precision: str = ""
    notes: tuple[str, ...] = ()
    plain_step_s: float = 0.0
    """Seconds; 0: not measured."""
    plain_step_source: str = ""
    memory: MemoryFacts | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Everything known before the first round."""

    written: str
    """When the file was written, ISO 8601."""
    pair: PairFacts
    settings: Values
    """In force in the first round."""
    messages: tuple[Said, ...] = ()
    system: str = ""
    stop_strings: tuple[str, ...] = ()
    prompt_tokens: int = 0
    dropped_turns: int = 0
    versions: Values = field(default_factory=dict)
    hardware: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beat:
    """One round with its texts: one for each token, and one for each proposal from the first rejection on."""

    round: Round
    texts: tuple[str, ...]
    turned_down: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """Other settings, in force from this round on (counted from 0)."""

    from_round: int
    settings: Values


@dataclass(frozen=True, slots=True)
class Record:
    """One saved reply. finished is None when the file was cut off; note then says where."""

    head: Head
    beats: tuple[Beat, ...]
    changes: tuple[Change, ...] = ()
    finished: Finished | None = None
    tail: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The reply."""
        return "".join(text for beat in self.beats for text in beat.texts) + self.tail

    @property
    def ids(self) -> list[int]:
        """Every emitted id, in order."""
        return [token.id for beat in self.beats for token in beat.round.tokens]

    @property
    def seconds(self) -> float:
        """From the request to its end, or to the last round that was saved."""
        last = self.beats[-1].round.at if self.beats else 0.0
        return max(last, self.finished.seconds if self.finished else 0.0)

    def stats(self) -> Stats:
        """Counted anew from the rounds."""
        return Stats.of(beat.round for beat in self.beats)

    def spelled(self) -> dict[int, str]:
        """Text of every proposal that was turned down, by id."""
        found: dict[int, str] = {}
        for beat in self.beats:
            rejected = beat.round.rejected
            ids = () if rejected is None else (rejected.id, *beat.round.discarded)
            found.update(zip(ids, beat.turned_down, strict=False))
        return found


def flat(settings: Values) -> dict[str, Scalar]:
    """Settings by one name each: {"gamma": 4, "sampling.temperature": 0.6, …}."""
    return dict(_flat(settings, ""))


def _flat(values: Values, before: str) -> Iterator[tuple[str, Scalar]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            yield before + name, value
