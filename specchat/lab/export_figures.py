"""Curves of one or two records as SVG, drawn with the page's CSS variables: they read in light, dark and on paper.

The first record's line is solid, the second's dashed, so that neither needs a colour of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from specchat.lab.compare import WINDOW, Points, accepted_means, tokens_over_time
from specchat.lab.record_parts import Record

WIDTH, HEIGHT = 460, 236
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 36
MOST_POINTS = 500


def figures(records: Sequence[Record]) -> str:
    """Both figures for one or two records."""
    tokens = [tokens_over_time(record) for record in records]
    lengths = [accepted_means(record) for record in records]
    return (
        '<div class="sc-records-figures">'
        + figure("Tokens against time", "tokens", "seconds since the request", tokens)
        + figure(f"Accepted length, mean of {WINDOW} rounds", "accepted proposals", "round", lengths)
        + "</div>"
    )


def figure(title: str, up: str, along: str, lines: Sequence[Points]) -> str:
    """One figure: its title, what goes up and along, and a line for each record."""
    names = "AB"[: len(lines)] if len(lines) > 1 else [""]
    right = max([1e-9, *(x for points in lines for x, _ in points)])
    top = max([1e-9, *(y for points in lines for _, y in points)])
    xs, ys = ticks(right), ticks(top)
    top = max(top, ys[-1])
    spoken = f"{title}. " + " ".join(
        f"{f'{name}: ' if name else ''}{points[-1][1]:.6g} {up} at {points[-1][0]:.4g} {along}."
        for name, points in zip(names, lines, strict=True)
        if points
    )
    curves = "".join(
        _curve(points, right, top, name, n) for n, (name, points) in enumerate(zip(names, lines, strict=True))
    )
    keys = "".join(
        f'<span><svg width="26" height="8" aria-hidden="true"><line x1="1" x2="25" y1="4" y2="4" class="sc-records-line-{n}"/></svg>{name}</span>'
        for n, name in enumerate(names)
        if name
    )
    legend = f'<div class="sc-records-keys">{keys}</div>' if keys else ""
    return (
        f'<figure class="sc-records-figure"><figcaption>{escape(title)}{legend}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(spoken)}">{_axes(xs, ys, right, top)}{curves}'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(along)}</text>'
        f'<text x="11" y="{(TOP + HEIGHT - BOTTOM) / 2:.0f}" text-anchor="middle" transform="rotate(-90 11 {(TOP + HEIGHT - BOTTOM) / 2:.0f})">{escape(up)}</text>'
        "</svg></figure>"
    )


def ticks(largest: float) -> list[float]:
    """Round numbers from 0 on, four to six of them, the last near the largest value."""
    rough = max(largest, 1e-9) / 4
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next((s * scale for s in (1, 2, 2.5, 5) if s * scale >= rough), 10 * scale)
    count = max(1, math.ceil(largest / step - 1e-9))
    return [n * step for n in range(count + 1)]


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _axes(xs: Sequence[float], ys: Sequence[float], right: float, top: float) -> str:
    parts = []
    for value in ys:
        y = _y(value / top)
        parts.append(
            f'<line class="sc-records-grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>'
        )
    for value in xs:
        if value <= right * 1.0001:
            x = _x(value / right)
            parts.append(
                f'<line class="sc-records-grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_y(0):.1f}" y2="{_y(0) + 4:.1f}"/>'
                f'<text x="{x:.1f}" y="{_y(0) + 16:.1f}" text-anchor="middle">{value:.6g}</text>'
            )
    return "".join(parts)


def _curve(points: Points, right: float, top: float, name: str, n: int) -> str:
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    some = [*points[::step], *([points[-1]] if points and (len(points) - 1) % step else [])]
    line = " ".join(f"{_x(x / right):.1f},{_y(y / top):.1f}" for x, y in some)
    if not line:
        return ""
    x, y = some[-1]
    at = max(TOP + 10, _y(y / top) - 6)
    label = f'<text class="sc-records-name" x="{min(_x(x / right), WIDTH - RIGHT - 4):.1f}" y="{at:.1f}" text-anchor="end">{name}</text>'
    return f'<polyline class="sc-records-line-{n}" points="{line}"/>' + (label if name else "")
