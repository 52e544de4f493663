"""The doctor's findings as HTML: cards in order of cost, what was measured, before and after. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from specchat.decode.settings import Settings
from specchat.lab.doctor import Finding
from specchat.lab.doctor_measure import Examination, left_out
from specchat.lab.words import percent
from specchat.ui.panels import seconds, size, speed

INTRO = (
    '<div class="sc-doctor-intro"><h2>Doctor</h2><p>Why is speculation not faster here? It is measured with the '
    "settings in force and without, with the pair's other drafters, and the target with blocks of several widths. "
    "Causes are ranked by the time they cost: worked out from what was measured, or by a rule of thumb where no cost is "
    "shown.</p></div>"
)

FIELDS = {
    "gamma": "γ",
    "drafter": "drafter",
    "draft_sampling": "the draft's own sampling",
    "adaptive": "adaptive γ",
    "confidence": "confidence stop",
}
"""Settings that a remedy may change, in words."""


def empty() -> str:
    """Before the first examination."""
    return (
        '<div class="sc-doctor-empty"><p>Nothing has been examined yet. An examination takes ten to thirty seconds on the '
        "built-in pair: some 200 tokens are written and thrown away. The chat stays as it is, but its next message is read "
        "again from the first word.</p></div>"
    )


def working(said: str) -> str:
    """While it is measured."""
    return f'<div class="sc-doctor-empty"><p>{escape(said)}</p></div>'


def result(found: Examination, before: Examination | None = None, note: str = "") -> str:
    """Everything that an examination shows; before: the one that the remedy was applied to."""
    parts = [f'<p class="sc-doctor-note">{escape(note)}</p>' if note else ""]
    if before is not None:
        parts.append(comparison(before, found))
    parts += [headline(found), cards(found.findings), facts(found)]
    return f'<div class="sc-doctor">{"".join(parts)}</div>'


def headline(found: Examination) -> str:
    """What speculation is worth here, in one line."""
    chart = found.chart
    rate = f"{speed(1 / chart.now_s)} tok/s" if chart.now_s > 0 else ""
    plain = f"{speed(1 / chart.plain_s)} tok/s" if chart.plain_s > 0 else ""
    if not found.settings.gamma:
        text = f"Speculation is off: {plain}. A trial with γ {chart.gamma} was measured beside it."
    else:
        verdict = "gains" if chart.gain >= 1.05 else "loses" if chart.gain < 0.97 else "makes no difference"
        text = f"With these settings{left_out(found.settings)} speculation {verdict}: {rate}, {chart.gain:.2f}× plain ({plain})."
    return f'<p class="sc-doctor-headline">{escape(text)} <span>Examined: {escape(found.subject)}</span></p>'


def cards(findings: Sequence[Finding]) -> str:
    """A card for each, in order."""
    return f'<ol class="sc-doctor-cards">{"".join(card(f, n) for n, f in enumerate(findings))}</ol>'


def card(finding: Finding, n: int) -> str:
    """Title, sentence, number against threshold, remedy with its button."""
    cost = "" if finding.estimate or finding.cost <= 0 else f"costs {percent(finding.cost)} of the time"
    severity = {"fine": "all is well", "slight": "slight", "clear": "clear", "severe": "severe"}[
        finding.severity
    ]
    button = ""
    if finding.remedy.by_button:
        label = "Apply and measure again" if finding.remedy.change else "Measure again"
        button = (
            f'<button type="button" class="sc-doctor-apply" data-act="apply" data-n="{n}">{label}</button>'
        )
    tip = (
        "Worked out from the measured rates: the share of the time that this cause takes. Ranks the findings."
    )
    if finding.estimate:
        tip = "A rule of thumb, not a measured cost. Ranks the findings."
    return (
        f'<li class="sc-doctor-card" data-cause="{escape(finding.cause)}" data-severity="{finding.severity}">'
        f'<div class="sc-doctor-top"><h3>{escape(finding.title)}</h3>'
        f'<span class="sc-doctor-tag" title="{tip}">{" · ".join(filter(None, (severity, cost)))}</span></div>'
        f"<p>{escape(finding.sentence)}</p>"
        f"<dl><div><dt>measured</dt><dd>{escape(finding.measured)}</dd></div><div><dt>compared with</dt>"
        f"<dd>{escape(finding.threshold)}</dd></div></dl>"
        f'<div class="sc-doctor-remedy"><p>{escape(finding.remedy.words)}</p>{button}</div></li>'
    )


def comparison(before: Examination, after: Examination) -> str:
    """What the remedy did, on the same prompt with the same seed."""
    changes = [
        f"{words}: {_value(getattr(before.settings, name))} → {_value(getattr(after.settings, name))}"
        for name, words in FIELDS.items()
        if getattr(before.settings, name) != getattr(after.settings, name)
    ]
    head = "; ".join(changes) or "measured again with the same settings"
    rows = []
    for title, (old, new) in {
        "tok/s": (_rate(before), _rate(after)),
        "over plain": (f"{before.chart.gain:.2f}×", f"{after.chart.gain:.2f}×"),
        "proposals kept": (_kept(before), _kept(after)),
        "first finding": (before.findings[0].title, after.findings[0].title),
    }.items():
        rows.append(f'<tr><th scope="row">{title}</th><td>{escape(old)}</td><td>{escape(new)}</td></tr>')
    return (
        f'<section class="sc-doctor-change"><h3>Before and after</h3><p>{escape(head)}</p><table><thead><tr><td></td>'
        f'<th scope="col">before</th><th scope="col">after</th></tr></thead><tbody>{"".join(rows)}</tbody></table></section>'
    )


def facts(found: Examination) -> str:
    """All that was measured, for those who want to judge themselves."""
    seen, chart = found.evidence, found.chart
    widths = ", ".join(f"{rows}: {spent * 1000:.1f}" for rows, spent in sorted(seen.verify_s.items()))
    places = ", ".join(percent(chance) for chance in chart.base.chances)
    rows = {
        "Plain token": f"{chart.plain_s * 1000:.1f} ms",
        "Token as set": f"{chart.now_s * 1000:.1f} ms measured, {chart.now.token_s(chart.gamma) * 1000:.1f} ms by the formula",
        "Proposal": f"{chart.base.draft_s * 1000:.2f} ms, {chart.c:.2f} of a plain token",
        "Target forward, ms by rows": widths or "not measured",
        "Kept by place": places or "nothing was proposed",
        "Rounds with a proposal": percent(chart.base.offered),
        "Prompt": f"{seen.prompt_tokens} tokens read in {seconds(seen.prefill_s)}, first token after {seconds(seen.first_token_s)}",
        "Devices": f"target on {seen.target_device}"
        + (f", draft on {seen.draft_device}" if seen.draft_device else ""),
        "Precision": seen.precision,
        "Memory": f"{size(seen.memory.used)} used, {size(seen.memory.free)} free" if seen.memory else "",
        "Other programs": f"{percent(seen.others_cpu)} of the processors; {seen.waiting} jobs waiting",
    }
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows.items() if value
    )
    return f'<details class="sc-doctor-facts"><summary>What was measured</summary><dl>{items}</dl></details>'


def _rate(found: Examination) -> str:
    return speed(1 / found.chart.now_s) if found.chart.now_s > 0 else "–"


def _kept(found: Examination) -> str:
    return percent(found.chart.now.alpha) if found.settings.gamma else "speculation off"


def _value(value: object) -> str:
    if value is None:
        return "the target's"
    if isinstance(value, bool):
        return "on" if value else "off"
    if hasattr(value, "temperature"):
        return f"temperature {value.temperature}"
    return str(value)


def changed(settings: Settings, change: Sequence[str]) -> str:
    """What was just applied, for the status line."""
    return ", ".join(f"{FIELDS.get(name, name)} {_value(getattr(settings, name))}" for name in change)
