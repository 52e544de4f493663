"""The recommendation: which setting, how sure that is, and why, in words made of measured numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.lab.tune_bed import Unit
from specchat.lab.tune_plan import PLAIN, Plan, Variant
from specchat.lab.tune_probe import Prediction
from specchat.lab.tune_sums import sums
from specchat.lab.tune_sweep import DRAFTERS, SWEEP, Check, check, gap, score, sweep_scores

PAYS = 1.02
"""Below this speed-up, and within noise of plain decoding, speculation is not worth recommending."""

NOISY = 0.15
"""Noise of the speed-up beyond which a person is told that the figures are uncertain."""

SHORT = 0.05
"""Proposals a round may lack on average and still count as γ of them: n-grams and last rounds propose fewer."""

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
            "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set. gamma 0: off. reason: one sentence; remarks: what else a person should know (ties, the check)."""

    gamma: int
    drafter: str
    speedup: float
    tok_per_s: float
    headline: str
    reason: str
    remarks: tuple[str, ...] = ()
    checked: Check | None = None


def advise(plan: Plan, drafter: str, prediction: Prediction, units: Sequence[Unit]) -> Advice:
    """From the units of a complete run."""
    plain = sums(units, PLAIN)
    scores = sweep_scores(units, drafter)
    if not scores:
        return Advice(
            0, "", 1.0, plain.tok_per_s, "Speculation stays off.",
            "This pair cannot speculate: it has no drafter, or its target's state cannot be rolled back.",
        )  # fmt: skip
    checked = check(prediction, scores) if plan.exhaustive else None
    best = max(scores, key=lambda gamma: scores[gamma])
    # An exhaustive run puts the guided choice to the test; it stands as long as it passes.
    gamma = checked.chosen if checked is not None and checked.holds else best
    chosen, wave = Variant(gamma, drafter), SWEEP
    better = _better_drafter(units, chosen)
    remarks = [*_ties(units, chosen, scores), *_other_drafters(units, chosen)]
    if better is not None:
        chosen, wave = better, DRAFTERS
        remarks = _other_drafters(units, chosen)
    if checked is not None:
        remarks.append(checked.sentence)
    speedup, measured = score(units, chosen, wave), sums(units, chosen, wave)
    against = gap(units, chosen, PLAIN, wave)
    if against.noise > NOISY:
        remarks.append(
            "The figures vary much from run to run: the run was short, or the machine busy. Run it again when it is "
            "quiet, or with more prompts and seeds."
        )
    if speedup <= 1 or (speedup < PAYS and not against.sure):
        return _off(units, chosen, wave, speedup, tuple(remarks), checked)
    name = f"γ {chosen.gamma} with the drafter {chosen.drafter}"
    uncertain = f", ± {against.noise:.0%}" if against.noise < 1 else ""
    headline = f"{name}: {speedup:.2f}× plain decoding{uncertain} ({measured.tok_per_s:.1f} tok/s, median)."
    reason = _reason(units, chosen, wave, scores)
    return Advice(
        chosen.gamma, chosen.drafter, speedup, measured.tok_per_s, headline, reason, tuple(remarks), checked
    )


def _off(
    units: Sequence[Unit],
    chosen: Variant,
    wave: str,
    speedup: float,
    remarks: tuple[str, ...],
    checked: Check | None,
) -> Advice:
    plain, best = sums(units, PLAIN, wave), sums(units, chosen, wave)
    reason = (
        f"The best that was measured, γ {chosen.gamma} with the drafter {chosen.drafter}, is {speedup:.2f}× plain: a round "
        f"takes {1e3 * best.round_s:.1f} ms, of which drafting is {best.draft_share:.0%}, and gives "
        f"{best.tokens_per_round:.2f} tokens; plain decoding writes {best.round_s / plain.round_s:.2f} in that time."
    )
    return Advice(
        0,
        chosen.drafter,
        1.0,
        plain.tok_per_s,
        "Speculation off: it does not pay here.",
        reason,
        remarks,
        checked,
    )


def _reason(units: Sequence[Unit], chosen: Variant, wave: str, scores: dict[int, float]) -> str:
    here, gamma = sums(units, chosen, wave), chosen.gamma
    each, share = f"{1e3 * here.draft_per_token:.1f} ms", f"{here.draft_share:.0%} of the round"
    parts = [
        f"γ {gamma}: draft {each} × {gamma} is {share}"
        if here.mean_drafted > gamma - SHORT
        else f"γ {gamma}: a round drafts {here.mean_drafted:.1f} tokens on average, {each} each, which is {share}"
    ]
    if gamma + 1 in scores and chosen.drafter in {u.drafter for u in units if u.gamma == gamma + 1}:
        parts.append(_one_more(units, Variant(gamma, chosen.drafter), scores))
    if gamma > 1:
        last = here.kept_at(gamma - 1)
        parts.append(f"its {ORDINALS[gamma - 1]} proposal is kept {last:.0%} of the time")
    return "; ".join(parts) + "."


def _one_more(units: Sequence[Unit], chosen: Variant, scores: dict[int, float]) -> str:
    """What a further proposal would bring and cost, both measured at γ + 1."""
    gamma = chosen.gamma
    here, there = sums(units, chosen), sums(units, Variant(gamma + 1, chosen.drafter))
    kept = there.kept_at(gamma)
    cost = there.round_s - here.round_s
    saved = kept * here.round_s / here.tokens_per_round
    name = ORDINALS[gamma]
    article = "an" if name[0] in "aeiou" else "a"
    said = f"{article} {name} proposal is kept {kept:.0%} of the time"
    if cost > saved:
        return f"{said} and costs more than it saves ({1e3 * cost:.1f} ms against {1e3 * saved:.1f} ms)"
    behind = 1 - scores[gamma + 1] / scores[gamma]
    return f"{said}, and with it the measured speed is {max(0.0, behind):.1%} lower"


def _ties(units: Sequence[Unit], chosen: Variant, scores: dict[int, float]) -> list[str]:
    """Other γ that the measurement cannot tell from the chosen one."""
    close = [
        gamma
        for gamma in scores
        if gamma != chosen.gamma and not gap(units, chosen, Variant(gamma, chosen.drafter)).sure
    ]
    if not close:
        return []
    listed = ", ".join(f"{gamma} ({scores[gamma]:.2f}×)" for gamma in close)
    return [
        f"Within the noise of this run, γ {listed} cannot be told from γ {chosen.gamma} ({scores[chosen.gamma]:.2f}×); "
        "more prompts or seeds would."
    ]


def _drafter_scores(units: Sequence[Unit]) -> dict[Variant, float]:
    variants = dict.fromkeys(u.variant for u in units if u.wave == DRAFTERS and u.gamma)
    return {variant: score(units, variant, DRAFTERS) for variant in variants}


def _better_drafter(units: Sequence[Unit], chosen: Variant) -> Variant | None:
    """Another drafter that is faster at the same γ by more than noise."""
    found = {v: s for v, s in _drafter_scores(units).items() if v.gamma == chosen.gamma and v != chosen}
    best = max(found, key=lambda variant: found[variant], default=None)
    if best is None:
        return None
    difference = gap(units, best, chosen, DRAFTERS)
    return best if difference.sure and difference.factor > 1 else None


def _other_drafters(units: Sequence[Unit], chosen: Variant) -> list[str]:
    found = _drafter_scores(units)
    others = [f"{v.drafter} {s:.2f}×" for v, s in found.items() if v.drafter != chosen.drafter]
    if not others:
        return []
    gamma = next(iter(found)).gamma
    mine = next((s for v, s in found.items() if v.drafter == chosen.drafter), 0.0)
    return [f"Drafters at γ {gamma}, measured together: {chosen.drafter} {mine:.2f}×, {', '.join(others)}."]
