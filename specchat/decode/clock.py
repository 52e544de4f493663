"""When the parts of a round began and ended, without waiting for the device in between."""

from __future__ import annotations

import itertools
import time
from typing import Protocol

import torch


class Clock(Protocol):
    """Moments of one round, in order."""

    def mark(self) -> None:
        """Everything asked for so far ends here."""
        ...

    def seconds(self) -> list[float]:
        """Between each mark and the next, once all that was marked is done."""
        ...


class HostClock:
    """Where an operation is over when its call returns, as on a CPU. On Apple's GPU, which queues work too, the time
    of a verification shows as sampling."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in itertools.pairwise(self._marks)]


class CudaClock:
    """Events in the device's own queue: the device notes when it comes to them. Of a target spread over several GPUs
    the time of the later ones shows as sampling, which waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._marks.append(event)

    def seconds(self) -> list[float]:
        return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(self._marks)]


def clock_for(device: torch.device) -> Clock:
    """The clock of a round whose verdict falls on this device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


def finish(device: torch.device) -> None:
    """Waits until the device has done what it was asked for: for the time of a prompt, and before a cancel is asked for."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
