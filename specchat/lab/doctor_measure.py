"""An examination: what is measured for the doctor, in some ten seconds on the built-in pair, and what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from specchat.chat.conversation import Message
from specchat.decode.engine import Settings
from specchat.decode.events import Round
from specchat.lab.doctor import Evidence, Finding, examine
from specchat.lab.doctor_chart import Chart
from specchat.lab.measure import Sample, measure

if TYPE_CHECKING:
    from specchat.pair import Pair

LENGTH, PLAIN, TRIAL = 96, 32, 40
"""Tokens measured with the settings in force, plainly, and with each alternative."""

TRIAL_GAMMA = 4
"""γ of the trial when speculation is off."""

REPEATS = 6
"""Forwards of each width; the fastest counts."""

Cancelled = Callable[[], bool]
Put = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined: a conversation that ends with a user's turn, and the reply that it got, if it has one."""

    name: str
    messages: tuple[Message, ...]
    system: str = ""
    reply: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What only the caller can see: jobs waiting now, seconds that this one waited, why a pair was refused."""

    waiting: Callable[[], int] = lambda: 0
    waited_s: float = 0.0
    vocabulary: str = ""


@dataclass(frozen=True, slots=True)
class Examination:
    """The measured evidence and what it shows. settings: those that were measured."""

    subject: str
    settings: Settings
    evidence: Evidence
    findings: tuple[Finding, ...]

    @property
    def chart(self) -> Chart:
        """The rates behind the findings."""
        return Chart.of(self.evidence)


def diagnose(
    pair: Pair, subject: Subject, settings: Settings, cancelled: Cancelled, put: Put,
    around: Surroundings | None = None,
) -> Examination | None:  # fmt: skip
    """Measures and examines; puts sentences on how far it is. None when cancelled.

    Raises ValueError with a sentence when the pair cannot speculate at all, RuntimeError when the target fails.
    """
    if not pair.drafters:
        raise ValueError(
            f"This pair cannot speculate, so there is nothing to examine. {' '.join(pair.notes)}"
        )
    around = around or Surroundings()
    ids = list(pair.template.encode(subject.messages, subject.system, pair.room(LENGTH)).ids)
    watch = _Watch(around.waiting)

    def run(name: str, tokens: int, cold: bool = False, **changes: object) -> Sample:
        put(f"Measuring {name}")
        now = replace(_for_measuring(settings), max_new_tokens=tokens, **changes)  # type: ignore[arg-type]
        sample = measure(pair, ids, now, cancelled, lambda event: watch.look(), to_the_end=True, cold=cold)
        if sample.finished is not None and sample.finished.reason != "cancelled" and not sample.rounds:
            raise ValueError("The prompt fills the whole context, so nothing could be written.")
        return sample

    ours = run(f"with the settings in force{left_out(settings)}", LENGTH, cold=True)
    plain = run("plain decoding", PLAIN, gamma=0)
    misaligned = settings.draft_sampling is not None
    aligned = run("with the draft's sampling set right", LENGTH, draft_sampling=None) if misaligned else None
    others = {
        name: tuple(run(f'the drafter "{name}"', TRIAL, drafter=name, draft_sampling=None).rounds)
        for name in pair.drafters
        if name != settings.drafter and not cancelled()
    }
    if cancelled():
        return None
    put("Measuring verifications of several widths")
    widths = sorted({1, 2, 3, 5, 9, ours.settings.gamma + 1})
    evidence = Evidence(
        settings=settings,
        speculative=tuple(ours.rounds),
        plain=tuple(plain.rounds),
        verify_s=verify_times(pair, ids, widths),
        aligned=() if aligned is None else tuple(aligned.rounds),
        others=others,
        vocabulary=around.vocabulary,
        waited_s=around.waited_s,
        **_of_reply(pair, subject, settings, ours),  # type: ignore[arg-type]
        **_of_machine(pair, ours.settings),  # type: ignore[arg-type]
        **watch.seen(),  # type: ignore[arg-type]
    )
    return Examination(subject.name, settings, evidence, tuple(examine(evidence)))


def left_out(settings: Settings) -> str:
    """What of the settings was not in force while it was measured; "" if all was."""
    return " (the guard left out)" if settings.guard and settings.gamma else ""


def _for_measuring(settings: Settings) -> Settings:
    """The settings in force with a seed, so that two examinations draw alike; the guard would hide what is wrong."""
    seed = settings.sampling.seed if settings.sampling.seed is not None else 0
    return replace(
        settings,
        gamma=settings.gamma or TRIAL_GAMMA,
        guard=False,
        sampling=replace(settings.sampling, seed=seed),
    )


def verify_times(pair: Pair, ids: Sequence[int], widths: Sequence[int]) -> dict[int, float]:
    """Seconds of a target forward over so many rows behind the prompt; the cache is left as it was."""
    target, held = pair.target, len(pair.target.ids)
    fitting = [rows for rows in widths if target.can_rollback and held + rows <= target.capacity]
    spent: dict[int, list[float]] = {rows: [] for rows in fitting}
    # In turns, so that a drift of the machine's speed meets all widths alike; the fastest was disturbed the least.
    for _ in range(REPEATS):
        for rows in fitting:
            began = time.perf_counter()
            logits = target.forward([ids[i % len(ids)] for i in range(rows)])
            float(logits[-1, 0])  # on a GPU, time ends when the number is there
            spent[rows].append(time.perf_counter() - began)
            target.rollback(rows)
    return {rows: min(times) for rows, times in spent.items()}


def _of_reply(pair: Pair, subject: Subject, settings: Settings, ours: Sample) -> dict[str, object]:
    """Prompt and length: of the reply that was examined if there is one, else of the one measured (up to its end)."""
    rounds = subject.reply or ours.rounds
    first = rounds[0]
    if subject.reply:
        length = sum(len(event.tokens) for event in subject.reply)
    else:
        end = next((i + 1 for i, token in enumerate(ours.ids) if token in pair.eos_ids), None)
        length = min(end or settings.max_new_tokens, settings.max_new_tokens)
    prefill = first.prefill
    return {
        "prompt_tokens": prefill.read if prefill else 0,
        "prefill_s": prefill.seconds if prefill else 0.0,
        "first_token_s": first.at,
        "reply_tokens": length,
    }


def _of_machine(pair: Pair, settings: Settings) -> dict[str, object]:
    target = str(getattr(pair.target, "device", "cpu"))
    in_use = pair.draft is not None and settings.drafter != "ngram"
    spread = getattr(getattr(pair.target, "model", None), "hf_device_map", None) or {}
    places = {str(place) for place in spread.values()}
    return {
        "memory": pair.memory(),
        "swapped": _swapped(),
        "spilled": tuple(sorted(places & {"cpu", "disk"})) if len(places) > 1 else (),
        "target_device": target,
        "draft_device": str(getattr(pair.draft, "device", target)) if in_use else "",
        "precision": pair.precision,
    }


def _swapped() -> int:
    """Bytes of this process in swap, where the system tells."""
    try:
        return int(getattr(psutil.Process().memory_full_info(), "swap", 0))
    except (psutil.Error, OSError):
        return 0


class _Watch:
    """Looks at the machine while something is measured."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.waiting = waiting
        self.most = 0
        self.began = (time.perf_counter(), psutil.cpu_times(), self._own())

    def look(self) -> None:
        self.most = max(self.most, self.waiting())

    @staticmethod
    def _own() -> float:
        spent = psutil.Process().cpu_times()
        return float(spent.user + spent.system)

    def seen(self) -> dict[str, object]:
        """Jobs that waited, and the share of the processors that other programs used."""
        began, before, own = self.began
        now = psutil.cpu_times()
        whole = sum(now) - sum(before)
        idle = now.idle - before.idle + getattr(now, "iowait", 0.0) - getattr(before, "iowait", 0.0)
        used = (whole - idle) / whole if whole > 0 else 0.0
        wall = max(1e-9, time.perf_counter() - began) * (psutil.cpu_count() or 1)
        return {"waiting": self.most, "others_cpu": max(0.0, used - (self._own() - own) / wall)}
