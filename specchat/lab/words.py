"""How a reply ended and what was drafted in it, in words: the same on the page and in the terminal. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from specchat.decode.events import Reason
from specchat.decode.stats import Stats

REASONS: Mapping[Reason, str] = {
    "eos": "finished",
    "stop": "ended at a stop string",
    "length": "stopped at max tokens",
    "context": "stopped: the context is full",
    "cancelled": "stopped",
    "error": "failed",
}


def nothing_drafted(stats: Stats) -> str:
    """What stands in place of the acceptance when no proposal was judged: was there to be one at all?"""
    return "nothing drafted" if stats.largest_gamma else "speculation off"


def percent(rate: float) -> str:
    """0.614 → "61 %"."""
    return f"{rate * 100:.0f} %"
