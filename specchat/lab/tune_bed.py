"""Where a tuning run measures: the loaded pair, or in tests something whose best γ is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from specchat.chat.conversation import Message
from specchat.decode.engine import Settings
from specchat.decode.events import Round
from specchat.decode.stats import Stats
from specchat.jobs import Done, Event, Job, Live, Step
from specchat.lab import tune_probe
from specchat.lab.measure import Sample, forget, measure, prompt_ids
from specchat.lab.suite import Prompt
from specchat.lab.tune_identity import identity_of
from specchat.lab.tune_plan import PLAIN, Plan, Variant
from specchat.lab.tune_probe import Prediction
from specchat.reply import reply

if TYPE_CHECKING:
    from specchat.pair import Pair

Cancelled = Callable[[], bool]

SCRIPT = (
    "I have a free afternoon and a small garden. What could I plant that needs little care?",
    "Which of these would also do well in a pot on a balcony? Say why.",
    "Write me a short shopping list for the two you like best.",
)
"""The conversation on which the prefix cache is measured."""

SCRIPT_TOKENS = 40
"""Most tokens of each reply in it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One variant on one prompt with one seed. tokens and seconds are of decoding: from the first round's end."""

    wave: str
    gamma: int
    drafter: str
    misaligned: bool
    prompt: str
    category: str
    seed: int
    tokens: int
    seconds: float
    emitted: int
    rounds: int
    drafted: int
    accepted: int
    target_forwards: int
    draft_forwards: int
    draft_s: float
    verify_s: float
    sample_s: float
    host_s: float
    offered: tuple[int, ...]
    """Place in the block → how often a proposal stood there."""
    kept: tuple[int, ...]
    """Place → how often it was kept."""
    memory: int
    """Bytes: the process's on a CPU, the device's on a GPU."""

    @property
    def variant(self) -> Variant:
        """What was measured."""
        return Variant(self.gamma, self.drafter, self.misaligned)

    @property
    def place(self) -> tuple[str, str, str, int]:
        """What it is recognised by."""
        return self.wave, self.variant.key, self.prompt, self.seed

    @property
    def tok_per_s(self) -> float:
        """Decoding speed."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def round_s(self) -> float:
        """Seconds inside its rounds."""
        return self.draft_s + self.verify_s + self.sample_s + self.host_s


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the script, with the cache of the turns before it or without."""

    turn: int
    seed: int
    warm: bool
    prompt_tokens: int
    read: int
    reused: int
    first_token_s: float


class Bed(Protocol):
    """What a run asks of the place where it measures. None: cancelled, and nothing to keep."""

    @property
    def identity(self) -> Mapping[str, str]: ...

    @property
    def drafters(self) -> tuple[str, ...]: ...

    def probe(self, plan: Plan, drafter: str, cancelled: Cancelled) -> Prediction | None: ...

    def warm_up(self, plan: Plan, drafter: str) -> None: ...

    def unit(
        self, plan: Plan, wave: str, variant: Variant, prompt: Prompt, seed: int, cancelled: Cancelled
    ) -> Unit | None: ...

    def turns(
        self, plan: Plan, variant: Variant, seed: int, cancelled: Cancelled
    ) -> Sequence[Turn] | None: ...


class PairBed:
    """The pair that is loaded, in the thread that owns it."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.drafters = pair.drafters
        self.identity = identity_of(pair)
        self._read = ""
        self._ids: list[int] = []

    def probe(self, plan: Plan, drafter: str, cancelled: Cancelled) -> Prediction | None:
        """A few dozen rounds on the first prompt of each category."""
        firsts = {prompt.category: prompt for prompt in reversed(plan.prompts)}
        self.warm_up(plan, drafter)

        def run_on(prompt: Prompt) -> tune_probe.Run:
            def run(gamma: int) -> Sequence[Round]:
                self._bring(plan, prompt)
                settings = self._settings(plan, Variant(gamma, drafter), plan.seeds[0])
                settings = replace(settings, max_new_tokens=tune_probe.ROUNDS * (gamma + 1))
                seen: list[Round] = []

                def enough() -> bool:
                    return cancelled() or len(seen) >= tune_probe.ROUNDS

                measure(self.pair, self._ids, settings, enough, seen.append, to_the_end=True, cold=False)
                return [] if cancelled() else seen

            return run

        return tune_probe.probe([run_on(prompt) for prompt in firsts.values()], bool(self.drafters))

    def warm_up(self, plan: Plan, drafter: str) -> None:
        """What no figure should contain: first-time costs of either path."""
        self._bring(plan, plan.prompts[0])
        for variant in (PLAIN, Variant(2, drafter)):
            settings = replace(self._settings(plan, variant, 0), max_new_tokens=8)
            measure(self.pair, self._ids, settings, to_the_end=True, cold=False)

    def unit(
        self, plan: Plan, wave: str, variant: Variant, prompt: Prompt, seed: int, cancelled: Cancelled
    ) -> Unit | None:
        """One measured reply."""
        self._bring(plan, prompt)
        settings = self._settings(plan, variant, seed)
        sample = measure(self.pair, self._ids, settings, cancelled, to_the_end=True, cold=False)
        if sample.finished is None or sample.finished.reason == "cancelled" or not sample.rounds:
            return None
        return unit_of(wave, variant, prompt, seed, sample, self.pair.memory().used)

    def turns(self, plan: Plan, variant: Variant, seed: int, cancelled: Cancelled) -> Sequence[Turn] | None:
        """The script as one talks, then each of its later turns again with nothing cached."""
        settings = replace(self._settings(plan, variant, seed), max_new_tokens=SCRIPT_TOKENS)
        forget(self.pair)
        self._read = ""
        messages: list[Message] = []
        asked: list[tuple[Message, ...]] = []
        found: list[Turn] = []
        for turn, text in enumerate(SCRIPT, start=1):
            messages.append(Message("user", text))
            asked.append(tuple(messages))
            if cancelled():
                return None
            measured, answer = self._turn(turn, seed, turn > 1, asked[-1], settings, cancelled)
            found.append(measured)
            messages.append(answer)
        for turn, before in enumerate(asked[1:], start=2):
            if cancelled():
                return None
            forget(self.pair)
            short = replace(settings, max_new_tokens=min(SCRIPT_TOKENS, variant.gamma + 1))
            found.append(self._turn(turn, seed, False, before, short, cancelled)[0])
        return None if cancelled() else found

    def _turn(
        self, turn: int, seed: int, warm: bool, messages: tuple[Message, ...], settings: Settings,
        cancelled: Cancelled,
    ) -> tuple[Turn, Message]:  # fmt: skip
        rounds: list[Round] = []

        def see(event: Event) -> None:
            if isinstance(event, Step):
                rounds.append(event.round)

        done: Done = reply(self.pair, Job(messages, Live(settings)), cancelled, see)
        if done.finished.reason == "error":
            raise RuntimeError(done.finished.notice)
        stats = Stats.of(rounds)
        read, reused = (stats.prefill.read, stats.prefill.reused) if stats.prefill else (0, 0)
        return Turn(turn, seed, warm, read + reused + 1, read, reused, stats.first_token_s), done.message

    def _bring(self, plan: Plan, prompt: Prompt) -> None:
        """Another prompt is read from its first id; the same one stays read, for every variant alike."""
        if self._read != prompt.text:
            self._ids = prompt_ids(self.pair, prompt.text, max_new_tokens=plan.tokens)
            forget(self.pair)
            self._read = prompt.text

    def _settings(self, plan: Plan, variant: Variant, seed: int) -> Settings:
        sampling = replace(plan.sampling, seed=seed)
        settings = Settings(variant.gamma, sampling, variant.drafter, plan.tokens)
        return replace(settings, draft_sampling=plan.draft_sampling) if variant.misaligned else settings


def unit_of(wave: str, variant: Variant, prompt: Prompt, seed: int, sample: Sample, memory: int) -> Unit:
    """A measured reply as the record keeps it."""
    stats = sample.stats
    several = stats.rounds > 1
    places = stats.by_position()
    return Unit(
        wave, variant.gamma, variant.drafter, variant.misaligned, prompt.id, prompt.category, seed,
        tokens=stats.emitted - stats.first_tokens if several else stats.emitted,
        seconds=stats.elapsed_s - stats.first_token_s if several else sum(stats.time_split().values()),
        emitted=stats.emitted, rounds=stats.rounds, drafted=stats.drafted, accepted=stats.accepted,
        target_forwards=stats.target_forwards, draft_forwards=stats.draft_forwards,
        draft_s=stats.draft_s, verify_s=stats.verify_s, sample_s=stats.sample_s, host_s=stats.host_s,
        offered=tuple(offered for offered, _, _ in places), kept=tuple(kept for _, _, kept in places),
        memory=memory,
    )  # fmt: skip


def unit_from(data: Mapping[str, object]) -> Unit:
    """A unit read from a record; TypeError or KeyError when the line is none."""
    fields = dict(data)
    for name in ("offered", "kept"):
        fields[name] = tuple(cast("list[int]", fields[name]))
    return Unit(**fields)  # type: ignore[arg-type]
