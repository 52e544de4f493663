"""Passes of few rows, recorded once and replayed: on a GPU a step of many small kernels becomes one launch.

A recorded pass repeats the same kernels on the same memory. So its inputs lie in buffers that are filled before each
replay, places are read on the device, and attention goes over a fixed stretch of the cache with a mask: one record
for each (rows, columns). Nothing about sampling or γ is in it, so a moved slider needs no new one once its number
of rows has been seen. What comes out is copied, and stays valid. Where recording fails, everything goes on unrecorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from specchat.decode.ids import Ids, on
from specchat.decode.settings import MAX_GAMMA
from specchat.model.compact_weights import Weights
from specchat.model.errors import UnsupportedModel

log = logging.getLogger(__name__)

MAX_ROWS = MAX_GAMMA + 1
"""Rows of the longest verification; longer blocks (prompts) are not recorded."""
SHORTEST = 512
"""Columns of the shortest stretch of the cache; longer ones double."""
WARM_UPS = 3
"""Runs before a recording, so that libraries allocate what they keep outside of it."""

Tell = Callable[[str], None]
"""Hears a sentence for the person."""


class Replayer(Protocol):
    """How work is recorded. `work` reads and writes buffers only, and may be run any number of times."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Runs `work` at least once to warm up; returns what repeats its operations on the same memory."""
        ...


class CudaReplayer:
    """CUDA graphs. One memory pool for all: what is in it is scratch, dead when a replay ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._side = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            try:
                self._side.wait_stream(before)
                with torch.cuda.stream(self._side):
                    for _ in range(WARM_UPS):
                        work()
                before.wait_stream(self._side)
                graph = torch.cuda.CUDAGraph()
                # thread_local: what the page's threads ask of the device meanwhile does not spoil the recording.
                with torch.cuda.graph(graph, self._pool, self._side, capture_error_mode="thread_local"):
                    work()
            finally:
                # A recording that fails leaves torch on the side stream.
                torch.cuda.set_stream(before)
        return graph.replay


class Recorded:
    """Work on n rows at consecutive places: recorded once for each (n, columns), replayed from then on.

    work(ids [n], places [n], columns) gets static tensors of the device, int64, and reads nothing else that changes.
    """

    def __init__(
        self,
        work: Callable[[Tensor, Tensor, int], None],
        capacity: int,
        device: torch.device,
        replayer: Replayer,
        tell: Tell,
    ) -> None:
        self.failed = False
        self._work = work
        self._capacity = capacity
        self._replayer = replayer
        self._tell = tell
        self._numbers = torch.zeros(1 + MAX_ROWS, dtype=torch.long, device=device)
        """The first place, then the ids."""
        self._steps = torch.arange(MAX_ROWS, device=device)
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}

    def takes(self, n: int) -> bool:
        """Whether a block of n rows is one to replay."""
        return not self.failed and 1 <= n <= MAX_ROWS

    def run(self, ids: Ids, start: int) -> bool:
        """Does the work for ids at places start…; False if it could not be recorded, and is to be done without.

        Call it for blocks that it `takes`, with room for them in the cache.
        """
        if isinstance(ids, Tensor):
            self._numbers[0].fill_(start)
            self._numbers[1 : 1 + len(ids)].copy_(ids)
        else:
            self._numbers[: 1 + len(ids)].copy_(on(self._numbers.device, [start, *ids]))
        key = len(ids), columns_for(start + len(ids), self._capacity)
        if key not in self._replays and not self._record(*key):
            return False
        self._replays[key]()
        return True

    def _record(self, n: int, columns: int) -> bool:
        def work() -> None:
            self._work(self._numbers[1 : 1 + n], self._numbers[0] + self._steps[:n], columns)

        try:
            self._replays[n, columns] = self._replayer.record(work)
        except Exception as problem:
            log.exception("a pass could not be recorded")
            self.failed = True
            self._replays.clear()
            self._tell(f"CUDA graphs are off: a pass of the model could not be recorded ({_first(problem)}).")
            return False
        return True


class Fixed(Protocol):
    """A decoder as `StaticForward` sees it."""

    weights: Weights
    vocab: int
    capacity: int
    device: torch.device

    def fixed(self, ids: Tensor, places: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """ids [n] to places [n], seeing the first `columns` places -> states [n, d], logits [n, vocab]."""
        ...


class StaticForward:
    """A decoder's forward of up to MAX_ROWS rows, replayed. Its buffers are allocated here, once."""

    def __init__(self, decoder: Fixed, replayer: Replayer, tell: Tell) -> None:
        self.replayer = replayer
        self.tell = tell
        self._decoder = decoder
        table, device = decoder.weights.table, decoder.device
        self._states = torch.zeros((MAX_ROWS, table.shape[1]), dtype=decoder.weights.dtype, device=device)
        self._logits = torch.zeros((MAX_ROWS, decoder.vocab), device=device)
        self._recorded = Recorded(self._work, decoder.capacity, device, replayer, tell)

    def __call__(self, ids: Ids, start: int) -> tuple[Tensor, Tensor] | None:
        """ids to places start…: states [n, d] (valid until the next call) and logits float32 [n, vocab] (for good).

        None if this block is not one to replay.
        """
        n = len(ids)
        if not self._recorded.takes(n) or not self._recorded.run(ids, start):
            return None
        return self._states[:n], self._logits[:n].clone()

    def _work(self, ids: Tensor, places: Tensor, columns: int) -> None:
        states, logits = self._decoder.fixed(ids, places, columns)
        self._states[: len(ids)] = states
        self._logits[: len(ids)] = logits


class FixedHead(Protocol):
    """A draft head as `StaticFeed` sees it."""

    capacity: int
    device: torch.device

    def fixed(self, states: Tensor, ids: Tensor, places: Tensor, columns: int) -> Tensor:
        """Pairs (states [n, d], ids [n]) to places [n], seeing the first `columns` places -> states [n, d]."""
        ...


class StaticFeed:
    """A draft head's feed of up to MAX_ROWS pairs, replayed. Its buffers are allocated here, once."""

    def __init__(self, head: FixedHead, weights: Weights, replayer: Replayer, tell: Tell) -> None:
        self._head = head
        shape = (MAX_ROWS, weights.table.shape[1])
        self._inputs = torch.zeros(shape, dtype=weights.dtype, device=head.device)
        self._outputs = torch.zeros(shape, dtype=weights.dtype, device=head.device)
        self._recorded = Recorded(self._work, head.capacity, head.device, replayer, tell)

    def __call__(self, states: Tensor, ids: Ids, start: int) -> Tensor | None:
        """Pairs (states [n, d], ids) to places start… -> states [n, d], for good. None: not one to replay."""
        n = len(ids)
        if not self._recorded.takes(n):
            return None
        self._inputs[:n] = states
        return self._outputs[:n].clone() if self._recorded.run(ids, start) else None

    def _work(self, ids: Tensor, places: Tensor, columns: int) -> None:
        n = len(ids)
        self._outputs[:n] = self._head.fixed(self._inputs[:n], ids, places, columns)


def demand_cuda(place: torch.device) -> None:
    """UnsupportedModel anywhere else."""
    if place.type != "cuda":
        raise UnsupportedModel(
            f"--cuda-graphs needs a CUDA device, and this runs on {place}; start without it."
        )


def columns_for(end: int, capacity: int) -> int:
    """The shortest stretch of the cache that holds places up to `end`: SHORTEST, doubled as often as needed."""
    columns = SHORTEST
    while columns < end:
        columns *= 2
    return min(columns, capacity)


def _first(problem: Exception) -> str:
    """The first line of an error's text: CUDA's go on with advice for programmers."""
    lines = str(problem).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__
