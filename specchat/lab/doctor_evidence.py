"""What the doctor looks at: measured things only, and the rates that follow from them. No torch."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specchat.decode.events import Round
from specchat.decode.settings import MAX_GAMMA, Settings
from specchat.decode.stats import Stats

if TYPE_CHECKING:
    from specchat.pair import Memory

Rounds = Sequence[Round]

WARM = 3
"""Rounds that a first run may take to warm up."""

FEW = 6.0
"""A place judged this often counts half; the rest is the acceptance over all places."""

LEAST_GAIN = 1.05
"""A speed-up below this is none: measurements of a minute differ by as much."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One examination. speculative and plain are rounds on the same prompt, with the settings in force and with γ 0."""

    settings: Settings
    speculative: tuple[Round, ...]
    plain: tuple[Round, ...]
    verify_s: Mapping[int, float] = field(default_factory=dict)
    """Rows of one target forward → seconds, measured side by side."""
    aligned: tuple[Round, ...] = ()
    """The same with the draft sampled as the target is; only where the settings have it otherwise."""
    others: Mapping[str, tuple[Round, ...]] = field(default_factory=dict)
    """The pair's other drafters on the same prompt."""
    prompt_tokens: int = 0
    prefill_s: float = 0.0
    """Seconds that reading the prompt took."""
    first_token_s: float = 0.0
    reply_tokens: int = 0
    """Length of the reply that is examined; 0: as long as what was measured."""
    memory: Memory | None = None
    swapped: int = 0
    """Bytes of this process that the system moved out of memory."""
    spilled: tuple[str, ...] = ()
    """Places other than the target's device that hold some of its weights."""
    target_device: str = "cpu"
    draft_device: str = ""
    """"" without a draft model."""
    precision: str = ""
    vocabulary: str = ""
    """Why the two models may not work together, as the pair's check put it; "" if they may."""
    waiting: int = 0
    """Jobs that waited for the engine while this was measured."""
    waited_s: float = 0.0
    """Seconds that this examination had to wait behind others."""
    others_cpu: float = 0.0
    """Share of the machine's processors that other programs used meanwhile, 0…1."""

    @property
    def gamma(self) -> int:
        """The γ that was measured (the settings' own, unless speculation is off in them)."""
        return self.settings.gamma or max((event.gamma for event in self.speculative), default=0)

    @property
    def misaligned(self) -> bool:
        """Whether the draft is sampled by another law than the target."""
        other = self.settings.draft_sampling
        return (
            other is not None and replace(other, seed=self.settings.sampling.seed) != self.settings.sampling
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """What a round is made of, from rounds: enough to say what another γ would give.

    Seconds a token = (f (γ d + V(γ+1)) + (1-f) V(1) + o) / (1 + f (a₁ + a₁a₂ + …)), which for one a, f = 1 and o = 0
    is the formula of Leviathan et al. 2023 that `theory` has.
    """

    chances: tuple[float, ...]
    """a: how often a proposal at each place is kept, when all before it were."""
    alpha: float
    """The same over all places; used for places that were never seen."""
    offered: float
    """f: the share of rounds that had a proposal."""
    draft_s: float
    """d: seconds of drafting for each proposal."""
    rest_s: float
    """o: seconds of sampling and of everything else on the host, for each round."""
    verify_s: Mapping[int, float]
    """V: rows → seconds of a target forward."""

    @classmethod
    def of(cls, rounds: Rounds, verify_s: Mapping[int, float]) -> Rates:
        """From the rounds behind the warm-up, as far as there are enough."""
        stats = Stats.of(rounds[WARM:] if len(rounds) > 3 * WARM else rounds)
        places = stats.by_position()
        reached, kept = sum(r for _, r, _ in places), sum(k for _, _, k in places)
        alpha = kept / reached if reached else 0.0
        return cls(
            tuple((k + FEW * alpha) / (r + FEW) for _, r, k in places),
            alpha,
            stats.speculative_rounds / stats.rounds if stats.rounds else 0.0,
            stats.draft_s / stats.drafted if stats.drafted else 0.0,
            (stats.sample_s + stats.host_s) / stats.rounds if stats.rounds else 0.0,
            verify_s,
        )

    def tokens(self, gamma: int) -> float:
        """Expected tokens of a round."""
        product, total = 1.0, 0.0
        for place in range(gamma):
            product *= self.chances[place] if place < len(self.chances) else self.alpha
            total += product
        return 1 + self.offered * total

    def token_s(self, gamma: int) -> float:
        """Expected seconds a token."""
        speculative = gamma * self.draft_s + self.verify(gamma + 1)
        return (self.offered * speculative + (1 - self.offered) * self.verify(1) + self.rest_s) / self.tokens(
            gamma
        )

    def best(self) -> tuple[int, float]:
        """The γ from 1 on with the fewest seconds a token, and these."""
        return min(((g, self.token_s(g)) for g in range(1, MAX_GAMMA + 1)), key=lambda pair: pair[1])

    def verify(self, rows: int) -> float:
        """Seconds of a forward over so many rows: measured, or on the line between (beyond) those measured."""
        known = sorted(self.verify_s)
        if not known:
            return 0.0
        if rows in self.verify_s or len(known) == 1:
            return self.verify_s.get(rows, self.verify_s[known[0]])
        low, high = next(((a, b) for a, b in itertools.pairwise(known) if rows < b), (known[-2], known[-1]))
        slope = (self.verify_s[high] - self.verify_s[low]) / (high - low)
        return self.verify_s[low] + max(0.0, slope) * (rows - low)

    def with_chance(self, least: float) -> Rates:
        """A draft that is right at least so often, and always has something to propose."""
        return replace(
            self,
            chances=tuple(max(a, least) for a in self.chances),
            alpha=max(self.alpha, least),
            offered=max(self.offered, 0.9),
        )

    def with_flat_verify(self, most: float) -> Rates:
        """Verifications of any width for at most so many times the single row."""
        one = self.verify(1)
        rows = set(self.verify_s) | set(range(1, MAX_GAMMA + 2))
        return replace(self, verify_s={r: min(self.verify(r), most * one) for r in rows})


def verify_table(evidence: Evidence) -> dict[int, float]:
    """Seconds by rows: the shape as measured side by side, its height from the rounds themselves.

    Plain rounds say what one row costs in a reply, speculative ones what a whole block does; between the two the
    side-by-side measurement is corrected in proportion.
    """
    plain = [event.verify_s for event in settled(evidence.plain)]
    wide = [e.verify_s for e in settled(evidence.speculative) if e.drafted == e.gamma == evidence.gamma]
    table, rows = dict(evidence.verify_s), evidence.gamma + 1
    low = statistics.median(plain) if plain else table.get(1, 0.0)
    high = statistics.median(wide) if wide else low * table.get(rows, 1.0) / table.get(1, 1.0)
    if not table.get(1) or not table.get(rows):
        return {1: low, rows: high}
    below, above = low / table[1], high / table[rows]

    def correction(width: int) -> float:
        return below + (above - below) * min(1.0, (width - 1) / max(1, rows - 1))

    return {width: spent * correction(width) for width, spent in table.items()}


def settled(rounds: Rounds) -> Rounds:
    """The rounds behind the warm-up, when there are enough."""
    return rounds[WARM:] if len(rounds) > 3 * WARM else rounds


def warm_up_s(rounds: Rounds) -> float:
    """Seconds that the first rounds took longer than the later ones do; 0 when that is within their usual spread."""
    later = [event.seconds for event in rounds[WARM:]]
    if len(later) < WARM:
        return 0.0
    usual = statistics.median(later)
    first = [event.seconds for event in rounds[:WARM]]
    # Slower than any later round, or it is only the unrest of the machine.
    warming = max(first) > max(2 * usual, *later)
    return sum(s - usual for s in first if s > usual) if warming else 0.0
