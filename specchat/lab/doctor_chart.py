"""One finding of the doctor, and the evidence worked out into what the causes compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specchat.decode.settings import Settings
from specchat.lab.doctor_evidence import LEAST_GAIN, Evidence, Rates, settled, verify_table, warm_up_s

WORTH_CHANGING = 0.10
"""Where speculation gains and no cause costs this much, nothing is wrong."""

SEVERE = 0.25
"""Share of the time from which on a cause is severe."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do. change: fields of `Settings` and their new values, for a button; empty: advice only."""

    words: str
    change: Mapping[str, object] = field(default_factory=dict)
    again: bool = False
    """Measuring once more is the remedy."""

    @property
    def by_button(self) -> bool:
        """Whether the page can do it."""
        return bool(self.change) or self.again

    def applied(self, settings: Settings) -> Settings:
        """The settings with the change made."""
        return replace(settings, **self.change)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause. cost: the share of the time that it takes, 0…1, by which findings are ranked."""

    cause: str
    """A short name that stays the same, such as "gamma-long"."""
    title: str
    sentence: str
    measured: str
    threshold: str
    cost: float
    remedy: Remedy
    estimate: bool = False
    """The cost is a rule of thumb, good for the order only: it is not shown."""

    @property
    def severity(self) -> str:
        """In a word."""
        if self.cause in ("healthy", "even"):
            return "fine"
        return "severe" if self.cost >= SEVERE else "clear" if self.cost >= WORTH_CHANGING else "slight"


@dataclass(frozen=True, slots=True)
class Chart:
    """The evidence worked out: all that the causes compare."""

    evidence: Evidence
    plain_s: float
    """Seconds of a plain token."""
    now_s: float
    """Measured seconds a token with the settings in force, prompt excluded."""
    now: Rates
    base: Rates
    """The rates with the draft sampled as the target is."""
    gamma: int
    best_gamma: int
    best_s: float
    warm_s: float
    reading: float
    """Share of the whole reply's time that reading the prompt takes."""

    @classmethod
    def of(cls, evidence: Evidence) -> Chart:
        """Raises ValueError without rounds of both kinds."""
        if not evidence.speculative or not evidence.plain:
            raise ValueError(
                "Nothing was measured: an examination needs rounds with speculation and without."
            )
        table = verify_table(evidence)
        now = Rates.of(evidence.speculative, table)
        base = Rates.of(evidence.aligned, table) if evidence.misaligned and evidence.aligned else now
        plain = settled(evidence.plain)
        plain_s = sum(event.seconds for event in plain) / sum(len(event.tokens) for event in plain)
        off = evidence.settings.gamma == 0
        spent = sum(event.seconds for event in evidence.speculative)
        emitted = sum(len(event.tokens) for event in evidence.speculative)
        now_s = plain_s if off else spent / max(1, emitted)
        best_gamma, best_s = base.best()
        length = evidence.reply_tokens or emitted
        whole = evidence.prefill_s + length * now_s
        reading = evidence.prefill_s / whole if whole > 0 else 0.0
        warm = 0.0 if off else warm_up_s(evidence.speculative)
        return cls(
            evidence, plain_s, now_s, now, base, evidence.gamma, best_gamma, best_s, warm / max(1, emitted), reading
        )  # fmt: skip

    @property
    def gain(self) -> float:
        """Measured speed over plain decoding."""
        return self.plain_s / self.now_s if self.now_s > 0 else 0.0

    @property
    def pays(self) -> bool:
        """Whether some γ gains with draft and target as they are."""
        return self.best_s > 0 and self.plain_s / self.best_s >= LEAST_GAIN

    @property
    def c(self) -> float:
        """A proposal's cost over a plain step."""
        return self.base.draft_s / self.plain_s if self.plain_s > 0 else 0.0

    @property
    def v(self) -> float:
        """A verification of a full block over one row."""
        one = self.base.verify(1)
        return self.base.verify(self.gamma + 1) / one if one > 0 else 1.0

    def share(self, saved_s: float) -> float:
        """Seconds saved a token → the share of the whole reply's time."""
        return max(0.0, saved_s / self.now_s * (1 - self.reading)) if self.now_s > 0 else 0.0

    def left_to_gain(self, fixed: Rates) -> float:
        """What other rates would save, as a share: beyond the best γ where one gains, else beyond how it is now."""
        start = self.best_s if self.pays else self.base.token_s(self.gamma)
        return self.share(start - min(fixed.best()[1], self.plain_s))


def ratio(value: float) -> str:
    """1.4 → "1.40×"."""
    return f"{value:.2f}×"


def ms(value: float) -> str:
    """Seconds, in milliseconds below one."""
    return f"{value * 1000:.1f} ms" if value < 0.9995 else f"{value:.2f} s"


def size(amount: float) -> str:
    """Bytes in decimal units."""
    return f"{amount / 1e9:.1f} GB" if amount >= 1e9 else f"{amount / 1e6:.0f} MB"
