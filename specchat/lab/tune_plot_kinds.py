"""Speed-up against γ for each category of prompts, told apart by the shape of the marks as well as by colour."""

from __future__ import annotations

from html import escape

from specchat.lab.tune import Outcome
from specchat.lab.tune_plan import Variant
from specchat.lab.tune_plots import (
    CARD,
    INK,
    LEFT,
    MEASURED,
    PREDICTED,
    RIGHT,
    SOFT,
    WIDE,
    Axes,
    figure,
    swept,
)
from specchat.lab.tune_sums import categories
from specchat.lab.tune_sweep import SWEEP, score

MOST = 4
"""Categories that are drawn; more lines could not be told apart."""

COLOURS = (MEASURED, PREDICTED, INK, SOFT)


def kinds_plot(outcome: Outcome) -> str:
    """ "" with fewer than two categories."""
    gammas, kinds = list(swept(outcome)), categories(outcome.units)[:MOST]
    if not gammas or len(kinds) < 2:
        return ""
    series = {
        kind: [
            (float(gamma), found)
            for gamma in gammas
            if (found := score(outcome.units, Variant(gamma, outcome.drafter), SWEEP, kind))
        ]
        for kind in kinds
    }
    top = max([8, *gammas])
    axes = Axes(0.5, top + 0.5, 1.1 * max([1.2, *(y for points in series.values() for _, y in points)]))
    parts = [f'<path d="M{LEFT} {axes.y(1):.1f}H{WIDE - RIGHT}" stroke="{INK}" stroke-dasharray="1 3"/>']
    x = float(LEFT)
    for place, (kind, points) in enumerate(series.items()):
        colour = COLOURS[place]
        if points:
            parts.append(f'<path d="{axes.path(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [
            mark(place, axes.x(gamma), axes.y(value), f"{kind}, γ {gamma:g}: {value:.2f}×")
            for gamma, value in points
        ]
        words = kind if len(kind) <= 16 else f"{kind[:15]}…"
        parts.append(
            f'<g>{mark(place, x + 5, 26, kind)}<text x="{x + 14:.0f}" y="30">{escape(words)}</text></g>'
        )
        x += 30 + 5.8 * len(words)
    told = "; ".join(
        f"{kind}: {', '.join(f'γ {gamma:g} {value:.2f}' for gamma, value in points)}"
        for kind, points in series.items()
    )
    return figure(
        "Speed-up against γ by category", f"{told}.", axes, range(1, top + 1),
        ("γ, proposals a round", "times plain decoding"), "".join(parts),
    )  # fmt: skip


def mark(place: int, x: float, y: float, hint: str) -> str:
    """A filled dot, an empty square, a filled triangle, an empty diamond."""
    title, colour = f"<title>{escape(hint)}</title>", COLOURS[place]
    if place == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}">{title}</circle>'
    shape = {
        1: f"M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7z",
        2: f"M{x:.1f} {y - 4.5:.1f}l4.5 8h-9z",
        3: f"M{x:.1f} {y - 4.8:.1f}l4.8 4.8l-4.8 4.8l-4.8 -4.8z",
    }[place]
    fill = colour if place == 2 else CARD
    return f'<path d="{shape}" fill="{fill}" stroke="{colour}" stroke-width="1.5">{title}</path>'
