"""The Proof tab over a real worker and a tiny real pair: by its handlers, its tables, and in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.decode.stats import Stats
from specchat.lab.agreement import Margin, Parting
from specchat.lab.proof_plan import Cell, GreedyRow, Plan, Progress, Proof, SampledLaw
from specchat.lab.proof_stats import Test
from specchat.ui import proof_view as view
from specchat.ui.proof_tab import NAME, ProofTab
from specchat.worker import Worker
from tests.fakes import failing, slow
from tests.rigs import noisy, runner, tiny
from tests.ui.lab_rig import TabRig, tab
from tests.ui.pages import Served, eventually
from tests.worker.jobs import pair_of

START = Settings(3, Sampling(1.0, top_k=8), "model", 24)
HOSTILE = '<img src=x onerror="window.pwned=9">'


class Rig(TabRig):
    """The tab with the settings of these tests."""

    def __init__(self, pair=None, settings: Settings = START) -> None:
        super().__init__(ProofTab, settings, pair)

    def run(self, what: str = "greedy", prompt: str = "", seconds: object = 5) -> dict[str, str]:
        return self.shown(self.tab.run(what, seconds, 2, prompt, tab()))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(pair_of(runner(tiny(), 4096), runner(noisy(), 4096)))
    yield made
    made.worker.close()


# -- handlers --------------------------------------------------------------------------------------


def test_greedy_texts_are_compared_and_the_verdict_says_so(rig):
    seen = rig.run(prompt="what is the sea")
    assert "Finished" in seen["status"]
    assert 'data-verdict="same"' in seen["board"]
    assert "identical with speculation on and off" in seen["board"]
    assert "your text" in seen["board"]
    assert "What this shows, and what not" in seen["board"]


def test_speculation_that_is_off_and_a_second_run_are_sentences(rig):
    session = rig.desk.sessions.of("one")
    session.live.set(replace(START, gamma=0))
    assert "Speculation is off" in rig.run()["status"]
    session.live.set(START)
    going = rig.tab.run("law", 60, 2, "hello", tab())
    next(going)
    assert "One proof at a time" in rig.run()["status"]
    eventually(lambda: rig.worker.status().state == "busy", "it has begun")
    rig.tab.stop(tab())
    seen = rig.shown(going)
    assert "Stopped" in seen["status"]
    assert NAME not in session.tasks
    assert "Finished" in rig.run()["status"]


def test_a_target_that_fails_is_a_sentence_and_the_next_proof_works():
    made = Rig(
        pair_of(failing(runner(tiny(), 4096), 60, RuntimeError(f"Gone {HOSTILE}")), runner(noisy(), 4096))
    )
    seen = made.run(prompt="hello")
    assert 'role="alert"' in seen["board"]
    assert HOSTILE not in seen["board"]
    assert "Finished" in made.run(prompt="hello")["status"]
    made.worker.close()


def test_a_closed_page_ends_its_proof():
    made = Rig(pair_of(slow(runner(tiny(), 4096), 0.01), runner(noisy(), 4096)))
    going = made.tab.run("both", 300, 2, "hello", tab())
    next(going)
    next(going)
    going.close()
    assert NAME not in made.desk.sessions.of("one").tasks
    eventually(lambda: made.worker.status().state == "ready", "the engine thread is free")
    made.worker.close()


# -- tables ----------------------------------------------------------------------------------------


def shown(*tests: Test, drafted: int = 30) -> Proof:
    stats = Stats(drafted=drafted, accepted=10)
    law = SampledLaw(
        "code", HOSTILE, 2, 2, 200, cells=(Cell(HOSTILE, 120, 80, 0.5),), tests=tests, stats=stats
    )
    return Proof(Plan(START, (("x", "y"),)), law=law)


def test_a_difference_in_law_is_told_with_its_p_and_what_it_means():
    html = view.result(shown(Test("on against off", 40.0, 3, 1e-8, 0.2, 0.3)))
    assert 'data-verdict="different"' in html
    assert "1.0e-08" in html
    assert "Run it once more" in html
    assert "(differs)" in html
    assert "<img" not in html


def test_no_difference_says_what_would_have_been_noticed():
    html = view.result(shown(Test("on against off", 2.0, 3, 0.57, 0.05, 0.31)))
    assert 'data-verdict="same"' in html
    assert "A true distance of 0.31 or more would have been noticed nine times in ten" in html
    assert "60.0 %" in html
    assert "40.0 %" in html
    assert "50.0 %" in html


def test_a_run_in_which_nothing_was_proposed_proves_nothing():
    html = view.result(shown(Test("on against off", 2.0, 3, 0.57, 0.05, 0.31), drafted=0))
    assert 'data-verdict="nothing"' in html
    assert "same thing" in html


def test_a_greedy_difference_and_a_tie_are_told_apart():
    apart = Parting(11, 5, 9, Margin(5, 7, 1.5, 0.6, 0.1))
    tie = Parting(3, 5, 7, Margin(5, 7, 0.0002, 0.4, 0.4))
    stats = Stats(drafted=9, accepted=4)
    rows = [
        GreedyRow("a", 40, (tie,), None, stats),
        GreedyRow(HOSTILE, 11, (), apart, stats, ("the", HOSTILE)),
    ]
    plan = Plan(START, (("x", "y"),))
    both = view.result(Proof(plan, rows))
    assert 'data-verdict="different"' in both
    assert "token 12 of" in both
    assert "<img" not in both
    only = view.result(Proof(plan, rows[:1]))
    assert 'data-verdict="same"' in only
    assert "aside from 1 numerical tie" in only
    assert "0.0002" in only
    assert 'aria-valuenow="40"' in view.result(Proof(plan), Progress("x", 0.4))


# -- in the browser --------------------------------------------------------------------------------

browser = pytest.mark.browser


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    pair = pair_of(runner(tiny(), 4096), runner(noisy(), 4096))
    worker = Worker(lambda progress: pair)
    assert worker.wait_ready(20)
    one = Served(worker, pair, START)  # type: ignore[arg-type]
    yield one
    one.close()


def opened(open_page, served, **how):
    page = open_page(served.url, **how)
    if how.get("width", 1280) < 600:
        page.click(".overflow-menu > button")
        page.click(".overflow-dropdown button:has-text('Proof')")
    else:
        page.get_by_role("tab", name="Proof").click()
    page.wait_for_selector("#sc-proof-go")
    return page


@browser
def test_both_checks_run_and_the_verdict_stays(served, open_page, shot):
    page = opened(open_page, served)
    shot(page, "proof_empty")
    page.fill("#sc-proof-prompt textarea", "hello")
    page.click("#sc-proof-go")
    page.wait_for_selector("#sc-proof-status:has-text('samples on and')", timeout=60_000)
    shot(page, "proof_running")
    page.wait_for_timeout(1500)
    page.click("#sc-proof-stop")
    page.wait_for_selector(".sc-proof-verdict", timeout=30_000)
    assert page.locator(".sc-proof-law tbody tr").count() >= 2
    assert page.locator(".sc-proof-tests tbody tr").count() == 3
    assert "identical with speculation on and off" in page.locator(".sc-proof-verdict").inner_text()
    assert page.locator("#sc-proof-go").is_enabled()
    shot(page, "proof_done")


@browser
def test_it_reads_on_a_narrow_dark_screen(served, open_page, shot):
    page = opened(open_page, served, width=420, height=900, dark=True)
    page.get_by_label("greedy texts").click()
    page.fill("#sc-proof-prompt textarea", "hello")
    page.click("#sc-proof-go")
    page.wait_for_selector(".sc-proof-verdict", timeout=60_000)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 420, wide
    shot(page, "proof_narrow_dark")
