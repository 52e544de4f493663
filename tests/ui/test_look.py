"""What the eye and the network get: contrast in light and dark, no address but our own, the policy on every answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest

from specchat import ui
from specchat.ui import theme
from specchat.ui.page import POLL_S, PROGRESS_S
from tests.ui.fake_worker import FakePair, fake_worker

CSS = (theme.ASSETS / "page.css").read_text(encoding="utf-8")
BODY = {"light": "#fbfbfb", "dark": theme.INK.c950}


def colours(scheme: str) -> dict[str, str]:
    block = re.search((r":root" if scheme == "light" else r"\.dark") + r" \{(.*?)\}", CSS, re.DOTALL)
    assert block is not None
    return dict(re.findall(r"--sc-([a-z-]+): (#[0-9a-f]{6})", block[1]))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_hues_stand_out_from_what_is_behind_them(scheme):
    found = colours(scheme)
    for ground in (found["card"], found["well"], BODY[scheme]):
        for name in ("ink", "soft"):
            assert contrast(found[name], ground) >= 4.5, (scheme, name, ground)
        for name in ("draft", "target"):
            assert contrast(found[name], ground) >= 3.0, (scheme, name, ground)


def test_nothing_of_ours_names_another_address():
    for name in ("page.css", "page.js", "first.js", "logo.svg"):
        text = (theme.ASSETS / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE), name
        assert "url(" not in text
        assert "@import" not in text
    assert all(font.name and type(font).__name__ == "Font" for font in theme.theme()._font)


@pytest.fixture
def page() -> Iterator[ui.Page]:
    worker = fake_worker(FakePair())
    found = ui.build(worker)
    yield found
    found.blocks.close()
    worker.close()


def test_every_answer_forbids_foreign_requests(page):
    url = page.start()
    with urlopen(url) as answer:
        policy = answer.headers["content-security-policy"]
        body = answer.read().decode()
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "fonts.googleapis" not in body
    assert page.blocks.analytics_enabled is False


def test_the_first_script_comes_before_everything_of_gradios(page):
    with urlopen(page.start()) as answer:
        body = answer.read()
        assert len(body) == int(answer.headers["content-length"])
    script = (theme.ASSETS / "first.js").read_bytes()
    assert body.count(script) == 1
    assert body.index(script) == body.index(b"<script") + len(b"<script>")


@pytest.mark.parametrize("kind", [b"text/html; charset=utf-8", b"application/json"])
def test_an_answer_in_pieces_gets_the_first_script_if_it_is_a_page(kind):
    """An answer of another kind passes as it is, piece by piece."""
    pieces = [b"<html><he", b"ad><script>own</script></head></html>"]
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", kind), (b"Content-Length", b"48")],
    }

    async def app(scope, receive, send):
        await send(start)
        await send({"type": "http.response.body", "body": pieces[0], "more_body": True})
        await send({"type": "http.response.body", "body": pieces[1]})

    sent = []

    async def send(message):
        sent.append(message)

    with ThreadPoolExecutor(1) as pool:
        whole = theme.Foremost(app, "first()")({"type": "http", "path": "/"}, None, send)
        pool.submit(asyncio.run, whole).result(20)
    body = b"".join(message.get("body", b"") for message in sent)
    if kind.startswith(b"text/html"):
        assert body == b"<html><head><script>first()</script><script>own</script></head></html>"
        assert dict(sent[0]["headers"])[b"content-length"] == str(len(body)).encode()
        assert len(sent[0]["headers"]) == 2
    else:
        assert sent[0] == start
        assert [message["body"] for message in sent[1:]] == pieces


@pytest.mark.parametrize(
    ("loop", "pause"), [("start_processing", POLL_S), ("start_progress_updates", PROGRESS_S)]
)
def test_gradio_looks_for_events_calmly(page, monkeypatch, loop, pause):
    """Each look takes the interpreter from the engine; by default there are a thousand a second."""
    queue, slept = page.blocks._queue, []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        queue.stopped = True

    queue.stopped = False
    monkeypatch.setattr("gradio.queueing.asyncio.sleep", sleep)
    # In a thread of its own: where a browser test has run, this one has a loop already.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, getattr(queue, loop)()).result(20)
    assert slept == [pause]


def test_no_event_makes_components_count_the_seconds_of_their_waiting(page):
    """A status tracker that is told of an event counts sixty times a second beside the engine; a button has none."""
    told = {tuple(event["show_progress_on"] or ()) for event in page.blocks.get_config_file()["dependencies"]}
    assert told == {(page.chat.new._id,)}
