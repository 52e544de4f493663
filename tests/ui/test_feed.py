"""The connection by which a reply reaches its page: over HTTP, torn off at any time, and put together in a browser."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from specchat.ui.feed import PATH, Feed
from specchat.ui.markdown import render
from tests.ui.lab_rig import tab
from tests.ui.pages import Served, ask, eventually, send, stats


def begin(served: Served, text: str, name: str) -> str:
    """Sends a message as the page does; the ticket it is given."""
    return served.page.chat.send(text, tab(name))[served.page.chat.live]


def get(served: Served, query: str) -> http.client.HTTPResponse:
    """Opens the connection; what has come of it is in the response."""
    connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=20)
    connection.request("GET", f"{PATH}{query}")
    response = connection.getresponse()
    response.connection = connection
    return response


def leave(response: http.client.HTTPResponse) -> None:
    response.connection.close()
    response.close()


@pytest.mark.parametrize("text", ["a story", "some code"])
def test_what_comes_over_it_adds_up_to_the_reply(served, text):
    response = get(served, f"?ticket={begin(served, text, text)}")
    assert response.status == 200
    assert response.getheader("content-type").startswith("text/event-stream")
    assert response.getheader("cache-control") == "no-store"
    assert "default-src 'self'" in response.getheader("content-security-policy")
    *events, end, rest = response.read().decode().split("\n\n")
    assert (end, rest) == ("event: end\ndata:", "")
    texts = [json.loads(event.removeprefix("data: ")).get("text") for event in events]
    texts = [text for text in texts if text]
    assert [bool(text.get("opening")) for text in texts] == [True] + [False] * (len(texts) - 1)
    session = served.page.desk.sessions.of(text)
    assert not session.busy
    written = session.turns[-1].reply.text
    assert len(texts) > 1
    settled = "".join(text["more"] for text in texts)
    assert render(written).startswith(settled)
    if text == "a story":  # prose to its end, so that the tail never was anything else
        assert texts[-1]["tail"]
        assert render(written).startswith((settled + texts[-1]["tail"]).removesuffix("</p>\n"))
    else:
        assert settled


def test_a_reply_that_waits_keeps_its_connection_alive(served):
    """Behind another tab nothing changes for long, and a connection that is silent may be cut on the way."""
    first = get(served, f"?ticket={begin(served, 'a slow story', 'before')}")
    waits = get(served, f"?ticket={begin(served, 'fast code', 'waits')}")
    assert waits.getheader("x-accel-buffering") == "no"
    assert served.page.desk.sessions.of("before").busy
    while not (line := waits.readline()).startswith(b":"):
        assert b"end" not in line
    assert served.page.desk.sessions.of("waits").turns[-1].reply.ahead
    leave(first)
    assert waits.read().endswith(b"event: end\ndata:\n\n")


@pytest.mark.parametrize(
    "query", ["", "?", "?ticket=", "?ticket=unknown", "?ticket=%ff%00&ticket=b", "?other=1", "?%"]
)
def test_without_a_good_ticket_there_is_nothing_but_an_end(served, query):
    assert get(served, query).read() == b"event: end\ndata:\n\n"


def test_a_ticket_opens_it_once(served):
    ticket = begin(served, "a slow story", "once")
    first = get(served, f"?ticket={ticket}")
    assert first.read(6) == b"data: "
    assert get(served, f"?ticket={ticket}").read() == b"event: end\ndata:\n\n"
    leave(first)


@pytest.mark.parametrize("after", [1, 400])
def test_a_page_that_goes_ends_its_reply(served, after):
    """after: bytes that it has read by then."""
    name = f"goes {after}"
    response = get(served, f"?ticket={begin(served, 'a slow story', name)}")
    session = served.page.desk.sessions.of(name)
    handle = session.handle
    response.read(after)
    leave(response)
    eventually(lambda: not session.busy, "the reply of a page that is gone is ended", 3)
    assert handle.cancelled()
    assert session.turns[-1].reply.finished.reason == "cancelled"
    eventually(lambda: served.worker.status().state == "ready", "the worker is free again", 3)


def test_a_page_that_goes_before_the_first_byte_ends_its_reply(served, monkeypatch):
    monkeypatch.setattr("specchat.ui.session.PATIENCE_S", 1.0)
    for n in range(8):
        ticket = begin(served, "a slow story", f"at once {n}")
        with socket.create_connection(urlsplit(served.url).netloc.rsplit(":", 1)) as line:
            line.sendall(f"GET {PATH}?ticket={ticket} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        session = served.page.desk.sessions.of(f"at once {n}")
        eventually(lambda session=session: not session.busy, "its reply is ended", 4)
        assert session.turns[-1].reply.finished.reason == "cancelled"


def scope(path: str) -> dict:
    return {"type": "http", "path": path, "query_string": b"ticket=t", "method": "GET", "headers": []}


def test_whatever_fails_in_sending_what_is_followed_is_closed():
    closed = []

    def follow(ticket):
        try:
            while True:
                yield {"status": ticket}
        finally:
            closed.append(ticket)

    async def broken(message):
        if message["type"] == "http.response.body":
            raise RuntimeError("broken")

    async def still():
        await asyncio.sleep(60)

    async def run():
        with pytest.raises((RuntimeError, BaseExceptionGroup)):
            await Feed(None, follow)(scope(PATH), still, broken)

    in_a_loop_of_its_own(run())
    assert closed == ["t"]


def test_the_end_of_the_server_says_nothing_of_generators():
    """uvicorn then cancels what runs, and does not wait for a thread."""

    def follow(ticket):
        while True:
            yield {"status": ticket}
            time.sleep(0.5)

    async def listen():
        await asyncio.sleep(60)

    async def send(message):
        pass

    async def run():
        task = asyncio.create_task(Feed(None, follow)(scope(PATH), listen, send))
        await asyncio.sleep(0.2)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_a_loop_of_its_own(run())


@pytest.mark.parametrize("path", ["/", PATH + "/", PATH[:-1], "/config"])
def test_other_addresses_are_none_of_its_business(path):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["path"])

    in_a_loop_of_its_own(Feed(app, lambda ticket: pytest.fail("followed"))(scope(path), None, None))
    assert seen == [path]


def in_a_loop_of_its_own(whole) -> None:
    """Where a browser test has run, this thread has a loop already."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, whole).result(20)


# -- in a browser -------------------------------------------------------------------------------------

LAST = """() => {
  const live = document.getElementById("sc-live");
  new MutationObserver(() => {
    const text = live.querySelector(".sc-writing");
    if (text) window.last = (BLOCKS)(text);
  }).observe(live, {childList: true, subtree: true});
}"""
BLOCKS = "text => [...text.children].map(block => block.outerHTML)"


@pytest.mark.browser
@pytest.mark.parametrize("lens", [False, True])
def test_what_the_page_puts_together_is_what_it_would_be_as_a_whole(served, open_page, lens):
    page = open_page(served.url)
    if lens:
        page.check("#sc-lens input")
    page.evaluate(LAST.replace("BLOCKS", BLOCKS))
    send(page, "a long text")
    page.wait_for_selector(
        "#sc-live :text('Part 6')" if not lens else "#sc-live .sc-t:nth-child(150)", timeout=30_000
    )
    page.click("#sc-box .stop-button")
    stats(page)
    assert page.locator("#sc-live .sc-bot").count() == 0
    # The last block and the one before it may have been at any stage: half a list, an open pair of stars.
    last = page.evaluate("window.last")[:-2]
    whole = page.locator("#sc-settled .sc-lens" if lens else "#sc-settled .sc-text").evaluate(BLOCKS)
    assert len(last) > 15
    assert whole[: len(last)] == last


@pytest.mark.browser
def test_the_look_may_change_while_it_is_written(served, open_page):
    page = open_page(served.url)
    send(page, "a long text")
    page.wait_for_selector("#sc-live .sc-text :text('Part 2')")
    page.check("#sc-lens input")
    page.wait_for_selector("#sc-live .sc-lens .sc-t:nth-child(30)")
    assert page.locator("#sc-live .sc-text").count() == 0
    page.uncheck("#sc-lens input")
    page.wait_for_selector("#sc-live .sc-text :text('Part 3')")
    assert page.locator("#sc-live .sc-lens").count() == 0
    assert page.locator("#sc-live .sc-writing").count() == 1
    page.click("#sc-box .stop-button")
    stats(page)


@pytest.mark.browser
def test_a_connection_that_breaks_ends_the_reply_and_leaves_the_page_usable(served, open_page, monkeypatch):
    monkeypatch.setattr("specchat.ui.session.PATIENCE_S", 0.5)
    page = open_page(served.url)
    torn = {"status": 200, "headers": {"content-type": "text/event-stream"}, "body": "data: {}\n\n"}
    page.route(f"**{PATH}*", lambda route: route.fulfill(**torn), times=1)
    send(page, "a slow story")
    assert "stopped" in stats(page)
    page.unroute(f"**{PATH}*")
    ask(page, "fast code", 2)


@pytest.mark.browser
def test_the_clock_stands_still_while_a_reply_is_written_and_while_nobody_looks(
    served, open_page, monkeypatch
):
    chat, looks = served.page.chat, []
    idle = chat.idle
    monkeypatch.setattr(chat, "idle", lambda session: looks.append(session) or idle(session))
    page = open_page(served.url)
    # The page's own first look comes before the first tick.
    eventually(lambda: len(looks) >= 2, "it ticks")
    send(page, "a long text")
    page.wait_for_selector("#sc-live .sc-text :text('Part 1')")
    time.sleep(0.5)
    before = len(looks)
    time.sleep(4.5)
    assert page.locator("#sc-live .sc-writing").count() == 1
    assert len(looks) == before
    page.click("#sc-box .stop-button")
    stats(page)
    eventually(lambda: len(looks) > before, "it ticks again")
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    time.sleep(0.5)
    before = len(looks)
    time.sleep(4.5)
    assert len(looks) == before
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    eventually(lambda: len(looks) > before, "it ticks at once", 1)


SCRIPT = """async () => {
  const made = [], asked = [];
  window.EventSource = class {
    constructor() { made.push(this); }
    addEventListener(name, call) { this[name] = call; }
    close() { this.closed = true; }
  };
  const element = document.createElement("div"), props = {value: ""};
  let changed;
  specchatReply(element, props, (name, call) => { changed = call; }, (name) => asked.push(name));
  const say = (value) => { props.value = value; changed(); };
  const text = (more) => ({data: JSON.stringify({text: {opening: '<p class="sc-writing"></p>', more, tail: "…"}})});
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const seen = [];
  say("A");
  made[0].onmessage(text("one"));
  made[0].end();
  seen.push(element.textContent, asked.length, made[0].closed);
  await wait(1100);
  seen.push(asked.length);
  say("A.");
  seen.push(element.textContent);
  await wait(1100);
  seen.push(asked.length);
  say("B");
  made[1].onmessage(text("two"));
  say("A.");
  seen.push(element.textContent, Boolean(made[1].closed));
  made[1].onerror();
  seen.push(asked.length, made[1].closed, element.textContent);
  say("B.");
  seen.push(element.textContent, made.length);
  return seen;
}"""


@pytest.mark.browser
def test_the_page_asks_until_the_end_is_shown_and_a_late_end_is_not_the_next_ones(served, open_page):
    assert open_page(served.url).evaluate(SCRIPT) == [
        "one…", 1, True, 2, "", 2,
        "two…", False, 3, True, "two…", "", 2,
    ]  # fmt: skip
