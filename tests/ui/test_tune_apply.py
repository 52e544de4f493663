"""Applying a recommendation: what it sets, and for which pair."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specchat.ui.tune_apply import Advised, applied, set_by_it
from tests.ui.fake_worker import FakePair

CONTROLS = SimpleNamespace(on="on", gamma="gamma", drafter="drafter", adaptive="adaptive", guard="guard",
                           confidence="confidence")  # fmt: skip


def test_it_sets_what_was_measured_the_guard_included() -> None:
    pair = FakePair()
    updates, said = applied(Advised(5, "model", pair.number), pair, CONTROLS)
    assert updates == {
        "on": True,
        "gamma": 5,
        "drafter": "model",
        "adaptive": False,
        "guard": False,
        "confidence": 0,
    }
    assert "Applied: γ 5, drafter model" in said
    assert set(updates) <= set(set_by_it(CONTROLS))
    assert applied(Advised(0, "", pair.number), pair, CONTROLS)[0] == {"on": False}


@pytest.mark.parametrize("gamma", [0, 5])
def test_after_an_exchange_of_the_pair_nothing_is_set(gamma: int) -> None:
    measured, now = FakePair(), FakePair()
    for pair in (now, None):
        updates, said = applied(Advised(gamma, "model", measured.number), pair, CONTROLS)
        assert not updates and "Another pair is loaded; run it again." in said


def test_without_advice_or_its_drafter_nothing_is_set() -> None:
    pair = FakePair()
    assert applied(None, pair, CONTROLS)[0] == {}
    assert applied(Advised(5, "gone", pair.number), pair, CONTROLS)[0] == {}
