"""Records in words and numbers: what was set, what came of it, where two of them differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specchat.lab.record_parts import Record, Scalar, flat

WORDS: Mapping[str, str] = {
    "gamma": "γ, proposals a round",
    "max_new_tokens": "max tokens",
    "temperature": "temperature",
    "top_k": "top-k",
    "top_p": "top-p",
    "min_p": "min-p",
    "repetition_penalty": "repetition penalty",
    "presence_penalty": "presence penalty",
    "frequency_penalty": "frequency penalty",
    "draft_sampling": "sampling of the draft",
    "confidence": "confidence stop",
    "adaptive": "adaptive γ",
    "guard": "never-slower guard",
}

WINDOW = 8
"""Rounds of the moving mean."""

DASH = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that two records say differently, or alike."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Number:
    """One measured number: its name, how it is written, its value (None: not measured), its definition."""

    name: str
    text: str
    value: float | None
    tip: str


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts part. token and round count from 1 and are of the first record; context is what both say before."""

    same: bool
    sentence: str
    token: int = 0
    context: str = ""
    a: str = ""
    b: str = ""


def settings(record: Record) -> dict[str, str]:
    """The settings of the first round, in words."""
    return {named(name): written(value) for name, value in flat(record.head.settings).items()}


def named(name: str) -> str:
    """A setting's name as a person reads it."""
    *above, last = name.split(".")
    word = WORDS.get(last, last.replace("_", " "))
    return f"{word} (draft)" if above and above[0] == "draft_sampling" else word


def written(value: Scalar) -> str:
    """A setting's value as a person reads it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.6g}"
    return DASH if value is None or value == "" else str(value)


def differing(a: Record, b: Record) -> list[Row]:
    """What was not the same, settings first, then what was asked, the pair, the machine and the software."""
    rows: list[Row] = []
    for x, y in ((settings(a), settings(b)), (_asked(a), _asked(b)), (_where(a), _where(b))):
        names = dict.fromkeys([*x, *y])
        rows += [
            Row(name, x.get(name, DASH), y.get(name, DASH)) for name in names if x.get(name) != y.get(name)
        ]
    return rows


def _asked(record: Record) -> dict[str, str]:
    said = record.head.messages
    return {
        "last message": said[-1].content if said else DASH,
        "messages before it": _earlier(record),
        "system prompt": record.head.system or DASH,
        "stop strings": ", ".join(map(repr, record.head.stop_strings)) or DASH,
        "settings changed on the way": times(len(record.changes)),
    }


def times(count: int) -> str:
    """How often, in words."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _earlier(record: Record) -> str:
    before = record.head.messages[:-1]
    return " ".join(f"{message.role}: {message.content}" for message in before) or DASH


def _where(record: Record) -> dict[str, str]:
    head = record.head
    pair = {
        "target": head.pair.target,
        "draft": head.pair.draft or DASH,
        "device": head.pair.device or DASH,
        "precision": head.pair.precision or DASH,
    }
    return pair | {name: written(value) for name, value in flat({**head.hardware, **head.versions}).items()}


def numbers(record: Record) -> list[Number]:
    """Every number of a reply, from its rounds."""
    stats, step = record.stats(), record.head.pair.plain_step_s
    rounds, some = max(1, stats.rounds), stats.rounds > 0
    found: list[Number] = []

    def add(name: str, value: float | None, form: str, tip: str) -> None:
        found.append(Number(name, DASH if value is None else form.format(value), value, tip))

    add("tokens", stats.emitted, "{:.0f}", "Tokens of the reply, its end token included.")
    add("total", record.seconds, "{:.2f} s", "From the request to the end of the reply.")
    add(
        "speed",
        stats.tok_per_s if some else None,
        "{:.1f} tok/s",
        "Tokens after the first round over the seconds after it.",
    )
    add(
        "first token",
        stats.first_token_s if some else None,
        "{:.2f} s",
        "From the request to the end of the first round.",
    )
    add(
        "tokens a round",
        stats.tokens_per_round if some else None,
        "{:.2f}",
        "Emitted tokens over rounds, 1 to γ+1.",
    )
    add(
        "mean accepted length",
        stats.mean_accepted_length if some else None,
        "{:.2f}",
        "Accepted proposals over rounds, 0 to γ.",
    )
    add(
        "acceptance",
        100 * stats.acceptance_rate if stats.drafted else None,
        "{:.0f} %",
        "Accepted proposals over the proposals that the target judged.",
    )
    add("target forwards", stats.target_forwards, "{:.0f}", "One a round.")
    add("draft forwards", stats.draft_forwards, "{:.0f}", "Forwards of the draft model.")
    for part, spent in stats.time_split().items():
        add(
            f"{part} a round",
            spent / rounds * 1000 if some else None,
            "{:.1f} ms",
            "Mean milliseconds of a round.",
        )
    if stats.prefill is not None:
        add("prompt read", stats.prefill.read, "{:.0f}", "Prompt tokens newly read.")
        add("prompt reused", stats.prefill.reused, "{:.0f}", "Prompt tokens found in the cache.")
    spent = sum(stats.time_split().values())
    add(
        "plain step",
        step * 1000 if step else None,
        "{:.1f} ms",
        "A round without proposals, as measured where the record was made.",
    )
    gain = stats.emitted / spent * step if step and stats.rounds > 1 and spent > 0 else None
    add("over plain decoding", gain, "{:.2f}×", "Tokens a second inside the rounds, times the plain step.")
    return found


def side_by_side(a: Record, b: Record) -> list[tuple[Number, Number, str]]:
    """Each number of both, and the second over the first."""
    ours, theirs = ({number.name: number for number in numbers(record)} for record in (a, b))
    return [(ours[name], theirs[name], _over(ours[name], theirs[name])) for name in ours if name in theirs]


def _over(a: Number, b: Number) -> str:
    return f"{b.value / a.value:.2f}×" if a.value and b.value else DASH


def parting(a: Record, b: Record) -> Parting:
    """Where the two texts first differ."""
    x, y = a.text, b.text
    if x == y:
        return Parting(True, f"The texts are the same, all {len(x)} characters.")
    at = next((i for i, (c, d) in enumerate(zip(x, y, strict=False)) if c != d), min(len(x), len(y)))
    token, round_ = _token_at(a, at)
    ended = "" if at < min(len(x), len(y)) else " There one of them ends and the other goes on."
    alike = f"are the same for {at} characters and part" if at else "part at once,"
    sentence = f"The texts {alike} at token {token}, round {round_} of A.{ended}"
    return Parting(
        False,
        sentence,
        token,
        ("…" if at > 60 else "") + x[max(0, at - 60) : at],
        _after(x, at),
        _after(y, at),
    )


def _after(text: str, at: int) -> str:
    return text[at : at + 60] + ("…" if len(text) > at + 60 else "")


def _token_at(record: Record, at: int) -> tuple[int, int]:
    """Which token, in which round, shows the character at this place; both from 1."""
    end = count = 0
    for beat in record.beats:
        for text in beat.texts:
            count += 1
            end += len(text)
            if end > at:
                return count, beat.round.index + 1
    return count + 1, max(1, len(record.beats))


def why_texts_differ(a: Record, b: Record) -> str:
    """Why it is no wonder that the texts differ, when it is none; "" otherwise."""
    if a.head.messages != b.head.messages or a.head.system != b.head.system:
        return "The two replies answer different conversations, so their texts are not to be compared word for word."
    if a.note or b.note:
        return "A record that was cut off lacks the end of its text."
    if a.text == b.text:
        return ""
    if not (_greedy(a) and _greedy(b)):
        return "Sampling was on: other rounds draw other numbers, so the texts may part although both follow the target."
    return ""


def _greedy(record: Record) -> bool:
    now = flat(record.head.settings)
    temperature = now.get("sampling.temperature")
    return now.get("sampling.top_k") == 1 or (isinstance(temperature, int | float) and temperature < 1e-5)


Points = Sequence[tuple[float, float]]


def tokens_over_time(record: Record) -> Points:
    """(seconds since the request, tokens so far), from the request on."""
    points, count = [(0.0, 0.0)], 0
    for beat in record.beats:
        count += len(beat.round.tokens)
        points.append((beat.round.at, float(count)))
    return points


def accepted_means(record: Record, window: int = WINDOW) -> Points:
    """(round from 1, mean accepted length of the last `window` rounds up to it)."""
    lengths = [beat.round.accepted for beat in record.beats]
    return [
        (float(n), sum(lengths[max(0, n - window) : n]) / min(n, window)) for n in range(1, len(lengths) + 1)
    ]
