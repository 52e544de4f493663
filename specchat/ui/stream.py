"""From the worker's events to updates of the page: at most 7 a second, fewer with two cores or when they cost much."""

from __future__ import annotations

import time
from collections.abc import Iterator

from specchat.model.cores import LOAN, cores
from specchat.worker import Done, Ended, Event, Handle, Queued, Reading, Step

FASTEST_S = 0.15 if cores() > 2 else 0.3
"""Shortest time between two updates. With two cores the browser draws them on one that the reply is computed on."""

SLOWEST_S = 1.0
"""Longest time between two updates, however much one costs."""

SHARE = 8
"""An update that took t seconds to make and send is followed by a pause of at least (SHARE - 1) · t."""

HEARTBEAT_S = 0.5
"""Updates without news come this often: only at an update can what follows a job be ended, when its tab is gone."""

LOAN_S = 0.03
"""An update of a reply waits at most so long for a core to be made and drawn on."""


class Pace:
    """Spaces updates so that showing a reply takes a bounded share of the time, whatever its length."""

    def __init__(self) -> None:
        self._last = time.perf_counter() - FASTEST_S

    def wait(self) -> None:
        """Call when the update before has been taken; returns when the next one may be made."""
        now = time.perf_counter()
        cost = now - self._last
        pause = min(max(FASTEST_S, SHARE * cost), SLOWEST_S) - cost
        if pause > 0:
            time.sleep(pause)

    def start(self) -> None:
        """Call when an update begins to be made."""
        self._last = time.perf_counter()


def batches(handle: Handle) -> Iterator[list[Event]]:
    """Everything that has arrived, again and again, until the last one is among it; [] when nothing came for a while.

    What comes before a reply's first round is passed on at once; so is that round, but for `LOAN_S`, and so is what
    comes after a while of nothing.
    """
    pace = Pace()
    for event in handle.events(HEARTBEAT_S):
        if isinstance(event, Step) and not handle.done.is_set():
            LOAN.ask(LOAN_S)
        pace.start()
        batch = [] if event is None else [event, *handle.drain()]
        yield batch
        if batch and isinstance(batch[-1], Done | Ended):
            return
        if not all(isinstance(event, Queued | Reading) for event in batch):
            pace.wait()
