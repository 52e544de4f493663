"""The page in a real Chromium, over a worker that answers from scripts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from specchat import ui
from specchat.worker import Worker
from tests.ui.fake_worker import CODE, HOSTILE, STORY, FakePair, answer_from_scripts, fake_worker

pytestmark = pytest.mark.browser


class Served:
    """A page being served, with what a test wants to look at behind it."""

    def __init__(self, worker: Worker, pair: FakePair) -> None:
        self.worker, self.pair = worker, pair
        self.page = ui.build(worker)
        self.url = self.page.start()

    def close(self) -> None:
        self.page.blocks.close()
        self.worker.close()


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    back = answer_from_scripts()
    yield
    back()


@pytest.fixture(scope="module")
def served(scripts: None) -> Iterator[Served]:
    pair = FakePair()
    one = Served(fake_worker(pair), pair)
    yield one
    one.close()


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
    send(page, "a story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    slide(page, "sc-gamma", 7)
    slide(page, "sc-temperature", 1.25)
    eventually(lambda: served.pair.used[-1].sampling.temperature == 1.25, "the slider's value in a round")
    assert served.pair.used[-1].gamma == 7
    page.wait_for_selector("figcaption:has-text('new settings from round')")
    shot(page, "settings_changed")
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
    assert "nothing drafted" in line
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
    send(page, "a story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    page.check("#sc-lens input")
    page.wait_for_selector("#sc-live .sc-lens .sc-t")
    stats(page)
    assert "".join(page.locator("#sc-settled .sc-lens i.sc-t").all_text_contents()).replace("↵", "") == STORY


def test_a_second_tab_waits_its_turn_and_keeps_its_own_things(served, open_page, shot):
    first, second = open_page(served.url), open_page(served.url)
    slide(second, "sc-gamma", 2)
    send(first, "a story")
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
    send(page, "a story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    send(page, "and another")
    page.wait_for_selector(".sc-status:has-text('One reply at a time')")
    stats(page)
    assert page.input_value("#sc-box textarea") == "and another"
    assert len(served.pair.seen) == before + 1


def test_max_tokens_ends_the_reply_and_says_so(served, open_page):
    page = open_page(served.url)
    slide(page, "sc-max-tokens", 9)
    line = ask(page, "fast story")
    assert line.startswith("9 tokens")
    assert "max tokens" in line


def test_the_page_is_up_while_the_pair_loads(open_page, shot):
    until, pair = threading.Event(), FakePair()
    one = Served(fake_worker(pair, ("Fetching the model: 31 of 98 MB",), until=until), pair)
    try:
        page = open_page(one.url)
        page.wait_for_selector(".sc-status[data-state=loading]:has-text('31 of 98 MB')")
        shot(page, "loading")
        send(page, "fast code")
        page.wait_for_selector(".sc-status:has-text('Your message is next')")
        shot(page, "loading_asked")
        until.set()
        stats(page)
        page.wait_for_selector(".sc-pair:has-text('SmolLM2')")
    finally:
        until.set()
        one.close()


def test_a_pair_that_cannot_be_loaded_is_explained(open_page, shot):
    pair = FakePair()
    one = Served(fake_worker(pair, fails="The file is cut short; delete it and start again."), pair)
    try:
        page = open_page(one.url)
        page.wait_for_selector(".sc-status[data-state=failed]:has-text('cut short')")
        send(page, "hello")
        page.wait_for_selector(".sc-error:has-text('cut short')")
        shot(page, "load_failed")
    finally:
        one.close()


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
    page.evaluate("document.getElementById('sc-log').scrollTop = 40")
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
