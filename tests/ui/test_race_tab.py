"""The Race tab over a real worker and a tiny real pair: by its handlers, and in a real Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.lab.race import Race
from specchat.ui.race_tab import NAME, RaceTab
from specchat.worker import Task, Worker
from tests.fakes import failing, slow
from tests.rigs import noisy, runner, tiny
from tests.ui.lab_rig import TabRig, tab
from tests.ui.pages import Served, eventually, send, slide
from tests.worker.jobs import pair_of

START = Settings(4, Sampling(0.0), "model", 24)


class Rig(TabRig):
    """The tab with the settings of these tests."""

    def __init__(self, pair=None, settings: Settings = START) -> None:
        super().__init__(RaceTab, settings, pair)

    def run(self, prompt: str = "hello", most: int = 24, repeats: int = 1, third: bool = False, key: str = "one",
            gamma: int = 2, drafter: str = "model", apart: bool = False, slider: int = 4):  # fmt: skip
        lane_c = (third, gamma, drafter, False, apart, 1.5, 0)
        return self.tab.run(tab(key), prompt, most, repeats, slider, *lane_c)

    def last(self, **given: object) -> dict[str, str]:
        """Everything to the end: the last status and board."""
        return self.shown(self.run(**given))  # type: ignore[arg-type]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.worker.close()


# -- handlers --------------------------------------------------------------------------------------


def test_a_race_runs_and_is_kept_to_show_its_other_repeats(rig):
    seen = rig.last(repeats=2, third=True)
    assert "Finished" in seen["status"]
    assert seen["board"].count('class="sc-race-lane"') == 3
    assert "Lane C: Identical" in seen["board"]
    other = rig.tab.show(1, tab())[rig.tab.board]
    assert other.count('class="sc-race-lane"') == 3
    found = rig.tab._races["one"].race
    assert isinstance(found, Race)
    assert [lane.settings.gamma for lane in found.lanes] == [0, 4, 2]
    assert all(lane.settings.max_new_tokens == 24 for lane in found.lanes)
    assert "no longer kept" in rig.tab.show(0, tab("other"))[rig.tab.status]


def test_what_cannot_be_raced_is_a_sentence_at_once(rig):
    assert "Write a prompt first" in rig.last(prompt="  \n")["status"]
    assert "same settings as lane B" in rig.last(third=True, gamma=4)["status"]
    assert "drafter is not there" in rig.last(third=True, drafter="head")["status"]
    session = rig.desk.sessions.of("one")
    session.live.set(Settings(0, Sampling(0.0), "model", 24))
    assert "γ is 0 in the sidebar" in rig.last(slider=0)["status"]
    assert "Finished" in rig.last(slider=3)["status"], "off in the sidebar: lane B takes the slider's γ"
    assert rig.tab._races["one"].race.lanes[1].settings.gamma == 3


def test_a_prompt_that_is_too_long_is_a_sentence_and_the_next_race_works(rig):
    seen = rig.last(prompt="word " * 900)
    assert "could not be run" in seen["status"]
    assert 'role="alert"' in seen["board"]
    assert "Finished" in rig.last()["status"]


def test_a_target_that_fails_is_a_sentence_and_the_next_race_works():
    made = Rig(pair_of(failing(runner(tiny(), 512), 42, RuntimeError("The weights are gone."))))
    seen = made.last()
    assert "The race failed" in seen["status"]
    assert "The weights are gone." in seen["board"]
    assert "What had finished is kept below." in seen["board"]
    assert "Finished" in made.last()["status"]
    made.worker.close()


def test_a_closed_page_ends_its_race_and_a_second_one_is_refused():
    made = Rig(pair_of(slow(runner(tiny(), 512), 0.01)))
    going = made.run(most=512, repeats=5)
    next(going)
    assert "One race at a time" in made.last()["status"]
    going.close()
    assert NAME not in made.desk.sessions.of("one").tasks
    eventually(lambda: made.worker.status().state == "ready", "the engine thread is free")
    assert "Finished" in made.last()["status"]
    made.worker.close()


def test_a_race_waits_for_its_turn_and_can_be_stopped_before_it(rig):
    free = []
    rig.worker.submit(
        Task(lambda pair, cancelled, put: [time.sleep(0.01) for _ in iter(lambda: bool(free), True)])
    )
    eventually(lambda: rig.worker.status().state == "busy", "the other task runs")
    going = rig.run()
    next(going)
    waiting = next(going)[rig.tab.status]
    assert "Waiting" in waiting
    assert "finished first" in waiting
    rig.tab.stop(tab())
    seen = list(going)
    assert "Stopped before the race began" in seen[-1][rig.tab.status]
    free.append(1)
    assert "Finished" in rig.last()["status"]


def test_a_target_that_cannot_roll_back_has_nothing_to_race():
    pair = pair_of()
    pair.target.can_rollback = False
    made = Rig(pair)
    assert "nothing to race" in made.last()["status"]
    made.worker.close()


def test_lane_cs_settings_can_be_taken_over_by_the_sidebar(rig):
    rig.last(third=True)
    updates = rig.tab.taken(tab())
    controls = rig.tab.controls
    assert (updates[controls.on], updates[controls.gamma], updates[controls.drafter]) == (True, 2, "model")
    rig.last(third=True, apart=True)
    assert "no longer" in rig.tab.taken(tab())[rig.tab.status], "a misaligned draft is for the lab only"


def test_lane_b_is_described_as_the_sidebar_has_it(rig):
    values = [c.value for c in rig.tab.controls.all()]
    values[0], values[1] = False, 7
    assert "γ\u00a07, draft model" in rig.tab.lanes._said(*values)


# -- in the browser --------------------------------------------------------------------------------

browser = pytest.mark.browser
HOSTILE = '<img src=x onerror="window.pwned=9"> ${window.pwned=8} {{value}} </textarea>'


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    pair = pair_of(slow(runner(tiny(), 512), 0.02), slow(runner(noisy(), 512), 0.001))
    worker = Worker(lambda progress: pair)
    assert worker.wait_ready(20)
    one = Served(worker, pair, START)  # type: ignore[arg-type]
    yield one
    one.close()


def opened(open_page, served, **how):
    page = open_page(served.url, **how)
    page.get_by_role("tab", name="Race").click()
    page.wait_for_selector("#sc-race-go")
    return page


def raced(page) -> None:
    page.click("#sc-race-go")
    page.wait_for_selector(".sc-race-replay[data-ready]", timeout=60_000)


@browser
def test_an_example_is_raced_replayed_and_compared(served, open_page, shot):
    page = opened(open_page, served)
    shot(page, "race_empty")
    page.locator(".sc-race-example").nth(2).click()
    eventually(lambda: page.input_value("#sc-race-prompt textarea"), "the example is in the box")
    slide(page, "sc-race-most", 48)
    slide(page, "sc-race-repeats", 2)
    page.click("#sc-race-go")
    page.wait_for_function(
        "() => Number(document.querySelector(\"[data-state='running now'] .sc-race-now b\")?.textContent) > 0"
    )
    assert "Running lane" in page.locator("#sc-race-status").inner_text()
    assert not page.locator("#sc-race-go").is_enabled()
    shot(page, "race_running")
    page.wait_for_selector(".sc-race-replay[data-ready]", timeout=60_000)

    replay = page.locator(".sc-race-replay")
    page.select_option("[data-race=speed]", "0.25")
    page.click("[data-race=restart]")
    eventually(lambda: page.locator(".sc-race-text [data-at][hidden]").count() > 0, "text is still to come")
    eventually(lambda: page.locator(".sc-race-text [data-at]:not([hidden])").count() > 0, "text has come")
    assert "sc-race-over" not in (replay.get_attribute("class") or "")
    shot(page, "race_replay")
    page.click("[data-race=play]")
    clock = page.locator("[data-race=clock]").inner_text()
    page.wait_for_timeout(300)
    assert page.locator("[data-race=clock]").inner_text() == clock, "paused"
    assert page.locator("[data-race=play]").inner_text() == "Play"
    page.locator("[data-race=seek]").fill("0")
    assert page.locator(".sc-race-text [data-at]:not([hidden])").count() == 0
    page.click("[data-race=skip]")
    assert page.locator(".sc-race-text [data-at][hidden]").count() == 0
    assert "sc-race-over" in (replay.get_attribute("class") or "")

    assert "the speed of lane A" in page.locator(".sc-race-headline").inner_text()
    assert "Lane B: Identical" in page.locator(".sc-race-verdicts").inner_text()
    table = page.locator(".sc-race-table").inner_text()
    for part in (
        "Speed-up",
        "Tokens a second",
        "Time to first token",
        "Tokens a round",
        "Acceptance",
        "speculation off",
    ):
        assert part in table
    texts = page.locator(".sc-race-text").all_text_contents()
    assert texts[0] == texts[1] != ""
    page.locator("#sc-race-shown label").nth(1).click()
    eventually(
        lambda: page.locator("[data-race=play]").inner_text() == "Pause", "the other repeat is played at once"
    )
    page.click("[data-race=skip]")
    assert page.locator(".sc-race-text").all_text_contents() == texts, "greedy: every repeat writes the same"
    raced(page)
    assert page.locator("[data-race=play]").inner_text() in ("Pause", "Play"), (
        "a second race has its own replay"
    )
    assert page.locator(".sc-race-lane").count() == 2
    shot(page, "race_finished")


@browser
def test_three_lanes_with_sampling_part_and_the_place_is_shown(served, open_page, shot):
    page = opened(open_page, served, dark=True)
    slide(page, "sc-temperature", 1)
    page.check("#sc-race-third input")
    page.wait_for_selector("#sc-race-gamma")
    page.check("#sc-race-apart input")
    page.wait_for_selector("#sc-race-temperature")
    page.fill("#sc-race-prompt textarea", HOSTILE)
    slide(page, "sc-race-most", 32)
    eventually(
        lambda: any(s.live.get().sampling.temperature == 1 for s in served.page.desk.sessions.all()),
        "the slider",
    )
    raced(page)
    page.click("[data-race=skip]")
    said = page.locator(".sc-race-verdicts").inner_text()
    assert said.count("Different because sampling is on") == 2
    assert "draft sampled at temperature 1.5" in page.locator(".sc-race-line").nth(2).inner_text()
    assert page.locator(".sc-race-lane").nth(0).locator(".sc-race-flag").count() == 2
    assert "differs from A here" in page.locator(".sc-race-lane").nth(2).inner_text()
    page.locator("[data-reveal=C]").click()
    page.click(".sc-race-asked summary")
    assert page.locator("p.sc-race-prompt").inner_text() == HOSTILE
    assert page.evaluate("window.pwned") is None
    assert page.locator("#sc-race-board :is(img, script, iframe, style)").count() == 0
    shot(page, "race_three")


@browser
def test_stop_keeps_what_had_finished_chat_waits_its_turn_and_a_closed_page_ends_it_all(
    served, open_page, shot
):
    page = opened(open_page, served, width=420, left=True)
    page.fill("#sc-race-prompt textarea", "hello")
    slide(page, "sc-race-most", 400)
    slide(page, "sc-race-repeats", 5)
    page.click("#sc-race-go")
    page.wait_for_selector("[data-state='running now']:nth-child(2)", timeout=30_000)
    page.get_by_role("tab", name="Chat").click()
    send(page, "hello")
    page.wait_for_selector("#sc-state [data-state=queued]:has-text('racing')")
    page.get_by_role("tab", name="Race").click()
    page.click("#sc-race-stop")
    page.wait_for_selector(".sc-race-replay[data-ready]", timeout=30_000)
    assert "stopped" in page.locator("#sc-race-board .sc-note").first.inner_text()
    assert page.locator("#sc-race-go").is_enabled()
    shot(page, "race_stopped_narrow")
    page.get_by_role("tab", name="Chat").click()
    page.locator("[data-testid=stats]").first.wait_for(timeout=60_000)
    page.get_by_role("tab", name="Race").click()
    page.click("#sc-race-go")
    page.wait_for_selector("[data-state='running now']")
    page.close()
    eventually(lambda: served.worker.status().state == "ready", "a closed page ends its race")
