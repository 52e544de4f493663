"""Are two samples from one law? χ², p-values, distances, and what a sample of this size would have noticed. No models.

Written from scratch: the survival function of χ² is the regularised incomplete gamma function, which torch has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

Key = tuple[int, ...]
"""The first ids of a reply: one cell of the law that is compared."""

LEAST_EXPECTED = 5.0
"""Cells in which fewer are expected are pooled: below it χ² is no longer the statistic's law."""

EDGE = 1e-3
"""Share of a law that rounding may move to ids it does not list, as where two ids nearly tie for the last place of
top-k."""

POWER = 0.9
"""How surely a distance must be noticed to count as noticeable."""


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison. distance: total variation over the cells compared (0 the same law, 1 nothing in common)."""

    __test__ = False  # not for pytest to collect

    name: str
    statistic: float
    dof: int
    p: float
    distance: float
    noticeable: float
    """A true distance of this much would have been noticed nine times in ten, whatever its shape; 1 when none."""


def survival(x: float, dof: int) -> float:
    """P(χ² with dof degrees of freedom ≥ x)."""
    if dof < 1 or x <= 0:
        return 1.0
    half = torch.tensor([dof / 2, x / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def survival_shifted(x: float, dof: int, shift: float) -> float:
    """The same for the non-central χ² with non-centrality shift: a Poisson mixture of central ones."""
    mean = shift / 2
    j = torch.arange(int(mean + 12 * math.sqrt(mean + 1) + 20), dtype=torch.float64)
    weights = torch.exp(j * math.log(max(mean, 1e-300)) - mean - torch.lgamma(j + 1))
    tails = torch.special.gammaincc(dof / 2 + j, torch.tensor(x / 2, dtype=torch.float64))
    return float((weights * tails).sum())


def critical(alpha: float, dof: int) -> float:
    """The statistic whose p-value is alpha."""
    return _solve(lambda x: survival(x, dof) <= alpha)


def shift_noticed(alpha: float, dof: int) -> float:
    """The non-centrality at which a test of level alpha rejects with probability POWER."""
    bound = critical(alpha, dof)
    return _solve(lambda shift: survival_shifted(bound, dof, shift) >= POWER)


def _solve(reached: Callable[[float], bool]) -> float:
    """The smallest x ≥ 0 at which a monotone condition holds (bisection)."""
    high = 1.0
    while not reached(high):
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def two_samples(name: str, a: Mapping[Key, int], b: Mapping[Key, int], alpha: float) -> Test:
    """χ² for homogeneity of two samples of counts.

    Cells are pooled by their sum over both samples, which says nothing about a difference. If p and q are the two
    laws on k cells and n the size of each sample, the non-centrality is n/2 · Σ (p-q)² / ((p+q)/2), by Cauchy and
    Schwarz at least 2 n d² for a total variation distance d: hence `noticeable`.
    """
    n_a, n_b = sum(a.values()), sum(b.values())
    both = Counter(a) + Counter(b)
    least = LEAST_EXPECTED * (n_a + n_b) / max(1, min(n_a, n_b))
    cells = [(float(a.get(key, 0)), float(b.get(key, 0))) for key, _ in both.most_common()]
    rows = _pooled(cells, least, sum)
    dof = len(rows) - 1
    if dof < 1 or not n_a or not n_b:
        return Test(name, 0.0, 0, 1.0, 0.0, 1.0)
    statistic = distance = 0.0
    for x, y in rows:
        share = (x + y) / (n_a + n_b)
        statistic += (x - n_a * share) ** 2 / (n_a * share) + (y - n_b * share) ** 2 / (n_b * share)
        distance += abs(x / n_a - y / n_b) / 2
    each = 2 / (1 / n_a + 1 / n_b)
    noticed = math.sqrt(shift_noticed(alpha, dof) / (2 * each))
    return Test(name, statistic, dof, survival(statistic, dof), distance, min(1.0, noticed))


def against_law(name: str, counts: Mapping[Key, int], law: Mapping[Key, float], alpha: float) -> Test:
    """χ² of one sample against known probabilities; what the law does not list is one more cell.

    Cells are pooled by their probability alone. Non-centrality n · Σ (p-q)² / q ≥ 4 n d². Where the law lists
    everything, what came beside it is judged on its own: more of it than rounding explains (see EDGE) is no chance.
    """
    n = sum(counts.values())
    strays, rest = sum(count for key, count in counts.items() if key not in law), 1.0 - sum(law.values())
    if rest <= EDGE and strays:
        known = {key: count for key, count in counts.items() if key in law}
        found = against_law(name, known, law, alpha)
        # P(Poisson with that mean ≥ strays); two looks at one sample, so twice the smaller p.
        mean = torch.tensor(EDGE * n, dtype=torch.float64)
        chance = float(torch.special.gammainc(torch.tensor(float(strays), dtype=torch.float64), mean))
        return replace(
            found,
            p=min(1.0, 2 * min(found.p, chance)),
            distance=max(found.distance, strays / n),
        )
    cells = [(float(counts.get(key, 0)), p * n) for key, p in law.items()]
    if rest > EDGE:
        cells.append((float(strays), rest * n))
    rows = _pooled(sorted(cells, key=lambda cell: -cell[1]), LEAST_EXPECTED, lambda cell: cell[1])
    dof = len(rows) - 1
    if dof < 1:
        return Test(name, 0.0, 0, 1.0, 0.0, 1.0)
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in rows)
    distance = sum(abs(seen - expected) for seen, expected in rows) / (2 * n)
    noticed = math.sqrt(shift_noticed(alpha, dof) / (4 * n))
    return Test(name, statistic, dof, survival(statistic, dof), distance, min(1.0, noticed))


def _pooled(
    cells: Sequence[tuple[float, float]], least: float, size: Callable[[tuple[float, float]], float]
) -> list[tuple[float, float]]:
    """Those of a size below `least` become one cell; if that is still too small, it joins the last of the others."""
    kept = [cell for cell in cells if size(cell) >= least]
    small = [cell for cell in cells if size(cell) < least]
    if small:
        pool = (sum(x for x, _ in small), sum(y for _, y in small))
        if size(pool) < least and kept:
            x, y = kept.pop()
            pool = (x + pool[0], y + pool[1])
        kept.append(pool)
    return kept
