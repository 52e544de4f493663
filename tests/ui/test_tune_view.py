"""What the Tune tab shows, as strings: the calculator, progress, hint, results."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from specchat.lab.theory import expected_speedup
from specchat.lab.tune import Outcome, Progress, Tuning
from specchat.lab.tune_memory import Remembered
from specchat.lab.tune_record import Record
from specchat.ui import tune_view
from specchat.ui.tune_calculator import _calculate, _fill
from tests.lab.tune_beds import PLAN, Planted

HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def outcome_of(bed: Planted) -> Outcome:
    return Tuning(bed, PLAN, Record(), bed.cancelled, lambda outcome: None).run()


@pytest.mark.parametrize(
    ("alpha", "gamma", "length"), [(0.7, 5, "1.94"), (0.8, 8, "3.33"), (0.8, 4, "2.36"), (0.8, 16, "3.89")]
)
def test_the_calculator_has_the_known_values(alpha: float, gamma: int, length: str) -> None:
    assert f"{tune_view.calculate(alpha, gamma, 0.1, 1.0).accepted:.2f}" == length
    html = tune_view.calculator(alpha, gamma, 0.1, 1.0)
    assert f"<dd>{length}</dd>" in html
    assert f"<dd>{1 + float(length):.2f}</dd>" in html


def test_the_calculators_speed_up_is_the_formula_and_its_curve_is_a_picture() -> None:
    found = tune_view.calculate(0.7, 5, 0.1, 1.2)
    assert found.speedup == pytest.approx(expected_speedup(0.7, 5, 0.1, 1.2))
    assert tune_view.calculate(0.7, 0, 0.1, 1.2).speedup == 1
    html = tune_view.calculator(0.7, 5, 0.1, 1.2)
    picture = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    assert f"{found.speedup:.2f} times plain" in picture.attrib["aria-label"]


@pytest.mark.parametrize("values", [(2, 99, -1, 0), (-1, -3, 5, -2), (1, 16, 0, 0.5), (0, 0, 0, 9)])
def test_the_calculator_takes_any_number(values: tuple[float, int, float, float]) -> None:
    assert "<svg" in tune_view.calculator(*values)


def test_what_is_no_number_gets_a_sentence() -> None:
    for wrong in (None, "", "x", float("nan"), float("inf")):
        assert "must be a number" in _calculate(0.7, wrong, 0.1, 1)


def test_the_probes_values_fit_the_sliders() -> None:
    assert _fill((0.456, 3, 2.9, 15.0)) == [0.46, 3, 1.0, 4.0]
    assert len(_fill(None)) == 4


def test_progress_is_told_in_words_and_as_a_bar() -> None:
    outcome = replace(outcome_of(Planted(stop_after=3)), progress=Progress("Measuring: x <b>", 3, 12, 90.0))
    html = tune_view.running(outcome)
    assert "Measuring: x &lt;b&gt;: 3 of 12 runs, about 2 min left" in html
    assert 'aria-valuenow="25"' in html


def test_a_result_begins_with_what_to_set_and_marks_its_row() -> None:
    outcome = outcome_of(Planted(drafters=("chain", "model")))
    assert outcome.advice is not None
    html = tune_view.result(outcome)
    assert html.index("sc-tune-advice") < html.index("Predicted before measuring") < html.index("Stages")
    assert html.count("<svg") == 4
    assert html.count('class="sc-tune-mark"') == 2
    assert outcome.advice.reason.split(";")[0] in html


def test_before_anything_is_measured_only_the_prediction_is_shown() -> None:
    html = tune_view.result(outcome_of(Planted(stop_after=0)))
    assert "Predicted before measuring" in html and "Speed against γ" in html
    assert "<table" not in html and "sc-tune-advice" not in html


def test_hints_and_sentences_are_escaped() -> None:
    assert tune_view.hint(None) == ""
    found = Remembered(3, HOSTILE, 1.3, HOSTILE, HOSTILE, HOSTILE)
    assert "<img" not in tune_view.hint(found)
    assert "<img" not in tune_view.told(HOSTILE)
    assert "<img" not in tune_view.result(outcome_of(Planted(target=HOSTILE)))


def test_how_it_ended_is_told() -> None:
    assert "is remembered" in tune_view.ending(True, True, True, True)
    assert "could not be remembered" in tune_view.ending(True, True, True, False)
    assert "Resume goes on" in tune_view.ending(False, True, True, False)
    assert "cannot be resumed" in tune_view.ending(False, False, True, False)
    assert "before anything" in tune_view.ending(False, True, False, False)
    assert tune_view.apply_words(3) == "Apply γ 3"
    assert tune_view.apply_words(0) == "Switch speculation off"
