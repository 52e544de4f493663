"""A tuning run on the loaded pair, from the terminal and from the page alike: record, run, remember."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.chat.template import PromptTooLong
from specchat.lab import tune_record
from specchat.lab.bench import environment
from specchat.lab.measure import prompt_ids
from specchat.lab.tune import Outcome, Tuning
from specchat.lab.tune_bed import PairBed
from specchat.lab.tune_memory import remember
from specchat.lab.tune_plan import PLAIN, Plan, Variant
from specchat.lab.tune_sums import categories, sums
from specchat.lab.tune_sweep import ratios, score
from specchat.lab.tune_table import lines
from specchat.model.store import cache_root

if TYPE_CHECKING:
    from specchat.pair import Pair

KEPT = 20
"""Records that are kept in the cache; the oldest go."""


def tune(
    pair: Pair,
    plan: Plan,
    path: Path | None,
    cancelled: Callable[[], bool] = lambda: False,
    put: Callable[[Outcome], None] = lambda outcome: None,
) -> Outcome:
    """Runs what the record at `path` does not hold yet (None: nothing is kept on the disk), in the calling thread.

    A finished run's recommendation is remembered. Prompts that do not fit into the context are left out, with a
    note. Raises ValueError with a sentence when none fits, and for a record of another pair or plan.
    """
    bed = PairBed(pair)
    plan, notes = fitting(pair, plan)
    facts = {**environment(), "notes": list(pair.notes), "remarks": notes}
    record = tune_record.open_record(path, plan, bed.identity, facts)
    fresh = not record.complete
    outcome = Tuning(bed, plan, record, cancelled, put, facts).run()
    if fresh and outcome.advice is not None:
        said, kept = list(outcome.remarks), True
        try:
            remember(bed.identity, plan.sampling, outcome.advice)
        except OSError as problem:
            said.append(f"The recommendation could not be remembered: {problem}.")
            kept = False
        outcome = replace(outcome, facts={**outcome.facts, "remarks": said, "remembered": kept})
    return outcome


def fitting(pair: Pair, plan: Plan) -> tuple[Plan, list[str]]:
    """The plan without the prompts that the context has no room for, and a note of how many those are."""
    kept, problem = [], None
    for prompt in plan.prompts:
        try:
            prompt_ids(pair, prompt.text, max_new_tokens=plan.tokens)
            kept.append(prompt)
        except PromptTooLong as found:
            problem = found
    if problem is None:
        return plan, []
    if not kept:
        raise ValueError(f"No prompt fits into the context of this pair. {problem}")
    out = len(plan.prompts) - len(kept)
    said = "1 prompt was" if out == 1 else f"{out} prompts were"
    return replace(plan, prompts=tuple(kept)), [f"{said} left out: too long for the context of this pair."]


def folder(cache_dir: str | None = None) -> Path:
    """Where records lie unless another place is named."""
    return cache_root(cache_dir) / "tune"


def new_record(where: Path) -> Path:
    """A path for a new record; the oldest ones are removed. Raises OSError when the folder cannot be made."""
    where.mkdir(parents=True, exist_ok=True)
    records = sorted(where.glob("*.jsonl"), key=lambda path: path.name)
    for old in records[: max(0, len(records) - KEPT + 1)]:
        old.unlink(missing_ok=True)
    return where / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.jsonl"


def unfinished(identity: Mapping[str, str], where: Path) -> tuple[Path, Plan] | None:
    """The newest record of this pair that something is missing from; None without any."""
    for path in sorted(where.glob("*.jsonl"), key=lambda path: path.name, reverse=True):
        try:
            plan, whose, record = tune_record.read(path)
        except ValueError:
            continue
        if whose == dict(identity):
            return None if record.complete else (path, plan)
    return None


def data(outcome: Outcome) -> dict[str, object]:
    """Everything about a run, for `--json`."""
    advice, prediction = outcome.advice, outcome.prediction
    kinds = categories(outcome.units)
    return {
        "version": 1,
        "complete": outcome.complete,
        "pair": dict(outcome.identity),
        "drafter": outcome.drafter,
        "plan": outcome.plan.data(),
        "environment": dict(outcome.facts),
        "prediction": None
        if prediction is None
        else {
            **asdict(prediction),
            "best": prediction.best(),
            "curve": [
                {"gamma": g, "tok_per_s": prediction.tok_per_s(g), "speedup": prediction.speedup(g),
                 "accepted_length": prediction.accepted(g)}
                for g in range(17)
            ],
        },
        "stages": [
            {
                "stage": line.stage,
                "change": line.change,
                **_figures(outcome, line.variant, line.wave, None),
                "categories": {kind: _figures(outcome, line.variant, line.wave, kind) for kind in kinds},
            }
            for line in lines(outcome)
        ],
        "prefix_cache": [asdict(turn) for turn in outcome.turns],
        "recommendation": None if advice is None else asdict(advice),
        "units": [asdict(unit) for unit in outcome.units],
    }  # fmt: skip


def _figures(outcome: Outcome, variant: Variant, wave: str, kind: str | None) -> dict[str, object]:
    found = sums(outcome.units, variant, wave, kind)
    low, middle, high = found.quartiles
    paired = ratios(outcome.units, variant, wave)
    return {
        "gamma": variant.gamma,
        "drafter": variant.drafter,
        "misaligned": variant.misaligned,
        "runs": len(found.units),
        "mean_accepted_length": found.mean_accepted,
        "tokens_per_round": found.tokens_per_round,
        "target_forwards": found.target_forwards,
        "draft_forwards": found.draft_forwards,
        "tok_per_s": middle,
        "tok_per_s_quartiles": [low, high],
        "speedup": 1.0 if variant == PLAIN else score(outcome.units, variant, wave, kind),
        "speedups": [value for (category, *_), value in paired.items() if kind in (None, category)],
        "draft_s_per_round": found.draft_s,
        "round_s": found.round_s,
        "memory_bytes": found.memory,
    }
