"""The board after the race: what came of it, the replay with the texts, the table of numbers. Pure functions.

Every text is written here as escaped spans, one a round, each with the time at which it came. The page's script
plays them by hiding those that have not come yet; without a script they are simply all there.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from specchat.decode.stats import Stats
from specchat.lab.race import Race, Run, Spread
from specchat.lab.words import REASONS, nothing_drafted, percent
from specchat.ui.panels import DASH, seconds
from specchat.ui.race_view import shared_line
from specchat.ui.race_words import factor, headline, lane_line, rate, verdict

SPEEDS = ("0.25", "0.5", "1", "2", "4")


def result(race: Race, prompt: str, repeat: int = 0, system: str = "") -> str:
    """The whole board. repeat: whose texts and times are shown and replayed. system: the system prompt, if any."""
    ended = _ended(race)
    if not race.runs:
        return ended
    return (
        f'<section class="sc-race" aria-label="Result of the race">{ended}{_headlines(race)}'
        f"{_asked(race, prompt, system)}{_replay(race, repeat)}{_verdicts(race, repeat)}{_table(race)}</section>"
    )


def _ended(race: Race) -> str:
    """A race that did not come to its end says so first."""
    kept = "What had finished is kept below." if race.runs else "No lane had finished."
    if race.problem:
        return f'<p class="sc-error" role="alert"><b>The race failed.</b> {escape(race.problem)} {kept}</p>'
    if race.cancelled:
        return f'<p class="sc-note">The race was stopped. {kept}</p>'
    return ""


def _headlines(race: Race) -> str:
    said = "".join(
        f"<p>{escape(headline(race, lane))}</p>" for lane in range(1, len(race.lanes)) if race.of(lane)
    )
    return f'<div class="sc-race-headline">{said}</div>' if race.of(0) else ""


def _asked(race: Race, prompt: str, system: str) -> str:
    shared = escape(shared_line(race.lanes, race.seed))
    shared += " Each further repeat has the next seed." if race.repeats > 1 else ""
    before = f'<p>System prompt:</p><p class="sc-race-system">{escape(system)}</p>' if system else ""
    before += "<p>Prompt:</p>" if system else ""
    return (
        f'<details class="sc-race-asked"><summary>Prompt and settings</summary>{before}<p class="sc-race-prompt">'
        f"{escape(prompt)}</p><p>{shared}</p></details>"
    )


# -- the replay ------------------------------------------------------------------------------------


def _replay(race: Race, repeat: int) -> str:
    runs = race.heat(repeat)
    if not runs:
        return ""
    end = max(run.stats.elapsed_s for run in runs)
    speeds = "".join(
        f'<option value="{value}"{" selected" if value == "1" else ""}>{value}×</option>' for value in SPEEDS
    )
    controls = (
        '<div class="sc-race-controls" data-race="controls" role="group" aria-label="Replay" hidden>'
        '<button type="button" data-race="play">Play</button>'
        '<button type="button" data-race="restart">Restart</button>'
        '<button type="button" data-race="skip">Skip to the end</button>'
        f'<label>Speed <select data-race="speed">{speeds}</select></label>'
        '<input type="range" min="0" max="1000" value="1000" data-race="seek" aria-label="Place in the replay">'
        f'<span data-race="clock">{end:.1f} s of {end:.1f} s</span></div>'
    )
    lanes = "".join(_lane(race, run) for run in runs)
    return (
        f'<div class="sc-race-replay sc-race-over" data-end="{end:.4f}">{controls}'
        f'<div class="sc-race-lanes" data-count="{len(runs)}">{lanes}</div></div>'
    )


def _lane(race: Race, run: Run) -> str:
    lane, stats = race.lanes[run.lane], run.stats
    finished = run.sample.finished
    notice = f'<p class="sc-note">{escape(finished.notice)}</p>' if finished and finished.notice else ""
    look = "sc-target" if not lane.settings.gamma else "sc-draft"
    return (
        f'<article class="sc-race-lane" data-seconds="{stats.elapsed_s:.4f}"><header><h3>Lane {escape(lane.name)}</h3>'
        f'<p class="sc-race-line">{escape(lane_line(lane.settings))}</p>'
        f'<p class="sc-race-now"><b data-lane="speed">{rate(stats.tok_per_s)}</b> tok/s</p>'
        f'<p class="sc-race-count" data-lane="count">{stats.emitted} tokens in {seconds(stats.elapsed_s)}</p>'
        f'<div class="sc-race-track"><i class="{look}" data-lane="bar" style="width:100%"></i></div></header>'
        f'<div class="sc-race-text" tabindex="0" role="group" aria-label="Text of lane {escape(lane.name)}">'
        f"{_text(race, run)}</div>{notice}</article>"
    )


def _text(race: Race, run: Run) -> str:
    """A span a round. Where another lane's text parts from this one, a flag stands before the token."""
    flags = _flags(race, run)
    place, parts = 0, []
    for beat in run.beats:
        inner = ""
        for piece in beat.pieces:
            inner += _piece(piece, flags.get(place, []))
            place += 1
        if beat is run.beats[-1]:
            inner += escape(run.tail)
        parts.append(f'<span data-at="{beat.at:.4f}" data-n="{len(beat.pieces)}">{inner}</span>')
    return "".join(parts)


def _flags(race: Race, run: Run) -> dict[int, list[tuple[str, str]]]:
    """Place → what the flags there say, each with the lane whose difference it shows."""
    flags: dict[int, list[tuple[str, str]]] = {}
    for other in race.heat(run.repeat):
        found = race.compared(other.lane, run.repeat)
        if found is None or found.place is None or found.verdict == "cut":
            continue
        mine, base = race.lanes[other.lane].name, race.lanes[0].name
        if run.lane == other.lane:
            flags.setdefault(found.place, []).append((mine, f"differs from {base} here"))
        elif run.lane == 0:
            flags.setdefault(found.place, []).append((mine, f"{mine} differs here"))
    return flags


def _piece(piece: str, flags: list[tuple[str, str]]) -> str:
    if not flags:
        return escape(piece)
    said = "".join(
        f'<b class="sc-race-flag" data-parts="{escape(name)}">{escape(text)}</b>' for name, text in flags
    )
    return f'{said}<mark class="sc-race-mark">{escape(piece)}</mark>'


# -- texts and numbers -----------------------------------------------------------------------------


def _verdicts(race: Race, repeat: int) -> str:
    rows = []
    for run in race.heat(repeat):
        found = race.compared(run.lane, repeat)
        if found is None:
            continue
        short, long = verdict(race.lanes, found)
        name = escape(race.lanes[run.lane].name)
        button = ""
        if found.place is not None and found.verdict != "cut":
            button = (
                f' <button type="button" class="sc-race-show" data-reveal="{name}">Show the place</button>'
            )
        rows.append(
            f'<div data-verdict="{found.verdict}"><dt>Lane {name}: {escape(short)}</dt>'
            f"<dd>{escape(long)}{button}</dd></div>"
        )
    return f'<h3>Texts</h3><dl class="sc-race-verdicts">{"".join(rows)}</dl>' if rows else ""


Number = Callable[[Stats], float]


def _table(race: Race) -> str:
    """A column for each lane: it fits a narrow screen."""
    lanes = range(len(race.lanes))
    head = "".join(f'<th scope="col">Lane {escape(race.lanes[lane].name)}</th>' for lane in lanes)
    rows = [
        ("Speed-up", "tok/s over lane A's in the same repeat.", [_gain(race, lane) for lane in lanes]),
        _row(race, "Tokens a second", "Tokens after the first round over the seconds after it.", lambda s: s.tok_per_s, rate),
        _row(race, "Time to first token", "From the request to the end of its first round, the prompt read anew.",
             lambda s: s.first_token_s, seconds),
        _row(race, "Total time", "From the request to the end of its last round.", lambda s: s.elapsed_s, seconds),
        _row(race, "Tokens", "Emitted tokens, the end token included.", lambda s: s.emitted, _whole),
        ("Ended", "How the replies ended.", [_endings(race, lane) for lane in lanes]),
        _row(race, "Tokens a round", "Emitted tokens over rounds, 1 to γ + 1. A round is one forward of the target.",
             lambda s: s.tokens_per_round, lambda value: f"{value:.2f}"),
        ("Acceptance", "Accepted proposals over those that the target judged.", [_acceptance(race, lane) for lane in lanes]),
        _row(race, "Target forwards", "One a round; reading the prompt is not counted.", lambda s: s.target_forwards, _whole),
        _row(race, "Draft forwards", "Forwards of the draft model; n-grams cost none.",
             lambda s: s.draft_forwards, _whole),
    ]  # fmt: skip
    body = "".join(
        f'<tr title="{escape(tip)}"><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells)
        + "</tr>"
        for name, tip, cells in rows
    )
    counts = {len(race.of(lane)) for lane in lanes}
    note = (
        "One run of each lane: a spread is not known. Repeat the race to see how much it varies."
        if counts <= {0, 1}
        else "Medians over the repeats, with the smallest and the largest value. Texts and replay are those of one repeat."
    )
    return (
        f'<h3>Numbers</h3><div class="sc-race-scroll"><table class="sc-race-table"><thead><tr><td></td>{head}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><p class="sc-race-foot">{note}{_lengths(race)}</p>'
    )


def _row(
    race: Race, name: str, tip: str, number: Number, show: Callable[[float], str]
) -> tuple[str, str, list[str]]:
    return name, tip, [_spread(race.spread(lane, number), show) for lane in range(len(race.lanes))]


def _spread(found: Spread | None, show: Callable[[float], str]) -> str:
    if found is None:
        return DASH
    middle, low, high = show(found.median), show(found.low), show(found.high)
    if low == high:
        return escape(middle)
    return f"{escape(middle)} <small>{escape(low)} to {escape(high)}</small>"


def _gain(race: Race, lane: int) -> str:
    if lane == 0:
        return "1×" if race.of(0) else DASH
    return _spread(race.gain(lane), factor)


def _acceptance(race: Race, lane: int) -> str:
    runs = race.of(lane)
    if runs and not any(run.stats.drafted for run in runs):
        return escape(nothing_drafted(runs[0].stats))
    return _spread(race.spread(lane, lambda stats: stats.acceptance_rate), percent)


def _endings(race: Race, lane: int) -> str:
    found = {REASONS[run.sample.finished.reason] for run in race.of(lane) if run.sample.finished is not None}
    return escape("; ".join(sorted(found))) or DASH


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _lengths(race: Race) -> str:
    """Replies of different lengths: their total times do not compare."""
    for repeat in range(race.repeats):
        if len({run.stats.emitted for run in race.heat(repeat)}) > 1:
            return " The lanes' replies differ in length, so compare tokens a second rather than total time."
    return ""
