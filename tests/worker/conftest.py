"""Workers that are closed when their test ends, and a quiet log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from specchat.pair import Pair
from specchat.worker import Worker
from tests.worker.jobs import SOON


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Expected failures stay out of the log, which would keep their tracebacks alive."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def start() -> Iterator[Callable[[Pair], Worker]]:
    """Starts workers that are closed when the test ends."""
    workers: list[Worker] = []

    def begin(pair: Pair) -> Worker:
        worker = Worker(lambda progress: pair)
        workers.append(worker)
        assert worker.wait_ready(SOON)
        return worker

    yield begin
    for worker in workers:
        worker.close()
