"""Why speculation is slow here: causes in plain words, ranked by the time they cost, each with what to do about it.

Several causes look alike (few proposals kept may mean a weak draft, another sampling or a γ that is too long), so
none is judged by a number alone: each one's cost is what the measured rates give without it. First the sampling is
set right, then γ is chosen; what is still lost is divided among draft, verification and the rest.
"""

from __future__ import annotations

from specchat.lab import doctor_causes, doctor_surroundings
from specchat.lab.doctor_chart import SEVERE, WORTH_CHANGING, Chart, Finding, Remedy
from specchat.lab.doctor_evidence import LEAST_GAIN, Evidence

__all__ = ["Evidence", "Finding", "Remedy", "examine"]

WORTH_TELLING = 0.04
"""Causes that cost a smaller share of the time are not mentioned."""

CLEAR_GAIN = 1.1
"""A speed-up from which on advice that needs another draft or machine can wait."""


def examine(evidence: Evidence) -> list[Finding]:
    """The causes, the costliest first; a "healthy" finding in front when nothing is wrong. Pure.

    Raises ValueError without rounds, unless the vocabularies already say why.
    """
    if evidence.vocabulary and not evidence.speculative:
        return [doctor_surroundings.vocabulary_of(evidence.vocabulary)]
    chart = Chart.of(evidence)
    causes = (*doctor_causes.ALL, *doctor_surroundings.ALL)
    found = [finding for cause in causes if (finding := cause(chart)) is not None]
    found = sorted((f for f in found if f.cost >= WORTH_TELLING), key=lambda f: -f.cost)
    if chart.gain >= LEAST_GAIN and all(f.cost < _bearable(chart, f) for f in found):
        return [doctor_causes.healthy(chart), *found]
    return found or [doctor_causes.even(chart)]


def _bearable(chart: Chart, finding: Finding) -> float:
    """The cost from which on a finding spoils the good news: more where speculation gains and no button helps."""
    pressing = finding.estimate or finding.remedy.by_button or chart.gain < CLEAR_GAIN
    return WORTH_CHANGING if pressing else SEVERE
