"""One or two records as one HTML file: style and figures inside, no script, nothing asked of anybody."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from specchat.lab import export_parts as parts
from specchat.lab.export_figures import figures
from specchat.lab.record_parts import Record
from specchat.lab.record_write import CONTAINS

ASSETS = Path(__file__).resolve().parents[2] / "assets"

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Whatever a text may hold, the browser runs nothing and asks nobody."""

OWN = """
body { font: 15px/1.5 system-ui, sans-serif; background: var(--sc-card); margin: 0; padding: 24px; }
main { max-width: 1000px; margin: 0 auto; }
:root { --font: system-ui, sans-serif; --font-mono: ui-monospace, monospace; color-scheme: light dark; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin: 28px 0 8px; }
.gradio-container .sc-records-facts { margin: 0 0 14px; max-width: none; }
.gradio-container .sc-records-figures, .gradio-container .sc-records-tables { margin-top: 24px; }
footer { color: var(--sc-soft); font-size: 13px; margin-top: 32px; }
"""

LEGEND = (
    '<p class="sc-records-legend"><i class="sc-t sc-a">accepted</i> from the draft · <i class="sc-t sc-r">recovered</i> '
    '<i class="sc-t sc-b">bonus</i> <i class="sc-t sc-p">plain</i> from the target · <s class="sc-t sc-x">rejected</s></p>'
)


def as_html(records: Sequence[Record]) -> str:
    """The file for one record, or for two of which the second is told against the first."""
    first, second = records[0], records[1] if len(records) > 1 else None
    title = "Two replies compared" if second else "A reply, round by round"
    body = [f"<h1>{title}</h1>"]
    for name, record in zip("AB", records, strict=False):
        body.append((f"<h2>{name}</h2>" if second else "") + parts.facts(record) + _note(record))
    if second:
        body += [
            parts.comparison(first, second),
            figures(records[:2]),
            "<h2>Texts</h2>",
            parts.parting(first, second),
        ]
    else:
        body += [parts.numbers(first), figures([first])]
    body.append(LEGEND)
    for name, record in zip("AB", records, strict=False):
        body.append(
            f"<h2>{f'Conversation {name}' if second else 'Conversation'}</h2>{parts.messages(record)}"
        )
        body.append(f'<div class="sc-records-said"><b>reply</b>{parts.lens(record)}</div>')
        body.append(f'<p class="sc-stats">{escape(parts.stats_words(record))}</p>')
    return _page(title, "".join(body))


def _note(record: Record) -> str:
    return f'<p class="sc-note">{escape(record.note)}</p>' if record.note else ""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>SpecChat: {escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<style>{_style()}</style></head><body class="gradio-container"><main>{body}'
        f"<footer>Written by SpecChat. This file holds: {escape(CONTAINS[0].lower() + CONTAINS[1:])}</footer>"
        "</main></body></html>\n"
    )


def _style() -> str:
    """The page's own style, its dark colours chosen by the reader's system instead of by a class."""
    page, records = ((ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", "records.css"))
    start = page.index(".dark {") + len(".dark {")
    dark = page[start : page.index("}", start)]
    return f"{page}{records}@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}{OWN}".replace(
        "</", "<\\/"
    )
