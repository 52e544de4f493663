"""Adaptive γ in worlds whose acceptance and costs are planted: it ends up near the best fixed γ, and pays little to find it.

A run's speed is that of its chosen γs by the planted truth, so that the luck of the dice does not count. Seeds are
fixed; the bounds were met by every one of a dozen others.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from specchat.decode.adaptive import Adaptive
from specchat.decode.estimates import FADE, Estimates, Judging, Mean, Reach
from specchat.decode.pilot import Pilot
from specchat.decode.sampling import Sampling
from specchat.decode.settings import Settings
from tests.decode.planted import World, steer

SETTINGS = Settings(16, adaptive=True)
WORLDS = {
    "weak draft": World([0.25]),
    "middling draft": World([0.6, 0.65, 0.7]),
    "strong draft": World([0.9]),
    "expensive draft": World([0.75], draft=0.006),
    "verification grows with γ": World([0.8], row=0.003),
    "hopeless draft": World([0.1], draft=0.006, row=0.002),
    "a chain with a free link": World([0.5], draft=0.002, free=0.3),
    "as long as it may": World([0.95], draft=0.0002, row=0.0001),
}


@pytest.mark.parametrize("name", list(WORLDS))
def test_it_comes_within_3_percent_of_the_best_fixed_gamma(name: str) -> None:
    world = WORLDS[name]
    runs = [steer([replace(world)] * 4, SETTINGS, seed) for seed in (1, 2, 3)]
    found = statistics.mean(run.speed for run in runs) / world.best(16)
    assert found > 0.97, f"{found:.3f} of the best fixed γ"


@pytest.mark.parametrize("first", ["strong draft", "weak draft"])
def test_a_text_that_turns_is_followed(first: str) -> None:
    """Two replies of one kind, two of the other: better than any γ that stays, and near the best of each."""
    second = {"strong draft": "weak draft", "weak draft": "strong draft"}[first]
    both = [WORLDS[first], WORLDS[first], WORLDS[second], WORLDS[second]]
    fixed = max(4 / sum(1 / world.speed(gamma) for world in both) for gamma in range(17))
    ideal = 4 / sum(1 / world.best(16) for world in both)
    speed = statistics.mean(steer(both, SETTINGS, seed).speed for seed in (1, 2, 3))
    assert speed > fixed, "a fixed γ would have been faster"
    assert speed > 0.95 * ideal


def test_it_does_not_chase_accepted_length() -> None:
    """Of a draft as slow as this the longest proposals are accepted most, and lose."""
    world = World([0.9], draft=0.014)
    run = steer([world] * 3, SETTINGS, 5)
    assert statistics.mean(run.gammas[-100:]) < 3
    assert max(range(17), key=world.tokens) == 16


def test_the_slider_is_the_upper_bound_and_may_move_at_any_time() -> None:
    pilot, world = Pilot(), WORLDS["strong draft"]
    assert statistics.mean(steer([world], SETTINGS, 1, pilot=pilot).gammas) > 4
    assert max(steer([world], replace(SETTINGS, gamma=3), 1, pilot=pilot).gammas) == 3
    assert set(steer([world], replace(SETTINGS, gamma=1), 1, pilot=pilot).gammas) <= {0, 1}
    assert max(steer([world], SETTINGS, 1, pilot=pilot).gammas) > 4


def test_a_slider_that_falls_while_it_still_measures_is_the_bound_at_once() -> None:
    adaptive = Adaptive()
    assert adaptive.choose(8)[0] > 2
    assert [adaptive.choose(2)[0] for _ in range(3)] == [0, 2, 2]


def test_every_choice_says_why_with_the_speed_it_expects() -> None:
    run = steer([WORLDS["middling draft"]], SETTINGS, 2)
    assert all(run.why)
    last = next(why for why in reversed(run.why) if "tried" not in why)
    assert " tok/s expected (γ " in last and "plain: " in last
    assert any(why.startswith("tried once; so far γ ") for why in run.why)


def test_a_chain_of_misfortunes_of_the_clock_changes_little() -> None:
    """One round in fifty takes ten times as long, whatever its γ: nothing that γ could help."""
    world = WORLDS["middling draft"]
    pilot, gammas = Pilot(), []
    dice = random.Random(3)
    for index in range(600):
        gamma, _ = pilot.choose(SETTINGS)
        event = world.round(index, gamma, dice)
        if dice.random() < 0.02:
            event = replace(event, verify_s=10 * event.verify_s)
        pilot.learn(event)
        gammas.append(gamma)
    late = gammas[200:]
    speed = sum(world.tokens(gamma) for gamma in late) / sum(world.seconds(gamma) for gamma in late)
    assert speed > 0.96 * world.best(16)


@pytest.mark.parametrize("name", ["weak draft", "middling draft", "hopeless draft"])
def test_a_busy_machine_makes_it_cautious_and_not_wild(name: str) -> None:
    """For some twenty rounds at a time everything takes up to four times as long."""
    world, found = WORLDS[name], []
    for seed in range(6):
        pilot, dice, slow, gammas = Pilot(), random.Random(seed), 1.0, []
        for index in range(500):
            if dice.random() < 0.05:
                slow = dice.choice([1.0, 1.0, 1.5, 2.0, 4.0])
            gamma, _ = pilot.choose(SETTINGS)
            event = world.round(index, gamma, dice)
            pilot.learn(replace(event, draft_s=event.draft_s * slow, verify_s=event.verify_s * slow))
            gammas.append(gamma)
        late = gammas[50:]
        speed = sum(world.tokens(gamma) for gamma in late) / sum(world.seconds(gamma) for gamma in late)
        found.append(speed / world.best(16))
    assert statistics.mean(found) > 0.95


# -- its parts ------------------------------------------------------------------------------------


def test_acceptance_is_not_censored_by_gamma() -> None:
    """Rounds with γ = 1 say nothing about place 2, and rounds with γ = 4 do not make place 1 look better."""
    reach = Reach(0.6, weight=0.01)
    for length in (0, 1, 1, 1) * 200:
        reach.learn(length, 1)
    for length in (0, 1, 2, 2) * 5:
        reach.learn(length, 2)
    first, second = reach.chances(2)
    assert first == pytest.approx(0.75, abs=0.03)
    assert second / first == pytest.approx(2 / 3, abs=0.05)


def test_old_rounds_fade_by_half_in_46() -> None:
    reach = Reach(0.0, weight=0.0001)
    for _ in range(2000):
        reach.learn(1, 1)
    for _ in range(46):
        reach.learn(0, 1)
    assert reach.chances(1)[0] == pytest.approx(FADE**46, abs=0.02)


def test_unseen_rows_lie_on_the_line_through_the_others() -> None:
    judging = Judging()
    for _ in range(30):
        for rows in (1, 3, 5):
            judging.learn(rows, 0.010 + 0.002 * rows)
    times = judging.upto(8)
    for rows in range(1, 9):
        assert times[rows - 1] == pytest.approx(0.010 + 0.002 * rows, rel=0.04)
    assert Judging().upto(3) == [0.0, 0.0, 0.0]


def test_a_reply_that_ends_inside_its_block_says_nothing_about_the_places_behind() -> None:
    world, estimates = World([1.0]), Estimates()
    whole = world.round(1, 4, random.Random(1))
    ended = replace(whole, tokens=whole.tokens[:2], accepted=2, drafted=2)
    before = estimates.kept.chances(4)
    for _ in range(20):
        estimates.learn(ended)
    after = estimates.kept.chances(4)
    assert after[1] > before[1] and estimates.kept.tried[2:4] == [0.0, 0.0]
    assert estimates.drafted.chances(4) == [1.0, 1.0, 1.0, 1.0]


def test_a_draft_that_stops_early_is_not_charged_for_rows_it_did_not_fill() -> None:
    world, estimates = World([0.9]), Estimates()
    for index in range(1, 80):
        event = world.round(index, 2, random.Random(index))
        estimates.learn(replace(event, gamma=8))
    outlook = estimates.outlook(8)
    assert outlook.seconds[8] == pytest.approx(outlook.seconds[2], rel=0.15)
    assert outlook.tokens[8] == pytest.approx(outlook.tokens[2], rel=0.15)


def test_other_sampling_forgets_acceptance_and_keeps_the_times() -> None:
    pilot, world = Pilot(), WORLDS["strong draft"]
    steer([world], SETTINGS, 1, pilot=pilot)
    estimates = pilot.adaptive.estimates
    step = estimates.forward.value
    pilot.choose(replace(SETTINGS, sampling=replace(SETTINGS.sampling, seed=99)))
    assert estimates.kept.tried[0] > 5, "a seed is not another law"
    pilot.choose(replace(SETTINGS, sampling=Sampling(1.5)))
    assert estimates.kept.tried[0] == 0 and estimates.forward.value == step > 0


def test_a_mean_cuts_what_cannot_be_true() -> None:
    mean = Mean()
    for _ in range(5):
        mean.add(mean.cut(1.0))
    assert mean.cut(50.0) == 3.0 and mean.cut(1.2) == 1.2
    assert Mean().value == 0.0


def test_nothing_measured_is_no_reason_to_fail() -> None:
    assert Adaptive().choose(0) == (0, "measuring each part of a round")
    assert Estimates().outlook(3).speed(2) == 0.0
