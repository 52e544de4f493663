"""The Tune tab in a real Chromium, over a real worker with a tiny pair: every number is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.lab import tune_bed
from specchat.lab.tune_advice import Advice
from specchat.lab.tune_arguments import QUICK
from specchat.lab.tune_identity import identity_of
from specchat.lab.tune_memory import remember
from specchat.worker import Worker
from tests.ui.pages import Served, eventually
from tests.worker.jobs import pair_of

pytestmark = pytest.mark.browser

SAMPLING = Sampling(0.6, 20)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A page over a real worker; its cache is a folder of its own, its quick runs are very quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(QUICK, "tokens", 12)
        patch.setattr(tune_bed, "SCRIPT_TOKENS", 8)
        pair = pair_of()
        worker = Worker(lambda progress: pair)
        assert worker.wait_ready(60)
        one = Served(worker, pair, Settings(4, SAMPLING, "model", 64))  # type: ignore[arg-type]
        yield one
        one.close()


def tune_tab(open_page, served: Served, **options):
    page = open_page(served.url, **options)
    page.get_by_role("tab", name="Tune").click()
    page.wait_for_selector("#sc-tune-run")
    return page


def own(page, text: str) -> None:
    page.locator("#sc-tune-source input").nth(1).check()
    page.fill("#sc-tune-own textarea", text)


def status(page) -> str:
    return page.locator("#sc-tune-status").inner_text()


def settings_of(served: Served) -> list[Settings]:
    return [session.live.get() for session in served.page.desk.sessions.all()]


def test_a_run_shows_prediction_table_and_recommendation_which_is_applied(tuned, open_page, shot) -> None:
    page = tune_tab(open_page, tuned)
    own(page, "hello\n<img src=x onerror=alert(1)>")
    page.click("#sc-tune-run")
    page.wait_for_selector("#sc-tune-result .sc-tune-advice", timeout=60_000)
    shown = page.locator("#sc-tune-result").inner_text()
    for words in ("Predicted before measuring", "1 baseline", "2 misaligned", "3 aligned", "4 γ sweep", "5 drafter",
                  "6 prefix cache", "Predicted and measured", "α ="):  # fmt: skip
        assert words in shown, words
    assert page.locator("#sc-tune-result svg").count() == 3
    eventually(lambda: "remembered" in status(page), "it is told")
    shot(page, "tune_done")

    label = page.locator("#sc-tune-apply").inner_text()
    page.click("#sc-tune-apply")
    eventually(lambda: "Applied" in status(page), "the button answers")
    if "off" in label:
        eventually(lambda: 0 in [s.gamma for s in settings_of(tuned)], "speculation is off in the settings")
    else:
        gamma = int(label.split()[-1])
        eventually(lambda: gamma in [s.gamma for s in settings_of(tuned)], "γ is in the settings")
    with page.expect_download() as download:
        page.click("#sc-tune-report")
    report = Path(download.value.path()).read_text(encoding="utf-8")
    assert "Speed against γ" in report and "&lt;img src=x" in report and "<img" not in report


def test_stop_keeps_what_was_measured_and_resume_goes_on_also_on_a_new_page(tuned, open_page) -> None:
    page = tune_tab(open_page, tuned)
    own(page, "\n".join(f"question {i}" for i in range(5)))
    page.click("#sc-tune-run")
    page.wait_for_selector("#sc-tune-result table", timeout=60_000)
    page.click("#sc-tune-stop")
    eventually(lambda: "Resume goes on" in status(page), "it stopped")
    assert page.locator("#sc-tune-result table").count() > 0
    page.wait_for_selector("#sc-tune-resume")
    assert page.locator("#sc-tune-apply").count() == 0 or not page.locator("#sc-tune-apply").is_visible()

    other = tune_tab(open_page, tuned)
    other.wait_for_selector("#sc-tune-resume", timeout=10_000)
    other.click("#sc-tune-resume")
    other.wait_for_selector("#sc-tune-result .sc-tune-advice", timeout=90_000)
    eventually(lambda: "remembered" in status(other), "it is told")


def test_a_remembered_recommendation_is_offered_and_not_applied_by_itself(tuned, open_page, shot) -> None:
    advice = Advice(7, "chain", 1.5, 60.0, "γ 7 with <b>", "because of <i>", ())
    remember(identity_of(tuned.pair), replace(SAMPLING, seed=4), advice)
    page = tune_tab(open_page, tuned)
    page.wait_for_selector("#sc-tune-hint .sc-tune-hint:has-text('γ 7 with <b>')", timeout=10_000)
    assert 7 not in [s.gamma for s in settings_of(tuned)], "nothing is applied silently"
    shot(page, "tune_hint")
    page.click("#sc-tune-take")
    eventually(lambda: (7, "chain") in [(s.gamma, s.drafter) for s in settings_of(tuned)], "it is in force")
    assert page.input_value("#sc-gamma input[type=number]") == "7"


def test_wrong_input_gets_a_sentence_and_the_calculator_follows_its_sliders(tuned, open_page, shot) -> None:
    page = tune_tab(open_page, tuned)
    own(page, "   ")
    page.click("#sc-tune-run")
    eventually(lambda: "no prompt to tune on" in status(page), "a sentence")
    assert page.locator("#sc-tune-run").is_enabled()
    own(page, "word " * 3000)
    page.click("#sc-tune-run")
    eventually(lambda: "No prompt fits" in status(page), "a sentence from the engine thread", 30)
    assert page.locator("#sc-tune-run").is_enabled()

    page.click("#sc-tune-formula button")
    figures = page.locator("#sc-tune-figures dd")
    figures.first.wait_for()
    assert figures.first.inner_text() == "1.94"
    page.fill("#sc-tune-alpha input[type=number]", "0.8")
    page.press("#sc-tune-alpha input[type=number]", "Enter")
    page.fill("#sc-tune-gamma input[type=number]", "8")
    page.press("#sc-tune-gamma input[type=number]", "Enter")
    eventually(lambda: figures.first.inner_text() == "3.33", "the known value of α 0.8 and γ 8")
    shot(page, "tune_calculator")
