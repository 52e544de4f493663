"""Causes around decoding: memory, the prompt, warming up, vocabularies, and others on the same machine."""

from __future__ import annotations

from specchat.lab.doctor_causes import Cause
from specchat.lab.doctor_chart import Chart, Finding, Remedy, ms, size
from specchat.lab.words import percent

LITTLE_FREE = 0.05
"""Share of the memory below which a system begins to move things out."""

LONG_READING = 0.5
"""Share of a reply's time from which on reading the prompt is what takes long."""

BUSY = 0.5
"""Share of the processors that other programs may use before they are named."""


def memory(chart: Chart) -> Finding | None:
    """Some of it is on disk or elsewhere, or soon will be."""
    seen = chart.evidence
    advice = Remedy("Close other programs, load the pair with a shorter --context, or choose smaller models.")
    if seen.spilled:
        return Finding(
            "memory",
            "The target does not fit on its device",
            f"Some of its weights are on {' and '.join(seen.spilled)} and are fetched for every step.",
            f"weights on {' and '.join(seen.spilled)}",
            f"all of them on {seen.target_device}",
            0.6,
            advice,
            estimate=True,
        )
    if seen.memory is None:
        return None
    ours = max(1, seen.memory.target_weights + seen.memory.draft_weights + seen.memory.caches)
    if seen.swapped > 0.02 * ours:
        return Finding(
            "memory",
            "Memory spills to disk",
            f"The system has moved {size(seen.swapped)} of this program out of memory; weights and caches take "
            f"{size(ours)}.",
            f"{size(seen.swapped)} moved out",
            "none",
            min(0.9, 0.3 + seen.swapped / ours),
            advice,
            estimate=True,
        )
    total = seen.memory.used + seen.memory.free
    if total <= 0 or seen.memory.free / total >= LITTLE_FREE:
        return None
    return Finding(
        "memory",
        "Memory is nearly full",
        f"{size(seen.memory.free)} are free, {percent(seen.memory.free / total)}. When the rest is gone, each step waits "
        "for the disk.",
        f"{percent(seen.memory.free / total)} free",
        f"at least {percent(LITTLE_FREE)}",
        0.15,
        advice,
        estimate=True,
    )


def long_prompt(chart: Chart) -> Finding | None:
    """Reading the prompt takes most of the time; speculation cannot help there."""
    seen = chart.evidence
    if chart.reading < LONG_READING:
        return None
    length = seen.reply_tokens or sum(len(event.tokens) for event in seen.speculative)
    return Finding(
        "short-reply",
        "Replies are too short for the prompt",
        f"Reading {seen.prompt_tokens} tokens takes {seen.prefill_s:.2f} s, {percent(chart.reading)} of a reply of "
        f"{length} tokens. Speculation speeds up writing only.",
        f"{percent(chart.reading)} of the time is reading",
        f"below {percent(LONG_READING)}",
        chart.reading,
        Remedy(
            "Go on in the same conversation: what was read stays in the cache, and only the new turn is read. Or let "
            "the replies be longer."
        ),
    )


def warm_up(chart: Chart) -> Finding | None:
    """The first rounds of the run paid for things that are paid once."""
    cost = chart.share(chart.warm_s)
    if not cost:
        return None
    first = max(event.seconds for event in chart.evidence.speculative[:3])
    usual = chart.base.verify(chart.gamma + 1) + chart.gamma * chart.base.draft_s + chart.base.rest_s
    return Finding(
        "warm-up",
        "The first run's warm-up is counted",
        f"A round at the beginning took {ms(first)}, later ones {ms(usual)}: buffers and threads are made once.",
        f"{first / usual:.1f} times a later round" if usual > 0 else ms(first),
        "2 times",
        cost,
        Remedy("Measure again: the second run is a warm one.", again=True),
    )


def vocabulary(chart: Chart) -> Finding | None:
    """The two models mean different texts by the same ids."""
    return vocabulary_of(chart.evidence.vocabulary) if chart.evidence.vocabulary else None


def vocabulary_of(reason: str) -> Finding:
    """The same, when the pair could not even be loaded."""
    return Finding(
        "vocabulary",
        "The vocabularies differ",
        reason,
        "different ids",
        "the same text for every id",
        0.95,
        Remedy("Choose a draft with the target's tokenizer in the Models tab, or n-grams, which need none."),
        estimate=True,
    )


def shared(chart: Chart) -> Finding | None:
    """Somebody else uses the engine or the machine."""
    seen = chart.evidence
    whole = seen.prefill_s + sum(event.seconds for event in seen.speculative)
    again = Remedy("Wait for the other one to end, or stop it, and measure again.", again=True)
    if seen.waiting or seen.waited_s > 0.1 * whole:
        jobs = "1 other job" if seen.waiting == 1 else f"{seen.waiting} other jobs"
        return Finding(
            "shared",
            "A second conversation shares the engine",
            f"{jobs} waited meanwhile; this one waited {seen.waited_s:.1f} s for its turn. One reply is written at a time.",
            f"{jobs}, {seen.waited_s:.1f} s waited",
            "none",
            max(seen.waiting / (seen.waiting + 1), seen.waited_s / (seen.waited_s + whole)),
            again,
            estimate=True,
        )
    if seen.others_cpu < BUSY:
        return None
    return Finding(
        "shared",
        "Other programs share the machine",
        f"They used {percent(seen.others_cpu)} of the processors while this was measured.",
        f"{percent(seen.others_cpu)} in use by others",
        f"below {percent(BUSY)}",
        seen.others_cpu / 2,
        again,
        estimate=True,
    )


ALL: tuple[Cause, ...] = (vocabulary, memory, long_prompt, warm_up, shared)
