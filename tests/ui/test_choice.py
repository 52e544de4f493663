"""Adaptive γ, guard and confidence in the sidebar and in the panel. No browser."""

from __future__ import annotations

import re
from dataclasses import replace

import gradio as gr
import pytest

from specchat.decode.engine import Settings
from specchat.ui import sidebar
from specchat.ui.meter import Meter
from specchat.ui.panels import Yardstick, choice_line, live_panel
from tests.ui.test_panels import one

VALUES = [True, 4, "chain", 0.6, 20, 1, 0, 1, 0, 0, 512, "", ""]


def test_the_controls_become_settings():
    now, _ = sidebar.read([*VALUES, True, False, 0.35])
    assert now == Settings(adaptive=True, confidence=0.35)
    assert sidebar.read([*VALUES, False, True, 0])[0] == Settings(guard=True)


def test_a_page_started_with_them_shows_them_and_reads_them_back():
    start = Settings(6, adaptive=True, guard=True, confidence=1.0)
    with gr.Blocks():
        controls = sidebar.build(start, "")
    assert (controls.adaptive.value, controls.guard.value) == (True, True)
    assert controls.confidence.maximum == 1.0, "the slider goes as far as the start needs"
    assert sidebar.read([control.value for control in controls.all()], start)[0] == start
    assert sidebar.read(VALUES, start)[0] == replace(start, gamma=4), "missing values are those of the start"


@pytest.mark.parametrize("odd", [None, "", "x", float("nan"), float("inf"), -(10**9), 10**9, [], {}])
def test_odd_values_fall_back_to_allowed_ones(odd):
    for place in range(3):
        last = [False, False, 0.0]
        last[place] = odd
        now, _ = sidebar.read([*VALUES, *last])
        assert 0 <= now.confidence <= 0.95 and isinstance(now.adaptive, bool) and isinstance(now.guard, bool)


def meter(choice: str, gamma: int = 4) -> Meter:
    found = Meter()
    found.add(replace(one(0, 2, gamma=gamma), choice=choice))
    return found


def test_the_line_shows_the_gamma_in_force_and_why():
    html = choice_line(meter("71.0 tok/s of late; one more", 3))
    assert 'data-choice="on"' in html and "<b>γ 3 now:</b>" in html and "71.0 tok/s" in html


def test_a_resting_speculation_is_said_and_looks_different():
    html = choice_line(meter("Speculation is resting: it lost 12 %; next try in 64 tokens", 0))
    assert 'data-choice="rest"' in html and "γ 0 now:" in html and "lost 12 %" in html


def test_the_line_is_there_with_these_settings_only_and_before_anything_was_measured():
    without = live_panel(Meter(), 4, None, Yardstick())
    waiting = live_panel(Meter(), 4, None, Yardstick(), chosen=True)
    assert "sc-choice" not in without and 'data-choice="none"' in waiting
    assert re.sub(r'<p class="sc-choice".*?</p>', "", waiting) == without


def test_a_reason_is_escaped():
    html = choice_line(meter('<b>"x"</b>'))
    assert '"x"' not in html and "&lt;b&gt;" in html
