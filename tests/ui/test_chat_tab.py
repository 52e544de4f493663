"""The Chat tab's handlers, called as Gradio calls them, and a reply followed as the page follows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from specchat import ui
from specchat.ui.live import LiveView
from specchat.worker import Worker
from tests.rigs import noisy, runner, tiny
from tests.ui.fake_worker import FakePair
from tests.ui.lab_rig import following, page_over, tab, whole
from tests.ui.pages import eventually
from tests.worker.jobs import GREEDY, pair_of


@pytest.fixture
def page() -> Iterator[ui.Page]:
    with page_over(FakePair()) as found:
        yield found


def test_an_abandoned_generator_cancels_its_job_and_frees_the_session(page):
    worker, threads = page.desk.worker, threading.active_count()
    for i in range(20):
        page.chat.send("a slow story", tab(f"gone{i}"))
        updates = following(page.chat, tab(f"gone{i}"))
        next(updates)
        handle = page.desk.sessions.of(f"gone{i}").handle
        updates.close()
        assert handle.cancelled()
        assert not page.desk.sessions.of(f"gone{i}").busy
    end = time.monotonic() + 5
    while worker.status().state != "ready":
        assert time.monotonic() < end, "the worker still writes for nobody"
        time.sleep(0.01)
    assert threading.active_count() <= threads + 1
    assert "count_words" in str(whole(page.chat, "fast code", tab("here")))


def test_closing_a_tab_cancels_at_once(page):
    page.chat.send("a slow story", tab("t"))
    updates = following(page.chat, tab("t"))
    next(updates)
    handle = page.desk.sessions.of("t").handle
    page.desk.sessions.close("t")
    assert handle.cancelled()
    list(updates)


@pytest.mark.parametrize("left", ["closed", "stopped", "silent"])
def test_a_reply_that_nobody_came_to_follow_does_not_block_the_conversation(page, monkeypatch, left):
    """Before it is followed the tab may go, Stop may be pressed, and the request of a dead tab has no second one."""
    chat, one = page.chat, tab("t")
    if left == "silent":
        monkeypatch.setattr("specchat.ui.session.PATIENCE_S", 0.0)
    chat.send("a slow story", one)
    session = page.desk.sessions.of("t")
    if left == "silent":
        eventually(lambda: not session.busy, "the reply that nobody follows is ended")
        monkeypatch.undo()
    elif left == "closed":
        page.desk.sessions.close("t")
    else:
        assert "stopped" in str(chat.stop(one)[chat.log])
    assert not session.busy and session.handle is None
    assert session.turns[-1].reply.finished.reason == "cancelled"
    assert page.desk.worker.status().waiting == 0
    assert list(following(chat, one)) == []
    assert "count_words" in str(whole(chat, "fast code", one))


def test_what_only_hints_follows_and_ends_nothing(page):
    chat, one = page.chat, tab("t")
    chat.send("a slow story", one)
    updates = following(chat, one)
    next(updates)
    assert list(chat.send("another", one)) == [chat.status], "what shows the reply on its way stays as it is"
    assert list(following(chat, one)) == [], "somebody follows it"
    assert chat.end(one) == chat._nothing, "the reply on its way is not to be shown as ended"
    chat.stop(one)
    list(updates)
    assert "stopped" in str(chat.end(one)[chat.log])
    assert list(chat.send("  ", one)) == [chat.status]
    assert not page.desk.sessions.of("t").busy


def test_a_ticket_is_for_one_reply_of_one_tab_and_good_once(page):
    chat, tickets = page.chat, []
    for name in ("a", "b"):
        chat.send("a slow story", tab(name))
        tickets.append(chat.desk.sessions.of(name).ticket)
    assert len({*tickets}) == 2 and all(len(ticket) > 20 for ticket in tickets)
    updates = chat.follow(tickets[0])
    next(updates)
    assert list(chat.follow(tickets[0])) == []
    assert chat.desk.sessions.of("b").unseen, "the other tab's reply waits for its own page"
    chat.desk.sessions.of("c")
    assert list(chat.follow("")) == [], "a session without a reply has no ticket"
    updates.close()


def test_an_old_ticket_does_not_take_the_next_reply(page):
    chat, one = page.chat, tab("t")
    session, old = page.desk.sessions.of("t"), chat.send("a slow story", one)[chat.live]
    chat.stop(one)
    new = chat.send("fast code", one)[chat.live]
    assert session.taken(old) is None and session.unseen
    assert list(chat.follow(old)) == []
    list(chat.follow(new))
    assert session.turns[-1].reply.finished.reason == "eos"


def test_stop_mends_a_page_that_was_not_told_of_the_end(page):
    chat, one = page.chat, tab("t")
    ticket = chat.send("fast code", one)[chat.live]
    list(chat.follow(ticket))
    told = chat.stop(one)
    assert told[chat.live] == f"{ticket}."
    assert "finished" in str(told[chat.log])


def test_the_end_of_one_reply_is_not_the_end_of_the_next(page):
    """Stop may meet the reply in the moment in which it is taken over; the person writes on at once."""
    session = page.desk.sessions.of("t")
    page.chat.send("a slow story", tab("t"))
    _, first = session.taken(session.ticket)
    assert not session.abandon(), "somebody follows it"
    session.release(first)
    page.chat.send("fast code", tab("t"))
    second = session.handle
    session.release(first)
    assert session.busy and not second.cancelled()
    list(following(page.chat, tab("t")))
    assert session.turns[-1].reply.finished.reason == "eos"


def test_a_reply_that_cannot_be_begun_is_told_and_frees_the_session(page, monkeypatch):
    monkeypatch.setattr(page.desk.worker, "submit", lambda job: 1 / 0)
    assert "ZeroDivisionError" in str(page.chat.send("hello", tab("t"))[page.chat.log])
    assert not page.desk.sessions.of("t").busy


def test_a_bug_in_showing_a_reply_is_told_and_ends_it(page, monkeypatch):
    monkeypatch.setattr(LiveView, "look", lambda self, news: 1 / 0)
    whole(page.chat, "a fast story", tab("t"))
    session = page.desk.sessions.of("t")
    assert session.turns[-1].reply.finished.reason == "error"
    assert "ZeroDivisionError" in session.turns[-1].reply.finished.notice
    assert not session.busy


def test_a_short_message_is_answered_after_one_that_was_too_long():
    worker = Worker(lambda progress: pair_of(runner(tiny(), 96), runner(noisy(), 96)))
    assert worker.wait_ready(10)
    chat = ui.build(worker, GREEDY).chat
    for text in ("hello", "much too long " * 400, "hello again"):
        whole(chat, text, tab("t"))
    worker.close()
    replies = [turn.reply for turn in chat.desk.sessions.of("t").turns]
    assert [reply.finished.reason == "error" for reply in replies] == [False, True, False]
    assert replies[1].finished.notice


def test_half_a_surrogate_pair_from_a_browser_does_no_harm(page):
    whole(page.chat, "fast code \ud83d", tab("t"))
    assert page.desk.sessions.of("t").turns[0].user == "fast code �"


def test_every_handler_is_private_and_quiet(page):
    for fn in page.blocks.fns.values():
        assert fn.api_visibility == "private", fn.name
        assert fn.show_progress == "hidden", fn.name
