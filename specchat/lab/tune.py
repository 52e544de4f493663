"""A tuning run: probe and prediction, then the stages in waves, then the prefix cache, then a recommendation.

Within a unit (a prompt with a seed) every variant of a wave takes its turn, and who begins rotates, so that a drift
of the machine's speed meets all alike; each wave has its own plain runs. What the record holds is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from specchat.chat.template import PromptTooLong
from specchat.lab.suite import Prompt
from specchat.lab.tune_advice import Advice, advise
from specchat.lab.tune_bed import Bed, Cancelled, Turn, Unit
from specchat.lab.tune_plan import PLAIN, Plan, Variant
from specchat.lab.tune_probe import Prediction
from specchat.lab.tune_record import Record
from specchat.lab.tune_sweep import DRAFTERS, SWEEP, first_wave, following, stage_gamma, sweep_scores


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done, and how far. seconds_left None: not known yet."""

    doing: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run has found so far. advice: as soon as nothing is missing."""

    plan: Plan
    identity: Mapping[str, str]
    drafter: str
    progress: Progress
    prediction: Prediction | None = None
    units: tuple[Unit, ...] = ()
    turns: tuple[Turn, ...] = ()
    advice: Advice | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Nothing is missing."""
        return self.advice is not None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a person should know about the run as a whole."""
        found = self.facts.get("remarks")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def gamma(self) -> int:
        """γ of the stages before the sweep."""
        return 0 if self.prediction is None else stage_gamma(self.plan, self.prediction)


Put = Callable[[Outcome], None]


class Tuning:
    """One run over a bed; `run` may be stopped and another Tuning goes on with the same record."""

    def __init__(
        self, bed: Bed, plan: Plan, record: Record, cancelled: Cancelled, put: Put,
        facts: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self.bed, self.plan, self.record = bed, plan, record
        self.cancelled, self.put = cancelled, put
        self.facts = facts or {}
        named = plan.drafter if plan.drafter in bed.drafters else ""
        self.drafter = named or next(iter(bed.drafters), "")
        self._done = {unit.place for unit in record.units}
        self._began, self._fresh = time.monotonic(), 0
        self._warm = False

    def run(self) -> Outcome:
        """All of it; what there is when it was stopped."""
        if self._predict() and self._waves() and self._cache():
            self.record.finish()
        outcome = self.outcome("Done" if self.record.complete else "Stopped")
        self.put(outcome)
        return outcome

    def outcome(self, doing: str) -> Outcome:
        """What there is now."""
        record = self.record
        advice = None
        if record.complete and record.prediction is not None:
            advice = advise(self.plan, self.drafter, record.prediction, record.units)
        done = len(record.units)
        total = max(done, self._total())
        plan, remarks = self._affordable()
        return Outcome(
            plan, self.bed.identity, self.drafter, Progress(doing, done, total, self._left(total - done)),
            record.prediction, tuple(record.units), tuple(record.turns), advice, {**self.facts, "remarks": remarks},
        )  # fmt: skip

    # -- the parts --------------------------------------------------------------------------------

    def _predict(self) -> bool:
        if self.record.prediction is None:
            self.put(self.outcome("Probing: a few dozen rounds, to predict from"))
            found = self.bed.probe(self.plan, self.drafter, self.cancelled)
            if found is None:
                return False
            self.record.add(found)
            self._warm = True
        self.put(self.outcome("Predicted"))
        return True

    def _waves(self) -> bool:
        return all(self._wave(name, variants) for name, variants in self._plan_waves())

    def _plan_waves(self) -> Iterator[tuple[str, Sequence[Variant]]]:
        """Each wave follows from what was measured before it, so a continued run comes to the same ones."""
        assert self.record.prediction is not None
        first = first_wave(self.plan, self.record.prediction, self.drafter)
        yield f"{SWEEP} 1", first
        count, asked = 1, {variant.gamma for variant in first}
        while self.drafter and not (self.plan.exhaustive or self.plan.gammas):
            scores = sweep_scores(self.record.units, self.drafter)
            more = [g for g in following(self.record.prediction, scores) if g not in asked] if scores else []
            if not more:
                break
            count += 1
            asked.update(more)
            yield f"{SWEEP} {count}", [PLAIN, *(Variant(gamma, self.drafter) for gamma in more)]
        others = [name for name in self.bed.drafters if name != self.drafter]
        scores = sweep_scores(self.record.units, self.drafter)
        if others and scores:
            best = max(scores, key=lambda gamma: scores[gamma])
            yield DRAFTERS, [PLAIN, *(Variant(best, name) for name in (self.drafter, *others))]

    def _wave(self, name: str, variants: Sequence[Variant]) -> bool:
        """False when it was stopped inside."""
        for place, (prompt, seed) in enumerate(self._affordable()[0].units()):
            turn = place % len(variants)
            for variant in [*variants[turn:], *variants[:turn]]:
                if (name, variant.key, prompt.id, seed) in self._done:
                    continue
                if not self._unit(name, variant, prompt, seed):
                    return False
        return True

    def _unit(self, name: str, variant: Variant, prompt: Prompt, seed: int) -> bool:
        if not self._warm:
            self.bed.warm_up(self.plan, self.drafter)
            self._warm = True
        if not self._fresh:
            self._began = time.monotonic()  # the probe before it says nothing of how long units take
        if self.cancelled():
            return False
        found = self.bed.unit(self.plan, name, variant, prompt, seed, self.cancelled)
        if found is None:
            return False
        self.record.add(found)
        self._done.add(found.place)
        self._fresh += 1
        self.put(self.outcome(f"Measuring: {variant.key}, prompt {prompt.id}"))
        return True

    def _cache(self) -> bool:
        """The script, once for each seed."""
        scores = sweep_scores(self.record.units, self.drafter)
        variant = Variant(max(scores, key=lambda g: scores[g]), self.drafter) if scores else PLAIN
        for seed in self.plan.seeds:
            if any(turn.seed == seed for turn in self.record.turns):
                continue
            self.put(self.outcome("Prefix cache: a conversation with and without it"))
            try:
                found = self.bed.turns(self.plan, variant, seed, self.cancelled)
            except PromptTooLong:
                return True  # a context too short for this conversation has no figures for it
            if found is None:
                return False
            self.record.add(found)
        return True

    # -- how far ----------------------------------------------------------------------------------

    def _total(self) -> int:
        """Units in all, as far as is known: the first wave, what later ones have had, and that of the drafters."""
        if self.record.prediction is None:
            return 0
        later = sum(unit.wave not in (f"{SWEEP} 1", DRAFTERS) for unit in self.record.units)
        return self._affordable()[0].size * self._variants() + later

    def _variants(self) -> int:
        """Of the first wave and of that of the drafters."""
        assert self.record.prediction is not None
        others = len(self.bed.drafters) + 1 if len(self.bed.drafters) > 1 else 0
        return len(first_wave(self.plan, self.record.prediction, self.drafter)) + others

    def _affordable(self) -> tuple[Plan, list[str]]:
        """The plan, and the remarks, with the prompts for which there is time; the same again when a run goes on."""
        remarks = [str(remark) for remark in cast("list[object]", self.facts.get("remarks", []))]
        if self.record.prediction is None:
            return self.plan, remarks
        plan = self.plan.affordable(self.record.prediction.plain_s, self._variants())
        if out := len(self.plan.prompts) - len(plan.prompts):
            remarks.append(
                f"The machine is slow or busy: {out} of {len(self.plan.prompts)} prompts were left out to keep the run "
                "short, so there is more noise."
            )
        return plan, remarks

    def _left(self, units: int) -> float | None:
        if not self._fresh:
            return None
        return (time.monotonic() - self._began) / self._fresh * units
