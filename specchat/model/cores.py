"""How many cores there are to compute on. Imports nothing heavy."""

from __future__ import annotations

import os

import psutil


def cores() -> int:
    """Real ones (two threads of one core share its arithmetic), and of these as many as this process may use."""
    real = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else real
    return min(real, allowed)
