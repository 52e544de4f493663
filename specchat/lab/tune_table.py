"""A run as tables: the stages, the categories, predicted beside measured, the prefix cache. Cells are plain text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specchat.decode.sampling import Sampling
from specchat.lab.tune import Outcome
from specchat.lab.tune_bed import Turn
from specchat.lab.tune_plan import PLAIN, Variant
from specchat.lab.tune_sums import Sums, categories, sums
from specchat.lab.tune_sweep import DRAFTERS, SWEEP, gap, score, sweep_scores

Row = tuple[str, ...]

DASH = "–"

STAGE_HEAD: Row = (
    "stage", "change", "accepted length", "tokens/round", "target forwards", "draft forwards", "tok/s (quartiles)",
    "over plain", "memory",
)  # fmt: skip

HINTS = {
    "accepted length": "Mean accepted length: accepted proposals over rounds, 0 to γ.",
    "tokens/round": "Emitted tokens over rounds, 1 to γ + 1.",
    "target forwards": "Of one reply, on average.",
    "draft forwards": "Of one reply, on average.",
    "tok/s (quartiles)": "Median over the runs, with quartiles; from the end of the first round to the last.",
    "over plain": "Speed over plain decoding, paired by prompt and seed: the mean over the categories of the median "
    "in each, with the noise of the comparison (95 %).",
    "memory": "Most that was in use: the process's memory on a CPU, the device's on a GPU.",
    "overhead": "How much longer a token took, against plain, than the formula says: acceptance that is not the same at "
    "every place of the block, and time that it leaves out.",
}
"""What a column means."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the stage table, with what it was made of."""

    stage: str
    change: str
    variant: Variant
    wave: str


def lines(outcome: Outcome) -> list[Line]:
    """The rows there are figures for, in the order of the stages."""
    at, drafter = outcome.gamma, outcome.drafter
    wanted = [
        Line("1 baseline", "γ 0: plain decoding", PLAIN, SWEEP),
        Line(
            "2 misaligned",
            f"γ {at}, the draft drawing at {sampling_words(outcome.plan.draft_sampling)}",
            Variant(at, drafter, True),
            SWEEP,
        ),
        Line("3 aligned", f"γ {at}, draft and target drawing alike", Variant(at, drafter), SWEEP),
    ]
    wanted += [
        Line("4 γ sweep", f"γ {gamma}", Variant(gamma, drafter), SWEEP)
        for gamma in sweep_scores(outcome.units, drafter)
    ]
    others = dict.fromkeys(unit.variant for unit in outcome.units if unit.wave == DRAFTERS and unit.gamma)
    wanted += [
        Line("5 drafter", f"{v.drafter}, γ {v.gamma}", v, DRAFTERS)
        for v in sorted(others, key=lambda v: v.drafter)
    ]
    return [line for line in wanted if sums(outcome.units, line.variant, line.wave).units]


def sampling_words(sampling: Sampling) -> str:
    """temperature 0.6, top-k 20: what is not off."""
    if sampling.greedy:
        return "temperature 0 (greedy)"
    parts = [f"temperature {sampling.temperature:g}"]
    parts.append(f"top-k {sampling.top_k}" if sampling.top_k else "no top-k")
    for name, value, off in (
        ("top-p", sampling.top_p, 1), ("min-p", sampling.min_p, 0), ("repetition", sampling.repetition_penalty, 1),
        ("presence", sampling.presence_penalty, 0), ("frequency", sampling.frequency_penalty, 0),
    ):  # fmt: skip
        if value != off:
            parts.append(f"{name} {value:g}")
    return ", ".join(parts)


def stage_table(outcome: Outcome) -> list[Row]:
    """Head and rows: what was changed at each stage and what it gave."""
    rows = [STAGE_HEAD]
    for line in lines(outcome):
        found = sums(outcome.units, line.variant, line.wave)
        low, middle, high = found.quartiles
        rows.append(
            (
                line.stage,
                line.change,
                f"{found.mean_accepted:.2f}" if line.variant.gamma else DASH,
                f"{found.tokens_per_round:.2f}",
                f"{found.target_forwards:.0f}",
                f"{found.draft_forwards:.0f}",
                f"{middle:.1f} ({low:.1f}–{high:.1f})",
                _over(outcome, line),
                size(found.memory),
            )
        )
    if told := cache_line(outcome.turns):
        rows.append(("6 prefix cache", told, *[DASH] * (len(STAGE_HEAD) - 2)))
    return rows


def _over(outcome: Outcome, line: Line) -> str:
    if line.variant == PLAIN:
        return "1"
    noise = gap(outcome.units, line.variant, PLAIN, line.wave).noise
    told = f"{score(outcome.units, line.variant, line.wave):.2f}×"
    return f"{told} ± {noise:.0%}" if noise < 1 else told


def category_table(outcome: Outcome) -> list[Row]:
    """For each stage and category: accepted length, tok/s, speed over plain. Only a head with fewer than two."""
    kinds = categories(outcome.units)
    rows: list[Row] = [("stage", "change", *kinds)]
    for line in lines(outcome) if len(kinds) > 1 else []:
        rows.append((line.stage, line.change, *(_in_category(outcome, line, kind) for kind in kinds)))
    return rows


def _in_category(outcome: Outcome, line: Line, kind: str) -> str:
    found = sums(outcome.units, line.variant, line.wave, kind)
    if not found.units:
        return DASH
    speed = f"{found.tok_per_s:.1f} tok/s"
    if line.variant == PLAIN:
        return speed
    over = score(outcome.units, line.variant, line.wave, kind)
    return f"{over:.2f}×, {speed}, accepted {found.mean_accepted:.2f}"


def prediction_table(outcome: Outcome) -> list[Row]:
    """Predicted beside measured for every γ of the sweep, and where the difference is."""
    rows: list[Row] = [
        ("γ", "tok/s predicted", "measured", "over plain predicted", "measured", "accepted predicted", "measured",
         "overhead"),
    ]  # fmt: skip
    if outcome.prediction is None:
        return rows
    for gamma, over in sweep_scores(outcome.units, outcome.drafter).items():
        found = sums(outcome.units, Variant(gamma, outcome.drafter))
        expected = outcome.prediction.speedup(gamma)
        rows.append(
            (
                str(gamma),
                f"{outcome.prediction.tok_per_s(gamma):.1f}",
                f"{found.tok_per_s:.1f}",
                f"{expected:.2f}×",
                f"{over:.2f}×",
                f"{outcome.prediction.accepted(gamma):.2f}",
                f"{found.mean_accepted:.2f}",
                f"{expected / over - 1:+.0%}",
            )
        )
    return rows


def overhead_words(outcome: Outcome) -> str:
    """The difference between predicted and measured at the γ of the stages, taken apart; "" before it is measured."""
    prediction, gamma = outcome.prediction, outcome.gamma
    found, plain = sums(outcome.units, Variant(gamma, outcome.drafter)), sums(outcome.units, PLAIN)
    if prediction is None or not gamma or not found.units or not plain.round_s:
        return ""
    tokens = found.tokens_per_round / (prediction.accepted(gamma) + 1) - 1
    expected = (prediction.accepted(gamma) + 1) / prediction.speedup(gamma)
    rounds = found.round_s / plain.round_s / expected - 1
    drift = plain.round_s / prediction.plain_s - 1
    return (
        f"At γ {gamma} a round gave {found.tokens_per_round:.2f} tokens ({tokens:+.0%} against the prediction: α is not "
        f"the same at every place and in every text, and this run drew other tokens than the probe) and took "
        f"{found.round_s / plain.round_s:.2f} plain rounds ({rounds:+.0%}: what the formula leaves out, host time of "
        f"{1e3 * found.host_s:.2f} ms among it). A plain round took {1e3 * plain.round_s:.1f} ms in the run and "
        f"{1e3 * prediction.plain_s:.1f} ms in the probe ({drift:+.0%}: the machine's own drift)."
    )


def prediction_words(outcome: Outcome) -> str:
    """What the probe found and what it predicts; "" before it."""
    found = outcome.prediction
    if found is None:
        return ""
    if not found.judging:
        return f"The probe ({found.rounds} rounds) had no proposal: a plain round takes {1e3 * found.plain_s:.1f} ms."
    at = outcome.gamma
    judged = ", ".join(f"{v:.2f} at γ {gamma}" for gamma, v in found.judging)
    offered = "" if found.offered > 0.995 else f", a proposal in {found.offered:.0%} of the rounds"
    return (
        f"From {found.rounds} rounds: α = {found.alpha:.2f} (a proposal is kept), c = {found.c:.3f} (a draft step is "
        f"{1e3 * found.c * found.plain_s:.1f} ms, a plain round {1e3 * found.plain_s:.1f} ms), v = {judged}{offered}. "
        f"Predicted best: γ {found.best()}; at γ {at} {found.tok_per_s(at):.1f} tok/s, {found.speedup(at):.2f}× plain."
    )


def cache_table(turns: Sequence[Turn]) -> list[Row]:
    """Each later turn of the script with nothing cached and with the turns before it cached: medians over seeds."""
    rows: list[Row] = [
        ("turn", "prompt ids", "read, cold", "read, warm", "first token, cold", "first token, warm", "saved"),
    ]
    for turn in sorted({t.turn for t in turns if t.turn > 1}):
        cold, warm = ([t for t in turns if t.turn == turn and t.warm == side] for side in (False, True))
        if cold and warm:
            before, after = (statistics.median(t.first_token_s for t in side) for side in (cold, warm))
            rows.append(
                (
                    str(turn), f"{warm[0].prompt_tokens}", f"{cold[0].read}", f"{warm[0].read}",
                    brief(before), brief(after), f"{1 - after / before:.0%}" if before else DASH,
                )
            )  # fmt: skip
    return rows


def cache_line(turns: Sequence[Turn]) -> str:
    """The last turn in one line; "" without any."""
    rows = cache_table(turns)
    if len(rows) < 2:
        return ""
    turn, ids, _, read, before, after, _ = rows[-1]
    return f"turn {turn} of a conversation: first token after {after} instead of {before} ({read} of {ids} ids read)"


def brief(seconds: float) -> str:
    """8 ms, 0.42 s."""
    return f"{1e3 * seconds:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def markdown(rows: Sequence[Row]) -> str:
    """A table for the terminal: columns padded to the width of what they hold."""
    if len(rows) < 2:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    said = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(
        f"| {line} |" for line in [said[0], " | ".join("-" * width for width in widths), *said[1:]]
    )


def best_sums(outcome: Outcome) -> Sums:
    """The units of the recommended setting."""
    advice = outcome.advice
    if advice is None or not advice.gamma:
        return sums(outcome.units, PLAIN)
    wave = SWEEP if advice.drafter == outcome.drafter else DRAFTERS
    return sums(outcome.units, Variant(advice.gamma, advice.drafter), wave)
