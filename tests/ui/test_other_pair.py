"""Another pair is loaded: what the page keeps from the one before is neither misread nor put in force."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest

from specchat import ui
from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.lab.doctor import Finding, Remedy
from specchat.lab.doctor_measure import Examination
from specchat.ui.chat_save import record
from specchat.ui.desk import Desk, Options
from specchat.ui.doctor_tab import NOT_COMPARED, DoctorTab
from specchat.ui.race_tab import RaceTab
from specchat.ui.sidebar import build as build_sidebar
from specchat.ui.tab import OTHER_PAIR
from specchat.ui.transcript import NOT_SPELLED, settled
from specchat.worker import Task, Worker
from tests.ui.fake_worker import FakePair
from tests.ui.lab_rig import following, page_over, tab, whole
from tests.ui.pages import eventually
from tests.worker.jobs import pair_of


@pytest.fixture
def page() -> Iterator[ui.Page]:
    with page_over(FakePair(acceptance=0.3, round_s=0.001)) as found:
        yield found


def exchange(worker: Worker, pair: object) -> None:
    assert worker.exchange(lambda progress: pair).result(20) == ""  # type: ignore[arg-type,return-value]


def test_a_reply_is_not_spelled_by_another_pair(page):
    desk = page.desk
    whole(page.chat, "fast code", tab())
    turn = desk.sessions.of("one").turns[0]
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
    page.chat.send("a story", tab())
    updates = following(page.chat, tab())
    session = page.desk.sessions.of("one")
    for _ in updates:
        if session.turns[0].reply.rounds:
            break
    assert session.copy().turns[0].reply.pair_number == page.desk.worker.pair.number
    updates.close()


# -- the lab -----------------------------------------------------------------------------------------

START = Settings(4, Sampling(0.0), "model", 24)


@pytest.fixture
def desk() -> Iterator[Desk]:
    worker = Worker(lambda progress: pair_of())
    assert worker.wait_ready(20)
    yield Desk(worker, START, Options())
    worker.close()


def test_lane_cs_settings_are_not_taken_over_for_another_pair(desk):
    with gr.Blocks():
        race = RaceTab(desk, build_sidebar(START, ""))
    list(race.run(tab(), "hello", 24, 1, 4, True, 2, "model", False, False, 1.5, 0))
    assert race.controls.gamma in race.taken(tab())
    exchange(desk.worker, pair_of())
    updates = race.taken(tab())
    assert OTHER_PAIR in updates[race.status]
    assert race.controls.drafter not in updates
    assert 'class="sc-race-lane"' in race.show(0, tab())[race.board], "what was seen can still be looked at"


def examined(desk: Desk) -> DoctorTab:
    """A doctor with an examination whose first finding has a button."""
    with gr.Blocks():
        doctor = DoctorTab(desk, build_sidebar(START, ""))
    list(doctor.run("0", tab()))
    kept = doctor._kept["one"]
    planted = Finding("x", "t", "s", "m", "t", 0.4, Remedy("Set γ to 2.", {"gamma": 2}))
    found = Examination(kept.found.subject, kept.found.settings, kept.found.evidence, (planted,))
    doctor._kept["one"] = replace(kept, found=found)
    return doctor


def test_a_remedy_is_not_applied_to_another_pair(desk):
    doctor = examined(desk)
    exchange(desk.worker, pair_of())
    updates = list(doctor.apply(tab(), SimpleNamespace(n=0)))
    assert len(updates) == 1
    assert OTHER_PAIR in updates[0][doctor.status]
    assert desk.sessions.of("one").live.get().gamma == 4


def test_an_examination_is_not_compared_with_one_of_another_pair(desk):
    doctor, free = examined(desk), []
    desk.worker.submit(Task(lambda *_: [time.sleep(0.01) for _ in iter(lambda: bool(free), True)]))
    eventually(lambda: desk.worker.status().state == "busy", "the other task runs")
    going = doctor.apply(tab(), SimpleNamespace(n=0))
    assert next(going)[doctor.controls.gamma] == 2
    loaded = desk.worker.exchange(lambda progress: pair_of())
    free.append(1)
    board = list(going)[-1][doctor.board]
    assert loaded.result(20) == ""
    assert NOT_COMPARED in board
    assert "Before and after" not in board


def test_a_remedy_that_is_refused_changes_nothing(desk):
    doctor = examined(desk)
    going = doctor.run("0", tab())
    next(going)
    refused = list(doctor.apply(tab(), SimpleNamespace(n=0)))
    assert "One examination at a time" in refused[0][doctor.status]
    assert doctor.controls.gamma not in refused[0]
    assert desk.sessions.of("one").live.get().gamma == 4
    going.close()
