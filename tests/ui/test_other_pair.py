"""Another pair is loaded: what the page keeps from the one before is neither misread nor put in force."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import gradio as gr
import pytest

from specchat import ui
from specchat.ui.chat_save import record
from specchat.ui.transcript import NOT_SPELLED, settled
from specchat.worker import Worker
from tests.ui.fake_worker import FakePair, answer_from_scripts, fake_worker


@pytest.fixture
def page() -> Iterator[ui.Page]:
    back, worker = answer_from_scripts(), fake_worker(FakePair(acceptance=0.3, round_s=0.001))
    assert worker.wait_ready(10)
    yield ui.build(worker)
    worker.close()
    back()


def tab(key: str = "t") -> gr.Request:
    return SimpleNamespace(session_hash=key)  # type: ignore[return-value]


def exchange(worker: Worker, pair: object) -> None:
    assert worker.exchange(lambda progress: pair).result(20) == ""  # type: ignore[arg-type,return-value]


def test_a_reply_is_not_spelled_by_another_pair(page):
    desk = page.desk
    list(page.chat.send("fast code", tab()))
    turn = desk.sessions.of("t").turns[0]
    down = next(event.rejected.id for event in turn.reply.rounds if event.rejected)
    before = settled([turn], True, desk.speller)
    assert "<s " in before
    assert NOT_SPELLED not in before
    word = desk.spell(turn.reply, down)
    assert word
    other = FakePair()
    exchange(desk.worker, other)
    assert desk.spell(turn.reply, down) == "", (
        "of the same name, and yet another vocabulary may stand behind it"
    )
    after = settled([turn], True, desk.speller)
    assert "<s " not in after
    assert NOT_SPELLED in after
    assert not any(record(desk, turn.reply).spelled().values())
    assert NOT_SPELLED not in settled([turn], False, desk.speller)


def test_a_copied_conversation_still_knows_who_wrote_it(page):
    updates = page.chat.send("a story", tab())
    session = page.desk.sessions.of("t")
    for _ in updates:
        if session.turns[0].reply.rounds:
            break
    assert session.copy().turns[0].reply.pair_number == page.desk.worker.pair.number
    updates.close()
