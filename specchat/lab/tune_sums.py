"""What the units of one variant add up to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specchat.lab.tune_bed import Unit
from specchat.lab.tune_plan import Variant
from specchat.lab.tune_sweep import SWEEP


@dataclass(frozen=True, slots=True)
class Sums:
    """Totals and medians over units of one variant. Ratios of nothing are 0."""

    units: tuple[Unit, ...]

    def _sum(self, name: str) -> float:
        return float(sum(getattr(unit, name) for unit in self.units))

    def _per_round(self, name: str) -> float:
        rounds = self._sum("rounds")
        return self._sum(name) / rounds if rounds else 0.0

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """tok/s over the units: lower quartile, median, upper quartile."""
        found = sorted(unit.tok_per_s for unit in self.units)
        if len(found) < 2:
            only = found[0] if found else 0.0
            return only, only, only
        low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
        return low, middle, high

    @property
    def tok_per_s(self) -> float:
        """The median."""
        return self.quartiles[1]

    @property
    def mean_accepted(self) -> float:
        """Mean accepted length, 0…γ."""
        return self._per_round("accepted")

    @property
    def mean_drafted(self) -> float:
        """Proposals of a round, 0…γ."""
        return self._per_round("drafted")

    @property
    def tokens_per_round(self) -> float:
        """1…γ+1."""
        return self._per_round("emitted")

    @property
    def target_forwards(self) -> float:
        """Of one reply."""
        return self._sum("target_forwards") / len(self.units) if self.units else 0.0

    @property
    def draft_forwards(self) -> float:
        """Of one reply."""
        return self._sum("draft_forwards") / len(self.units) if self.units else 0.0

    @property
    def round_s(self) -> float:
        """Seconds of a round."""
        return self._per_round("round_s")

    @property
    def draft_s(self) -> float:
        """Seconds of drafting in a round."""
        return self._per_round("draft_s")

    @property
    def host_s(self) -> float:
        """Seconds of a round on neither model nor verdict."""
        return self._per_round("host_s")

    @property
    def draft_share(self) -> float:
        """Drafting's part of the round."""
        return self.draft_s / self.round_s if self.round_s else 0.0

    @property
    def draft_per_token(self) -> float:
        """Seconds of drafting for one proposal."""
        drafted = self._sum("drafted")
        return self._sum("draft_s") / drafted if drafted else 0.0

    @property
    def memory(self) -> int:
        """Most bytes that were in use."""
        return max((unit.memory for unit in self.units), default=0)

    def kept_at(self, place: int) -> float:
        """How often the proposal at this place of the block (from 0) was kept, of the times one stood there."""
        offered = sum(unit.offered[place] for unit in self.units if place < len(unit.offered))
        kept = sum(unit.kept[place] for unit in self.units if place < len(unit.kept))
        return kept / offered if offered else 0.0


def sums(units: Iterable[Unit], variant: Variant, wave: str = SWEEP, category: str | None = None) -> Sums:
    """Over the units of a variant in these waves, of one category or of all."""
    return Sums(
        tuple(
            unit
            for unit in units
            if unit.variant == variant and unit.wave.startswith(wave) and category in (None, unit.category)
        )
    )


def categories(units: Sequence[Unit]) -> list[str]:
    """In the order of their first unit."""
    return list(dict.fromkeys(unit.category for unit in units))
