"""The Records tab as HTML: what is being replayed, how far it is, two records compared. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, cast

from specchat.lab import export_parts as parts
from specchat.lab.export_figures import figures
from specchat.lab.record_parts import Record, Said
from specchat.ui.meter import Meter
from specchat.ui.panels import Yardstick, live_panel, seconds
from specchat.ui.records_deck import Deck
from specchat.ui.transcript import OPENING, stats_line

if TYPE_CHECKING:
    from specchat.pair import Memory

TEMPLATE = "${value.before}${value.settled}${value.tail}${value.after}"
"""Gradio puts values into this as they are and evaluates nothing in them; all four are escaped HTML."""

NOTHING = {"before": "", "settled": "", "tail": "", "after": ""}

INTRO = (
    '<p class="sc-records-intro">A saved reply, played again as it was written: text, tokens and every number come '
    "from the record. No model is needed, and nothing leaves this machine.</p>"
)

EMPTY = (
    '<div class="sc-records-empty"><p>Open a record (Save under a conversation makes one, and so does '
    "<code>generate --record FILE</code> in a terminal), or take the chat's last reply as it is.</p></div>"
)


def said(sentence: str, wrong: bool = False) -> str:
    """The line under the buttons: what was opened, or why not."""
    if not sentence:
        return '<p class="sc-records-line" role="status"></p>'
    look = "sc-error" if wrong else "sc-records-line"
    return (
        f'<p class="{look}" role="{"alert" if wrong else "status"}">{escape(parts.short(sentence, 1000))}</p>'
    )


def facts(deck: Deck) -> str:
    """Who wrote it, with which settings, after which conversation."""
    record = deck.record
    if record is None:
        return EMPTY
    note = f'<p class="sc-note">{escape(record.note)}</p>' if record.note else ""
    before = record.head.messages[:-1]
    earlier = ""
    if before or record.head.system:
        count = f"{len(before)} earlier messages" if len(before) != 1 else "1 earlier message"
        what = count + (" and the system prompt" if record.head.system else "")
        inside = parts.messages(_only(record, before))
        earlier = f'<details class="sc-records-before"><summary>{what}</summary>{inside}</details>'
    asked = record.head.messages[-1].content if record.head.messages else ""
    user = (
        f'<div class="sc-user"><h3 class="sc-sr">Asked</h3><div class="sc-said">{escape(parts.short(asked, parts.MOST_SAID))}</div></div>'
        if asked
        else ""
    )
    return f"{parts.facts(record)}{note}{earlier}{user}"


def _only(record: Record, messages: Sequence[Said]) -> Record:
    return replace(record, head=replace(record.head, messages=tuple(messages)))


def screen(deck: Deck) -> dict[str, str]:
    """The reply as far as it has come, for `TEMPLATE`."""
    if deck.record is None:
        return NOTHING
    writing = "" if deck.reply.done else " sc-writing"
    if deck.lens:
        deck.tokens.update(deck.reply)
        look, settled, tail = "sc-lens", deck.tokens.html, ""
    else:
        growing = deck.reply.growing
        growing.update(deck.reply.text)
        look, settled, tail = "sc-text", growing.settled, growing.tail
    before = f'{OPENING}<div class="{look}{writing}">'
    return {"before": before, "settled": settled, "tail": tail, "after": f"</div>{_stats(deck)}</div>"}


def _stats(deck: Deck) -> str:
    """The same line as under the chat's reply, once it is over."""
    record = deck.record
    if record is None or not deck.reply.done:
        return ""
    notice = record.finished.notice if record.finished else ""
    note = f'<p class="sc-note">{escape(notice)}</p>' if notice else ""
    return note + stats_line(deck.reply, "" if record.finished else parts.how_it_ended(record))


def clock(deck: Deck) -> str:
    """How far the replay is: a bar, and in words."""
    record, replay = deck.record, deck.replay
    if record is None or replay is None:
        return '<div class="sc-records-clock"></div>'
    total = record.seconds
    share = 1.0 if replay.done or total <= 0 else min(1.0, replay.position / total)
    words = (
        f"{_tenths(total if replay.done else replay.position)} of {_tenths(total)} · "
        f"round {replay.given} of {len(record.beats)}"
    )
    return (
        f'<div class="sc-records-clock"><div class="sc-records-bar"><i style="width:{share * 100:.1f}%"></i></div>'
        f"<span>{words}</span></div>"
    )


def _tenths(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else seconds(value)


def panel(deck: Deck) -> str:
    """The live panel as the chat shows it, told against the record's own plain step."""
    record = deck.record
    if record is None:
        return live_panel(Meter(), 0, None, Yardstick())
    pair = record.head.pair
    gamma = record.head.settings.get("gamma", 0)
    memory = cast("Memory | None", pair.memory)  # the same fields
    plain = Yardstick(pair.plain_step_s, pair.plain_step_source)
    return live_panel(deck.reply.meter, min(gamma, 64) if isinstance(gamma, int) else 0, memory, plain)


def below(deck: Deck) -> str:
    """Curves of the record, or of both with what differs."""
    record, other = deck.record, deck.other
    if record is None:
        return ""
    if other is None:
        return f'<section class="sc-records-below">{figures([record])}</section>'
    return (
        '<section class="sc-records-below" aria-label="Comparison"><h3>Compared</h3>'
        f'<div class="sc-records-pair"><div><b>A</b>{parts.facts(record)}</div><div><b>B</b>{parts.facts(other)}</div></div>'
        f"{figures([record, other])}{parts.comparison(record, other)}{parts.parting(record, other)}</section>"
    )


def names(records: Sequence[Record]) -> list[tuple[str, int]]:
    """The replies of a file, for a list to choose from."""
    return [
        (
            f"{n}. {parts.short(record.head.messages[-1].content if record.head.messages else 'reply', 60)}",
            n - 1,
        )
        for n, record in enumerate(records, 1)
    ]
