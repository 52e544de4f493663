"""What a tab keeps, what the sidebar means, and what following a reply costs. No browser."""

from __future__ import annotations

import json
import time

import gradio as gr
import pytest

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
from specchat.ui.stream import FASTEST_S, LOAN_S, SHARE, Pace, batches
from specchat.worker import Done, Handle, Job, Live, News, Step
from tests.ui.fake_worker import LONG, FakePair, fake_worker, words

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
    session.release(None)
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
    assert "proposed by n-grams of the text" in lens.html
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


@pytest.mark.parametrize("event", ["round", "heartbeat", "task", "last"])
def test_only_a_reply_that_goes_on_borrows_a_core_for_its_update(monkeypatch, event):
    asked = []
    monkeypatch.setattr("specchat.ui.stream.LOAN.ask", lambda longest: asked.append(longest))
    handle = Handle(Job((), Live()), lambda handle: None)
    token = Token(1, "plain", 0.5, None, 0)
    step = Step(Round(0, (token,), None, 0, 0, 0, "", 1, 0, 0, 0.03, 0, 0, 0.03), (Piece("", token, 0),))
    put = {
        "round": [step],
        "heartbeat": [],
        "task": [News(1)],
        "last": [step, Done(Finished("eos", 1, 1.0, 0, 0), Message("assistant", ""), Stats())],
    }[event]
    for each in put:
        handle._put(each)
    next(batches(handle))
    assert asked == ([LOAN_S] if event == "round" else [])


def _bytes_sent(tokens: int, turns: int, lens: bool) -> int:
    """What the updates of the live reply weigh, one update a round."""
    worker = fake_worker(FakePair())
    desk = Desk(worker, Settings(), Options())
    session = Session(Live(), turns=[Turn("q", finished("a " * 200)) for _ in range(turns)], lens=lens)
    session.claim()
    turn = session.ask("long")
    view, sent = LiveView(desk, session, turn.reply), 0
    texts = (words(LONG) * 40)[:tokens]
    for index, text in enumerate(texts):
        token = Token(1, "plain", 0.5, None, 0)
        event = Round(index, (token,), None, 0, 0, 0, "", 1, 0, 0, 0.03, 0, 0, index * 0.03)
        turn.reply.take(Step(event, (Piece(text, token, index),)))
        sent += len(json.dumps(view.look(True)["text"]))
    worker.close()
    return sent


@pytest.mark.parametrize("lens", [False, True])
def test_what_is_sent_grows_with_the_reply_and_not_with_its_square(lens):
    short, long = _bytes_sent(1000, 1, lens), _bytes_sent(4000, 1, lens)
    assert long < 4.8 * short
    assert _bytes_sent(1000, 50, lens) == short, "the conversation before it is not sent again"
