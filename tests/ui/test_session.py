"""What a tab keeps, what the sidebar means, and what following a reply costs. No browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import gradio as gr
import orjson
import pytest
from gradio import utils

from specchat import ui
from specchat.chat.conversation import Message
from specchat.chat.stream import Piece
from specchat.decode.engine import Settings
from specchat.decode.events import Finished, Rejected, Round, Token
from specchat.decode.sampling import Sampling
from specchat.decode.stats import Stats
from specchat.ui import sidebar
from specchat.ui.desk import Desk, Options
from specchat.ui.lens import Lens
from specchat.ui.live import LiveView
from specchat.ui.session import Reply, Session, Turn
from specchat.ui.sessions import Sessions
from specchat.ui.stream import FASTEST_S, SHARE, Pace
from specchat.worker import Done, Live, Step, Worker
from tests.rigs import noisy, runner, tiny
from tests.ui.fake_worker import LONG, FakePair, answer_from_scripts, fake_worker, words
from tests.ui.lab_rig import tab
from tests.worker.jobs import GREEDY, pair_of


@pytest.fixture
def page() -> Iterator[ui.Page]:
    back, worker = answer_from_scripts(), fake_worker(FakePair())
    assert worker.wait_ready(10)
    yield ui.build(worker)
    worker.close()
    back()


# -- the sidebar ----------------------------------------------------------------------------------

DEFAULTS = [True, 4, "chain", 0.6, 20, 1, 0, 1, 0, 0, 512, "", ""]


def test_the_controls_mean_what_they_say():
    values = [True, 7, "ngram", 1.25, 50, 0.9, 0.05, 1.2, 0.5, -0.5, 99, " 42 ", "Be brief."]
    now, system = sidebar.read(values)
    assert now == Settings(7, Sampling(1.25, 50, 0.9, 0.05, 1.2, 0.5, -0.5, 42), "ngram", 99)
    assert system == "Be brief."
    assert sidebar.read(DEFAULTS)[0] == Settings()


@pytest.mark.parametrize(
    "start",
    [
        Settings(max_new_tokens=5000),
        Settings(
            sampling=Sampling(3.0, 500, repetition_penalty=0.9, presence_penalty=3.0, frequency_penalty=-7)
        ),
    ],
)
def test_a_start_value_beyond_the_usual_range_widens_its_slider_and_is_understood(start):
    with gr.Blocks():
        controls = sidebar.build(start, "")
    values = [control.value for control in controls.all()]
    passed = [control.preprocess(value) for control, value in zip(controls.all(), values, strict=True)]
    assert sidebar.read(passed, start)[0] == start
    for name, span in sidebar.spans(start).items():
        slider = getattr(controls, name)
        assert (slider.minimum, slider.maximum) == (span.low, span.high)


def test_speculation_off_is_gamma_zero():
    assert sidebar.read([False, *DEFAULTS[1:]])[0].gamma == 0


@pytest.mark.parametrize("odd", [None, "", "x", float("nan"), float("inf"), -(10**9), 10**9, [], {}])
def test_no_value_of_a_control_can_break_a_reply(odd):
    for place in range(len(DEFAULTS)):
        values = list(DEFAULTS)
        values[place] = odd
        now, _ = sidebar.read(values)
        assert isinstance(now, Settings)


# -- sessions -------------------------------------------------------------------------------------


def finished(text: str, reason: str = "eos") -> Reply:
    reply = Reply(text=text)
    reply.finished = Finished(reason, 1, 1.0, 1, 1)  # type: ignore[arg-type]
    return reply


def test_editing_replaces_the_turn_and_what_follows():
    session = Session(Live(), turns=[Turn(f"q{i}", finished(f"a{i}")) for i in range(3)])
    session.editing = 1
    session.ask("new")
    assert [(m.role, m.content) for m in session.messages()] == [
        ("user", "q0"),
        ("assistant", "a0"),
        ("user", "new"),
    ]
    assert session.editing is None


def test_a_message_that_failed_at_once_is_no_turn_of_the_next_prompt():
    session = Session(Live(), turns=[Turn("q0", finished("", "error")), Turn("q1", finished("a", "error"))])
    session.ask("q2")
    assert [m.content for m in session.messages()] == ["q1", "a", "q2"]


def test_the_message_to_be_answered_is_always_told_and_so_is_one_stopped_before_its_answer():
    session = Session(
        Live(), turns=[Turn("q0", finished("", "cancelled")), Turn("q1", finished("", "error"))]
    )
    assert [m.content for m in session.messages()] == ["q0", "q1"]


def test_only_one_reply_at_a_time():
    session = Session(Live())
    assert session.claim()
    assert not session.claim()
    session.release()
    assert session.claim()


def test_tabs_are_apart_and_old_idle_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr("specchat.ui.sessions.KEPT_SESSIONS", 3)
    sessions = Sessions(lambda: Session(Live()))
    first = sessions.of("busy")
    assert first.claim()
    second = sessions.of("idle")
    assert first is not second
    for i in range(5):
        sessions.of(f"t{i}")
    assert sessions.of("busy") is first
    assert sessions.of("idle") is not second


def test_error_and_tail_end_a_reply_without_losing_text():
    reply = Reply()
    piece = Piece("par", Token(1, "plain", 1.0, None, 0), 0)
    event = Round(0, (piece.token,), None, 0, 0, 0, "", 1, 0, 0, 0.1, 0, 0, 0.1)
    reply.take(Step(event, (piece,)))
    reply.take(Done(Finished("error", 0, 0, 0, 0, "It broke."), Message("assistant", ""), Stats()))
    assert (reply.text, reply.ids, reply.done) == ("par", None, True)
    other = Reply()
    other.take(Done(Finished("eos", 1, 0, 0, 0), Message("assistant", "tail", (5,)), Stats(), tail="tail"))
    assert (other.text, other.ids) == ("tail", (5,))


# -- the lens -------------------------------------------------------------------------------------


def test_the_lens_escapes_tokens_and_rejected_proposals():
    reply = Reply()
    token = Token(1, "recovered", 0.004, None, 0)
    event = Round(
        0, (token,), Rejected(7, 0.02, 0.6, 0), 2, 2, 0, "ngram", 1, 0, 0, 0.1, 0, 0, 0.1, discarded=(8,)
    )
    reply.take(Step(event, (Piece("<img src=x>\n", token, 0),)))
    lens = Lens(lambda id: f"<{id}>")
    lens.update(reply)
    assert "<img" not in lens.html
    assert "&lt;img src=x&gt;" in lens.html
    assert lens.html.count("<s class") == 2
    assert "&lt;7&gt;" in lens.html
    assert "proposed by text seen before" in lens.html
    assert "p 4.0e-03" in lens.html


def test_half_a_character_is_shown_as_a_dot():
    reply = Reply()
    token = Token(1, "plain", 1.0, None, 0)
    reply.take(Step(Round(0, (token,), None, 0, 0, 0, "", 1, 0, 0, 0.1, 0, 0, 0.1), (Piece("", token, 0),)))
    lens = Lens()
    lens.update(reply)
    assert "·" in lens.html


# -- what following a reply costs (F36) -----------------------------------------------------------


def test_updates_are_spaced_and_dear_ones_are_rare():
    pace = Pace()
    for cost, least in ((0.0, FASTEST_S), (0.03, SHARE * 0.03)):
        pace.start()
        began = time.perf_counter()
        time.sleep(cost)
        pace.wait()
        assert least * 0.9 < time.perf_counter() - began < least + 0.1


def _bytes_sent(tokens: int, turns: int, lens: bool) -> int:
    """What Gradio's differences between successive updates of the live reply weigh, one update a round."""
    worker = fake_worker(FakePair())
    desk = Desk(worker, Settings(), Options())
    session = Session(Live(), turns=[Turn("q", finished("a " * 200)) for _ in range(turns)], lens=lens)
    session.claim()
    turn = session.ask("long")
    view, before, sent = LiveView(desk, session, turn.reply), None, 0
    texts = (words(LONG) * 40)[:tokens]
    for index, text in enumerate(texts):
        token = Token(1, "plain", 0.5, None, 0)
        event = Round(index, (token,), None, 0, 0, 0, "", 1, 0, 0, 0.03, 0, 0, index * 0.03)
        turn.reply.take(Step(event, (Piece(text, token, index),)))
        now = view.look(True)["live"]
        sent += len(orjson.dumps(utils.diff(before, now)))
        before = now
    worker.close()
    return sent


@pytest.mark.parametrize("lens", [False, True])
def test_what_is_sent_grows_with_the_reply_and_not_with_its_square(lens):
    short, long = _bytes_sent(1000, 1, lens), _bytes_sent(4000, 1, lens)
    assert long < 4.8 * short
    assert _bytes_sent(1000, 50, lens) == short, "the conversation before it is not sent again"


# -- the handlers, called as Gradio calls them ----------------------------------------------------


def test_an_abandoned_generator_cancels_its_job_and_frees_the_session(page):
    worker, threads = page.desk.worker, threading.active_count()
    for i in range(20):
        updates = page.chat.send("a slow story", tab(f"gone{i}"))
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
    last = list(page.chat.send("fast code", tab("here")))
    assert "count_words" in str(last[-1])


def test_closing_a_tab_cancels_at_once(page):
    updates = page.chat.send("a slow story", tab("t"))
    next(updates)
    handle = page.desk.sessions.of("t").handle
    page.desk.sessions.close("t")
    assert handle.cancelled()
    list(updates)


def test_a_bug_in_showing_a_reply_is_told_and_ends_it(page, monkeypatch):
    monkeypatch.setattr(LiveView, "look", lambda self, news: 1 / 0)
    list(page.chat.send("a fast story", tab("t")))
    session = page.desk.sessions.of("t")
    assert session.turns[-1].reply.finished.reason == "error"
    assert "ZeroDivisionError" in session.turns[-1].reply.finished.notice
    assert not session.busy


def test_a_short_message_is_answered_after_one_that_was_too_long():
    worker = Worker(lambda progress: pair_of(runner(tiny(), 96), runner(noisy(), 96)))
    assert worker.wait_ready(10)
    chat = ui.build(worker, GREEDY).chat
    for text in ("hello", "much too long " * 400, "hello again"):
        list(chat.send(text, tab("t")))
    worker.close()
    replies = [turn.reply for turn in chat.desk.sessions.of("t").turns]
    assert [reply.finished.reason == "error" for reply in replies] == [False, True, False]
    assert replies[1].finished.notice


def test_half_a_surrogate_pair_from_a_browser_does_no_harm(page):
    list(page.chat.send("fast code \ud83d", tab("t")))
    assert page.desk.sessions.of("t").turns[0].user == "fast code �"


def test_every_handler_is_private_and_quiet(page):
    for fn in page.blocks.fns.values():
        assert fn.api_visibility == "private", fn.name
        assert fn.show_progress == "hidden", fn.name
