"""What is said about a race, in plain sentences without markup: settings, speed-ups, verdicts on texts."""

from __future__ import annotations

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.lab.race import Lane, Race, Spread
from specchat.lab.race_texts import Comparison, Wrote
from specchat.lab.words import REASONS, percent
from specchat.ui.panels import speed
from specchat.ui.sidebar import DRAFTERS

NO_SPREAD = 0.02
"""A speed-up nearer to 1 than this is called no difference, as nobody would notice it."""


def lane_line(settings: Settings) -> str:
    """What a lane runs with, as far as lanes may differ."""
    if not settings.gamma:
        return "speculation off: the target alone"
    parts = [f"γ\u00a0{settings.gamma}", DRAFTERS.get(settings.drafter, settings.drafter or "no drafter")]
    if settings.adaptive:
        parts[0] = f"γ adaptive, up to\u00a0{settings.gamma}"
    if settings.confidence > 0:
        parts.append(f"draft stops below {settings.confidence:.2f}")
    if settings.guard:
        parts.append("guard on")
    if settings.draft_sampling is not None:
        parts.append(f"draft sampled at {law_line(settings.draft_sampling)}")
    return ", ".join(parts)


def law_line(sampling: Sampling) -> str:
    """The law of the text: temperature and what filters it."""
    if sampling.greedy:
        parts = ["temperature 0 (greedy)" if sampling.top_k != 1 else "top-k 1 (greedy)"]
    else:
        parts = [f"temperature {sampling.temperature:g}"]
        parts += [f"top-k {sampling.top_k}"] if sampling.top_k else []
        parts += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
        parts += [f"min-p {sampling.min_p:g}"] if sampling.min_p > 0 else []
    return ", ".join([*parts, *(["penalties"] if sampling.penalised else [])])


def headline(race: Race, lane: int) -> str:
    """Did it pay? One sentence for a lane against the first."""
    mine, base, gain = race.lanes[lane].name, race.lanes[0].name, race.gain(lane)
    if gain is None:
        return f"Lane {mine} has no finished run to set against lane {base}."
    if gain.count > 1 and gain.low <= 1 <= gain.high:
        verdict = f"Lane {mine} makes no clear difference: {factor(gain.median)} the speed of lane {base}"
    elif abs(gain.median - 1) < NO_SPREAD:
        verdict = f"Lane {mine} makes no difference: {factor(gain.median)} the speed of lane {base}"
    elif gain.median > 1:
        verdict = f"Lane {mine} is faster: {factor(gain.median)} the speed of lane {base}"
    else:
        verdict = f"Lane {mine} is slower: {factor(gain.median)} the speed of lane {base}"
    return f"{verdict} ({spread_line(gain)})."


def spread_line(gain: Spread) -> str:
    """How sure that is."""
    if gain.count == 1:
        return "one run each; how much it varies is not known"
    return f"{gain.low:.2f} to {gain.high:.2f} over {gain.count} repeats"


def factor(value: float) -> str:
    """1.43 → "1.43×"."""
    return f"{value:.2f}×"


def verdict(lanes: tuple[Lane, ...], found: Comparison) -> tuple[str, str]:
    """On a lane's text against the first lane's: a few words, and the explanation."""
    base, mine = lanes[0].name, lanes[found.lane].name
    if found.verdict == "identical":
        return "Identical", f"Lane {mine} wrote what lane {base} wrote, token for token."
    assert found.place is not None
    if found.verdict == "cut":
        how = REASONS[found.reason] if found.reason is not None else "ended"
        return "Same as far as it goes", (
            f"The texts of lanes {base} and {mine} are the same for {found.place} tokens; there the shorter one {how}."
        )  # fmt: skip
    where = f"Lanes {base} and {mine} part at token {found.place + 1}: {base} wrote {quoted(found.first)}"
    where += f", {mine} wrote {quoted(found.other)}."
    if found.verdict == "sampling":
        return "Different because sampling is on", (
            f"{where} The lanes put the same random numbers to other uses, so each draws a text of its own. "
            f"Both follow the target's law; it gave these two tokens {_chance(found.first)} and "
            f"{_chance(found.other)}."
        )
    if found.verdict == "unknown" or found.margin is None:
        return "Not judged", f"{where} The race was stopped before the target could be asked why."
    margin = found.margin
    gap = f"{margin.gap:.2g} apart" if margin.gap < 100 else "far apart"
    best = f"the target's two best tokens lie {gap} there (logits; {percent_fine(margin.p_top)} and {percent_fine(margin.p_second)})"
    limit = f"{margin.tie_below:.2g}"
    if found.verdict == "tie":
        return "A numerical tie", (
            f"{where} {best[0].upper()}{best[1:]}. Below {limit}, rounding decides between them: a verification adds "
            "up in another order than a plain step. Neither text is wrong."
        )
    why = f"only below {limit} would rounding explain it"
    if margin.tie:
        why = "one of the lanes wrote neither of these"
    return "A real difference", (
        f"{where} Sampling is off, and {best}; {why}. This must not happen: "
        "please report it as a fault, with the prompt and these settings."
    )


def quoted(wrote: Wrote | None) -> str:
    """A token's text in quotation marks, line ends made visible."""
    if wrote is None:
        return "nothing"
    if wrote.text == "the end of the reply":
        return wrote.text
    return "“" + wrote.text.replace("\n", "↵").replace("\t", "⇥") + "”"


def _chance(wrote: Wrote | None) -> str:
    if wrote is None:
        return "–"
    return percent(wrote.p) if wrote.p >= 0.01 else percent_fine(wrote.p)


def percent_fine(rate: float) -> str:
    """0.4412 → "44.1 %"."""
    return f"{rate * 100:.1f} %"


def rate(tok_per_s: float) -> str:
    """A speed, or a dash where nothing was measured."""
    return speed(tok_per_s) if tok_per_s > 0 else "–"
