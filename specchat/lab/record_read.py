"""A file → records. Anybody may have written it: what is not a record gives a sentence, a cut one what it has."""

from __future__ import annotations

import json
from pathlib import Path

from specchat.decode.events import Finished
from specchat.lab import record_rounds as rounds
from specchat.lab.record_fields import MOST_IDS, Damaged, Fields
from specchat.lab.record_parts import (
    FORMAT,
    VERSION,
    Beat,
    Change,
    Head,
    MemoryFacts,
    PairFacts,
    Record,
    Said,
)

MOST_BYTES = 50_000_000
NO_RECORD = "This is not a SpecChat record: its first line does not say that it is one."


def read(source: Path | str | bytes) -> Record:
    """The last reply of a file. Raises ValueError with a sentence, whatever the file holds."""
    return read_all(source)[-1]


def read_all(source: Path | str | bytes) -> tuple[Record, ...]:
    """Every reply of a file, one at least; a path or its content.

    A file that was cut off is read up to there, and the record's note says so. Raises ValueError with a sentence.
    """
    data = source if isinstance(source, bytes) else _content(Path(source))
    if len(data) > MOST_BYTES:
        raise ValueError(f"The file is too large for a record: more than {MOST_BYTES // 10**6} MB.")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise ValueError("The file is empty.")
    return _Reader(data).records()


def _content(path: Path) -> bytes:
    try:
        if not path.exists():
            raise ValueError(f"{path} does not exist.")
        if not path.is_file():
            raise ValueError(f"{path} is not a file.")
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror or problem}.") from problem


def _never(name: str) -> float:
    raise ValueError(f"{name} is not a number that a record may hold")


def _parse(line: bytes) -> object:
    """One line's JSON. Raises ValueError, also for what JSON readers choke on (deep nesting, NaN)."""
    try:
        return json.loads(line.decode(), parse_constant=_never)
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _Reader:
    """Goes through the lines once, collecting the record at hand."""

    def __init__(self, data: bytes) -> None:
        lines = data.split(b"\n")
        self.lines = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
        self.found: list[Record] = []
        self.head: Head | None = None
        self._begin()

    def _begin(self) -> None:
        self.beats: list[Beat] = []
        self.changes: list[Change] = []
        self.finished: Finished | None = None
        self.tail = ""

    def records(self) -> tuple[Record, ...]:
        """Everything that can be read."""
        self._check_first(self.lines[0][1])
        for n, line in self.lines:
            try:
                raw = _parse(line)
            except ValueError:
                if (n, line) == self.lines[-1]:
                    break  # the rest of the file is missing, in the middle of this line
                raise Damaged(f"Line {n} of the record is damaged.") from None
            self._take(Fields(raw, f"Line {n}"))
        self._close()
        return tuple(self.found)

    def _check_first(self, line: bytes) -> None:
        try:
            raw = _parse(line)
        except ValueError:
            if len(self.lines) == 1 and line.startswith(b'{"format":"' + FORMAT.encode()):
                raise ValueError(
                    "The record is cut off in its first line: there is nothing to show."
                ) from None
            raise ValueError(NO_RECORD) from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise ValueError(NO_RECORD)

    def _take(self, line: Fields) -> None:
        if "format" in line.raw:
            self._close()
            self.head = _head(line)
        elif self.finished is not None and ("round" in line.raw or "finished" in line.raw):
            raise Damaged(f"{line.where}: the reply had ended before.")
        elif "round" in line.raw:
            self._take_round(line)
        elif "from_round" in line.raw:
            place = line.whole("from_round", 0, rounds.MOST_ROUNDS)
            if place != len(self.beats):
                raise line.wrong("from_round", f"the next round, {len(self.beats)}")
            if not self.changes or self.changes[-1].from_round != place:
                self.changes.append(Change(place, _settings(line)))
        elif "finished" in line.raw:
            self.finished, self.tail = rounds.finished(line.inner("finished")), line.text("tail", "")

    def _take_round(self, line: Fields) -> None:
        if len(self.beats) >= rounds.MOST_ROUNDS:
            raise Damaged(f"{line.where}: a record may hold {rounds.MOST_ROUNDS} rounds.")
        beat = rounds.beat(line)
        before = self.beats[-1].round.at if self.beats else 0.0
        if beat.round.index != len(self.beats) or beat.round.at < before:
            raise Damaged(f"{line.where}: the rounds are not in order.")
        self.beats.append(beat)

    def _close(self) -> None:
        """The record at hand is complete, or all there is of it."""
        if self.head is None:
            return
        count = len(self.beats)
        self.changes = [change for change in self.changes if change.from_round < count]
        note = ""
        if self.finished is None:
            where = f"after round {count}" if count else "before its first round"
            note = f"The record is cut off {where}; what follows is missing."
        self.found.append(
            Record(self.head, tuple(self.beats), tuple(self.changes), self.finished, self.tail, note)
        )
        self._begin()


def _head(line: Fields) -> Head:
    if line.raw.get("format") != FORMAT:
        raise ValueError(NO_RECORD)
    version = line.raw.get("version")
    if version != VERSION or isinstance(version, bool):
        said = version if isinstance(version, int) and abs(version) < 10**6 else "of another kind"
        raise ValueError(f"The record's format is version {said}; this SpecChat reads version {VERSION}.")
    messages = tuple(
        Said(entry.text("role", most=20), entry.text("content"))
        for entry in (Fields(raw, f"{line.where}, messages,") for raw in line.list("messages", 10_000))
    )
    return Head(
        line.text("written", "", 100), _pair(line.inner("pair")), _settings(line), messages,
        line.text("system", ""), line.texts("stop_strings", 100, 1000), line.whole("prompt_tokens", 0, MOST_IDS, 0),
        line.whole("dropped_turns", 0, MOST_IDS, 0), line.values("versions"), line.values("hardware"),
    )  # fmt: skip


def _pair(raw: Fields) -> PairFacts:
    memory = None
    if raw.raw.get("memory") is not None:
        room = raw.inner("memory")
        names = ("target_weights", "draft_weights", "caches", "used", "free")
        memory = MemoryFacts(room.text("kind", most=20), *(room.whole(name, 0, 2**62) for name in names))
    return PairFacts(
        raw.text("target", most=500), raw.text("draft", "", 500), raw.text("device", "", 100), raw.text("precision", "", 500),
        raw.texts("notes", 100, 10_000), raw.time("plain_step_s", 0.0), raw.text("plain_step_source", "", 1000), memory,
    )  # fmt: skip


def _settings(line: Fields) -> dict[str, object]:
    """Settings: what the engine knows is in its ranges, the rest plain values."""
    values = dict(line.values("settings"))
    known = Fields(values, f"{line.where}, settings,")
    known.whole("gamma", 0, rounds.MOST_BLOCK)
    if "max_new_tokens" in values:
        known.whole("max_new_tokens", 1, MOST_IDS)
    if isinstance(values.get("sampling"), dict):
        sampling = known.inner("sampling")
        sampling.number("temperature", 0, 1e9, 0)
        sampling.whole("top_k", 0, 2**62, 0)
        sampling.number("top_p", 0, 1, 1)
        sampling.number("min_p", 0, 1, 0)
    return values
