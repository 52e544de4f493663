"""The lines of a record below its head: a round with its texts, and the end. Every value is checked."""

from __future__ import annotations

import dataclasses
from typing import Any, cast, get_args

from specchat.decode.events import Finished, Origin, Prefill, Reason, Rejected, Round, Token
from specchat.lab.record_fields import MOST_IDS, Damaged, Fields
from specchat.lab.record_parts import Beat

MOST_ROUNDS = 100_000
MOST_BLOCK = 256
"""Tokens of one round, far above any γ."""

MOST_TOKEN_TEXT = 10_000
EVEN = 1e-4
"""How far above 1 rounding may carry a probability."""


def beat(line: Fields) -> Beat:
    """A round's line."""
    raw = line.inner("round")
    tokens = tuple(
        _token(Fields(entry, f"{raw.where} tokens,"), n)
        for n, entry in enumerate(raw.list("tokens", MOST_BLOCK))
    )
    rejected = prefill = None
    if raw.raw.get("rejected") is not None:
        no = raw.inner("rejected")
        rejected = Rejected(
            no.whole("id", 0, MOST_IDS),
            _chance(no, "p"),
            _chance(no, "q"),
            no.whole("position", 0, MOST_BLOCK),
        )
    if raw.raw.get("prefill") is not None:
        how = raw.inner("prefill")
        prefill = Prefill(
            how.whole("reused", 0, MOST_IDS), how.whole("read", 0, MOST_IDS), how.time("seconds")
        )
    discarded = Fields({str(n): id for n, id in enumerate(raw.list("discarded", MOST_BLOCK))}, raw.where)
    gamma = raw.whole("gamma", 0, MOST_BLOCK)
    drafted = raw.whole("drafted", 0, MOST_BLOCK)
    accepted = raw.whole("accepted", 0, drafted)
    if not accepted <= len(tokens) <= accepted + 1:
        raise Damaged(f"{raw.where} {len(tokens)} tokens do not go with {accepted} accepted.")
    event = Round(
        raw.whole("index", 0, MOST_ROUNDS), tokens, rejected, gamma, drafted, accepted, raw.text("drafter", "", 100),
        raw.whole("target_forwards", 0, MOST_IDS), raw.whole("draft_forwards", 0, MOST_IDS),
        raw.time("draft_s"), raw.time("verify_s"), raw.time("sample_s"), raw.time("host_s"), raw.time("at"),
        settings_changed=raw.flag("settings_changed"), prefill=prefill,
        discarded=tuple(discarded.whole(name, 0, MOST_IDS) for name in discarded.raw), **_newer(raw),
    )  # fmt: skip
    texts = line.texts("texts", MOST_BLOCK, MOST_TOKEN_TEXT)
    if len(texts) != len(tokens):
        raise line.wrong("texts", f"a list of {len(tokens)}, one for each token")
    return Beat(event, texts, line.texts("turned_down", MOST_BLOCK, MOST_TOKEN_TEXT))


KNOWN = frozenset(
    ("index", "tokens", "rejected", "gamma", "drafted", "accepted", "drafter", "target_forwards", "draft_forwards",
     "draft_s", "verify_s", "sample_s", "host_s", "at", "settings_changed", "prefill", "discarded")
)  # fmt: skip
"""The fields that `beat` reads itself."""


def _newer(raw: Fields) -> dict[str, Any]:
    """Fields that a Round has gained since: taken when they are of their default's kind."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Round):
        if field.name in KNOWN or field.name not in raw.raw:
            continue
        if isinstance(field.default, str):
            found[field.name] = raw.text(field.name, most=2000)
        elif isinstance(field.default, bool):
            found[field.name] = raw.flag(field.name)
        elif isinstance(field.default, int | float):
            value = raw.number(field.name, -1e12, 1e12)
            found[field.name] = int(value) if isinstance(field.default, int) else value
    return found


def _token(raw: Fields, place: int) -> Token:
    origin = raw.text("origin", most=20)
    if origin not in get_args(Origin):
        raise raw.wrong("origin", f"one of {', '.join(get_args(Origin))}")
    q = None if raw.raw.get("q") is None else _chance(raw, "q")
    return Token(
        raw.whole("id", 0, MOST_IDS),
        cast(Origin, origin),
        _chance(raw, "p"),
        q,
        raw.whole("position", place, place),
    )


def _chance(raw: Fields, name: str) -> float:
    return raw.number(name, 0.0, 1.0 + EVEN)


def finished(raw: Fields) -> Finished:
    """How the reply ended."""
    reason = raw.text("reason", most=20)
    if reason not in get_args(Reason):
        raise raw.wrong("reason", f"one of {', '.join(get_args(Reason))}")
    return Finished(
        cast(Reason, reason), raw.whole("emitted", 0, MOST_IDS), raw.time("seconds"),
        raw.whole("target_cached", 0, MOST_IDS, 0), raw.whole("draft_cached", 0, MOST_IDS, 0), raw.text("notice", "", 10_000),
    )  # fmt: skip
