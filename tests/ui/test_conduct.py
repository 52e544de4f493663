"""How a tab of the lab follows its task: one of a name at a time, faults told, nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gradio as gr
import pytest

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.ui import tab as lab
from specchat.ui.desk import Desk, Options
from specchat.ui.race_tab import NAME, RaceTab
from specchat.ui.sidebar import build as build_sidebar
from specchat.worker import Task, Worker
from tests.fakes import slow
from tests.rigs import runner, tiny
from tests.ui.lab_rig import tab as request
from tests.ui.pages import eventually
from tests.worker.jobs import pair_of

START = Settings(4, Sampling(0.0), "model", 24)


@pytest.fixture
def desk() -> Iterator[Desk]:
    worker = Worker(lambda progress: pair_of(slow(runner(tiny(), 512), 0.002)))
    assert worker.wait_ready(20)
    yield Desk(worker, START, Options())
    worker.close()


def following(desk: Desk, run, underway=lambda batch: {"at": 1}, closing=lambda last: {"end": last}):
    session = desk.sessions.of("one")
    return lab.conduct(
        desk,
        session,
        "x",
        Task(run),
        lambda: {"at": 0},
        underway,
        closing,
        {"refused": True},  # type: ignore[dict-item]
    )


def waits(pair, cancelled, put) -> str:
    while not cancelled():
        time.sleep(0.005)
    return "stopped"


def test_a_second_one_is_refused_before_the_first_has_shown_anything_more_and_stop_still_ends_the_first(desk):
    first, second = following(desk, waits), following(desk, waits)
    assert next(first) == {"at": 0}
    assert list(second) == [{"refused": True}]
    assert "x" in desk.sessions.of("one").tasks
    eventually(lambda: desk.worker.status().state == "busy", "the first runs")
    lab.stop(desk.sessions.of("one"), "x")
    assert list(first)[-1]["end"].value == "stopped"
    assert "x" not in desk.sessions.of("one").tasks


def test_a_page_that_goes_before_the_first_event_leaves_nothing_behind(desk):
    going = following(desk, waits)
    next(going)
    handle = desk.sessions.of("one").tasks["x"]
    going.close()
    assert handle.cancelled()
    assert not desk.sessions.of("one").tasks


def test_a_fault_in_showing_is_told_wherever_it_is(desk):
    bad = following(desk, lambda *_: "done", underway=lambda batch: 1 / 0)
    assert "ZeroDivisionError" in list(bad)[-1]["end"].problem

    def closing(last):
        return {"end": last} if last.problem else 1 / 0

    assert "ZeroDivisionError" in list(following(desk, lambda *_: "done", closing=closing))[-1]["end"].problem
    assert not desk.sessions.of("one").tasks


def test_a_drafter_that_the_pair_has_not_becomes_its_first():
    pair = pair_of()
    assert lab.fitting(Settings(3, drafter="model"), pair).drafter == "model"
    assert lab.fitting(Settings(3, drafter="gone"), pair) == Settings(3, drafter=pair.default_drafter)


# -- a race by its handlers -------------------------------------------------------------------------


def test_a_race_has_the_system_prompt_of_the_click_and_shows_it(desk):
    with gr.Blocks():
        tab = RaceTab(desk, build_sidebar(START, ""))
    session = desk.sessions.of("one")
    session.system = "Be <b>brief</b>."
    going = tab.run(request(), "hello", 24, 1, 4, False, 2, "model", False, False, 1.5, 0)
    next(going)
    session.system = "Be long."
    board = list(going)[-1][tab.board]
    assert "Be &lt;b&gt;brief&lt;/b&gt;." in board
    assert "Be long." not in board
    assert NAME not in session.tasks
    session.system = ""
    board = list(tab.run(request(), "hello", 24, 1, 4, False, 2, "model", False, False, 1.5, 0))[-1][
        tab.board
    ]
    assert "System prompt" not in board
