"""A record → a file: JSON lines, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from specchat.chat.conversation import well_formed
from specchat.decode.stats import Stats
from specchat.lab.record_parts import FORMAT, VERSION, Record

CONTAINS = (
    "The whole conversation up to this reply as text, the settings, the names of the models, versions and "
    "hardware, and every round with its tokens and times."
)
"""What a record tells about whoever saved it; stands in the file and on the page."""


def file_name(now: datetime, ending: str = "jsonl") -> str:
    """ "specchat-2026-11-30-153012.jsonl"."""
    return f"specchat-{now:%Y-%m-%d-%H%M%S}.{ending}"


def as_bytes(records: Sequence[Record]) -> bytes:
    """The file's content. Raises ValueError when a number in it is not finite."""
    return b"".join(line for record in records for line in _lines(record))


def write(path: Path | str, records: Sequence[Record]) -> None:
    """Replaces the file at once, so that nobody ever sees half of it. Raises OSError as open does."""
    write_atomically(Path(path), as_bytes(records))


def write_atomically(path: Path, content: bytes) -> None:
    """Writes beside the file first, then puts it in its place. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _lines(record: Record) -> Iterator[bytes]:
    head = dataclasses.asdict(record.head)
    yield _line({"format": FORMAT, "version": VERSION, "contains": CONTAINS, **head})
    changes = {change.from_round: change.settings for change in record.changes}
    for beat in record.beats:
        if beat.round.index in changes:
            yield _line({"settings": changes[beat.round.index], "from_round": beat.round.index})
        yield _line(
            {
                "round": dataclasses.asdict(beat.round),
                "texts": beat.texts,
                "turned_down": beat.turned_down,
            }
        )
    if record.finished is not None:
        end = {"finished": dataclasses.asdict(record.finished), "tail": record.tail}
        yield _line({**end, "stats": summary(record.stats())})


def _line(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return well_formed(text).encode() + b"\n"


def summary(stats: Stats) -> dict[str, object]:
    """The numbers of a reply by name, each as `decode.stats` defines it; times in seconds."""
    return {
        "rounds": stats.rounds,
        "tokens": stats.emitted,
        "tok_per_s": stats.tok_per_s,
        "time_to_first_token_s": stats.first_token_s,
        "tokens_per_round": stats.tokens_per_round,
        "mean_accepted_length": stats.mean_accepted_length,
        "acceptance_rate": stats.acceptance_rate,
        "accepted_length_histogram": stats.histogram(),
        "by_position": [
            dict(zip(("offered", "reached", "kept"), row, strict=True)) for row in stats.by_position()
        ],
        "target_forwards": stats.target_forwards,
        "draft_forwards": stats.draft_forwards,
        "seconds": stats.time_split(),
    }
