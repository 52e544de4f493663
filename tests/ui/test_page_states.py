"""The page's other states in a real Chromium: waiting, loading, failing, narrow, dark, by keyboard."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from tests.ui.fake_worker import FakePair, fake_worker
from tests.ui.pages import Served, ask, bot, eventually, send, slide, stats

pytestmark = pytest.mark.browser


def test_a_second_tab_waits_its_turn_and_keeps_its_own_things(served, open_page, shot):
    first, second = open_page(served.url), open_page(served.url)
    slide(second, "sc-gamma", 2)
    send(first, "a slow story")
    first.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    send(second, "fast code")
    second.wait_for_selector(".sc-status[data-state=queued]:has-text('1 reply')")
    shot(second, "queued")
    stats(first)
    assert served.pair.used[-1].gamma == 4 or served.pair.used[-1].gamma <= 2
    stats(second)
    assert "Counter" not in bot(first)
    assert "keeper" not in bot(second)
    assert len(served.pair.seen[-1].messages) == 1
    assert served.pair.seen[-1].live.get().gamma == 2


def test_a_waiting_tab_can_give_up(served, open_page):
    first, second = open_page(served.url), open_page(served.url)
    send(first, "a slow story")
    first.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    send(second, "fast code")
    second.wait_for_selector(".sc-status[data-state=queued]")
    second.click("#sc-box .stop-button")
    assert "stopped" in stats(second)
    first.click("#sc-box .stop-button")
    stats(first)


def test_a_closed_tab_ends_its_reply(served, open_page):
    page = open_page(served.url)
    send(page, "a slow long text")
    page.wait_for_selector("#sc-live .sc-text:has-text('Part')")
    page.context.close()
    eventually(lambda: served.worker.status().state == "ready", "the worker is free again", 3)


@pytest.mark.parametrize("when", ["first", "later"])
def test_an_error_is_told_in_the_chat_and_the_next_message_works(served, open_page, shot, when):
    page = open_page(served.url)
    send(page, f"explode {when} please")
    page.wait_for_selector(".sc-error:has-text('logits that are not numbers')", timeout=5000)
    assert (when == "later") == ("keeper" in bot(page))
    assert "Traceback" not in page.content()
    shot(page, f"error_{when}")
    ask(page, "fast code", 2 if when == "later" else 1)
    assert "Counter" in bot(page, 1)


def test_sending_nothing_or_twice_is_hinted_at_and_loses_nothing(served, open_page):
    page = open_page(served.url)
    before = len(served.pair.seen)
    send(page, "   ")
    page.wait_for_selector(".sc-status:has-text('Write a message first')")
    assert len(served.pair.seen) == before
    send(page, "a slow story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    send(page, "and another")
    page.wait_for_selector(".sc-status:has-text('One reply at a time')")
    stats(page)
    assert page.input_value("#sc-box textarea") == "and another"
    assert len(served.pair.seen) == before + 1


def test_max_tokens_ends_the_reply_and_says_so(served, open_page):
    page = open_page(served.url)
    slide(page, "sc-max-tokens", 9)
    sessions = served.page.desk.sessions
    eventually(
        lambda: 9 in {s.live.get().max_new_tokens for s in sessions.all()}, "the slider's value is in force"
    )
    line = ask(page, "fast story")
    assert line.startswith("9 tokens")
    assert "max tokens" in line


def test_the_page_is_up_while_the_pair_loads(open_page, behind, shot):
    until, pair = threading.Event(), FakePair()
    worker = fake_worker(pair, ("Fetching the model: 31 of 98 MB",), until=until)
    one = behind.enter_context(closing(Served(worker, pair)))
    behind.callback(until.set)
    page = open_page(one.url)
    page.wait_for_selector(".sc-status[data-state=loading]:has-text('31 of 98 MB')")
    shot(page, "loading")
    send(page, "fast code")
    page.wait_for_selector(".sc-status:has-text('Your message is next')")
    shot(page, "loading_asked")
    until.set()
    stats(page)
    page.wait_for_selector(".sc-pair:has-text('SmolLM2')")


def test_a_pair_that_cannot_be_loaded_is_explained(open_page, behind, shot):
    pair = FakePair()
    worker = fake_worker(pair, fails="The file is cut short; delete it and start again.")
    one = behind.enter_context(closing(Served(worker, pair)))
    page = open_page(one.url)
    page.wait_for_selector(".sc-status[data-state=failed]:has-text('cut short')")
    send(page, "hello")
    page.wait_for_selector(".sc-error:has-text('cut short')")
    shot(page, "load_failed")


@pytest.mark.parametrize(
    ("width", "dark"), [(380, False), (380, True), (800, False), (1280, True), (1900, False)]
)
def test_no_width_scrolls_sideways_and_nothing_jumps(served, open_page, shot, width, dark):
    page = open_page(served.url, width=width, dark=dark)

    def places() -> object:
        return page.evaluate(
            "['sc-box', 'sc-tools', 'sc-state'].map(id => document.getElementById(id).getBoundingClientRect().top)"
            ".concat([...document.querySelectorAll('.sc-fig')].map(f => f.offsetTop))"
        )

    before = places()
    send(page, "a long text")
    page.wait_for_selector("#sc-live .sc-text:has-text('Part 3')")
    assert places() == before
    page.click("#sc-box .stop-button")
    stats(page)
    assert places() == before
    shot(page, f"long_{width}_{'dark' if dark else 'light'}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    log = page.evaluate(
        "(() => { const l = document.getElementById('sc-log'); return l.scrollHeight - l.scrollTop - l.clientHeight })()"
    )
    assert log < 60, "the conversation follows the reply"


def test_a_reader_who_scrolled_up_is_left_alone(served, open_page):
    page = open_page(served.url)
    send(page, "a long text")
    page.wait_for_selector("#sc-live .sc-text:has-text('Part 6')", timeout=30_000)
    # As a hand does it: again, where an update came between the first move and its scroll event.
    up = "(log => { const there = log.scrollTop === 40; log.scrollTop = 40; return there; })(document.getElementById('sc-log'))"
    eventually(lambda: page.evaluate(up), "the reader is up")
    time.sleep(1)
    assert page.evaluate("document.getElementById('sc-log').scrollTop") == 40
    page.click("#sc-box .stop-button")
    stats(page)


def test_a_keyboard_is_enough(served, open_page):
    page = open_page(served.url)
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA", "the box has the focus"
    page.keyboard.type("fast code")
    page.keyboard.press("Enter")
    stats(page)
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    for name in ("Send", "sc-retry", "sc-edit-last", "sc-undo", "sc-new"):
        assert name in seen, (name, seen)
    assert page.locator(".sc-status[role=status][aria-live=polite]").count() == 1
    assert page.locator("#sc-log[role=log][aria-label]").count() == 1
    assert all(
        label for label in page.locator(".sc-fig [role=img]").evaluate_all("l => l.map(e => e.ariaLabel)")
    )
