"""Chatting on the page in a real Chromium, over a worker that answers from scripts."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest

from tests.ui.fake_worker import CODE, HOSTILE, STORY, FakePair, fake_worker
from tests.ui.pages import Served, ask, bot, eventually, send, slide, stats

pytestmark = pytest.mark.browser


def test_a_reply_streams_and_keeps_its_numbers(served, open_page, shot):
    page = open_page(served.url)
    shot(page, "empty")
    send(page, "a story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    line = stats(page)
    for part in (
        "tokens",
        "tok/s",
        "first token",
        "tokens/round",
        "accepted",
        "32 read, 180 reused",
        "finished",
    ):
        assert part in line, (part, line)
    assert "turning towards the rocks" in bot(page)
    assert page.locator("#sc-settled strong").first.inner_text() == "Grey Point"
    assert page.locator(".sc-big").inner_text() != "–"
    assert page.locator(".sc-verdict").get_attribute("data-verdict") in ("wins", "loses", "even")
    assert page.locator("#sc-live").inner_text() == ""
    shot(page, "reply")


COUNT_FRAMES = """
window.frames_asked = 0;
const native = window.requestAnimationFrame;
window.requestAnimationFrame = (draw) => { window.frames_asked += 1; return native.call(window, draw); };
"""


def test_an_open_page_asks_for_few_frames_while_nothing_moves(served, open_page):
    """Each is drawn on a core that a reply needs; what Gradio's loading page leaves running asks for sixty a second."""
    page = open_page(served.url, early=COUNT_FRAMES)
    page.wait_for_timeout(3500)
    assert _frames_in_two_seconds(page) < 12
    ask(page, "a story")
    page.wait_for_timeout(1000)
    assert _frames_in_two_seconds(page) < 12


def _frames_in_two_seconds(page) -> int:
    page.evaluate("window.frames_asked = 0")
    page.wait_for_timeout(2000)
    return page.evaluate("window.frames_asked")


def test_the_next_turn_is_told_the_reply_as_it_was_written(served, open_page):
    page = open_page(served.url)
    ask(page, "fast hostile")
    ask(page, "fast code", 2)
    job = served.pair.seen[-1]
    assert [m.role for m in job.messages] == ["user", "assistant", "user"]
    assert job.messages[1].content == HOSTILE
    assert job.messages[1].ids
    assert job.messages[2].content == "fast code"


def test_stop_keeps_the_partial_reply_and_marks_it(served, open_page, shot):
    page = open_page(served.url)
    send(page, "a slow story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    began = time.monotonic()
    page.click("#sc-box .stop-button")
    line = stats(page)
    assert time.monotonic() - began < 2
    assert "stopped" in line
    assert "keeper" in bot(page)
    assert "rocks" not in bot(page)
    assert "Stopped" in page.locator(".sc-status").inner_text()
    shot(page, "stopped")
    ask(page, "fast code", 2)
    assert "Counter" in bot(page, 1)
    assert served.pair.seen[-1].messages[1].content.startswith("The keeper")


def test_escape_stops(served, open_page):
    page = open_page(served.url)
    send(page, "a slow story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    page.keyboard.press("Escape")
    assert "stopped" in stats(page)


def test_a_slider_moved_mid_reply_reaches_the_next_round_and_is_marked(served, open_page, shot):
    page = open_page(served.url)
    send(page, "a slow story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    slide(page, "sc-gamma", 7)
    slide(page, "sc-temperature", 1.25)
    eventually(lambda: served.pair.used[-1].sampling.temperature == 1.25, "the slider's value in a round")
    assert served.pair.used[-1].gamma == 7
    page.wait_for_selector("figcaption:has-text('new settings from round')")
    shot(page, "settings_changed")
    page.click("#sc-box .stop-button")
    stats(page)
    assert page.locator(".sc-fig").first.locator(".sc-col").count() == 8
    page.check("#sc-lens input")
    page.wait_for_selector(".sc-moment")


def test_speculation_off_is_said(served, open_page, shot):
    page = open_page(served.url)
    page.uncheck("#sc-on input")
    eventually(lambda: "off" in page.locator(".sc-verdict").inner_text(), "the idle panel says off")
    line = ask(page, "a fast story")
    assert served.pair.used[-1].gamma == 0
    assert "speculation off" in line
    assert page.locator(".sc-verdict").get_attribute("data-verdict") == "off"
    shot(page, "speculation_off")


def test_losing_is_told_from_measurements(served, open_page, shot, monkeypatch):
    monkeypatch.setattr(served.pair, "plain_step_s", 0.004)
    page = open_page(served.url)
    ask(page, "a story")
    verdict = page.locator(".sc-verdict")
    assert verdict.get_attribute("data-verdict") == "loses"
    assert "250 tok/s" in verdict.inner_text()
    shot(page, "speculation_loses")


def test_retry_edit_undo_and_a_new_chat(served, open_page, shot):
    page = open_page(served.url)
    ask(page, "a code reply")
    page.click("#sc-retry")
    page.wait_for_selector("#sc-box .stop-button")
    stats(page)
    assert [m.content for m in served.pair.seen[-1].messages] == ["a code reply"]
    assert page.locator("#sc-settled [data-testid=user]").count() == 1

    ask(page, "fast <b>second</b> story", 2)
    page.locator("#sc-settled .sc-edit").first.click()
    eventually(
        lambda: page.input_value("#sc-box textarea") == "a code reply", "the edited message is in the box"
    )
    assert "replaces this message" in page.locator(".sc-status").inner_text()
    shot(page, "editing")
    page.fill("#sc-box textarea", "a story instead")
    page.press("#sc-box textarea", "Enter")
    page.wait_for_selector("#sc-box .stop-button")
    stats(page)
    assert [m.content for m in served.pair.seen[-1].messages] == ["a story instead"]
    assert page.locator("#sc-settled [data-testid=user]").count() == 1

    page.click("#sc-edit-last")
    eventually(lambda: page.input_value("#sc-box textarea") == "a story instead", "Edit fills the box")
    page.click("#sc-edit-last")
    eventually(lambda: page.input_value("#sc-box textarea") == "", "the edit was left")

    page.click("#sc-undo")
    eventually(lambda: page.input_value("#sc-box textarea") == "a story instead", "Undo gives the text back")
    page.wait_for_selector(".sc-empty")
    ask(page, "fast code")
    page.click("#sc-new")
    page.wait_for_selector(".sc-empty")


def test_an_example_is_sent_when_pressed(served, open_page):
    page = open_page(served.url)
    page.fill("#sc-box textarea", "a draft of mine")
    page.locator(".sc-example").first.focus()
    page.keyboard.press("Enter")
    stats(page)
    assert served.pair.seen[-1].messages[-1].content.startswith("Write a Python function")
    assert page.input_value("#sc-box textarea") == "a draft of mine"


def test_hostile_text_is_shown_and_not_run(served, open_page, shot):
    page = open_page(served.url)
    said = 'fast hostile <img src=x onerror="window.pwned=9"> List<int> ${window.pwned=8} {{value}} `x`'
    ask(page, said)
    assert page.locator(".sc-said").inner_text() == said
    for lens in (False, True):
        if lens:
            page.check("#sc-lens input")
            page.wait_for_selector(".sc-lens .sc-t")
        shown = bot(page)
        for text in ("List<int>", "<channel>analysis</channel>", "a<b", "&amp; done", "${window.pwned=3}", "{{constructor}}",
                     "<script>window.pwned=2</script>", "javascript:window.pwned=4", "http://203.0.113.7/pixel.png",
                     "<iframe src=", "<style>body{display:none}</style>", "</code></pre>", "&amp; </code>"):  # fmt: skip
            assert text in shown, (lens, text, shown)
        assert page.evaluate("window.pwned") is None
        assert page.locator("#sc-log :is(img, script, iframe, style, a, object, embed)").count() == 0
        shot(page, f"hostile_{lens}")
    assert served.pair.seen[-1].messages[-1].content == said


def test_code_can_be_read_back_exactly(served, open_page):
    page = open_page(served.url)
    ask(page, "fast code")
    code = page.locator("#sc-settled .sc-code code").first
    assert code.text_content() == CODE.split("```python\n")[1].split("```")[0]
    assert page.locator(".sc-copy").first.get_attribute("aria-label")


def test_the_lens_shows_every_token_with_its_origin(served, open_page, shot):
    page = open_page(served.url)
    ask(page, "fast story")
    page.check("#sc-lens input")
    page.wait_for_selector("#sc-settled .sc-lens")
    tokens = page.locator("#sc-settled .sc-lens i.sc-t")
    text = "".join(tokens.all_text_contents()).replace("↵", "")
    assert text == STORY
    accepted = page.locator("#sc-settled .sc-lens .sc-a").first
    tip = accepted.get_attribute("title")
    assert all(part in tip for part in ("accepted", "p 0.", "q 0.", "place 1", "round")), tip
    accepted.hover()
    assert page.locator(".sc-detail").inner_text().endswith(tip)
    assert page.locator(".sc-lens s.sc-x").count() == 0
    page.check("#sc-rejected input")
    page.wait_for_selector(".sc-lens s.sc-x")
    assert "rejected" in page.locator(".sc-lens s.sc-x").first.get_attribute("title")
    shot(page, "lens")
    page.uncheck("#sc-lens input")
    page.wait_for_selector("#sc-settled .sc-text")


def test_the_lens_can_be_opened_while_a_reply_is_written(served, open_page):
    page = open_page(served.url)
    send(page, "a slow story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    page.check("#sc-lens input")
    page.wait_for_selector("#sc-live .sc-lens .sc-t")
    stats(page)
    assert "".join(page.locator("#sc-settled .sc-lens i.sc-t").all_text_contents()).replace("↵", "") == STORY


def test_ctrl_c_ends_the_server_under_an_open_tab(open_page, monkeypatch, capfd):
    """A tab holds a connection for as long as it is open; ending it is no error that a person need read."""
    pair = FakePair()
    own = Served(fake_worker(pair), pair)
    open_page(own.url, left=True).wait_for_timeout(2000)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr("specchat.ui.page.time", SimpleNamespace(sleep=interrupted))
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", False)
    thread = own.page.blocks.server.thread
    try:
        own.page.wait(said.append)
    finally:
        own.worker.close()
    assert not thread.is_alive(), "still waiting for the tab"
    assert said == ["Stopping."]
    assert "Traceback" not in capfd.readouterr().err
