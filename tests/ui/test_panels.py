"""The panel as strings: the numbers of known rounds, verdicts only from measurements, nothing unescaped."""

from __future__ import annotations

import re

import pytest

from specchat.decode.events import Prefill, Round, Token
from specchat.decode.stats import Stats
from specchat.pair import Memory
from specchat.ui.meter import Meter
from specchat.ui.panels import (
    Yardstick,
    lengths_figure,
    live_panel,
    memory_figure,
    places_figure,
    seconds,
    size,
    speed,
    time_figure,
)


def one(
    index: int, accepted: int, drafted: int = 4, gamma: int = 4, changed: bool = False, s: float = 0.1
) -> Round:
    tokens = tuple(
        Token(i, "accepted" if i < accepted else "recovered", 0.5, 0.5, i) for i in range(accepted + 1)
    )
    return Round(
        index, tokens, None, gamma, drafted, accepted, "model" if drafted else "", 1, drafted, s / 4, s / 2, s / 8, s / 8,
        (index + 1) * s, changed, Prefill(0, 9, 0.2) if index == 0 else None,
    )  # fmt: skip


def meter(*accepted: int, **more: object) -> Meter:
    found = Meter()
    for index, kept in enumerate(accepted):
        found.add(one(index, kept, **more))  # type: ignore[arg-type]
    return found


def heights(html: str) -> list[float]:
    return [float(h) for h in re.findall(r"height:([\d.]+)%", html)]


def test_the_histogram_has_gamma_plus_one_bars_and_its_mean():
    html = lengths_figure(Stats.of(one(i, kept) for i, kept in enumerate((0, 4, 4, 2))), 4)
    assert heights(html) == [50, 0, 50, 0, 100]
    assert "mean 2.50" in html
    assert "left:60.0%" in html  # (2.5 + ½) / 5 bars


def test_acceptance_by_place_counts_only_what_was_judged():
    html = places_figure(Stats.of(one(i, kept) for i, kept in enumerate((0, 4, 4, 2))), 4)
    assert heights(html) == [75, 100, 67, 100]
    assert "place 2: kept 3 of 3 judged there, 4 proposed" in html


def test_the_time_split_is_a_mean_per_round():
    html = time_figure(Stats.of(one(i, 1) for i in range(3)))
    for part in ("mean 100 ms", "draft 25.0 ms", "verify 50.0 ms", "sample 12.5 ms", "host 12.5 ms"):
        assert part in html


def test_memory_says_which_memory_it_is():
    rss = memory_figure(Memory("RSS", 269_000_000, 8_000_000, 9_000_000, 1_800_000_000, 16_000_000_000))
    assert "1.8 GB RSS of this process" in rss
    assert "other 1.5 GB" in rss
    assert "VRAM" in memory_figure(Memory("VRAM", 1, 1, 1, 4, 5))
    assert "–" in memory_figure(None)


@pytest.mark.parametrize(
    ("accepted", "step", "verdict"),
    [((4,) * 20, 0.05, "wins"), ((0,) * 20, 0.05, "loses"), ((0,) * 20, 0.1, "even"), ((4,) * 20, 0.0, "unknown"),
     ((4,) * 3, 0.05, "early")],
)  # fmt: skip
def test_the_verdict_follows_the_measurements(accepted, step, verdict):
    html = live_panel(meter(*accepted), 4, None, Yardstick(step, "measured"))
    assert f'data-verdict="{verdict}"' in html


@pytest.mark.parametrize(
    ("gamma", "advice"), [(4, "Try a smaller γ, or switch it off."), (1, "Switch it off.")]
)
def test_advice_can_be_followed(gamma, advice):
    html = live_panel(meter(*(0,) * 20), gamma, None, Yardstick(0.05, "measured"))
    assert advice in html and ("smaller" in html) == (gamma > 1)


def test_speculation_off_is_said_before_and_after_a_reply():
    assert 'data-verdict="off"' in live_panel(Meter(), 0, None, Yardstick())
    assert 'data-verdict="off"' in live_panel(meter(*[0] * 20, drafted=0, gamma=0), 0, None, Yardstick(0.1))


def test_a_change_of_settings_is_marked_where_it_happened():
    found = meter(1, 2)
    found.add(one(2, 3, changed=True))
    html = live_panel(found, 4, None, Yardstick())
    assert "new settings from round 3, 0.3 s" in html
    assert html.count("sc-changed") == 1


def test_an_empty_panel_has_no_numbers_and_no_exception():
    html = live_panel(Meter(), 16, None, Yardstick())
    assert "NaN" not in html
    assert html.count('class="sc-col"') == 17


def test_words_from_outside_are_escaped():
    html = live_panel(meter(*[4] * 20), 4, None, Yardstick(0.05, '<b>"x"</b>'))
    assert "<b>&quot;" not in html
    assert '<b>"x"' not in html


def test_units():
    assert [seconds(s) for s in (0.0854, 0.999, 4.24, 59.99, 125)] == [
        "85 ms",
        "1.0 s",
        "4.2 s",
        "1 min 0 s",
        "2 min 5 s",
    ]
    assert [size(b) for b in (0, 999, 98_362_432, 1_240_000_000, 16e9)] == [
        "0 B",
        "999 B",
        "98 MB",
        "1.2 GB",
        "16 GB",
    ]
    assert [speed(s) for s in (1.27, 71.34, 250.2)] == ["1.3", "71.3", "250"]


def test_just_now_looks_at_the_last_seconds_only():
    found = Meter()
    for i in range(40):
        found.add(one(i, 0))
    for i in range(40, 80):
        found.add(one(i, 4))
    assert found.just_now == pytest.approx(50, rel=0.05)
    assert found.stats.tok_per_s == pytest.approx(30, rel=0.05)
