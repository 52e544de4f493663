"""What is written is read back; what anybody else may have written gives a sentence, never anything worse."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specchat.lab import export_parts, record_read
from specchat.lab.export_csv import as_csv
from specchat.lab.export_html import as_html
from specchat.lab.record_parts import Record
from specchat.lab.record_read import read, read_all
from specchat.lab.record_write import as_bytes, write
from tests.lab.records import record, records, slowly

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
ONE = as_bytes([record()])


@given(st.lists(records(), min_size=1, max_size=3))
@QUICK
def test_what_is_written_is_read_back(some: list[Record]) -> None:
    assert read_all(as_bytes(some)) == tuple(some)


@given(records())
@QUICK
def test_whatever_can_be_read_can_be_shown(one: Record) -> None:
    assert export_parts.lens(one) and as_html([one, record()]) and as_csv(one)


@given(st.integers(0, len(ONE) - 1))
@QUICK
def test_a_file_that_was_cut_is_read_up_to_there(end: int) -> None:
    whole, head = record(), ONE.index(b"\n")
    if end < head:
        with pytest.raises(ValueError, match=r"cut off in its first line|empty|not a SpecChat record"):
            read(ONE[:end])
        return
    cut = read(ONE[:end])
    assert cut.beats == whole.beats[: len(cut.beats)]
    if cut.finished is None:
        rounds = len(cut.beats)
        assert (f"after round {rounds}" if rounds else "before its first round") in cut.note


def test_a_cut_in_the_middle_of_a_character_is_a_cut() -> None:
    content = as_bytes([record("kurz aber schön wie ein Märchen")])
    cut = read(content[: content.index("ö".encode()) + 1])
    assert "cut off after round 1" in cut.note and cut.text == "kurz aber "


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_changed_bytes_never_raise_anything_but_a_sentence(data: st.DataObject) -> None:
    content = bytearray(ONE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    _reads_or_tells(bytes(content))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_changed_values_never_raise_anything_but_a_sentence(data: st.DataObject) -> None:
    lines = [json.loads(line) for line in as_bytes([slowly(record())]).splitlines()]
    odd = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
        st.just([[]]), st.just({"gamma": {"a": {}}}), st.just(10**400), st.just(-1), st.just("\ud800"),
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 2))):
        spot: object = data.draw(st.sampled_from(lines))
        while isinstance(spot, dict | list) and spot:
            key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
            if not isinstance(spot[key], dict | list) or data.draw(st.booleans()):  # type: ignore[index]
                # A copy: `just` gives the same list each time, which could come to stand inside itself.
                spot[key] = copy.deepcopy(data.draw(odd))  # type: ignore[index]
                break
            spot = spot[key]  # type: ignore[index]
    _reads_or_tells("\n".join(json.dumps(line) for line in lines).encode())


def _reads_or_tells(content: bytes) -> None:
    """Everything that can be read can also be shown."""
    try:
        found = read_all(content)
    except ValueError as problem:
        said = str(problem)
        assert said and len(said) < 600
        return
    for one in found:
        as_html([one, record()])
        as_csv(one)


@given(st.binary(max_size=300))
@QUICK
def test_any_bytes_at_all_give_a_sentence(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"empty|not a SpecChat record|cut off"):
        read(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00", "not a SpecChat record"),
        (b"tokens,seconds\n1,2\n", "not a SpecChat record"),
        (b'{"hello": "world"}\n', "not a SpecChat record"),
        (b"[" * 100_000, "not a SpecChat record"),
        (b'{"format":"specchat-record","vers', "cut off in its first line"),
        (b'{"format":"specchat-record","version":2,"pair":{}}\n', "version 2; this SpecChat reads version 1"),
        (b'{"format":"specchat-record","version":true}\n', "reads version 1"),
        (b'{"format":"specchat-record","version":1}\n', "pair is missing"),
        (ONE.replace(b'"at":0.1', b'"at":NaN', 1), "damaged"),
        (ONE.replace(b'"at":0.1', b'"at":1e999', 1), "at is inf"),
        (ONE.replace(b'"p":0.5', b'"p":1.5', 1), "p is 1.5; it must be a number from 0 to 1"),
        (ONE.replace(b'"origin":"accepted"', b'"origin":"stolen"', 1), "origin"),
        (ONE.replace(b'"index":1', b'"index":7', 1), "not in order"),
        (ONE.replace(b'"gamma":4', b'"gamma":-1'), "gamma is -1"),
        (ONE + ONE.splitlines(keepends=True)[1], "had ended before"),
    ],
)
def test_a_foreign_or_damaged_file_is_told_in_a_sentence(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(content)


def test_too_large_is_said_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_read, "MOST_BYTES", 1_000_000)
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(3_000_000_000)
    with pytest.raises(ValueError, match="too large for a record: more than 1 MB"):
        read(path)


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read(tmp_path / "nowhere.jsonl")
    with pytest.raises(ValueError, match="is not a file"):
        read(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="is not a file"):
            read(tmp_path / "pipe")


def test_fields_and_lines_from_a_later_program_are_passed_over() -> None:
    lines = [json.loads(line) for line in ONE.splitlines()]
    lines[0]["mood"] = {"deep": [1, [2]]}
    lines[1]["round"]["temperature_outside"] = "cold"
    lines.insert(2, {"weather": "rain"})
    assert read("\n".join(json.dumps(line) for line in lines).encode()) == record()


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reply.jsonl"
    write(path, [record()])
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, [record("another text")])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_half_characters_do_not_keep_a_reply_from_being_saved() -> None:
    from dataclasses import replace

    one = replace(record(), tail="half \ud83d")
    assert read(as_bytes([one])).tail == "half \ufffd"
