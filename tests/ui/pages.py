"""What the browser tests share: a page being served from scripts, and a person's steps on it."""

from __future__ import annotations

import time
from collections.abc import Callable

from specchat import ui
from specchat.decode.engine import Settings
from specchat.worker import Worker
from tests.ui.fake_worker import FakePair


class Served:
    """A page being served, with what a test wants to look at behind it."""

    def __init__(self, worker: Worker, pair: FakePair, settings: Settings | None = None) -> None:
        self.worker, self.pair = worker, pair
        self.page = ui.build(worker, settings)
        self.url = self.page.start()

    def close(self) -> None:
        self.page.blocks.close()
        self.worker.close()


def send(page, text: str) -> None:
    page.fill("#sc-box textarea", text)
    page.press("#sc-box textarea", "Enter")


def stats(page, count: int = 1) -> str:
    """Waits for the stats line of the count-th reply."""
    line = page.locator("[data-testid=stats]").nth(count - 1)
    line.wait_for(timeout=60_000)
    page.wait_for_selector("#sc-box .submit-button")
    return line.inner_text()


def ask(page, text: str, count: int = 1) -> str:
    send(page, text)
    return stats(page, count)


def bot(page, n: int = 0) -> str:
    return page.locator("#sc-settled [data-testid=bot]").nth(n).inner_text()


def slide(page, name: str, value: float) -> None:
    page.fill(f"#{name} input[type=number]", str(value))
    page.press(f"#{name} input[type=number]", "Enter")


def eventually(holds: Callable[[], object], what: str, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.02)
