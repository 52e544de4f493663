"""Which γ to measure next, and how the measured ones compare: functions of the units and the prediction alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specchat.decode.engine import MAX_GAMMA
from specchat.lab.tune_bed import Unit
from specchat.lab.tune_plan import EXHAUSTIVE, PLAIN, Plan, Variant
from specchat.lab.tune_probe import Prediction

SWEEP = "sweep"
"""Waves of the sweep are called sweep 1, sweep 2, …; each has its own plain runs to be compared with."""

DRAFTERS = "drafters"

SLACK = 1.05
"""A γ could win unless even this much more than the prediction, put right by what was measured, is too little."""

SURE = (12.7, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Standard errors beyond which a difference is more than noise, by the degrees of freedom (95 % of Student's t)."""

SURE_OF_MANY = 2.1

SMALLEST_NOISE = 0.01
"""Differences below this are noise however often they were measured."""


def ratios(
    units: Iterable[Unit], variant: Variant, wave: str = SWEEP
) -> dict[tuple[str, str, str, int], float]:
    """Speed over plain decoding, by (category, wave, prompt, seed): both sides from the same unit of the same wave."""
    plain: dict[tuple[str, str, int], float] = {}
    found: dict[tuple[str, str, str, int], float] = {}
    chosen = [unit for unit in units if unit.wave.startswith(wave)]
    for unit in chosen:
        if unit.variant == PLAIN:
            plain[unit.wave, unit.prompt, unit.seed] = unit.tok_per_s
    for unit in chosen:
        base = plain.get((unit.wave, unit.prompt, unit.seed), 0.0)
        if unit.variant == variant and base > 0:
            found[unit.category, unit.wave, unit.prompt, unit.seed] = unit.tok_per_s / base
    return found


def score(units: Iterable[Unit], variant: Variant, wave: str = SWEEP, category: str | None = None) -> float:
    """The mean over the categories of the median ratio in each, so that none counts more for having more runs. 0: none."""
    by_category: dict[str, list[float]] = {}
    for (kind, *_), value in ratios(units, variant, wave).items():
        if category in (None, kind):
            by_category.setdefault(kind, []).append(value)
    return statistics.fmean(map(statistics.median, by_category.values())) if by_category else 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """How much faster one variant is than another, as a factor, and the noise of that (± the same way, 95 %)."""

    factor: float
    noise: float

    @property
    def sure(self) -> bool:
        """More than noise."""
        return abs(math.log(self.factor)) > self.noise


def gap(units: Sequence[Unit], one: Variant, other: Variant, wave: str = SWEEP) -> Gap:
    """From the pairs (prompt, seed) that both have: the geometric mean of their quotients."""
    mine, theirs = _by_place(units, one, wave), _by_place(units, other, wave)
    logs = [
        math.log(mine[place] / theirs[place])
        for place in mine
        if mine[place] > 0 and theirs.get(place, 0) > 0
    ]
    if not logs:
        return Gap(1.0, math.inf)
    if len(logs) == 1:
        return Gap(math.exp(logs[0]), math.inf)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    sure = SURE[len(logs) - 2] if len(logs) - 2 < len(SURE) else SURE_OF_MANY
    return Gap(math.exp(statistics.fmean(logs)), max(SMALLEST_NOISE, sure * error))


def _by_place(units: Sequence[Unit], variant: Variant, wave: str) -> dict[tuple[str, int], float]:
    """(prompt, seed) → ratio to plain, averaged over waves; plain itself is 1 everywhere."""
    found: dict[tuple[str, int], list[float]] = {}
    for (_, _, prompt, seed), value in ratios(units, variant, wave).items():
        found.setdefault((prompt, seed), []).append(value)
    return {place: statistics.fmean(values) for place, values in found.items()}


def opening(plan: Plan, prediction: Prediction) -> tuple[int, ...]:
    """The γ of the first wave: those asked for; all of 1 to 8; or 1 and the predicted best with two on each side."""
    if plan.exhaustive:
        return EXHAUSTIVE
    if plan.gammas:
        return tuple(sorted(set(plan.gammas)))
    return guided_opening(prediction)


def stage_gamma(plan: Plan, prediction: Prediction) -> int:
    """γ of the stages before the sweep: as asked for, else the best of the sweep's by prediction."""
    return plan.gamma or max(opening(plan, prediction), key=prediction.speedup)


def first_wave(plan: Plan, prediction: Prediction, drafter: str) -> list[Variant]:
    """Plain decoding, the draft's sampling misaligned, aligned, and the first γ of the sweep, each once."""
    if not drafter:
        return [PLAIN]
    at = stage_gamma(plan, prediction)
    stages = [Variant(at, drafter, misaligned=True)] if has_law(drafter) else []
    swept = [Variant(gamma, drafter) for gamma in opening(plan, prediction)]
    return list(dict.fromkeys([PLAIN, *stages, Variant(at, drafter), *swept]))


def has_law(drafter: str) -> bool:
    """Whether it draws from a law of its own, which may be aligned or not: n-grams propose with certainty."""
    return bool(drafter) and drafter != "ngram"


def guided_opening(prediction: Prediction, limit: int = MAX_GAMMA) -> tuple[int, ...]:
    """1, and the predicted best with its two neighbours on each side."""
    best = prediction.best(limit)
    return tuple(gamma for gamma in range(1, limit + 1) if gamma == 1 or abs(gamma - best) <= 2)


def following(prediction: Prediction, scores: Mapping[int, float], limit: int = MAX_GAMMA) -> tuple[int, ...]:
    """The γ to measure next, () when none could win any more.

    scores: γ → speed over plain, measured. The best one's neighbours are always measured, so that a wrong
    prediction cannot end the climb; the ones behind them only where the curve says that they could win. So it ends
    where the trend has turned on both sides.
    """
    best = max(scores, key=lambda gamma: scores[gamma])
    wanted = [best - 1, best + 1]
    wanted += [gamma for gamma in (best - 2, best + 2) if could_win(prediction, scores, gamma)]
    found = [gamma for gamma in wanted if 1 <= gamma <= limit and gamma not in scores]
    return tuple(sorted(found))


def could_win(prediction: Prediction, scores: Mapping[int, float], gamma: int) -> bool:
    """Whether the predicted curve, lifted to where it was exceeded most, reaches the best measured speed at γ."""
    if gamma < 1:
        return False
    lift = max(value / prediction.speedup(at) for at, value in scores.items())
    return prediction.speedup(gamma) * lift * SLACK >= max(scores.values())


def guided(prediction: Prediction, measured: Mapping[int, float]) -> tuple[int, ...]:
    """The γ that a guided sweep would have measured, replayed on a run that measured more."""
    limit = max(measured)
    scores = {g: measured[g] for g in guided_opening(prediction, limit) if g in measured}
    while more := [g for g in following(prediction, scores or dict(measured), limit) if g in measured]:
        scores |= {gamma: measured[gamma] for gamma in more}
    return tuple(sorted(scores))


def sweep_scores(units: Sequence[Unit], drafter: str) -> dict[int, float]:
    """γ → speed over plain, for every γ of the sweep that has any measured unit."""
    gammas = sorted(
        {u.gamma for u in units if u.wave.startswith(SWEEP) and u.variant == Variant(u.gamma, drafter)}
    )
    return {g: found for g in gammas if g and (found := score(units, Variant(g, drafter)))}


@dataclass(frozen=True, slots=True)
class Check:
    """How near the guided sweep comes to the best of every γ, in one run. shortfall: 0.03 is 3 % slower."""

    visited: tuple[int, ...]
    chosen: int
    best: int
    shortfall: float

    @property
    def holds(self) -> bool:
        """Within 3 %."""
        return self.shortfall <= 0.03

    @property
    def sentence(self) -> str:
        """For people."""
        visited = ", ".join(map(str, self.visited))
        apart = "the same" if self.chosen == self.best else f"{self.shortfall:.1%} faster"
        verdict = "within the 3 % asked for" if self.holds else "more than the 3 % allowed"
        return (
            f"Check: a guided sweep measures γ {visited} and chooses {self.chosen}; the best of every γ measured is "
            f"{self.best}, {apart}: {verdict}."
        )


def check(prediction: Prediction, scores: Mapping[int, float]) -> Check:
    """The guided sweep against everything measured."""
    visited = guided(prediction, scores)
    chosen = max(visited, key=lambda gamma: scores[gamma])
    best = max(scores, key=lambda gamma: scores[gamma])
    return Check(visited, chosen, best, max(0.0, scores[best] / scores[chosen] - 1))
