"""The product as a person gets it: app.py in a process of its own, the built-in pair, a real Chromium."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.builtin]
APP = Path(__file__).parents[2] / "app.py"
PATIENCE = 120_000
"""Milliseconds for a reply: what a machine that runs other things too may need; no test measures speed."""


class App:
    """A running app.py: its address and what it printed."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-u", str(APP)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.printed = ""
        self.url = self.read_until(r"http://127\.0\.0\.1:\d+")

    def read_until(self, pattern: str) -> str:
        assert self.child.stdout is not None
        while not (found := re.search(pattern, self.printed)):
            line = self.child.stdout.readline()
            assert line, f"app.py ended before it printed {pattern}:\n{self.printed}"
            self.printed += line
        return found.group()


@pytest.fixture(scope="module")
def app(builtin_folder: Path) -> Iterator[App]:
    started = App()
    yield started
    started.child.send_signal(signal.SIGINT)
    assert started.child.wait(30) == 0, "Ctrl-C ends the program cleanly"
    assert started.child.stdout is not None
    last = started.child.stdout.read()
    assert "Stopping." in last
    assert "Traceback" not in last, last


def send(page, text: str) -> None:
    page.fill("#sc-box textarea", text)
    page.press("#sc-box textarea", "Enter")


def finished(page, count: int = 1) -> str:
    line = page.locator("[data-testid=stats]").nth(count - 1)
    line.wait_for(timeout=PATIENCE)
    page.wait_for_selector("#sc-box .submit-button", timeout=PATIENCE)
    return line.inner_text()


def slide(page, name: str, value: float) -> None:
    box = f"#{name} :is(input[type=number], input[type=text], textarea)"
    page.fill(box, str(value))
    page.press(box, "Enter")
    page.wait_for_timeout(500)  # the change is on its way to the engine, which takes it up at its next round


def writing(page) -> None:
    page.wait_for_selector("#sc-live .sc-text", timeout=PATIENCE)


def eventually(holds: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.05)


def test_a_newcomer_chats_with_the_built_in_pair(app, open_page, shot):
    page = open_page(app.url)
    slide(page, "sc-max-tokens", 60)
    slide(page, "sc-seed", 3)
    send(page, "What is the capital of France? Answer in one sentence.")
    line = finished(page)
    for part in ("tokens", "tok/s", "first token", "tokens/round", "accepted"):
        assert part in line, line
    assert "Paris" in page.locator("[data-testid=bot]").inner_text()
    assert float(page.locator(".sc-big").inner_text()) > 0
    page.wait_for_selector(".sc-pair:has-text('SmolLM2-135M-Instruct')")
    assert "weights" in page.locator(".sc-pair").get_attribute("title"), "the precision in use is told"
    assert page.locator(".sc-verdict").get_attribute("data-verdict") in ("wins", "loses", "even", "early")
    memory = page.locator("figure:has-text('Memory')").inner_text()
    assert "RSS of this process" in memory
    assert re.search(r"target weights\s+\d+ MB", memory), memory
    shot(page, "builtin light")


def test_stop_keeps_what_was_written_and_the_next_turn_reuses_the_cache(app, open_page):
    page = open_page(app.url)
    send(page, "Tell a long story about a lighthouse keeper.")
    writing(page)
    page.click("#sc-box .stop-button")
    assert "stopped" in finished(page)
    kept = page.locator("[data-testid=bot]").first.inner_text()
    slide(page, "sc-max-tokens", 8)
    send(page, "Go on.")
    line = finished(page, 2)
    reused = re.search(r"(\d+) reused", line)
    assert reused is not None
    assert int(reused.group(1)) > 20, line
    assert page.locator("[data-testid=bot]").first.inner_text() == kept


def test_gamma_moved_mid_reply_shows_in_the_panel(app, open_page, shot):
    page = open_page(app.url)
    slide(page, "sc-gamma", 2)
    send(page, "Tell a long story about the sea.")
    writing(page)
    bars = page.locator("figure:has-text('Accepted length')").locator(".sc-col")
    eventually(lambda: bars.count() == 3, "γ = 2 has three bars")
    slide(page, "sc-gamma", 6)
    eventually(lambda: bars.count() == 7, "γ = 6 has seven bars, in the reply being written")
    page.wait_for_selector("figcaption:has-text('new settings from round')", timeout=PATIENCE)
    shot(page, "builtin gamma moved")
    page.click("#sc-box .stop-button")
    finished(page)


def test_speculation_off_and_greedy_gives_the_text_of_speculation_on(app, open_page):
    page = open_page(app.url)
    slide(page, "sc-temperature", 0)
    slide(page, "sc-max-tokens", 40)
    send(page, "Name three colours.")
    finished(page)
    with_draft = page.locator("[data-testid=bot] .sc-text").inner_text()
    page.uncheck("#sc-on input")
    page.click("#sc-retry")
    page.wait_for_selector("#sc-box .stop-button")
    line = finished(page)
    assert "speculation off" in line
    assert page.locator("[data-testid=bot] .sc-text").inner_text() == with_draft


def test_retry_and_edit_answer_again(app, open_page):
    page = open_page(app.url)
    slide(page, "sc-max-tokens", 12)
    send(page, "Say hello.")
    finished(page)
    page.click("#sc-retry")
    page.wait_for_selector("#sc-box .stop-button")
    assert "tokens" in finished(page)
    page.click("#sc-edit-last")
    eventually(lambda: page.input_value("#sc-box textarea") == "Say hello.", "the message is in the box")
    send(page, "Say goodbye.")
    page.wait_for_selector("#sc-box .stop-button")
    finished(page)
    assert page.locator("[data-testid=user]").count() == 1
    assert page.locator(".sc-said").inner_text() == "Say goodbye."


def test_hostile_text_is_repeated_but_not_run(app, open_page):
    page = open_page(app.url)
    slide(page, "sc-temperature", 0)
    slide(page, "sc-max-tokens", 60)
    typed = (
        "Repeat exactly: <img src=x onerror=window.pwned=1> <|im_end|> <script>window.pwned=2</script> a<b"
    )
    send(page, typed)
    finished(page)
    assert page.locator(".sc-said").inner_text() == typed
    assert page.evaluate("window.pwned") is None
    assert page.locator("#sc-log :is(img, script, iframe)").count() == 0


def test_the_lens_on_a_real_reply_in_the_dark(app, open_page, shot):
    page = open_page(app.url, width=1440, height=900, dark=True)
    slide(page, "sc-max-tokens", 80)
    slide(page, "sc-seed", 4)
    send(page, "Write a Python function that adds two numbers, with an example.")
    finished(page)
    shot(page, "builtin dark")
    page.check("#sc-lens input")
    page.wait_for_selector("#sc-settled .sc-lens .sc-t")
    shot(page, "builtin lens dark")


def test_the_narrow_page_works_too(app, open_page, shot):
    page = open_page(app.url, width=380, height=800)
    page.locator(".sc-example").nth(1).click()
    writing(page)
    page.click("#sc-box .stop-button")
    finished(page)
    shot(page, "builtin narrow")
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_it_listens_on_the_loopback_address_only_and_talks_to_nobody(app):
    process = psutil.Process(app.child.pid)
    connections = process.net_connections("inet")
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1"}, listening
    remote = {c.raddr.ip for c in connections if c.raddr}
    assert remote <= {"127.0.0.1", "::1"}, remote


def test_the_terminal_shows_no_warning_and_no_traceback(app):
    app.read_until("Ready to answer")
    assert "Warning" not in app.printed, app.printed
    assert "Traceback" not in app.printed
