"""What the probe makes of rounds, and that the prediction is the formula."""

from __future__ import annotations

import pytest

from specchat.lab.theory import expected_accepted, expected_speedup
from specchat.lab.tune_probe import Prediction, predict, prediction_of, probe
from tests.lab.tune_beds import event

PLAIN = [event(0, 0, 0, 0.0, 0.020)] * 12


def test_alpha_c_and_v_are_read_from_the_rounds() -> None:
    # Of places decided on their own: 4 rounds of 3 accepted (3 kept of 3), 4 of 1 (1 kept of 2), 4 of 0 (0 of 1).
    threes = [event(3, 3, n, 0.006, 0.030) for n in (3, 1, 0) * 4]
    ones = [event(1, 1, n, 0.002, 0.022) for n in (1, 1, 0) * 4]
    found = predict(PLAIN, {1: ones, 3: threes})
    assert found.alpha == pytest.approx((16 + 8) / (24 + 12))
    assert found.c == pytest.approx(0.1)
    assert found.plain_s == pytest.approx(0.02)
    assert found.judging == ((1, pytest.approx(1.1)), (3, pytest.approx(1.5)))
    assert found.v(2) == pytest.approx(1.3)
    assert found.v(5) == pytest.approx(1.9), "the last slope goes on"
    assert found.offered == 1


def test_the_curve_is_the_formula() -> None:
    found = Prediction(0.7, 0.1, 0.02, ((1, 1.05), (8, 1.4)))
    for gamma in (1, 4, 8, 12):
        assert found.speedup(gamma) == pytest.approx(expected_speedup(0.7, gamma, 0.1, found.v(gamma)))
        assert found.tok_per_s(gamma) == pytest.approx(found.speedup(gamma) / 0.02)
        assert found.accepted(gamma) == pytest.approx(expected_accepted(0.7, gamma))
    assert found.speedup(0) == 1
    assert found.best() == max(range(1, 17), key=found.speedup)


def test_rounds_without_a_proposal_are_plain_steps() -> None:
    some = [event(3, 3, 3, 0.0, 0.030, "ngram")] * 3 + [event(3, 0, 0, 0.0, 0.020, "")] * 9
    found = predict(PLAIN, {3: some})
    assert found.offered == pytest.approx(0.25)
    assert (found.alpha, found.c) == (1.0, 0.0)
    assert found.speedup(3) == pytest.approx((1 + 0.25 * 3) / (0.25 * 1.5 + 0.75))


def test_a_moment_of_another_program_does_not_change_the_prediction() -> None:
    calm = [event(3, 3, 1, 0.006, 0.030)] * 12
    busy = [*calm[:-1], event(3, 3, 1, 0.600, 3.0)]
    assert predict(PLAIN, {3: busy}).c == pytest.approx(predict(PLAIN, {3: calm}).c)
    assert predict(PLAIN, {3: busy}).v(3) == pytest.approx(predict(PLAIN, {3: calm}).v(3))


def test_a_chain_costs_what_its_links_cost_in_proportion() -> None:
    rounds = [event(2, 2, 1, 0.0, 0.02, "ngram")] * 4 + [event(2, 2, 1, 0.004, 0.02, "model")] * 4
    assert predict(PLAIN, {2: rounds}).c == pytest.approx(0.05)


def test_a_pair_that_never_proposes_is_predicted_to_be_plain() -> None:
    found = predict(PLAIN, {})
    assert found.judging == ()
    assert found.speedup(4) == 1
    with pytest.raises(ValueError, match="no plain round"):
        predict([], {})


def test_a_probe_that_is_cut_off_predicts_nothing() -> None:
    assert probe([lambda gamma: PLAIN if gamma == 0 else []]) is None


def test_a_prediction_survives_its_record_and_nonsense_is_refused() -> None:
    import json
    from dataclasses import asdict

    found = Prediction(0.7, 0.1, 0.02, ((1, 1.05), (8, 1.4)), 0.9, 96, (0.7, 0.6))
    assert prediction_of(json.loads(json.dumps(asdict(found)))) == found
    with pytest.raises(ValueError, match="no prediction"):
        prediction_of({"alpha": 1})
