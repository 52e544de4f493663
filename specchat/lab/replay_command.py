"""`python -m specchat replay FILE`: a saved reply at its own pace, without a model and without torch."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from specchat.lab import compare
from specchat.lab.export_csv import COLUMNS, as_csv
from specchat.lab.export_html import as_html
from specchat.lab.export_parts import short, stats_words
from specchat.lab.record_parts import Record
from specchat.lab.record_read import read_all
from specchat.lab.record_write import write_atomically
from specchat.lab.replay import Replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("file", type=Path, help="a record saved by the page or by generate --record")
    parser.add_argument(
        "--reply", type=int, default=0, help="which reply of the file, from 1 (default: the last)"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, help="2 = twice as fast as it was written; 0 = all at once"
    )
    columns = "; ".join(f"{name}: {what}" for name, what in COLUMNS.items())
    parser.add_argument("--csv", type=Path, metavar="OUT", help=f"write a table, one row a round ({columns})")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write one self-contained HTML file")
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="another record, told against this one")


def run(args: argparse.Namespace, sleep: Callable[[float], None] = time.sleep) -> int:
    """Plays and exports. Raises ValueError or OSError with a sentence."""
    if not 0 <= args.speed <= 1000:
        raise ValueError(f"--speed is {args.speed:g}; it must be between 0 and 1000.")
    for out in filter(None, (args.csv, args.html)):
        if not out.absolute().parent.is_dir():
            raise ValueError(f"{out} cannot be written: there is no such folder.")
    record = chosen(args.file, args.reply)
    other = chosen(args.compare, 0) if args.compare else None
    if args.csv:
        write_atomically(args.csv, as_csv(record).encode())
    if args.html:
        write_atomically(args.html, as_html([record, *([other] if other else [])]).encode())
    play(record, args.speed, sleep)
    print(f"\n{stats_words(record)}", file=sys.stderr)
    if record.note:
        print(f"specchat: {record.note}", file=sys.stderr)
    if other is not None:
        print(f"\n{comparison(record, other)}")
    return 0


def chosen(path: Path, reply: int) -> Record:
    """One reply of a file: from 1 on, 0 for the last."""
    records = read_all(path)
    if not 0 <= reply <= len(records):
        raise ValueError(f"--reply is {reply}; the file holds {len(records)}.")
    return records[reply - 1]


def play(record: Record, speed: float, sleep: Callable[[float], None]) -> None:
    """The text, each round when it had come. speed 0: without waiting."""
    replay, began, waited = Replay(record), time.perf_counter(), 0.0
    while not replay.done:
        waited += replay.wait / speed if speed else 0.0
        beats = replay.advance(replay.wait) if speed else replay.finish()
        # Against the clock, so that the waits do not add up their overshoot.
        if (left := began + waited - time.perf_counter()) > 0:
            sleep(left)
        print(harmless("".join(text for beat in beats for text in beat.texts)), end="", flush=True)
    print(harmless(record.tail))


def comparison(a: Record, b: Record) -> str:
    """Two records as text: what was set differently, the numbers, where the texts part."""
    rows = [("", "A", "B", "B over A")]
    rows += [(x.name, x.text, y.text, over) for x, y, over in compare.side_by_side(a, b)]
    rows += [
        (row.name, short(_line(row.a), 40), short(_line(row.b), 40), "") for row in compare.differing(a, b)
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    table = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    found = compare.parting(a, b)
    said = " ".join(filter(None, [found.sentence, compare.why_texts_differ(a, b)]))
    texts = (
        "" if found.same else f"\nA: {_line(found.context + found.a)}\nB: {_line(found.context + found.b)}"
    )
    return f"{table}\n\n{said}{texts}"


def harmless(text: str) -> str:
    """Without what a terminal would obey: the file may be anybody's."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)


def _line(text: str) -> str:
    return harmless(text).replace("\n", "↵").replace("\t", " ")


def main(argv: Sequence[str]) -> int:
    """The command alone, for a start that loads nothing else; argv without "replay"."""
    parser = argparse.ArgumentParser(prog="specchat replay", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as problem:
        print(f"specchat: {problem}", file=sys.stderr)
        return 1
