"""What the Tune tab shows: a run and the calculator as HTML strings. Pure functions; nothing here knows Gradio."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from specchat.decode.settings import MAX_GAMMA
from specchat.lab.theory import expected_accepted, expected_speedup, expected_tokens
from specchat.lab.tune import Outcome
from specchat.lab.tune_memory import Remembered
from specchat.lab.tune_plots import curve_plot
from specchat.lab.tune_report import chosen, paragraph, plots, recommendation, remarks, table
from specchat.lab.tune_table import (
    cache_table,
    category_table,
    overhead_words,
    prediction_table,
    prediction_words,
    stage_table,
)
from specchat.lab.tune_words import progress_words

HEAD = (
    '<div class="sc-tune"><div class="sc-tune-head"><h2>Tune</h2></div><p class="sc-tune-words">Measures this pair '
    "on this machine, stage by stage: plain decoding, speculation with a draft that draws differently, aligned, every "
    "γ that could win, other drafters, the prefix cache. Sampling is that of the sidebar; replies have a fixed number "
    "of tokens. Predicted first, then measured.</p></div>"
)


def running(outcome: Outcome) -> str:
    """How far a run is."""
    now = outcome.progress
    share = now.done / now.total if now.total else 0.0
    return (
        f'<div class="sc-tune"><p class="sc-tune-words" role="status">{escape(progress_words(outcome))}</p>'
        f'<div class="sc-tune-bar" role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{share * 100:.0f}" '
        f'aria-label="Runs measured"><i style="width:{share:.1%}"></i></div></div>'
    )


def told(sentence: str, error: bool = False) -> str:
    """A sentence in place of the progress."""
    kind = "error" if error else "words"
    return f'<div class="sc-tune"><p class="sc-tune-{kind}" role="status">{escape(sentence)}</p></div>'


def result(outcome: Outcome) -> str:
    """Everything that a run has found so far, the recommendation first."""
    mark = chosen(outcome)
    parts = [
        recommendation(outcome.advice),
        remarks(outcome),
        _titled("Predicted before measuring", paragraph(prediction_words(outcome))),
        _titled("Stages", table(stage_table(outcome), mark, "stages")),
        plots(outcome),
        _titled("By category", table(category_table(outcome), mark, "stages")),
        _titled(
            "Predicted and measured", table(prediction_table(outcome)) + paragraph(overhead_words(outcome))
        ),
        _titled("Prefix cache", table(cache_table(outcome.turns))),
    ]
    return f'<div class="sc-tune">{"".join(parts)}</div>'


def _titled(title: str, body: str) -> str:
    return f'<h3 class="sc-tune-title">{escape(title)}</h3>{body}' if body else ""


def hint(found: Remembered | None) -> str:
    """A recommendation of an earlier run, offered."""
    if found is None:
        return ""
    return (
        f'<div class="sc-tune"><p class="sc-tune-hint">Tuned for this pair and sampling on {escape(found.when)}: '
        f"<b>{escape(found.headline)}</b> {escape(found.reason)}</p></div>"
    )


@dataclass(frozen=True, slots=True)
class Calculated:
    """What the formula gives."""

    accepted: float
    """Expected mean accepted length, 0…γ."""
    tokens: float
    """Expected tokens a round, 1…γ+1."""
    speedup: float
    """Over plain decoding."""


def calculate(alpha: float, gamma: int, c: float, v: float) -> Calculated:
    """The formula alone (Leviathan et al. 2023); values out of range are taken to the nearest allowed one."""
    alpha, gamma = min(max(alpha, 0.0), 1.0), min(max(int(gamma), 0), MAX_GAMMA)
    c, v = max(c, 0.0), max(v, 0.01)
    return Calculated(
        expected_accepted(alpha, gamma),
        expected_tokens(alpha, gamma),
        expected_speedup(alpha, gamma, c, v if gamma else 1.0),
    )


def calculator(alpha: float, gamma: int, c: float, v: float) -> str:
    """Three figures and the curve. v is that of the chosen γ; at another γ it lies on the line through it."""
    found = calculate(alpha, gamma, c, v)
    figures = "".join(
        f'<div title="{escape(hint)}"><dt>{escape(name)}</dt><dd>{value}</dd></div>'
        for name, value, hint in (
            ("accepted length", f"{found.accepted:.2f}", "α(1 − α^γ) / (1 − α)"),
            ("tokens a round", f"{found.tokens:.2f}", "(1 − α^(γ+1)) / (1 − α)"),
            ("speed-up", f"{found.speedup:.2f}×", "tokens a round / (γc + v)"),
        )
    )
    curve = curve_plot(
        min(max(alpha, 0.0), 1.0), min(max(int(gamma), 0), MAX_GAMMA), max(c, 0.0), max(v, 0.01)
    )
    return f'<div class="sc-tune"><dl class="sc-tune-figures">{figures}</dl><div class="sc-tune-card">{curve}</div></div>'


def apply_words(gamma: int) -> str:
    """What is on the button that applies it."""
    return f"Apply γ {gamma}" if gamma else "Switch speculation off"


def ending(complete: bool, recorded: bool, some: bool, remembered: bool) -> str:
    """How a run ended. recorded: it can be resumed. some: something was measured. remembered: its recommendation is."""
    if complete and not remembered:
        return "Done. The recommendation could not be remembered: note it, or run again."
    if complete:
        return "Done. The recommendation is remembered for this pair, device and sampling."
    if not some:
        return "Stopped before anything was measured."
    kept = "Resume goes on from here." if recorded else "It could not be recorded, so it cannot be resumed."
    return f"Stopped. What was measured is shown. {kept}"
