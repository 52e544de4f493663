"""A record as a table for other programs: one row a round."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from specchat.lab.record_parts import Record

COLUMNS: Mapping[str, str] = {
    "round": "number of the round, from 1",
    "at_s": "seconds from the request to the end of the round",
    "gamma": "γ in force, after clipping to budget and context; with adaptive γ what the block came to",
    "drafted": "proposals that the target judged",
    "accepted": "proposals kept",
    "emitted": "tokens the round added to the reply",
    "tokens": "tokens of the reply so far",
    "drafter": "who proposed; empty when nobody did",
    "draft_s": "seconds of drafting",
    "verify_s": "seconds of the target's forward",
    "sample_s": "seconds of drawing and judging",
    "host_s": "seconds of the rest of the round",
    "target_forwards": "forwards of the target",
    "draft_forwards": "forwards of the draft model",
    "settings_changed": "1 in a round that ran with other settings than the one before",
    "recovered": "1 when the target replaced a proposal",
    "bonus": "1 when every proposal was kept and the target added a token",
    "prompt_read": "prompt tokens newly read (first round)",
    "prompt_reused": "prompt tokens found in the cache (first round)",
    "prompt_s": "seconds of reading the prompt (first round)",
}
"""Every column and what it holds. No text: cells that begin with = run as formulas in some programs."""


def as_csv(record: Record) -> str:
    """The rounds with a head line of the column names; numbers with a decimal point, comma between cells."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    tokens = 0
    for beat in record.beats:
        event = beat.round
        tokens += len(event.tokens)
        origins = [token.origin for token in event.tokens]
        read = event.prefill
        writer.writerow(
            [event.index + 1, event.at, event.gamma, event.drafted, event.accepted, len(event.tokens), tokens,
             _harmless(event.drafter), event.draft_s, event.verify_s, event.sample_s, event.host_s,
             event.target_forwards, event.draft_forwards, int(event.settings_changed), origins.count("recovered"),
             origins.count("bonus"), *(("", "", "") if read is None else (read.read, read.reused, read.seconds))]
        )  # fmt: skip
    return out.getvalue()


def _harmless(name: str) -> str:
    """A name out of a file anybody may have written, without what a spreadsheet would run."""
    return "".join(c for c in name if c.isalnum() or c in " _.:-").lstrip("-. ")
