"""Benchmark results → tables and a plot. Ratios are medians over the prompts and seeds that both have run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path

from specchat.lab.bench import Result

ALL = "all"


def speeds(results: Sequence[Result], contestant: str, category: str = ALL) -> list[float]:
    """tok/s of each run."""
    return [r.tok_per_s for r in results if r.contestant == contestant and category in (ALL, r.category)]


def ratios(results: Sequence[Result], contestant: str, against: str, category: str = ALL) -> list[float]:
    """Speed over another contestant's, unit by unit: same prompt, same seed, same few minutes."""
    base = {(r.prompt, r.seed): r.tok_per_s for r in results if r.contestant == against}
    return [
        r.tok_per_s / base[r.prompt, r.seed]
        for r in results
        if r.contestant == contestant and (r.prompt, r.seed) in base and category in (ALL, r.category)
    ]


def categories(results: Sequence[Result]) -> list[str]:
    """The categories, in the order of their first result."""
    return list(dict.fromkeys(r.category for r in results))


def ratio(results: Sequence[Result], contestant: str, against: str) -> float:
    """The mean over the categories of the median ratio in each: no category counts more for having more runs."""
    medians = [
        statistics.median(found)
        for c in categories(results)
        if (found := ratios(results, contestant, against, c))
    ]
    return statistics.fmean(medians) if medians else 0.0


def table(results: Sequence[Result], baseline: str) -> str:
    """Markdown: a row for each contestant; tok/s with quartiles, speed over the baseline, in all and by category."""
    names = list(dict.fromkeys(r.contestant for r in results))
    kinds = categories(results)
    head = [
        "",
        "runs",
        "tok/s (quartiles)",
        f"over {baseline}",
        *kinds,
        "tokens/round",
        "accepted",
        "first kept",
    ]
    rows = [head, ["---"] * len(head)]
    for name in names:
        found = speeds(results, name)
        low, middle, high = _quartiles(found)
        by_kind = [_median(ratios(results, name, baseline, kind)) for kind in kinds]
        over = ratio(results, name, baseline)
        rows.append(
            [
                name,
                str(len(found)),
                f"{middle:.1f} ({low:.1f}–{high:.1f})",
                f"{over:.2f}×" if over else "–",
                *by_kind,
                *_counts(results, name),
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _counts(results: Sequence[Result], name: str) -> list[str]:
    def total(key: str) -> float:
        return sum(r.counts.get(key, 0.0) for r in results if r.contestant == name)

    tokens, rounds, drafted = total("emitted"), total("rounds"), total("drafted")
    return [
        f"{tokens / rounds:.2f}" if rounds else "–",
        f"{total('accepted') / drafted:.0%}" if drafted else "–",
        f"{total('first_kept') / total('first_offered'):.0%}" if total("first_offered") else "–",
    ]


def time_split(results: Sequence[Result], name: str) -> dict[str, float]:
    """Seconds a round in each part, over all runs of a contestant."""
    rounds = sum(r.counts.get("rounds", 0.0) for r in results if r.contestant == name)
    parts = ("draft_s", "verify_s", "sample_s", "host_s")
    return {
        part: sum(r.counts.get(part, 0.0) for r in results if r.contestant == name) / rounds
        if rounds
        else 0.0
        for part in parts
    }


def plot(results: Sequence[Result], baseline: str, path: Path) -> None:
    """Bars of tok/s by contestant, medians with quartiles as lines, as an SVG file."""
    names = list(dict.fromkeys(r.contestant for r in results))
    quartiles = {name: _quartiles(speeds(results, name)) for name in names}
    left, wide, row = max(190, 16 + 7 * max(map(len, names))), 420, 34
    scale = wide / max(1e-9, *(high for _, _, high in quartiles.values()))
    rows = []
    for place, (name, (low, middle, high)) in enumerate(quartiles.items()):
        y = 14 + place * row
        over = f"{ratio(results, name, baseline):.2f}×" if name != baseline else "baseline"
        rows.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{left}" y="{y}" width="{middle * scale:.1f}" height="20" fill="#0f6e8c"/>'
            f'<line x1="{left + low * scale:.1f}" x2="{left + high * scale:.1f}" y1="{y + 10}" y2="{y + 10}" stroke="#b45309"/>'
            f'<text x="{left + high * scale + 6:.1f}" y="{y + 14}">{middle:.1f} tok/s, {over}</text>'
        )
    height = 24 + row * len(names)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 150}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(rows)}</svg>\n",
        encoding="utf-8",
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        only = values[0] if values else 0.0
        return only, only, only
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}×" if values else "–"
