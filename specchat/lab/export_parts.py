"""Records as pieces of HTML, for the page and for the exported file alike. Pure functions; everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from specchat.lab import compare
from specchat.lab.compare import DASH
from specchat.lab.export_tokens import MOMENT, token, turned_down
from specchat.lab.record import line_of_numbers
from specchat.lab.record_parts import Record
from specchat.lab.words import REASONS

MOST_SHOWN = 300
"""Characters of a table's cell."""

MOST_SAID = 4000
"""Characters of a message before the reply."""

Cell = tuple[str, str]
"""Text and tooltip."""


def how_it_ended(record: Record) -> str:
    """In words, also of a record that was cut off."""
    return REASONS[record.finished.reason] if record.finished else "the record is cut off"


def stats_words(record: Record) -> str:
    """The line of numbers, as plain text."""
    return line_of_numbers(record.seconds, record.stats(), how_it_ended(record))


def short(text: str, most: int = MOST_SHOWN) -> str:
    """A text's beginning."""
    return text if len(text) <= most else text[: most - 1] + "…"


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], kind: str = "") -> str:
    """A table whose first column names the rows."""
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(_cell(n, text, tip) for n, (text, tip) in enumerate(row)) + "</tr>" for row in rows
    )
    return (
        f'<div class="sc-records-wide"><table class="sc-records-table {escape(kind)}"><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(column: int, text: str, tip: str) -> str:
    about = f' title="{escape(short(tip))}"' if tip else ""
    tag = 'th scope="row"' if column == 0 else "td"
    return f"<{tag}{about}>{escape(short(text))}</{tag.split()[0]}>"


def facts(record: Record) -> str:
    """One line on who wrote it, where and when, and one on the settings."""
    head, pair = record.head, record.head.pair
    names = f"<b>{escape(short(pair.target))}</b>"
    if pair.draft:
        names += f" with draft <b>{escape(short(pair.draft))}</b>"
    where = " · ".join(filter(None, [pair.precision, pair.device, *_machine(record), _moment(head.written)]))
    now = compare.settings(record)
    said = " · ".join(f"{name} {value}" for name, value in now.items() if value != DASH)
    changed = f" Changed {compare.times(len(record.changes))} on the way." if record.changes else ""
    return (
        f'<p class="sc-records-facts">{names}<br><span>{escape(short(where, 1000))}</span><br>'
        f"<span>{escape(short(said, 2000))}.{changed}</span></p>"
    )


def _moment(written: str) -> str:
    """ "2026-11-30T15:30:12+01:00" → "2026-11-30 15:30"."""
    return written[:16].replace("T", " ")


def _machine(record: Record) -> list[str]:
    about = record.head.hardware
    found = [str(about[name]) for name in ("gpu", "system", "machine") if about.get(name)]
    if about.get("threads"):
        threads = "1 thread" if about["threads"] == 1 else f"{about['threads']} threads"
        found.append(f"{threads} of {about.get('cores')} cores")
    return found


def messages(record: Record) -> str:
    """What was said before the reply."""
    said = [("system prompt", record.head.system)] if record.head.system else []
    said += [(message.role, message.content) for message in record.head.messages]
    return "".join(
        f'<div class="sc-records-said"><b>{escape(role)}</b><div>{escape(short(text, MOST_SAID))}</div></div>'
        for role, text in said
    )


def lens(record: Record, rejected: bool = True) -> str:
    """The reply as its tokens; rejected: with the proposals that were turned down."""
    parts: list[str] = []
    for beat in record.beats:
        event = beat.round
        if event.settings_changed:
            parts.append(MOMENT)
        for one, text in zip(event.tokens, beat.texts, strict=True):
            if rejected and event.rejected and one.position == event.rejected.position:
                parts.append(turned_down(event, beat.turned_down))
            parts.append(token(event, one, text))
    return f'<div class="sc-lens">{"".join(parts)}{escape(record.tail)}</div>'


def numbers(record: Record) -> str:
    """The numbers of one record."""
    rows = [((number.name, number.tip), (number.text, "")) for number in compare.numbers(record)]
    return table(["measured", ""], rows, "sc-records-numbers")


def comparison(a: Record, b: Record) -> str:
    """Two records: what was set differently, the numbers side by side, where the texts part."""
    rows = compare.differing(a, b)
    differs = (
        table(
            ["differs", "A", "B"],
            [((row.name, ""), (row.a, row.a), (row.b, row.b)) for row in rows],
            "sc-records-differing",
        )
        if rows
        else '<p class="sc-note">Settings, question, pair and machine are the same in both.</p>'
    )
    measured = table(
        ["measured", "A", "B", "B over A"],
        [
            ((x.name, x.tip), (x.text, ""), (y.text, ""), (over, ""))
            for x, y, over in compare.side_by_side(a, b)
        ],
        "sc-records-numbers",
    )
    return f'<div class="sc-records-tables">{measured}{differs}</div>'


def parting(a: Record, b: Record) -> str:
    """Where the two texts first differ, in a sentence and in both texts."""
    found, remark = compare.parting(a, b), compare.why_texts_differ(a, b)
    text = f"<p>{escape(' '.join(filter(None, [found.sentence, remark])))}</p>"
    if not found.same:
        text += "".join(
            f'<p class="sc-records-parting"><b>{name}</b><span>{escape(found.context)}'
            f"<mark>{escape(rest) or '(ends here)'}</mark></span></p>"
            for name, rest in (("A", found.a), ("B", found.b))
        )
    return f'<div class="sc-records-texts">{text}</div>'


__all__ = [
    "DASH", "comparison", "facts", "how_it_ended", "lens", "messages", "numbers", "parting", "short", "stats_words",
    "table",
]  # fmt: skip
