"""The page loaded again: the conversation and the settings are still there, in this tab and in no other."""

from __future__ import annotations

from contextlib import closing

import pytest

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.ui.session import Reply, Session, Turn
from specchat.ui.sessions import Sessions
from specchat.worker import Live
from tests.ui.fake_worker import FakePair, fake_worker
from tests.ui.pages import Served, ask, bot, eventually, send, slide, stats


def chatted(sessions: Sessions, tab: str) -> tuple[str, Session]:
    key, session = sessions.resume(tab, "")
    reply = Reply(text="a")
    reply.fail("broke")
    session.turns.append(Turn("q", reply))
    return key, session


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(lambda: Session(Live()))


def test_a_tab_that_comes_back_gets_its_session(sessions):
    key, session = chatted(sessions, "first load")
    sessions.close("first load")
    assert sessions.resume("second load", key) == (key, session)
    assert sessions.of("second load") is session
    assert sessions.of("first load") is not session


def test_a_tab_that_only_lost_its_connection_keeps_its_session(sessions):
    _, session = chatted(sessions, "tab")
    sessions.close("tab")
    assert sessions.of("tab") is session


@pytest.mark.parametrize("key", ["", "unknown", "⚠" * 999])
def test_a_key_that_nobody_has_means_a_new_session(sessions, key):
    _, session = chatted(sessions, "other")
    found, mine = sessions.resume("mine", key)
    assert mine is not session
    assert not mine.turns
    assert found not in ("", key)


def test_a_duplicated_tab_goes_on_with_a_copy(sessions):
    key, session = chatted(sessions, "original")
    session.live.set(Settings(7))
    other, copy = sessions.resume("duplicate", key)
    assert other != key
    assert copy is not session
    assert [turn.user for turn in copy.turns] == ["q"]
    assert copy.live.get() == Settings(7)
    copy.live.set(Settings(2))
    copy.ask("only here")
    assert len(session.turns) == 1
    assert session.live.get().gamma == 7
    assert sessions.of("original") is session
    sessions.close("duplicate")
    assert sessions.resume("duplicate again", other) == (other, copy)


def test_a_reply_on_its_way_is_stopped_in_the_copy_and_goes_on_in_the_original(sessions):
    key, session = chatted(sessions, "original")
    assert session.claim()
    turn = session.ask("more")
    _, copy = sessions.resume("duplicate", key)
    assert not copy.busy
    assert copy.turns[-1].reply.finished.reason == "cancelled"
    assert not turn.reply.done


@pytest.mark.browser
def test_a_reload_keeps_the_conversation_its_settings_and_its_context(served, open_page, shot):
    page = open_page(served.url)
    slide(page, "sc-gamma", 7)
    page.fill("#sc-system textarea", "Be brief.")
    ask(page, "fast code")
    page.check("#sc-lens input")
    page.wait_for_selector("#sc-settled .sc-lens")
    panel = page.locator(".sc-keys").inner_text()
    again(page)
    stats(page)
    page.wait_for_selector("#sc-settled .sc-lens .sc-t")
    shot(page, "reloaded")
    assert page.input_value("#sc-gamma input[type=number]") == "7"
    assert page.input_value("#sc-system textarea") == "Be brief."
    assert page.is_checked("#sc-lens input")
    assert page.locator(".sc-keys").inner_text() == panel
    assert page.locator(".sc-pair").inner_text().startswith("SmolLM2")
    assert page.locator(".toast-wrap .toast-body").count() == 0
    page.uncheck("#sc-lens input")
    ask(page, "a fast story", 2)
    job = served.pair.seen[-1]
    assert [m.role for m in job.messages] == ["user", "assistant", "user"]
    assert job.messages[1].ids
    assert (job.system, job.live.get().gamma) == ("Be brief.", 7)
    again(page)
    stats(page, 2)
    other = open_page(served.url)
    other.wait_for_selector(".sc-empty")
    assert other.input_value("#sc-gamma input[type=number]") == "4"


@pytest.mark.browser
def test_a_reload_while_a_reply_is_written_keeps_it_as_stopped(served, open_page):
    page = open_page(served.url, left=True)
    send(page, "a slow story")
    page.wait_for_selector("#sc-live .sc-text:has-text('keeper')")
    again(page)
    assert "stopped" in stats(page)
    assert "keeper" in bot(page)
    eventually(
        lambda: served.worker.status().state == "ready", "nothing is written for the page that is gone", 3
    )
    ask(page, "fast code", 2)
    assert served.pair.seen[-1].messages[1].content.startswith("The keeper")


@pytest.mark.browser
def test_settings_are_live_although_one_began_beyond_its_usual_range(open_page, behind):
    pair = FakePair()
    start = Settings(4, Sampling(3.0, 500, repetition_penalty=0.9, presence_penalty=3.0), "chain", 5000)
    one = behind.enter_context(closing(Served(fake_worker(pair), pair, start)))
    page = open_page(one.url)
    slide(page, "sc-gamma", 2)
    ask(page, "fast code")
    assert pair.used[-1] == Settings(2, start.sampling, "chain", 5000)
    assert page.locator(".toast-wrap .toast-body").count() == 0


def again(page) -> None:
    """Presses F5."""
    page.reload()
    page.wait_for_selector("#sc-box textarea")
    page.wait_for_selector("html.sc-settled", state="attached")
