"""The live panel: statistics → HTML strings. Pure functions; nothing here knows Gradio.

Every figure keeps its height whatever it shows, carries its numbers as text for those who do not see
it, and tells the draft's part from the target's by pattern as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from specchat.decode.stats import Stats
from specchat.lab.words import percent
from specchat.ui.meter import Meter, Tick

if TYPE_CHECKING:
    from specchat.pair import Memory

DASH = "–"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The measured plain step that speed-ups are told against: seconds (0: not measured), and where it was measured."""

    step_s: float = 0.0
    source: str = ""


def live_panel(
    meter: Meter, gamma: int, memory: Memory | None, plain: Yardstick, chosen: bool = False
) -> str:
    """The whole panel. gamma: of the settings now in force, so that an idle panel has its bars already.

    chosen: these settings leave γ to measurements, so there is a line for the choice.
    """
    stats = meter.stats
    # A histogram that has the bars of the reply's largest γ never jumps while streaming.
    top = max(gamma, stats.largest_gamma)
    return (
        '<section class="sc-panel" aria-label="Live statistics of the last reply">'
        + _speed(meter)
        + _verdict(meter, gamma, plain)
        + (choice_line(meter) if chosen else "")
        + _keys(stats)
        + lengths_figure(stats, top)
        + places_figure(stats, top)
        + rounds_figure(meter.ticks, top, _changed(meter))
        + time_figure(stats)
        + memory_figure(memory)
        + "</section>"
    )


def _speed(meter: Meter) -> str:
    stats = meter.stats
    big = speed(stats.tok_per_s) if stats.rounds else DASH
    now = (
        f"{speed(meter.just_now)} in the last 3 s"
        if stats.rounds > 1
        else "no reply yet"
        if not stats.rounds
        else ""
    )
    return (
        '<div class="sc-speed" title="Tokens after the first round, divided by the seconds after it. '
        'Measured in the engine; reading the prompt is not counted.">'
        f'<span class="sc-big{"" if stats.rounds else " sc-none"}">{big}</span> <span class="sc-unit">tok/s</span>'
        f'<span class="sc-sub">{now}</span></div>'
    )


def _verdict(meter: Meter, gamma: int, plain: Yardstick) -> str:
    """One or two sentences on whether speculation pays, from measurements only."""
    without = f"{speed(1 / plain.step_s)} tok/s" if plain.step_s > 0 else ""
    gain = meter.speed_up(plain.step_s) or 0.0
    verdict = meter.verdict(plain.step_s) if meter.stats.rounds else "early" if gamma else "off"
    advice = "Try a smaller γ, or switch it off." if gamma > 1 else "Switch it off."
    text = {
        "off": "Speculation is off: the target writes every token itself.",
        "early": "Speculation is on. Too few rounds yet to say whether it pays.",
        "unknown": "Not compared: plain decoding has not been measured. Switch speculation off for one reply.",
        "wins": f"Speculation pays: {gain:.2f}× plain ({without}).",
        "even": f"Speculation makes no difference: {gain:.2f}× plain ({without}).",
        "loses": f"Speculation loses: {gain:.2f}× plain ({without}). {advice}",
    }[verdict]
    tip = ""
    if plain.step_s > 0:
        tip = (
            f"Plain decoding: {plain.step_s * 1000:.1f} ms a token, {plain.source}. Compared with the tokens of "
            "this reply over the time spent inside its rounds; time between rounds counts in neither."
        )
    return f'<p class="sc-verdict" data-verdict="{verdict}" title="{escape(tip)}">{escape(text)}</p>'


def choice_line(meter: Meter) -> str:
    """γ of the last round and why, when measurements choose it. Of one height, whatever it says."""
    why = meter.choice
    if not why:
        return '<p class="sc-choice" data-choice="none"><b>γ is chosen by measurements.</b> Nothing measured yet.</p>'
    state = "rest" if why.startswith("Speculation is resting") else "on"
    return f'<p class="sc-choice" data-choice="{state}" title="{escape(why)}"><b>γ {meter.gamma} now:</b> {escape(why)}</p>'


def _keys(stats: Stats) -> str:
    some = stats.rounds > 0
    rows = [
        (
            "tokens / round",
            f"{stats.tokens_per_round:.2f}" if some else DASH,
            "Emitted tokens divided by rounds.",
        ),
        (
            "acceptance",
            percent(stats.acceptance_rate) if stats.drafted else DASH,
            "Accepted proposals divided by the proposals that the target judged.",
        ),
        (
            "first token",
            seconds(stats.first_token_s) if some else DASH,
            "From sending to the end of the first round.",
        ),
        ("rounds", f"{stats.rounds}" if some else DASH, "One round is one forward of the target."),
    ]
    cells = "".join(
        f'<div title="{escape(tip)}"><dt>{name}</dt><dd>{value}</dd></div>' for name, value, tip in rows
    )
    return f'<dl class="sc-keys">{cells}</dl>'


def lengths_figure(stats: Stats, gamma: int) -> str:
    """Rounds by accepted length: γ + 1 bars and their mean, over the rounds that had a proposal."""
    counts = stats.histogram(gamma)
    most, rounds = max(counts), sum(counts)
    mean = stats.accepted / rounds if rounds else 0.0
    bars = "".join(
        f'<div class="sc-col" title="{length} accepted: {count} of {rounds} rounds">'
        f'<i class="sc-bar {"sc-target" if length == 0 else "sc-draft"}" style="height:{_share(count, most)}"></i></div>'
        for length, count in enumerate(counts)
    )
    mark = ""
    if rounds:
        mark = f'<b class="sc-mean" style="left:{(mean + 0.5) / len(counts) * 100:.1f}%"></b>'
    spoken = f"Accepted length per round. Mean {mean:.2f}. " + ", ".join(
        f"{i}: {n} rounds" for i, n in enumerate(counts)
    )
    note = f"mean {mean:.2f}, marked" if rounds else "nothing proposed yet" if gamma else "speculation off"
    return _figure(
        "Accepted length",
        note,
        spoken,
        f'<div class="sc-cols sc-tall">{bars}{mark}</div>',
        range(len(counts)),
    )


def places_figure(stats: Stats, gamma: int) -> str:
    """Acceptance at each place of the block, among the rounds where everything before it was kept."""
    rows = stats.by_position()
    places = max(gamma, len(rows), 1)
    cols, spoken = [], []
    for place in range(places):
        offered, reached, kept = rows[place] if place < len(rows) else (0, 0, 0)
        rate = kept / reached if reached else 0.0
        tip = (
            f"place {place + 1}: kept {kept} of {reached} judged there, {offered} proposed" if offered else ""
        )
        bar = f'<i class="sc-bar sc-draft" style="height:{rate * 100:.0f}%"></i>' if reached else ""
        cols.append(f'<div class="sc-col sc-track" title="{tip}">{bar}</div>')
        spoken.append(f"{place + 1}: {percent(rate) if reached else 'none'}")
    label = "Acceptance by place in the block. " + ", ".join(spoken)
    body = f'<div class="sc-cols sc-tall">{"".join(cols)}</div>'
    return _figure("Acceptance by place", "where all before it were kept", label, body, range(1, places + 1))


def rounds_figure(ticks: Sequence[Tick], gamma: int, note: str) -> str:
    """The last rounds as columns: what the draft wrote below, what the target wrote on top."""
    height = max([gamma + 1, *(tick.emitted for tick in ticks)])
    cols = []
    for tick in ticks:
        mark = " sc-changed" if tick.changed else ""
        cols.append(
            f'<div class="sc-tick{mark}" title="{tick.emitted} tokens, {tick.accepted} accepted'
            f'{", new settings from here" if tick.changed else ""}">'
            f'<i class="sc-target" style="height:{_share(tick.emitted - tick.accepted, height)}"></i>'
            f'<i class="sc-draft" style="height:{_share(tick.accepted, height)}"></i></div>'
        )
    spoken = "Tokens of the last rounds: " + ", ".join(str(tick.emitted) for tick in ticks)
    body = f'<div class="sc-strip">{"".join(cols)}</div>'
    legend = (
        '<div class="sc-legend"><span><i class="sc-key sc-draft"></i>written by the draft</span>'
        '<span><i class="sc-key sc-target"></i>written by the target</span></div>'
    )
    return _figure("Last rounds", note, spoken, body + legend)


def _changed(meter: Meter) -> str:
    if not meter.changes:
        return "one column a round"
    last = meter.changes[-1]
    return f"new settings from round {last.round + 1}, {last.at:.1f} s"


def time_figure(stats: Stats) -> str:
    """Mean milliseconds of a round in drafting, verifying, sampling and the rest of the host's work."""
    split, rounds = stats.time_split(), max(stats.rounds, 1)
    total = sum(split.values())
    looks = {"draft": "sc-draft", "verify": "sc-target", "sample": "sc-light", "host": "sc-grey"}
    parts = [
        (name, spent, looks[name], f"{spent / rounds * 1000:.1f} ms" if total else DASH)
        for name, spent in split.items()
    ]
    note = f"mean {total / rounds * 1000:.0f} ms" if total else DASH
    return _bar("Time of a round", note, parts, total)


def memory_figure(memory: Memory | None) -> str:
    """Weights, caches, the rest of this process, and what is free: of the GPU, or of this machine's memory."""
    looks = ("sc-target", "sc-draft", "sc-light", "sc-grey", "sc-free")
    names = ("target weights", "draft weights", "caches", "other", "free")
    if memory is None:
        return _bar("Memory", DASH, [(n, 0.0, look, DASH) for n, look in zip(names, looks, strict=True)], 0.0)
    other = max(0, memory.used - memory.target_weights - memory.draft_weights - memory.caches)
    sizes = (memory.target_weights, memory.draft_weights, memory.caches, other, memory.free)
    note = f"{size(memory.used)} {'VRAM in use' if memory.kind == 'VRAM' else 'RSS of this process'}"
    parts = [(n, float(s), look, size(s)) for n, s, look in zip(names, sizes, looks, strict=True)]
    return _bar("Memory", note, parts, float(sum(sizes)))


def _figure(title: str, note: str, spoken: str, body: str, ticks: range | None = None) -> str:
    axis = ""
    if ticks is not None:
        axis = (
            '<div class="sc-cols sc-axis" aria-hidden="true">'
            + "".join(f"<span>{i}</span>" for i in ticks)
            + "</div>"
        )
    return (
        f'<figure class="sc-fig"><figcaption><b>{escape(title)}</b><span>{escape(note)}</span></figcaption>'
        f'<div role="img" aria-label="{escape(spoken)}">{body}</div>{axis}</figure>'
    )


def _bar(title: str, note: str, parts: Sequence[tuple[str, float, str, str]], total: float) -> str:
    """One stacked bar with its legend. parts: name, amount, look, the amount in words."""
    pieces = "".join(
        f'<i class="{look}" style="width:{_share(amount, total)}" title="{name} {said}"></i>'
        for name, amount, look, said in parts
    )
    keys = "".join(
        f'<span><i class="sc-key {look}"></i>{name} <em>{said}</em></span>' for name, _, look, said in parts
    )
    spoken = f"{title}: " + ", ".join(f"{name} {said}" for name, _, _, said in parts)
    return _figure(
        title, note, spoken, f'<div class="sc-stack">{pieces}</div><div class="sc-legend">{keys}</div>'
    )


def _share(part: float, whole: float) -> str:
    return f"{part / whole * 100:.1f}%" if whole > 0 else "0%"


def seconds(value: float) -> str:
    """Seconds with three digits at most: "85 ms", "4.2 s", "2 min 5 s"."""
    if value < 0.995:
        return f"{value * 1000:.0f} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    return f"{round(value) // 60} min {round(value) % 60} s"


def speed(tok_per_s: float) -> str:
    """Tokens a second with three digits: "71.3", "250"."""
    return f"{tok_per_s:.1f}" if tok_per_s < 99.95 else f"{tok_per_s:.0f}"


def size(amount: float) -> str:
    """Bytes in decimal units: "98 MB", "1.2 GB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= scale:
            value = amount / scale
            return f"{value:.1f} {unit}" if value < 10 and unit == "GB" else f"{value:.0f} {unit}"
    return f"{amount:.0f} B"
