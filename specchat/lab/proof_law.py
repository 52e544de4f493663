"""The sampling test: the first tokens after one prefix, drawn again and again, on and off, against the exact law."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specchat.chat.stream import text_of
from specchat.decode.drafters import read_prompt, reuse
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Round
from specchat.decode.sampling import Sampling, checked, probs
from specchat.decode.stats import Stats
from specchat.lab.measure import measure
from specchat.lab.proof_plan import ALPHA, Cell, Plan, Progress, SampledLaw, spelled
from specchat.lab.proof_stats import Key, Test, against_law, two_samples

if TYPE_CHECKING:
    from specchat.pair import Pair

LEAD = 24
"""The law is tested inside these first tokens of a plain reply, at the place where the next is least certain."""

BRANCHES = 32
"""Most first ids after which the exact law of the second is computed: a forward each."""

LIKELY = 0.005
"""First ids less likely than this are not followed; they share a cell."""

Cancelled = Callable[[], bool]
Put = Callable[[object], None]


def sampled(
    pair: Pair, name: str, ids: Sequence[int], plan: Plan, cancelled: Cancelled, put: Put
) -> SampledLaw:
    """Draws the first tokens after one prefix again and again, on and off in turns, each with its own seed."""
    put(Progress("Choosing a place where the next token is uncertain", 0.0))
    sampling = plan.settings.sampling
    prefix = uncertain_place(pair, ids, plan, cancelled)
    law = SampledLaw(name, text_of(pair.tokenizer, prefix[-16:]), plan.first)
    depth = min(plan.first, 2)
    exact = {} if cancelled() else exact_law(pair, prefix, sampling, depth, cancelled)
    law.exact_first = depth if exact else 0
    # One engine for all draws, so that adaptive γ gets beyond its first rounds; not the chat's.
    engine = Engine(pair.target, pair.engine.drafters, pair.eos_ids)
    began = time.monotonic()
    while law.n < plan.samples and not cancelled():
        law.seconds = time.monotonic() - began
        if law.seconds > plan.seconds:
            break
        seeds = (plan.seed + 2 * law.n, plan.seed + 2 * law.n + 1)
        on = first_ids(engine, prefix, plan.on, plan.first, seeds[0], law.stats)
        off = first_ids(engine, prefix, replace(plan.on, gamma=0), plan.first, seeds[1], Stats())
        law.on[on] += 1
        law.off[off] += 1
        law.n += 1
        if law.n % 20 == 0:
            share = max(law.seconds / plan.seconds, law.n / plan.samples)
            put(Progress(f"{law.n} samples on and {law.n} off", min(1.0, share)))
    law.tests = tests_of(law, exact)
    law.cells = cells_of(pair, law, exact)
    return law


def uncertain_place(pair: Pair, ids: Sequence[int], plan: Plan, cancelled: Cancelled) -> list[int]:
    """The prompt with as much of a plain reply as leads to the largest entropy of the next token."""
    plain = replace(
        plan.settings, gamma=0, max_new_tokens=LEAD, sampling=replace(plan.settings.sampling, seed=plan.seed)
    )
    reply = measure(pair, ids, plain, cancelled).ids
    while reply and reply[-1] in pair.eos_ids:
        reply.pop()
    whole = [*ids, *reply]
    if plain.sampling.greedy or not pair.target.can_rollback:
        return whole[: len(ids)]
    with torch.inference_mode():
        reuse(pair.target, whole[: len(ids)])
        read_prompt(pair.target, whole[: len(ids)])
        logits = pair.target.forward(whole[len(pair.target.ids) :])[-len(reply) - 1 :].cpu()
        p = checked(probs(logits, whole, plain.sampling))
        place = int(torch.special.entr(p).sum(-1).argmax())
    return whole[: len(ids) + place]


def first_ids(
    engine: Engine, prefix: Sequence[int], settings: Settings, first: int, seed: int, stats: Stats
) -> Key:
    """The first ids of one reply. γ is not clipped to so short a reply: it stops by itself after them."""
    settings = replace(
        settings,
        max_new_tokens=first + settings.gamma + 1,
        sampling=replace(settings.sampling, seed=seed),
    )
    drawn: list[int] = []
    told = 0

    def enough(token: int) -> bool:
        nonlocal told
        told += 1
        return told >= first

    for event in engine.generate(list(prefix), lambda: settings, enough):
        if isinstance(event, Round):
            stats.add(event)
            # From the round, as an end of the reply is not told to `enough`.
            drawn += [token.id for token in event.tokens]
        elif event.reason == "error":
            raise RuntimeError(event.notice)
    return tuple(drawn[:first])


@torch.inference_mode()
def exact_law(
    pair: Pair, prefix: Sequence[int], sampling: Sampling, depth: int, cancelled: Cancelled
) -> dict[Key, float]:
    """Probabilities of the likeliest first one or two ids, from the target's own logits: a forward for each prefix."""

    def after(ids: list[int]) -> torch.Tensor:
        reuse(pair.target, ids)
        read_prompt(pair.target, ids)
        logits = pair.target.forward(ids[len(pair.target.ids) :])[-1:].cpu()
        return checked(probs(logits, ids, sampling))[0].double()

    row = after(list(prefix))
    values, ids = row.topk(min(BRANCHES, row.shape[-1]))
    firsts = [(int(i), float(p)) for p, i in zip(values, ids, strict=True) if p > 0]
    if depth == 1:
        return {(i,): p for i, p in firsts}
    law: dict[Key, float] = {}
    for token, p in firsts:
        if p < LIKELY or cancelled():
            continue
        if token in pair.eos_ids:
            law[(token,)] = p
            continue
        seconds = after([*prefix, token])
        likely = seconds.topk(min(BRANCHES, seconds.shape[-1]))
        law |= {
            (token, int(i)): p * float(q) for q, i in zip(likely.values, likely.indices, strict=True) if q > 0
        }
    return law


def tests_of(law: SampledLaw, exact: dict[Key, float]) -> tuple[Test, ...]:
    """On against off; and each against the exact law of its first ids."""
    count = 3 if exact else 1
    alpha = ALPHA / count
    found = [two_samples("on against off", law.on, law.off, alpha)]
    if exact:
        for name, counts in (("on", law.on), ("off", law.off)):
            found.append(against_law(f"{name} against the exact law", heads(counts, exact), exact, alpha))
    return tuple(found)


def heads(counts: Counter[Key], exact: dict[Key, float]) -> Counter[Key]:
    """Counts by as many first ids as the exact law has."""
    depth = max(map(len, exact), default=1)
    found: Counter[Key] = Counter()
    for key, count in counts.items():
        found[key[:depth]] += count
    return found


def cells_of(pair: Pair, law: SampledLaw, exact: dict[Key, float], most: int = 12) -> tuple[Cell, ...]:
    """The outcomes to show: the likeliest by the exact law, or by how often they came."""
    on, off = (heads(law.on, exact), heads(law.off, exact)) if exact else (law.on, law.off)
    order = sorted({*on, *off, *exact}, key=lambda key: (-exact.get(key, 0.0), -on[key] - off[key]))
    shown = [key for key in order if on[key] or off[key] or exact.get(key, 0) > 0.01][:most]
    return tuple(
        Cell(spelled(pair, key), on[key], off[key], exact.get(key) if exact else None) for key in shown
    )
