"""The record of a tuning run: a head, then a line for everything measured, so that a stop loses nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specchat.lab.tune_bed import Turn, Unit, unit_from
from specchat.lab.tune_identity import differences
from specchat.lab.tune_plan import Plan, plan_of
from specchat.lab.tune_probe import Prediction, prediction_of

VERSION = 1


class Record:
    """What a run has found so far; with a path, every line is on the disk as soon as it is added."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.prediction: Prediction | None = None
        self.units: list[Unit] = []
        self.turns: list[Turn] = []
        self.complete = False

    def add(self, found: Prediction | Unit | Sequence[Turn]) -> None:
        """Keeps it. The turns of a script come together: half a conversation compares nothing."""
        if isinstance(found, Prediction):
            self.prediction = found
            self._write({"prediction": asdict(found)})
        elif isinstance(found, Unit):
            self.units.append(found)
            self._write({"unit": asdict(found)})
        else:
            self.turns += found
            self._write({"turns": [asdict(turn) for turn in found]})

    def finish(self) -> None:
        """Nothing is missing."""
        if not self.complete:
            self.complete = True
            self._write({"complete": True})

    def _write(self, line: Mapping[str, object]) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _take(self, line: Mapping[str, Any]) -> None:
        [(kind, value)] = line.items()
        if kind == "complete":
            self.complete = True
        elif kind == "turns":
            self.turns += [Turn(**fields) for fields in value]
        elif not isinstance(value, dict):
            raise ValueError(f"{kind} holds no fields")
        elif kind == "prediction":
            self.prediction = prediction_of(value)
        elif kind == "unit":
            self.units.append(unit_from(value))
        else:
            raise ValueError(f"unknown line {kind}")


def open_record(
    path: Path | None, plan: Plan, identity: Mapping[str, str], facts: Mapping[str, object]
) -> Record:
    """Begins a record, or goes on with one that was begun; a last line cut off by a crash is dropped.

    Raises ValueError with a sentence when the file is no record, or one of another pair or plan.
    """
    if path is None or not path.exists() or path.stat().st_size == 0:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            head = {"tune": VERSION, "identity": dict(identity), "plan": plan.data(), "facts": dict(facts)}
            path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        return Record(path)
    head, record, whole = _parse(path)
    _demand(path, head, plan, identity)
    if len(whole.encode()) != path.stat().st_size:
        path.write_text(whole, encoding="utf-8")
    record.path = path
    return record


def _demand(path: Path, head: Mapping[str, object], plan: Plan, identity: Mapping[str, str]) -> None:
    if head["identity"] != dict(identity):
        was = head["identity"]
        named = (
            " with ".join(filter(None, (str(was.get("target")), was.get("draft"))))
            if isinstance(was, dict)
            else "?"
        )
        apart = ", ".join(differences(dict(identity), was))
        raise ValueError(
            f"{path} was made with another pair, or with this one loaded otherwise ({named}; what differs: {apart}); "
            "choose another record."
        )
    if head["plan"] != plan.data():
        other = plan_of(head["plan"]) if isinstance(head["plan"], dict) else None
        differs = [name for name in plan.data() if other is None or plan.data()[name] != other.data()[name]]
        raise ValueError(
            f"{path} was made with other {', '.join(differs) or 'settings'}; choose another record, or give the same."
        )


def read(path: Path) -> tuple[Plan, dict[str, str], Record]:
    """Plan, pair and findings of a record; ValueError with a sentence for a file that is none."""
    head, record, _ = _parse(path)
    plan, identity = head["plan"], head["identity"]
    if not isinstance(plan, dict) or not isinstance(identity, dict):
        raise ValueError(f"{path} is not a tuning record (its head names no plan or no pair).")
    return plan_of(plan), identity, record


def _parse(path: Path) -> tuple[dict[str, object], Record, str]:
    """Head, findings, and the text as far as it can be trusted."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        head = json.loads(lines[0])
        if head["tune"] != VERSION or not {"plan", "identity"} <= head.keys():
            raise ValueError("another version")
    except (OSError, ValueError, IndexError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{path} is not a tuning record ({problem!r}).") from problem
    record, trusted = Record(), lines[:1]
    for line in lines[1:]:
        try:
            if not line.endswith("\n"):
                raise ValueError("cut off")
            record._take(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            break  # cut off by a crash: what follows cannot be trusted
        trusted.append(line)
    return head, record, "".join(trusted)
