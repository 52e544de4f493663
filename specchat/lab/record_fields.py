"""Values out of a file that anybody may have written: each is checked, whatever is wrong is a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from specchat.chat.conversation import well_formed
from specchat.lab.record_parts import Scalar, Values

LONGEST = 2_000_000
"""Characters of one text."""

MOST_IDS = 2**31
MOST_SECONDS = 1e8


class Damaged(ValueError):
    """A record holds something that no reply could have left."""


class Fields:
    """One JSON object, read field by field. where: what a sentence calls it ("Line 12")."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise Damaged(f"{where} holds {kind(raw)} where named values belong.")
        self.raw: dict[str, object] = raw
        self.where = where

    def wrong(self, name: str, wanted: str) -> Damaged:
        """The sentence for a field that is missing or out of range."""
        found = "missing" if name not in self.raw else f"{kind(self.raw[name])}"
        return Damaged(f"{self.where}: {name} is {found}; it must be {wanted}.")

    def text(self, name: str, default: str | None = None, most: int = LONGEST) -> str:
        """Text; half characters replaced."""
        value = self.raw.get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise self.wrong(name, f"text of at most {most} characters")
        return well_formed(value)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in a range, ends included."""
        value = self.raw.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in a range, ends included."""
        value = self.raw.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def time(self, name: str, default: float | None = None) -> float:
        """Seconds."""
        return self.number(name, 0.0, MOST_SECONDS, default)

    def flag(self, name: str) -> bool:
        """true or false; false when it is not there."""
        value = self.raw.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def list(self, name: str, most: int) -> list[object]:
        """A list of at most so many; empty when it is not there."""
        value = self.raw.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(name, f"a list of at most {most}")
        return value

    def texts(self, name: str, most: int, longest: int = LONGEST) -> tuple[str, ...]:
        """A list of texts."""
        found = self.list(name, most)
        if not all(isinstance(text, str) and len(text) <= longest for text in found):
            raise self.wrong(name, f"a list of texts of at most {longest} characters")
        return tuple(well_formed(str(text)) for text in found)

    def inner(self, name: str) -> Fields:
        """An object inside this one."""
        if name not in self.raw:
            raise self.wrong(name, "there")
        return Fields(self.raw[name], f"{self.where}, {name},")

    def values(self, name: str) -> Values:
        """Scalars by name, one level of them inside at most; {} when it is not there."""
        return _values(Fields(self.raw.get(name, {}), f"{self.where}, {name},"), inside=True)


def _values(fields: Fields, inside: bool) -> Values:
    if len(fields.raw) > 200:
        raise Damaged(f"{fields.where} holds {len(fields.raw)} values; 200 are allowed.")
    found: dict[str, object] = {}
    for name, value in fields.raw.items():
        known = well_formed(name[:100])
        if isinstance(value, Mapping) and inside:
            found[known] = _values(fields.inner(name), inside=False)
        else:
            found[known] = _scalar(value, fields, name)
    return found


def _scalar(value: object, fields: Fields, name: str) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**64:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= 1000:
        return well_formed(value)
    raise fields.wrong(name, "text, a number, true, false or null")


def kind(value: object) -> str:
    """A value in a few words: what it is, shortened."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"text of {len(value)} characters"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**64:
        return "a very large number"
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
