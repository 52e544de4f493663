"""The proof that speculation changes nothing: greedy texts compared, and the law of the first tokens tested.

Everything runs over the pair's own models with the settings in force, the guard left out. What is proved is stated with its limits:
so many tokens of so many texts, and a law up to a distance that a sample of this size would have noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specchat.decode.stats import Stats
from specchat.lab.agreement import Parting, parting
from specchat.lab.measure import measure, prompt_ids
from specchat.lab.proof_law import sampled
from specchat.lab.proof_plan import GreedyRow, Plan, Progress, Proof, spelled

if TYPE_CHECKING:
    from specchat.pair import Pair

Cancelled = Callable[[], bool]
Put = Callable[[object], None]


def prove(pair: Pair, plan: Plan, cancelled: Cancelled, put: Put) -> Proof:
    """Runs the plan; puts `Progress` and the growing `Proof`. Raises RuntimeError when the target fails."""
    proof = Proof(plan)
    if plan.greedy:
        for place, (name, text) in enumerate(plan.prompts):
            if cancelled():
                break
            put(Progress(f"Greedy text {place + 1} of {len(plan.prompts)}", place / len(plan.prompts)))
            row = greedy_row(pair, name, prompt_ids(pair, text, max_new_tokens=plan.tokens), plan, cancelled)
            if not cancelled():
                proof.greedy.append(row)
            put(proof)
    if plan.law and not cancelled():
        name, text = plan.prompts[0]
        proof.law = sampled(pair, name, prompt_ids(pair, text), plan, cancelled, put)
    proof.stopped = cancelled()
    return proof


def greedy_row(pair: Pair, name: str, ids: Sequence[int], plan: Plan, cancelled: Cancelled) -> GreedyRow:
    """One prompt with temperature 0, on and off. After a tie both go on from the same side of it."""
    on = replace(plan.on, sampling=replace(plan.on.sampling, temperature=0.0))
    prefix, left, compared, stats = list(ids), plan.tokens, 0, Stats()
    ties: list[Parting] = []
    while left > 0 and not cancelled():
        settings = replace(on, max_new_tokens=left)
        ours = measure(pair, prefix, settings, cancelled, stats.add, cold=False)
        plain = measure(pair, prefix, replace(settings, gamma=0), cancelled, cold=False)
        if cancelled():
            break
        found = parting(pair, prefix, ours.ids, plain.ids, on.sampling)
        if found is None:
            return GreedyRow(name, compared + len(ours.ids), tuple(ties), None, stats)
        compared += found.place
        if not found.tie:
            wrote = [spelled(pair, [] if i is None else [i]) for i in (found.first, found.second)]
            return GreedyRow(name, compared, tuple(ties), found, stats, (wrote[0], wrote[1]))
        ties.append(replace(found, place=compared))
        if found.second in pair.eos_ids:
            break
        prefix += plain.ids[: found.place + 1]
        left -= found.place + 1
    return GreedyRow(name, compared, tuple(ties), None, stats)
