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
from specchat.decode.estimates import FADE, Judging, Key, Mean, Rates, key_of
from specchat.decode.pilot import Pilot
from specchat.decode.sampling import Sampling
from specchat.decode.settings import Settings
from tests.decode.planted import Block, Run, World, steer

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
    "a draft that knows how sure it is": World([0.5], row=0.001, levels=[0.05 + 0.1 * n for n in range(10)]),
    "a dear draft that is seldom sure": World([0.135], draft=0.003, row=0.0015, levels=[0.9, *[0.05] * 9]),
    "hopeless, and must catch up": World([0.1], draft=0.006, row=0.002, catch_up=0.0002),
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


def test_a_draft_that_knows_how_sure_it_is_beats_every_fixed_gamma() -> None:
    """Proposals whose chances differ, and are known before they are drawn: long blocks where it is sure of them.

    Who knew the truth and the best speed could reach 1.034 of the best fixed γ here.
    """
    world = WORLDS["a draft that knows how sure it is"]
    runs = {looks: [_steer(world, looks, seed) for seed in (1, 2, 3)] for looks in (True, False)}
    told, blind = (
        statistics.mean(run.speed for run in runs[looks]) / world.best(16) for looks in (True, False)
    )
    assert told > 1.01 > blind > 0.97
    assert len({gamma for run in runs[True] for gamma in run.gammas}) > 4


def _steer(world: World, looks: bool, seed: int) -> Run:
    return steer([replace(world)] * 4, SETTINGS, seed, pilot=Pilot(Adaptive(looks)))


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
    last = next(why for why in reversed(run.why) if why[0].isdigit())
    assert " tok/s of late; one more proposal is made where its chance is about " in last
    assert any(why.startswith("tried; ") for why in run.why)
    idle = steer([WORLDS["hopeless draft"]], SETTINGS, 2).why
    assert any(why.startswith("no draft is expected to be worth its time") for why in idle)


def test_a_chain_of_misfortunes_of_the_clock_changes_little() -> None:
    """One round in fifty takes ten times as long, whatever its γ: nothing that γ could help."""
    world = WORLDS["middling draft"]
    pilot, gammas = Pilot(), []
    dice = random.Random(3)
    for index in range(600):
        gamma, _ = pilot.choose(SETTINGS)
        event = world.round(index, gamma, dice, pilot.stopping(SETTINGS))
        if dice.random() < 0.02:
            event = replace(event, verify_s=10 * event.verify_s)
        pilot.learn(event)
        gammas.append(event.gamma)
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
            event = world.round(index, gamma, dice, pilot.stopping(SETTINGS))
            pilot.learn(replace(event, draft_s=event.draft_s * slow, verify_s=event.verify_s * slow))
            gammas.append(event.gamma)
        late = gammas[50:]
        speed = sum(world.tokens(gamma) for gamma in late) / sum(world.seconds(gamma) for gamma in late)
        found.append(speed / world.best(16))
    assert statistics.mean(found) > 0.95


def test_a_draft_that_was_never_asked_is_no_hopeless_one() -> None:
    """A chain whose first rounds all found n-grams, which were never kept: the draft behind them is strong."""
    pilot, dice, gammas = Pilot(), random.Random(1), []
    misleading, strong = World([0.0], free=1.0, free_keep=0.0, row=0.004), WORLDS["strong draft"]
    for index in range(60):
        gamma, _ = pilot.choose(SETTINGS)
        stopping = pilot.stopping(SETTINGS)
        block = misleading.block(gamma, dice, stopping)
        if not block.chances:
            block = strong.block(gamma, dice, stopping)
        event = misleading.judged(index, block, dice)
        pilot.learn(event)
        gammas.append(event.draft_forwards)
    assert statistics.mean(gammas[-20:]) > 2


def test_n_grams_that_are_seldom_found_are_asked_in_every_round() -> None:
    """No forward is spared by not asking: also after many rounds without any, and after some that were not kept."""
    pilot, dice, world = Pilot(), random.Random(1), World([0.0])
    for index in range(200):
        gamma, _ = pilot.choose(SETTINGS)
        block = Block(asked=gamma)
        if gamma and index % 10 == 0 and pilot.stopping(SETTINGS).takes("2-gram", None):
            block.chances.append(0.0)
        pilot.learn(world.judged(index, block, dice))
    assert not pilot.adaptive.idle


def test_a_confidence_that_refuses_what_was_drafted_is_counted_against_the_draft() -> None:
    """Every forward is in vain: the page's confidence stop takes nothing of what adaptive γ would."""
    settings = replace(SETTINGS, confidence=0.97)
    world = World([0.5], draft=0.003, levels=[0.1 * n for n in range(1, 10)])
    run = steer([replace(world)] * 2, settings, 1)
    assert run.speed > 0.96 * world.speed(0)
    assert sum(run.gammas[-100:]) < 20


def test_a_further_place_is_tried_where_a_block_would_have_ended() -> None:
    pilot, world, dice = Pilot(), WORLDS["weak draft"], random.Random(1)
    tried = []
    for index in range(400):
        gamma, why = pilot.choose(SETTINGS)
        event = world.round(index, gamma, dice, pilot.stopping(SETTINGS))
        pilot.learn(event)
        if why.startswith("tried; "):
            tried.append(event.drafted)
    usual = statistics.mode(event for event in tried)
    assert tried and usual >= 1 and len(tried) < 400 / 12


# -- its parts ------------------------------------------------------------------------------------


def places(gamma: int) -> list[Key]:
    return [key_of("model", place, None) for place in range(gamma)]


def test_acceptance_is_not_censored_by_gamma() -> None:
    """Rounds with γ = 1 say nothing about place 2, and rounds with γ = 4 do not make place 1 look better."""
    rates = Rates()
    for length in (0, 1, 1, 1) * 200:
        rates.learn(places(1), min(length, 1))
    for length in (0, 1, 2, 2) * 20:
        rates.learn(places(2), length)
    first, second = map(rates.chance, places(2))
    assert first == pytest.approx(0.75, abs=0.03)
    assert second == pytest.approx(2 / 3, abs=0.05)


def test_what_stands_behind_a_rejection_says_nothing() -> None:
    rates = Rates()
    rates.learn(places(4), 1)
    assert [rates.counts[key] for key in places(2)] == [[1 / FADE, 1 / FADE], [1 / FADE, 0.0]]
    assert not any(key in rates.counts for key in places(4)[2:])


def test_old_rounds_fade_by_half_in_46() -> None:
    rates = Rates()
    for _ in range(2000):
        rates.learn(places(1), 1)
    before = rates.counts[places(1)[0]][0] / rates._unit
    for _ in range(46):
        rates.learn(places(1), 0)
    decided, kept = (count / rates._unit for count in rates.counts[places(1)[0]])
    assert decided == pytest.approx(before, rel=1e-6) and kept / decided == pytest.approx(FADE**46, abs=0.01)


def test_how_sure_a_draft_is_is_counted_for_itself() -> None:
    """Before anything was seen, and between what was: the surer the better; each kind of draft learns its own."""
    rates = Rates()
    unseen = [rates.chance(key_of("model", 0, sure)) for sure in (0.05, 0.5, 1.0)]
    assert unseen == sorted(unseen) and unseen[0] < 0.4 < 0.7 < unseen[2]
    for _ in range(60):
        rates.learn([key_of("model", 0, 0.95)], 0)
        rates.learn([key_of("model", 0, 0.05)], 1)
    assert rates.chance(key_of("model", 3, 0.91)) < 0.2 and rates.chance(key_of("model", 0, 0.0)) > 0.8
    assert rates.chance(key_of("head", 0, 0.95)) == unseen[2]


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
    world, adaptive = World([1.0]), Adaptive()
    adaptive.choose(4)
    whole = world.round(1, 4, random.Random(1), adaptive)
    adaptive.learn(replace(whole, tokens=whole.tokens[:2], accepted=2, drafted=2))
    assert [key in adaptive.rates.counts for key in places(4)] == [True, True, False, False]
    assert adaptive.judging.by_rows == {}, "the time of a whole block was counted for a part of it"


def test_an_n_gram_that_was_not_worth_it_leaves_the_block_to_the_draft() -> None:
    adaptive = Adaptive()
    for _ in range(40):
        adaptive.rates.learn([key_of("2-gram", 0, None)], 0)
        adaptive.judging.learn(1, 0.010)
        adaptive.judging.learn(2, 0.012)
    for _ in range(6):
        most, _why = adaptive.choose(4)
    assert most == 4 and not adaptive.takes("2-gram", None)
    assert adaptive.starts("model") and adaptive.takes("model", 0.9)


def test_other_sampling_forgets_acceptance_and_keeps_the_times() -> None:
    pilot, world = Pilot(), WORLDS["strong draft"]
    steer([world], SETTINGS, 1, pilot=pilot)
    adaptive = pilot.adaptive
    step = adaptive.forward.value
    pilot.choose(replace(SETTINGS, sampling=replace(SETTINGS.sampling, seed=99)))
    assert adaptive.rates.counts, "a seed is not another law"
    pilot.choose(replace(SETTINGS, sampling=Sampling(1.5)))
    assert not adaptive.rates.counts and adaptive.forward.value == step > 0


def test_a_mean_cuts_what_cannot_be_true() -> None:
    mean = Mean()
    for _ in range(5):
        mean.add(mean.cut(1.0))
    assert mean.cut(50.0) == 3.0 and mean.cut(1.2) == 1.2
    assert Mean().value == 0.0


def test_nothing_measured_is_no_reason_to_fail() -> None:
    assert Adaptive().choose(0) == (0, "measuring each part of a round")
    adaptive = Adaptive()
    adaptive._opening, adaptive._most = [], 4
    assert adaptive.choose(4)[0] == 4 and adaptive.takes("model", None)
