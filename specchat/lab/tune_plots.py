"""The plots of a tuning run as SVG strings: no script, no fonts, no request; colours from the page's variables.

What was measured is a solid line with filled dots, what was predicted a dashed line with rings, and every plot says
so in words: nothing is told by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from specchat.lab.theory import expected_speedup
from specchat.lab.tune import Outcome
from specchat.lab.tune_plan import PLAIN, Variant
from specchat.lab.tune_sums import Sums, sums
from specchat.lab.tune_sweep import sweep_scores

WIDE, HIGH = 420, 264
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 34, 42

MEASURED = "var(--sc-draft, #0f6d8c)"
PREDICTED = "var(--sc-target, #a65a00)"
INK = "var(--sc-ink, #191d20)"
SOFT = "var(--sc-soft, #596269)"
LINE = "var(--sc-line, #dfe3e5)"
CARD = "var(--sc-card, #ffffff)"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axes:
    """The plot's frame: data → places in the drawing."""

    x_low: float
    x_high: float
    y_high: float

    def x(self, value: float) -> float:
        """Pixels from the left."""
        span = (self.x_high - self.x_low) or 1.0
        return LEFT + (value - self.x_low) / span * (WIDE - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return HIGH - BOTTOM - value / (self.y_high or 1.0) * (HIGH - TOP - BOTTOM)

    def path(self, points: Iterable[Point]) -> str:
        """The d of a path."""
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)


def figure(
    title: str, told: str, axes: Axes, ticks: Sequence[float], labels: tuple[str, str], body: str
) -> str:
    """A frame with ticks and labelled axes around a drawing. told: the plot in a sentence, for those who do not see it."""
    parts = [
        f'<svg class="sc-tune-plot" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(f"{title}. {told}")}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{SOFT}">',
        f'<text x="{LEFT}" y="14" font-size="12.5" font-weight="600" fill="{INK}">{escape(title)}</text>',
    ]
    for value in steps(axes.y_high):
        y = axes.y(value)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDE - RIGHT}" stroke="{LINE}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for value in ticks:
        parts.append(
            f'<text x="{axes.x(value):.1f}" y="{HIGH - BOTTOM + 15}" text-anchor="middle">{value:g}</text>'
        )
    middle = (TOP + HIGH - BOTTOM) / 2
    parts.append(
        f'<text x="{(LEFT + WIDE - RIGHT) / 2:.1f}" y="{HIGH - 10}" text-anchor="middle">{escape(labels[0])}</text>'
        f'<text x="12" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 12 {middle:.1f})">{escape(labels[1])}</text>'
    )
    return "".join([*parts, body, "</svg>"])


def steps(high: float) -> list[float]:
    """Round numbers from 0 to `high`, four to six of them."""
    if high <= 0 or not math.isfinite(high):
        return [0.0]
    rough = high / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * n for n in (1, 2, 2.5, 5) if power * n >= rough), power * 10)
    return [round(step * i, 10) for i in range(int(high / step + 1e-9) + 1)]


def measured(axes: Axes, points: Sequence[Point], hint: Callable[[Point], str]) -> str:
    """A solid line with filled dots."""
    dots = "".join(
        f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3.6" fill="{MEASURED}"><title>{escape(hint((x, y)))}</title></circle>'
        for x, y in points
    )
    return (
        f'<path d="{axes.path(points)}" fill="none" stroke="{MEASURED}" stroke-width="2"/>{dots}'
        if points
        else ""
    )


def predicted(axes: Axes, points: Sequence[Point], hint: Callable[[Point], str]) -> str:
    """A dashed line with rings."""
    rings = "".join(
        f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3" fill="{CARD}" stroke="{PREDICTED}" stroke-width="1.5">'
        f"<title>{escape(hint((x, y)))}</title></circle>"
        for x, y in points
    )
    line = f'<path d="{axes.path(points)}" fill="none" stroke="{PREDICTED}" stroke-width="1.5" stroke-dasharray="5 4"/>'
    return line + rings if points else ""


def key(*entries: tuple[str, str]) -> str:
    """The legend, under the title: kind (measured, predicted, plain) and words."""
    parts, x = [], float(LEFT)
    for kind, words in entries:
        mark = {
            "measured": f'<path d="M0 0H18" stroke="{MEASURED}" stroke-width="2"/><circle cx="9" r="3.2" fill="{MEASURED}"/>',
            "predicted": f'<path d="M0 0H18" stroke="{PREDICTED}" stroke-width="1.5" stroke-dasharray="5 4"/>'
            f'<circle cx="9" r="2.8" fill="{CARD}" stroke="{PREDICTED}" stroke-width="1.5"/>',
            "plain": f'<path d="M0 0H18" stroke="{INK}" stroke-width="1" stroke-dasharray="1 3"/>',
        }[kind]
        parts.append(
            f'<g transform="translate({x:.0f} 26)">{mark}<text x="23" y="4">{escape(words)}</text></g>'
        )
        x += 40 + 5.8 * len(words)
    return "".join(parts)


def speed_plot(outcome: Outcome) -> str:
    """tok/s against γ: measured with quartiles, the predicted curve, the level of plain decoding."""
    prediction = outcome.prediction
    if prediction is None:
        return ""
    found = swept(outcome)
    plain = sums(outcome.units, PLAIN)
    top = max([8, *found, outcome.gamma])
    curve = [(float(g), prediction.tok_per_s(g)) for g in range(1, top + 1)] if prediction.judging else []
    level = plain.tok_per_s or 1 / prediction.plain_s
    points = [(float(g), s.tok_per_s) for g, s in found.items()]
    highs = [s.quartiles[2] for s in found.values()]
    axes = Axes(0.5, top + 0.5, 1.08 * max([level, *(y for _, y in curve), *highs]))
    bars = "".join(
        f'<path d="M{axes.x(g):.1f} {axes.y(s.quartiles[0]):.1f}V{axes.y(s.quartiles[2]):.1f}" stroke="{MEASURED}" '
        'stroke-width="1"/>'
        for g, s in found.items()
    )
    source = "plain" if plain.units else "plain, in the probe"
    body = (
        f'<path d="M{LEFT} {axes.y(level):.1f}H{WIDE - RIGHT}" stroke="{INK}" stroke-dasharray="1 3"/>'
        + predicted(axes, curve, lambda p: f"γ {p[0]:g}: {p[1]:.1f} tok/s predicted")
        + bars
        + measured(axes, points, lambda p: f"γ {p[0]:g}: {p[1]:.1f} tok/s measured, median")
        + key(("measured", "measured, quartiles"), ("predicted", "predicted"), ("plain", source))
    )
    told = f"Plain decoding: {level:.1f}. Measured: {_listed(points)}. Predicted: {_listed(curve)}."
    return figure("Speed against γ", told, axes, range(1, top + 1), ("γ, proposals a round", "tok/s"), body)


def length_plot(outcome: Outcome) -> str:
    """Mean accepted length against γ."""
    prediction = outcome.prediction
    if prediction is None:
        return ""
    found = swept(outcome)
    top = max([8, *found, outcome.gamma])
    curve = [(float(g), prediction.accepted(g)) for g in range(1, top + 1)] if prediction.judging else []
    points = [(float(g), s.mean_accepted) for g, s in found.items()]
    axes = Axes(0.5, top + 0.5, 1.1 * max([0.5, *(y for _, y in (*curve, *points))]))
    body = (
        predicted(axes, curve, lambda p: f"γ {p[0]:g}: {p[1]:.2f} predicted")
        + measured(axes, points, lambda p: f"γ {p[0]:g}: {p[1]:.2f} measured")
        + key(("measured", "measured"), ("predicted", "predicted from one α"))
    )
    told = f"Measured: {_listed(points)}. Predicted: {_listed(curve)}."
    return figure(
        "Accepted length against γ", told, axes, range(1, top + 1),
        ("γ, proposals a round", "accepted proposals a round"), body,
    )  # fmt: skip


def gain_plot(outcome: Outcome) -> str:
    """Draft time against gain: what drafting costs in a round, what it brings, and what it would have to bring."""
    found, plain = swept(outcome), sums(outcome.units, PLAIN)
    if not found or not plain.round_s:
        return ""
    gained = [(1e3 * s.draft_s, s.tokens_per_round - 1) for s in found.values()]
    needed = [(1e3 * s.draft_s, s.round_s / plain.round_s - 1) for s in found.values()]
    widest = max(x for x, _ in gained) or 1.0
    axes = Axes(0.0, 1.1 * widest, 1.12 * max([0.2, *(y for _, y in (*gained, *needed))]))
    names = "".join(
        f'<text x="{axes.x(x):.1f}" y="{axes.y(max(y, 0)) - 8:.1f}" text-anchor="middle" fill="{INK}">γ {g}</text>'
        for g, (x, y) in zip(found, gained, strict=True)
    )
    needed = [(x, max(0.0, y)) for x, y in needed]
    body = (
        predicted(
            axes,
            needed,
            lambda p: f"{p[0]:.1f} ms of drafting: {p[1]:.2f} tokens needed to break even",
        )
        + measured(axes, gained, lambda p: f"{p[0]:.1f} ms of drafting: {p[1]:.2f} tokens gained")
        + names
        + key(("measured", "gained over plain"), ("predicted", "needed to break even (measured)"))
    )
    told = "; ".join(
        f"γ {g}: {x:.1f} ms of drafting, {y:.2f} tokens gained, {n:.2f} needed"
        for g, (x, y), (_, n) in zip(found, gained, needed, strict=True)
    )
    return figure(
        "Draft time against gain", f"{told}.", axes, [t for t in steps(axes.x_high) if t <= axes.x_high],
        ("ms of drafting a round", "tokens a round beyond one"), body,
    )  # fmt: skip


def curve_plot(alpha: float, gamma: int, c: float, v: float) -> str:
    """The calculator's curve: expected speed-up against γ, with the chosen γ marked. v: of judging at that γ.

    v at another γ lies on the straight line through (0, 1) and the given point.
    """

    def at(g: int) -> float:
        judged = 1 + (v - 1) * g / gamma if gamma else v
        return expected_speedup(alpha, g, c, max(1e-6, judged))

    points = [(float(g), at(g)) for g in range(17)]
    axes = Axes(0.0, 16.0, 1.1 * max([1.2, *(y for _, y in points)]))
    x, y = points[gamma]
    body = (
        f'<path d="M{LEFT} {axes.y(1):.1f}H{WIDE - RIGHT}" stroke="{INK}" stroke-dasharray="1 3"/>'
        + predicted(axes, points, lambda p: f"γ {p[0]:g}: {p[1]:.2f}×")
        + f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="6.5" fill="none" stroke="{INK}" stroke-width="2"/>'
        + key(("predicted", "by the formula"), ("plain", "plain decoding"))
    )
    told = f"At γ {gamma}: {y:.2f} times plain decoding."
    return figure(
        "Expected speed-up against γ", told, axes, range(0, 17, 2), ("γ", "times plain decoding"), body
    )


def swept(outcome: Outcome) -> dict[int, Sums]:
    """γ → its units, for the γ of the sweep, upward."""
    gammas = sorted(sweep_scores(outcome.units, outcome.drafter))
    return {gamma: sums(outcome.units, Variant(gamma, outcome.drafter)) for gamma in gammas}


def _listed(points: Sequence[Point]) -> str:
    return ", ".join(f"γ {x:g} {y:.2f}" for x, y in points) or "nothing yet"
