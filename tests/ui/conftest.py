"""A real Chromium for the page's tests: the system's, or the one that Playwright brought.

Without any, browser tests skip and say so; under CI=true a missing browser is a failure. Every page
handed out is watched: a request beyond this machine, a page error or a console error fails its test.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

from tests.ui.fake_worker import FakePair, answer_from_scripts, fake_worker
from tests.ui.pages import Served

sync_api = pytest.importorskip("playwright.sync_api")
Browser, ConsoleMessage, Page = sync_api.Browser, sync_api.ConsoleMessage, sync_api.Page

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
LOCAL = {"127.0.0.1", "localhost", "::1", ""}
OpenPage = Callable[..., "Page"]


def _executable(bundled: str) -> str | None:
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    return bundled if Path(bundled).exists() else None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for the whole run."""
    with sync_api.sync_playwright() as playwright:
        path = _executable(playwright.chromium.executable_path)
        if path is None:
            message = "no Chromium found (apt-get install chromium, or playwright install chromium)"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(f"{message}: the page is not tested in a browser")
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def behind() -> Iterator[ExitStack]:
    """What a test serves of its own; closed when every tab is, for an open tab asks on and says when refused."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def open_page(browser: Browser, behind: ExitStack) -> Iterator[OpenPage]:
    """Opens watched tabs: `open_page(url, width=…, height=…, dark=…)`; each is a browser session of its own.

    left: page and server part while one of them speaks, and Gradio's client says so on the page.
    early: a script that runs before any of the page's.
    """
    contexts, wrong = [], []

    def open_one(
        url: str,
        width: int = 1280,
        height: int = 860,
        dark: bool = False,
        left: bool = False,
        early: str = "",
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(early)
        page.on("pageerror", lambda error: wrong.append(f"page error: {error}"))
        page.on("console", lambda line: _listen(line, left, wrong))
        page.on("request", lambda request: _check(request.url, wrong))
        page.goto(url)
        page.wait_for_selector("#sc-box textarea")
        page.wait_for_selector("html.sc-settled", state="attached")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not wrong, wrong


def _listen(line: ConsoleMessage, left: bool, wrong: list[str]) -> None:
    gone = ("AbortError", "Connection errored out", "ERR_CONNECTION_REFUSED")
    torn = left and any(reason in line.text for reason in gone)
    if line.type == "error" and not torn:
        wrong.append(f"console: {line.text}")


def _check(url: str, wrong: list[str]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("data", "blob") and (parts.hostname or "") not in LOCAL:
        wrong.append(f"request beyond this machine: {url}")


@pytest.fixture
def shot(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Page, str], None]:
    """Keeps a screenshot: in the folder named by SPECCHAT_SCREENSHOTS, else in the test's own."""
    folder = Path(os.environ.get("SPECCHAT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> None:
        page.screenshot(path=folder / f"{re.sub(r'[^a-z0-9_]+', '_', name.lower())}.png")

    return take


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A page over a worker that answers from scripts; one a module, each test opens tabs of its own."""
    back, pair = answer_from_scripts(), FakePair()
    one = Served(fake_worker(pair), pair)
    yield one
    one.close()
    back()
