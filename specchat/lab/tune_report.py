"""A tuning run as HTML: the parts that the page shows too, and one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from specchat.lab.tune import Outcome
from specchat.lab.tune_advice import Advice
from specchat.lab.tune_plot_kinds import kinds_plot
from specchat.lab.tune_plots import gain_plot, length_plot, speed_plot
from specchat.lab.tune_table import (
    HINTS,
    Row,
    cache_table,
    category_table,
    overhead_words,
    prediction_table,
    prediction_words,
    sampling_words,
    stage_table,
)

STYLE = Path(__file__).parents[2] / "assets" / "tune.css"

COLOURS = """
:root { color-scheme: light dark; --sc-draft: #0f6d8c; --sc-target: #a65a00; --sc-draft-wash: rgb(15 109 140 / 11%);
  --sc-ink: #191d20; --sc-soft: #596269; --sc-line: #dfe3e5; --sc-card: #ffffff; --sc-well: #f1f3f4; }
@media (prefers-color-scheme: dark) {
  :root { --sc-draft: #5cbcd9; --sc-target: #e8a248; --sc-draft-wash: rgb(92 188 217 / 17%); --sc-ink: #eceff0;
    --sc-soft: #a3adb3; --sc-line: #30373c; --sc-card: #191d20; --sc-well: #22282c; }
}
body { margin: 0; background: var(--sc-card); color: var(--sc-ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 32px 0 8px; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(outcome: Outcome) -> str:
    """The whole report, one file: no script, and nothing that would be fetched."""
    names = outcome.identity
    title = f"Tuning {names['target']}" + (f" with {names['draft']}" if names["draft"] else "")
    parts = [
        f"<h1>{escape(title)}</h1>",
        ""
        if outcome.complete
        else '<p class="sc-tune-note">This run was stopped: what was measured until then.</p>',
        recommendation(outcome.advice),
        remarks(outcome),
        _section("Predicted before measuring", paragraph(prediction_words(outcome))),
        _section("Stages", table(stage_table(outcome), chosen(outcome), "stages")),
        _section("Plots", plots(outcome)),
        _section("By category", table(category_table(outcome), chosen(outcome), "stages")),
        _section(
            "Predicted and measured", table(prediction_table(outcome)) + paragraph(overhead_words(outcome))
        ),
        _section("Prefix cache", table(cache_table(outcome.turns))),
        _section("Settings", _settings(outcome)),
        _section("Prompts", _prompts(outcome)),
        _section("Machine and versions", _facts(outcome.facts)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{COLOURS}{STYLE.read_text(encoding='utf-8')}</style></head>"
        f'<body><main class="sc-tune">{"".join(parts)}</main></body></html>\n'
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def paragraph(words: str) -> str:
    """A sentence or more, "" for none."""
    return f'<p class="sc-tune-words">{escape(words)}</p>' if words else ""


def remarks(outcome: Outcome) -> str:
    """What a person should know about the run as a whole."""
    return "".join(f'<p class="sc-tune-note">{escape(remark)}</p>' for remark in outcome.remarks)


def recommendation(advice: Advice | None) -> str:
    """What to set, why, and what else there is to know."""
    if advice is None:
        return ""
    listed = "".join(f"<li>{escape(remark)}</li>" for remark in advice.remarks)
    return (
        f'<div class="sc-tune-advice"><p class="sc-tune-headline">{escape(advice.headline)}</p>'
        f"<p>{escape(advice.reason)}</p>{f'<ul>{listed}</ul>' if listed else ''}</div>"
    )


def chosen(outcome: Outcome) -> str:
    """The change, as the stage table calls it, that the recommendation is about; "" without one."""
    advice = outcome.advice
    if advice is None:
        return ""
    if not advice.gamma:
        return "γ 0: plain decoding"
    if advice.drafter != outcome.drafter:
        return f"{advice.drafter}, γ {advice.gamma}"
    return f"γ {advice.gamma}"


def table(rows: Sequence[Row], marked: str = "", kind: str = "") -> str:
    """Head and rows; "" for a head alone. marked: the change whose row is the recommended one. kind: its style."""
    if len(rows) < 2:
        return ""
    head = "".join(
        f'<th scope="col" title="{escape(HINTS.get(cell, ""))}">{escape(cell)}</th>' for cell in rows[0]
    )
    body = "".join(_row(row, bool(marked) and len(row) > 1 and row[1] == marked) for row in rows[1:])
    return (
        '<div class="sc-tune-scroll" tabindex="0" role="region" aria-label="Table">'
        f'<table class="sc-tune-table{f" sc-tune-{kind}" if kind else ""}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Row, marked: bool) -> str:
    first, *others = (escape(cell) for cell in row)
    if marked and others:
        others[0] += ' <b class="sc-tune-mark">recommended</b>'
    cells = "".join(f"<td>{cell}</td>" for cell in others)
    return f'<tr{" class=sc-tune-chosen" if marked else ""}><th scope="row">{first}</th>{cells}</tr>'


def plots(outcome: Outcome) -> str:
    """All that there are figures for."""
    drawn = "".join(
        f'<div class="sc-tune-card">{plot}</div>'
        for plot in (speed_plot(outcome), length_plot(outcome), gain_plot(outcome), kinds_plot(outcome))
        if plot
    )
    return f'<div class="sc-tune-plots">{drawn}</div>' if drawn else ""


def _settings(outcome: Outcome) -> str:
    plan, names = outcome.plan, outcome.identity
    drafter = outcome.drafter or "none"
    return _pairs(
        {
            "target": names["target"],
            "draft": names["draft"] or "none",
            "device": names["device"],
            "precision": names["precision"],
            "sampling": sampling_words(plan.sampling),
            "draft's sampling when misaligned": sampling_words(plan.draft_sampling),
            "drafter": drafter,
            "tokens of a reply": f"{plan.tokens}, ends ignored",
            "seeds": ", ".join(map(str, plan.seeds)),
            "γ": "every one from 1 to 8"
            if plan.exhaustive
            else ", ".join(map(str, plan.gammas)) or "those that could win",
        }
    )


def _prompts(outcome: Outcome) -> str:
    rows = [
        ("prompt", "category", "text"),
        *((p.id, p.category, shortened(p.text)) for p in outcome.plan.prompts),
    ]
    return table(rows, kind="prose")


def shortened(text: str, most: int = 200) -> str:
    """The beginning of a prompt, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _facts(facts: Mapping[str, object]) -> str:
    said: dict[str, str] = {}
    for name, value in facts.items():
        if name == "remarks":
            continue
        if isinstance(value, dict):
            said |= {str(inner): str(content) for inner, content in value.items()}
        elif isinstance(value, list):
            said[name] = " ".join(map(str, value))
        elif value not in (None, ""):
            said[name.replace("_gb", " (GB)")] = str(value)
    return _pairs({name: value for name, value in said.items() if value})


def _pairs(entries: Mapping[str, str]) -> str:
    if not entries:
        return ""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in entries.items())
    return f'<dl class="sc-tune-facts">{listed}</dl>'
