"""The Doctor tab over a real worker and a tiny real pair: by its handlers, its cards, and in a real Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest

from specchat.chat.conversation import Message
from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.lab.doctor import Finding, Remedy
from specchat.lab.doctor_measure import Examination
from specchat.ui import doctor_view as view
from specchat.ui.desk import Desk, Options
from specchat.ui.doctor_tab import NAME, DoctorTab
from specchat.ui.sidebar import build as build_sidebar
from specchat.worker import Task, Worker
from tests.fakes import failing, slow
from tests.rigs import noisy, runner, tiny
from tests.ui.lab_rig import TabRig, tab
from tests.ui.pages import Served, ask, eventually
from tests.worker.jobs import pair_of

START = Settings(8, Sampling(0.6, seed=1), "model", 24)
HOSTILE = '<img src=x onerror="window.pwned=9">'


class Rig(TabRig):
    """The tab with the settings of these tests."""

    def __init__(self, pair=None, settings: Settings = START) -> None:
        super().__init__(DoctorTab, settings, pair)

    def run(self, what: str = "0") -> dict[str, str]:
        return self.shown(self.tab.run(what, tab()))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.worker.close()


# -- handlers --------------------------------------------------------------------------------------


def test_an_examination_shows_cards_in_order_and_a_remedy_is_applied_and_measured_again(rig):
    seen = rig.run()
    assert "Examined." in seen["status"]
    assert seen["board"].count('class="sc-doctor-card"') >= 1
    assert "of the suite" in seen["board"]
    kept = rig.tab._kept["one"]
    before = kept.found
    assert isinstance(before, Examination)
    remedy = Remedy("Set γ to 2.", {"gamma": 2})
    planted = Finding("gamma-long", "γ is too long", "A sentence.", "γ 8", "γ 2", 0.4, remedy)
    planted_in = Examination(before.subject, before.settings, before.evidence, (planted,))
    rig.tab._kept["one"] = replace(kept, found=planted_in)
    updates = list(rig.tab.apply(tab(), SimpleNamespace(n=0)))
    controls = rig.tab.controls
    assert updates[0][controls.gamma] == 2
    assert updates[0][controls.on] is True
    assert controls.drafter not in updates[0]
    assert rig.desk.sessions.of("one").live.get().gamma == 2
    board = updates[-1][rig.tab.board]
    assert "Before and after" in board
    assert "γ: 8 → 2" in board
    assert rig.tab._kept["one"].found.settings.gamma == 2


def test_switching_off_moves_the_switch_and_leaves_the_slider(rig):
    remedy = Remedy("Off.", {"gamma": 0})
    moved = rig.tab._moved(remedy, remedy.applied(START))
    assert moved[rig.tab.controls.on] is False
    assert rig.tab.controls.gamma not in moved
    drafter = rig.tab._moved(Remedy("x", {"drafter": "ngram"}), START)
    assert drafter[rig.tab.controls.drafter] == "ngram"
    assert rig.tab.controls.on not in drafter


def test_a_button_of_an_examination_that_is_gone_is_a_sentence(rig):
    seen = rig.shown(rig.tab.apply(tab("other"), SimpleNamespace(n=0)))
    assert "no longer kept" in seen["status"]


def test_without_a_reply_in_the_chat_it_says_what_it_examined_instead(rig):
    assert "no reply yet" in rig.run("chat")["board"]


def test_a_target_that_fails_is_a_sentence_and_the_next_examination_works():
    made = Rig(pair_of(failing(runner(tiny(), 512), 20, RuntimeError(f"Gone {HOSTILE}"))))
    seen = made.run()
    assert 'role="alert"' in seen["board"]
    assert HOSTILE not in seen["board"]
    assert "Examined." in made.run()["status"]
    made.worker.close()


def test_a_pair_that_could_not_be_loaded_for_its_vocabulary_is_diagnosed():
    def load(progress):
        raise ValueError(
            "big and small do not share a vocabulary: id 7 is 'a' in the target and 'b' in the draft."
        )

    worker = Worker(load)
    worker.wait_ready(20)
    made = Rig.__new__(Rig)
    made.worker, made.desk = worker, Desk(worker, START, Options())
    with gr.Blocks():
        made.tab = DoctorTab(made.desk, build_sidebar(START, ""))
    seen = made.run()
    assert 'data-cause="vocabulary"' in seen["board"]
    assert "id 7 is" in seen["board"]
    worker.close()


def test_stop_and_a_closed_page_end_it_and_a_second_one_is_refused():
    made = Rig(pair_of(slow(runner(tiny(), 512), 0.02)))
    going = made.tab.run("0", tab())
    next(going)
    next(going)
    assert "One examination at a time" in made.run()["status"]
    made.tab.stop(tab())
    assert "Nothing is concluded" in made.shown(going)["status"]
    again = made.tab.run("0", tab())
    next(again)
    next(again)
    again.close()
    assert NAME not in made.desk.sessions.of("one").tasks
    eventually(lambda: made.worker.status().state == "ready", "the engine thread is free")
    made.worker.close()


def test_waiting_behind_another_job_is_told_and_found(rig):
    free = []
    rig.worker.submit(Task(lambda *_: [time.sleep(0.01) for _ in iter(lambda: bool(free), True)]))
    eventually(lambda: rig.worker.status().state == "busy", "the other task runs")
    going = rig.tab.run("0", tab())
    next(going)
    assert "is finished first" in next(going)[rig.tab.status]
    time.sleep(0.3)
    free.append(1)
    rig.shown(going)
    assert rig.tab._kept["one"].found.evidence.waited_s > 0.2


# -- cards -----------------------------------------------------------------------------------------


def test_a_card_escapes_what_it_shows_and_says_no_cost_that_is_a_rule_of_thumb():
    finding = Finding("memory", HOSTILE, HOSTILE, HOSTILE, HOSTILE, 0.6, Remedy(HOSTILE), estimate=True)
    html = view.card(finding, 0)
    assert "<img" not in html
    assert "% of the time" not in html
    assert "A rule of thumb, not a measured cost" in html
    assert "<button" not in html
    shown = view.card(Finding("x", "t", "s", "m", "t", 0.31, Remedy("w", again=True)), 3)
    assert "costs 31 % of the time" in shown
    assert 'data-n="3"' in shown
    assert "Measure again" in shown


# -- in the browser --------------------------------------------------------------------------------

browser = pytest.mark.browser


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    pair = pair_of(slow(runner(tiny(), 512), 0.004), runner(noisy(), 512))
    worker = Worker(lambda progress: pair)
    assert worker.wait_ready(20)
    one = Served(worker, pair, START)  # type: ignore[arg-type]
    yield one
    one.close()


def opened(open_page, served, **how):
    page = open_page(served.url, **how)
    page.get_by_role("tab", name="Doctor").click()
    page.wait_for_selector("#sc-doctor-go")
    return page


@browser
def test_the_last_reply_is_examined_and_a_remedy_pressed(served, open_page, shot):
    page = open_page(served.url)
    ask(page, "hello")
    page.get_by_role("tab", name="Doctor").click()
    shot(page, "doctor_empty")
    page.click("#sc-doctor-go")
    page.wait_for_selector("#sc-doctor-stop:not([disabled])")
    page.wait_for_selector(".sc-doctor-card", timeout=60_000)
    assert "Examined: the last reply in the chat" in page.locator(".sc-doctor-headline").inner_text()
    assert page.locator("#sc-doctor-go").is_enabled()
    shot(page, "doctor_found")
    # Whatever the machine made of the times: a remedy is planted under the first card's button.
    doctor_of(served)
    board = page.locator("#sc-doctor-board")
    board.evaluate(
        "b => b.querySelector('.sc-doctor-remedy').insertAdjacentHTML('beforeend', "
        "'<button id=planted data-act=apply data-n=0>x</button>')"
    )
    page.click("#planted")
    page.wait_for_selector(".sc-doctor-change", timeout=60_000)
    assert "γ: 8 → 2" in page.locator(".sc-doctor-change").inner_text()
    assert page.input_value("#sc-gamma input[type=number]") == "2"
    shot(page, "doctor_before_after")


def doctor_of(served: Served) -> None:
    """Plants a remedy as the first finding of every kept examination."""
    remedy = Remedy("Set γ to 2.", {"gamma": 2})
    planted = Finding("gamma-long", "γ is too long", "A sentence.", "γ 8", "γ 2", 0.4, remedy)
    made = next(
        fn.fn.__self__ for fn in served.page.blocks.fns.values() if isinstance(getattr(fn.fn, "__self__", None), DoctorTab)
    )  # fmt: skip
    for key, kept in list(made._kept.items()):
        found = Examination(kept.found.subject, kept.found.settings, kept.found.evidence, (planted,))
        made._kept[key] = replace(kept, found=found)


@browser
def test_it_reads_on_a_narrow_dark_screen(served, open_page, shot):
    page = opened(open_page, served, width=420, height=900, dark=True)
    page.click("#sc-doctor-go")
    page.wait_for_selector(".sc-doctor-card", timeout=60_000)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 420, wide
    shot(page, "doctor_narrow_dark")


def test_the_conversation_is_examined_up_to_its_last_question(rig):
    from specchat.ui.session import Reply, Turn

    session = rig.desk.sessions.of("one")
    session.turns = [Turn("first", Reply(text="yes")), Turn("second", Reply(text="no"))]
    subject, note = rig.tab._subject(session, "chat")
    assert [m.content for m in subject.messages] == ["first", "yes", "second"]
    assert note == ""
    assert subject.messages[-1] == Message("user", "second")
