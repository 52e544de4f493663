"""The report: one file, nothing fetched, nothing of a prompt or a name taken for markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from specchat.decode.sampling import Sampling
from specchat.lab import tune_report
from specchat.lab.suite import Prompt
from specchat.lab.tune import Outcome, Tuning
from specchat.lab.tune_plot_kinds import kinds_plot
from specchat.lab.tune_plots import curve_plot, gain_plot, length_plot, speed_plot, steps
from specchat.lab.tune_record import Record
from specchat.lab.tune_start import data
from specchat.lab.tune_table import markdown, overhead_words, prediction_words, sampling_words, stage_table
from tests.lab.tune_beds import PLAN, Planted

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \" ' & ${alert(3)} https://example.org/x.png"


def outcome_of(bed: Planted | None = None, plan=PLAN) -> Outcome:
    bed = bed or Planted(drafters=("chain", "model"), alphas={"chain": 0.7, "model": 0.5})
    return Tuning(
        bed, plan, Record(), bed.cancelled, lambda outcome: None, {"python": "3.11", "remarks": ["A note."]}
    ).run()


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return outcome_of()


class Tags(HTMLParser):
    """Every tag with its attributes; fails on markup that does not close."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag


def tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(html)
    parser.close()
    assert not parser.open, parser.open
    return parser.seen


def test_the_report_needs_nothing_but_itself_and_escapes_everything() -> None:
    bed = Planted(target=HOSTILE)
    bed.identity["draft"] = HOSTILE
    plan = replace(PLAN, prompts=(Prompt(HOSTILE, HOSTILE, HOSTILE), Prompt("b", "b", "b")))
    html = tune_report.page(outcome_of(bed, plan))
    seen = tags(html)
    names = {tag for tag, _ in seen}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "a", "form", "base"}
    for tag, attributes in seen:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("href", "src", "action")
        ], tag
    style = re.search(r"<style>(.*?)</style>", html, re.S)
    assert style is not None and not re.search(r"url\(|@import|https?:", style[1])
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)" in html


def test_the_report_has_the_table_the_plots_the_settings_and_the_machine(outcome: Outcome) -> None:
    html = tune_report.page(outcome)
    tags(html)
    for words in ("1 baseline", "2 misaligned", "3 aligned", "4 γ sweep", "5 drafter", "6 prefix cache", "recommended",
                  "Speed against γ", "Accepted length against γ", "Draft time against gain", "temperature 0.6, top-k 20",
                  "3.11", "A note.", "prefers-color-scheme: dark", "Predicted before measuring"):  # fmt: skip
        assert words in html, words
    assert "was stopped" not in html
    assert html.count('class="sc-tune-chosen"') + html.count("class=sc-tune-chosen") == 2, (
        "marked in both tables"
    )


def test_a_run_that_was_stopped_early_has_a_report_too() -> None:
    for stop_after in (0, 1, 4):
        html = tune_report.page(outcome_of(Planted(stop_after=stop_after)))
        tags(html)
        assert "was stopped" in html


def test_categories_are_told_apart_by_shape_and_escaped(outcome: Outcome) -> None:
    picture = ElementTree.fromstring(kinds_plot(outcome))
    assert "code: γ 1" in picture.attrib["aria-label"] and "summary: γ 1" in picture.attrib["aria-label"]
    assert any("z" in path.attrib["d"] for path in picture.iter("path")), "squares beside dots"
    plan = replace(PLAN, prompts=tuple(Prompt(f"{i}", f"{HOSTILE}{i}", "x") for i in range(6)))
    many = kinds_plot(outcome_of(Planted(), plan))
    tags(many)
    assert "<img" not in many


@pytest.mark.parametrize("plot", [speed_plot, length_plot, gain_plot])
def test_plots_are_pictures_with_axes_labels_and_a_sentence(outcome: Outcome, plot) -> None:
    picture = ElementTree.fromstring(plot(outcome))
    assert picture.attrib["role"] == "img"
    assert len(picture.attrib["aria-label"]) > 40
    texts = ["".join(element.itertext()) for element in picture.iter("text")]
    assert any("measured" in text or "gained" in text for text in texts), "the legend says it in words"
    dashed = [e for e in picture.iter("path") if e.attrib.get("stroke-dasharray") == "5 4"]
    assert dashed, "predicted differs from measured without colour"
    for circle in picture.iter("circle"):
        if "cy" in circle.attrib:
            assert -1 <= float(circle.attrib["cy"]) <= 264


def test_the_predicted_curve_stands_beside_the_measured_points(outcome: Outcome) -> None:
    assert outcome.prediction is not None
    label = ElementTree.fromstring(speed_plot(outcome)).attrib["aria-label"]
    for gamma in (1, 2, 3):
        assert f"γ {gamma} {outcome.prediction.tok_per_s(gamma):.2f}" in label


def test_numbers_on_the_axis_are_round() -> None:
    assert steps(8) == [0, 2, 4, 6, 8]
    assert steps(0.9) == [0, 0.2, 0.4, 0.6, 0.8]
    assert steps(130) == [0, 50, 100]
    assert steps(0) == [0]
    for gamma in (0, 5, 16):
        assert "Expected speed-up" in curve_plot(0.7, gamma, 0.1, 1.2)


def test_the_difference_from_the_prediction_is_named(outcome: Outcome) -> None:
    words = overhead_words(outcome)
    assert "tokens (" in words and "plain rounds (" in words and "drift" in words
    assert "α = 0.70" in prediction_words(outcome)


def test_sampling_in_words() -> None:
    assert sampling_words(Sampling(0.0)) == "temperature 0 (greedy)"
    assert sampling_words(Sampling(1.0, 0, top_p=0.9)) == "temperature 1, no top-k, top-p 0.9"


def test_json_holds_the_table_the_curve_and_every_unit(outcome: Outcome) -> None:
    import json

    found = json.loads(json.dumps(data(outcome)))
    assert found["complete"] and found["recommendation"]["gamma"] == outcome.advice.gamma
    assert len(found["units"]) == len(outcome.units)
    assert len(found["prediction"]["curve"]) == 17
    assert found["stages"][0]["speedup"] == 1
    assert set(found["stages"][0]["categories"]) == {"code", "summary"}
    assert markdown(stage_table(outcome)).startswith("| stage ")
