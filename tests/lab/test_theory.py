"""The formulas against published values and against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.lab.theory import alpha_of, expected_accepted, expected_speedup, expected_tokens


@pytest.mark.parametrize(
    ("alpha", "gamma", "length"), [(0.7, 5, 1.94), (0.8, 8, 3.33), (0.8, 4, 2.36), (0.8, 16, 3.89)]
)
def test_expected_accepted_length_has_the_known_values(alpha: float, gamma: int, length: float) -> None:
    assert expected_accepted(alpha, gamma) == pytest.approx(length, abs=0.005)


@given(st.floats(0, 1), st.integers(0, 16))
def test_the_closed_form_is_the_sum_over_where_the_first_rejection_falls(alpha: float, gamma: int) -> None:
    mean = sum(k * alpha**k * (1 - alpha) for k in range(gamma)) + gamma * alpha**gamma
    assert expected_accepted(alpha, gamma) == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert expected_tokens(alpha, gamma) == pytest.approx(mean + 1, rel=1e-6)


@given(st.floats(0.01, 0.99), st.integers(1, 16))
def test_alpha_is_recovered_from_the_mean_length(alpha: float, gamma: int) -> None:
    assert alpha_of(expected_accepted(alpha, gamma), gamma) == pytest.approx(alpha, abs=1e-6)


def test_a_free_perfect_draft_gives_gamma_plus_one_and_a_useless_one_only_costs() -> None:
    assert expected_speedup(1.0, 4, 0.0) == 5
    assert expected_speedup(0.0, 4, 0.1) == pytest.approx(1 / 1.4)


@pytest.mark.parametrize(
    "call", [lambda: expected_accepted(1.1, 4), lambda: alpha_of(5, 4), lambda: expected_speedup(0.5, 4, -1)]
)
def test_impossible_inputs_are_refused(call) -> None:
    with pytest.raises(ValueError, match=r"must be|impossible"):
        call()
