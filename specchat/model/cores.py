"""How many cores there are to compute on, and one of them lent for the moment in which a page is drawn. Imports nothing
heavy.

The threads of a forward wait for each other behind each product. Whatever takes a core for 10 ms so holds up the others
as long; a forward that leaves the core alone from the start loses half of that.
"""

from __future__ import annotations

import os
import threading

import psutil


def cores() -> int:
    """Real ones (two threads of one core share its arithmetic), and of these as many as this process may use."""
    real = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else real
    return min(real, allowed)


class Loan:
    """One core, from a forward that is about to begin to whoever waits for it."""

    def __init__(self) -> None:
        self.lenders = False
        """Whether anything gives: else nobody need wait."""
        self._asked = threading.Event()
        self._given = threading.Event()

    def ask(self, longest: float) -> bool:
        """Waits until a forward begins, which was told to leave a core alone, or so many seconds; says which."""
        if not self.lenders:
            return False
        self._given.clear()
        self._asked.set()
        given = self._given.wait(longest)
        self._asked.clear()
        return given

    def give(self) -> bool:
        """A forward begins: whether it is asked to leave a core alone. Whoever asks goes on."""
        if not self._asked.is_set():
            return False
        self._asked.clear()
        self._given.set()
        return True


LOAN = Loan()
"""Of this process."""
