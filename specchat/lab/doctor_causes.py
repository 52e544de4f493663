"""Causes within decoding: draft, sampling, γ, verification. What shows each, from which number on, and what helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specchat.lab.doctor_chart import Chart, Finding, Remedy, ms, ratio
from specchat.lab.doctor_evidence import LEAST_GAIN, Rates
from specchat.lab.words import percent

GOOD_STEP = 0.10
"""A proposal for at most this much of a plain step is cheap."""

GOOD_CHANCE = 0.6
"""Proposals kept this often are usual for a draft that suits its target and the text."""

GOOD_VERIFY = 1.3
"""A whole block verified for at most this many times the single row is nearly free."""

CLEARLY = 1.08
"""By so much another drafter must be faster in a short trial to be recommended."""

Cause = Callable[[Chart], Finding | None]


def misaligned(chart: Chart) -> Finding | None:
    """The draft is sampled otherwise than the target."""
    if not chart.evidence.misaligned:
        return None
    if chart.evidence.aligned:
        after = chart.base
        known = f"; sampled as the target is, {percent(after.alpha)} on the same text"
    else:
        after, known = chart.now.with_chance(GOOD_CHANCE), ""
    cost = chart.share(chart.now.token_s(chart.gamma) - after.token_s(chart.gamma))
    return Finding(
        "misaligned",
        "The draft is sampled otherwise than the target",
        f"{percent(chart.now.alpha)} of the proposals that were judged were kept{known}. A draft that draws by another "
        "temperature or filter proposes what the target would not.",
        f"{percent(chart.now.alpha)} kept",
        f"{percent(after.alpha)} kept when aligned" if known else "the same sampling for both",
        cost,
        Remedy("Sample the draft with the target's own settings.", {"draft_sampling": None}),
        estimate=not known,
    )


def gamma(chart: Chart) -> Finding | None:
    """Another γ would be faster with everything else as it is."""
    settings, best = chart.evidence.settings, chart.best_gamma
    if not chart.pays or settings.adaptive or settings.confidence or settings.gamma in (0, best):
        return None
    cost = chart.share(chart.base.token_s(chart.gamma) - chart.best_s)
    last = chart.base.chances[-1] if chart.base.chances else chart.base.alpha
    tokens, spent = chart.base.tokens(chart.gamma), chart.base.token_s(chart.gamma)
    remedy = Remedy(
        f"Set γ to {best}: about {ratio(chart.plain_s / chart.best_s)} plain is expected.", {"gamma": best}
    )
    measured = f"γ {chart.gamma}, {ms(spent)} a token"
    threshold = f"γ {best}, {ms(chart.best_s)} expected"
    if best < chart.gamma:
        return Finding(
            "gamma-long",
            f"γ is too long: {chart.gamma} proposals a round",
            f"A round of {chart.gamma} proposals gives {tokens:.2f} tokens; a round of {best} gives "
            f"{chart.base.tokens(best):.2f} and costs {ms(_round_s(chart.base, chart.gamma) - _round_s(chart.base, best))} "
            "less.",
            measured,
            threshold,
            cost,
            remedy,
        )
    return Finding(
        "gamma-short",
        f"γ is too short: {chart.gamma} proposals a round",
        f"The last proposal of a round is still kept {percent(last)} of the time when it is reached, and one more "
        f"costs {percent(chart.c)} of a plain step.",
        measured,
        threshold,
        cost,
        remedy,
    )


def switched_off(chart: Chart) -> Finding | None:
    """Speculation is off, although it would gain."""
    if chart.evidence.settings.gamma or not chart.pays:
        return None
    return Finding(
        "off",
        "Speculation is off, and it would gain here",
        f"Plainly a token takes {ms(chart.plain_s)}; with γ {chart.best_gamma} {ms(chart.best_s)} are expected, from "
        f"a trial with γ {chart.gamma}.",
        f"{ms(chart.plain_s)} a token",
        f"{ms(chart.best_s)} expected",
        chart.share(chart.plain_s - chart.best_s),
        Remedy(f"Switch speculation on with γ {chart.best_gamma}.", {"gamma": chart.best_gamma}),
    )


def other_device(chart: Chart) -> Finding | None:
    """The draft runs elsewhere than the target."""
    seen = chart.evidence
    if not _elsewhere(chart):
        return None
    memory = seen.memory
    small = memory.draft_weights / memory.target_weights if memory and memory.target_weights else GOOD_STEP
    step = min(chart.base.draft_s, chart.plain_s * max(0.02, small or GOOD_STEP))
    cost = chart.left_to_gain(_with_step(chart.base, step))
    return Finding(
        "device",
        "The draft runs on another device than the target",
        f"The target is on {seen.target_device}, the draft on {seen.draft_device}; a proposal takes "
        f"{ms(chart.base.draft_s)}, {percent(chart.c)} of a plain step, and crosses over each time.",
        f"draft on {seen.draft_device}",
        f"target on {seen.target_device}",
        cost,
        Remedy(
            f"Put the draft on {seen.target_device} too: load the pair with one --device for both, in the Models tab or "
            "when starting. If they do not both fit there, choose smaller weights."
        ),
    )


def slow_draft(chart: Chart) -> Finding | None:
    """A proposal costs too much of a target step."""
    if chart.c <= GOOD_STEP or _elsewhere(chart):
        return None
    limit = _break_even_step(chart)
    return Finding(
        "slow-draft",
        "The draft's step is too slow for this target",
        f"A proposal takes {ms(chart.base.draft_s)}, a plain step of the target {ms(chart.plain_s)}: a ratio of "
        f"{chart.c:.2f}. With {percent(chart.base.alpha)} of the proposals kept, speculation gains only below {limit:.2f}.",
        f"ratio {chart.c:.2f}",
        f"below {limit:.2f} to gain, {GOOD_STEP:.2f} is good",
        chart.left_to_gain(_with_step(chart.base, GOOD_STEP * chart.plain_s)),
        _another(chart, "Choose a smaller draft, or n-grams, which cost nothing."),
    )


def weak_draft(chart: Chart) -> Finding | None:
    """The target turns too many proposals down, or there is nothing to propose."""
    rates = chart.base
    if chart.evidence.vocabulary or (rates.alpha >= GOOD_CHANCE and rates.offered >= 0.5):
        return None
    cost = chart.left_to_gain(rates.with_chance(GOOD_CHANCE))
    remedy = _another(chart, "Choose a draft of the target's own family, or one trained for it.")
    if rates.offered < 0.5:
        chosen = chart.evidence.settings.adaptive
        return Finding(
            "weak-draft",
            "The drafter seldom has anything worth proposing"
            if chosen
            else "The drafter seldom has anything to propose in this text",
            f"Only {percent(rates.offered)} of the rounds had a proposal. "
            + (
                "Adaptive γ leaves out what is unlikely to be kept."
                if chosen
                else "N-grams can only repeat what the text holds."
            ),
            f"{percent(rates.offered)} of the rounds",
            "at least 50 %",
            cost,
            remedy,
        )
    limit = _break_even_chance(chart)
    return Finding(
        "weak-draft",
        "The draft is too weak for this text",
        f"{percent(rates.alpha)} of the proposals that were judged were kept. At what drafting and verifying cost here, "
        f"speculation gains only above {limit}.",
        f"{percent(rates.alpha)} kept",
        f"above {limit} to gain, {percent(GOOD_CHANCE)} is good",
        cost,
        remedy,
    )


def verification(chart: Chart) -> Finding | None:
    """A block costs the target much more than a single row."""
    if chart.v <= GOOD_VERIFY:
        return None
    rows, one = chart.gamma + 1, chart.base.verify(1)
    return Finding(
        "verification",
        "Verifying costs more with every proposal",
        f"The target needs {ms(one)} for one row and {ms(chart.base.verify(rows))} for the {rows} rows of a block with "
        f"γ {chart.gamma}: {chart.v:.2f} times as much.",
        f"{chart.v:.2f} times one row",
        f"{GOOD_VERIFY:.1f} times is usual",
        chart.left_to_gain(chart.base.with_flat_verify(GOOD_VERIFY)),
        _another(chart, _packed(chart.evidence.precision)),
    )


def _packed(precision: str) -> str:
    """What the way of multiplying could do about blocks. precision: the pair's, in words."""
    if "FBGEMM" in precision:
        return "The weights are packed already; a smaller γ makes smaller blocks."
    return "A precision with packed weights (--precision auto) reads several rows for little more than one."


ALL: tuple[Cause, ...] = (
    misaligned, other_device, slow_draft, weak_draft, gamma, verification, switched_off,
)  # fmt: skip


def healthy(chart: Chart) -> Finding:
    """Nothing is wrong."""
    rates = chart.base
    return Finding(
        "healthy",
        f"Nothing wrong: speculation gains {ratio(chart.gain)}",
        f"A token takes {ms(chart.now_s)} instead of {ms(chart.plain_s)}. {percent(rates.alpha)} of the judged proposals "
        f"were kept, one costs {percent(chart.c)} of a plain step, and verifying costs {chart.v:.2f} times one row.",
        ratio(chart.gain),
        f"above {ratio(LEAST_GAIN)}",
        0.0,
        Remedy("Nothing to do."),
    )


def even(chart: Chart) -> Finding:
    """It neither gains nor stands out in anything."""
    guard = "The guard is on: it" if chart.evidence.settings.guard else "The guard in the sidebar"
    return Finding(
        "even",
        f"Speculation makes {ratio(chart.gain)} of plain, and no single cause stands out",
        f"A token takes {ms(chart.now_s)}, plainly {ms(chart.plain_s)}. {percent(chart.base.alpha)} of the judged "
        "proposals were kept.",
        ratio(chart.gain),
        f"above {ratio(LEAST_GAIN)}",
        0.0,
        # No button: the doctor measures without the guard, so measuring again would show nothing but noise.
        Remedy(f"Try another text. {guard} lets speculation rest while it loses."),
    )


# -- remedies and small sums ----------------------------------------------------------------------


def _another(chart: Chart, advice: str) -> Remedy:
    """The best of what the page can switch to: another drafter that was tried, or no speculation where none pays."""
    best, change, said = min(chart.best_s, chart.plain_s), {}, ""
    for name, rounds in chart.evidence.others.items():
        rates = Rates.of(rounds, chart.base.verify_s)
        length, spent = rates.best()
        if spent * CLEARLY < best:
            best, change = spent, {"drafter": name, "gamma": length}
            said = f'Use the drafter "{name}" with γ {length}'
    if change:
        return Remedy(f"{said}: about {ratio(chart.plain_s / best)} plain is expected. {advice}", change)
    if not chart.pays and chart.evidence.settings.gamma:
        return Remedy(f"Switch speculation off for such texts. {advice}", {"gamma": 0})
    return Remedy(advice)


def _elsewhere(chart: Chart) -> bool:
    """Whether the draft that is in use is a model on another device."""
    seen = chart.evidence
    return bool(seen.draft_device) and seen.draft_device != seen.target_device and chart.c > GOOD_STEP / 2


def _with_step(rates: Rates, step: float) -> Rates:
    return replace(rates, draft_s=min(rates.draft_s, step))


def _round_s(rates: Rates, length: int) -> float:
    return rates.token_s(length) * rates.tokens(length)


def _break_even_step(chart: Chart) -> float:
    """The largest draft-step ratio at which some γ is as fast as plain decoding."""
    free = _with_step(chart.base, 0.0)
    room = [
        (chart.plain_s * free.tokens(g) - _round_s(free, g)) / (g * max(free.offered, 1e-9)) for g in range(1, 17)
    ]  # fmt: skip
    return max(0.0, max(room) / chart.plain_s)


def _break_even_chance(chart: Chart) -> str:
    """The smallest α, the same at all places, at which some γ is as fast as plain decoding; in words."""

    def gains(alpha: float) -> bool:
        return replace(chart.base, chances=(), alpha=alpha).best()[1] < chart.plain_s

    least = next((a for a in range(1, 101) if gains(a / 100)), None)
    return f"{least} %" if least is not None else "no share at all"
