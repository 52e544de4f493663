"""The guard in planted worlds: a losing draft costs next to nothing, a winning one is left alone."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from specchat.decode.guard import LONGEST_REST, Guard
from specchat.decode.pilot import Pilot
from specchat.decode.settings import Settings
from tests.decode.planted import Run, World, steer

GUARDED = Settings(4, guard=True)
SEEDS = range(6)
LOSING = {
    "by 13 %": World([0.4], draft=0.0025, row=0.001),
    "by a third": World([0.3], draft=0.003, row=0.0015),
    "by half": World([0.2], draft=0.006),
    "ruinously": World([0.1], draft=0.016),
    "and must catch up": World([0.2], draft=0.006, catch_up=0.0002),
}
WINNING = {"1.4 times": World([0.6], draft=0.0015, row=0.001), "2.4 times": World([0.8])}


def rests(run: Run) -> int:
    """How often speculation was sent to rest."""
    resting = ["resting" in why for why in run.why]
    return sum(now and not before for before, now in zip([False, *resting], resting, strict=False))


def runs(world: World, replies: int, settings: Settings = GUARDED) -> list[Run]:
    return [steer([replace(world)] * replies, settings, seed) for seed in SEEDS]


@pytest.mark.parametrize("how", list(LOSING))
def test_what_loses_costs_at_most_3_percent_against_plain_probes_included(how: str) -> None:
    world = LOSING[how]
    assert world.speed(4) < 0.9 * world.speed(0)
    one, several = runs(world, 1), runs(world, 4)
    assert statistics.mean(run.speed for run in one) > 0.97 * world.speed(0), (
        "in the first reply of 512 tokens"
    )
    assert all(run.speed > 0.97 * world.speed(0) for run in several), "over four replies"
    assert all(rests(run) >= 1 for run in one)


@pytest.mark.parametrize("how", list(WINNING))
def test_what_wins_is_left_alone(how: str) -> None:
    """A streak of bad luck may send a draft that wins by little to rest: with these seeds once in 12 000 tokens.

    (Other seeds had none, or up to five short ones; it is the price of stopping a loss within a few steps.)
    """
    world = WINNING[how]
    found = runs(world, 4)
    assert sum(rests(run) for run in found) <= (1 if how == "1.4 times" else 0)
    assert all(run.speed > 0.96 * world.speed(4) for run in found), "a rest cost too much"
    assert statistics.mean(run.speed for run in found) > 0.98 * world.speed(4), "comparing cost too much"


def test_rests_grow_as_long_as_it_goes_on_losing() -> None:
    pilot = Pilot()
    lengths: list[int] = []
    before = "on"

    def see(event: object) -> None:
        nonlocal before
        if pilot.guard.state == "rest" != before:
            lengths.append(pilot.guard.left)
        before = pilot.guard.state

    steer([replace(LOSING["by a third"])], GUARDED, 1, tokens=6000, pilot=pilot, see=see)
    assert len(lengths) > 3 and lengths[-1] >= LONGEST_REST > lengths[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_text_that_turns_is_noticed_both_ways(seed: int) -> None:
    good, bad = WINNING["2.4 times"], LOSING["by a third"]
    worse = steer([good] * 2 + [bad] * 2, GUARDED, seed)
    assert worse.speed > 0.95 * 4 / (2 / good.speed(4) + 2 / bad.speed(0))
    better = steer([bad] + [good] * 6, GUARDED, seed)
    assert statistics.mean(better.gammas[-100:]) > 3.5, "it still rests though it would win"


@pytest.mark.parametrize("tokens", [256, 512])
def test_another_reply_is_another_chance(tokens: int) -> None:
    """Kinds of text take turns, as people's questions do: what lost in the last reply says little about this one."""
    wins, loses = World([0.58, 0.54, 0.52], draft=0.001, row=0.0008), LOSING["by a third"]
    assert 1.3 < wins.speed(4) / wins.speed(0) < 1.5
    every = [wins, loses] * 4
    ideal = 2 / (1 / wins.speed(4) + 1 / loses.speed(0))
    found = [steer([replace(world) for world in every], GUARDED, seed, tokens).speed for seed in range(12)]
    assert statistics.mean(found) > 0.94 * ideal


def test_short_replies_that_all_lose_do_not_pay_for_a_chance_each() -> None:
    for how, world in LOSING.items():
        run = steer([replace(world)] * 30, GUARDED, 1, tokens=64)
        assert run.speed > 0.97 * world.speed(0), how


def test_a_machine_that_becomes_slower_is_not_blamed_on_speculation() -> None:
    """Everything takes four times as long from one round to the next: a plain step too, so it is measured again."""
    fast = World([0.7], draft=0.001, row=0.0005, jitter=0.02)
    slow = World([0.7], draft=0.004, step=0.06, row=0.002, jitter=0.02)
    for seed in SEEDS:
        assert rests(steer([fast, slow, fast, slow], GUARDED, seed, tokens=300)) == 0


def test_it_works_with_adaptive_gamma_too() -> None:
    both = Settings(16, guard=True, adaptive=True)
    for world in (*WINNING.values(), LOSING["ruinously"], LOSING["by 13 %"]):
        speed = statistics.mean(run.speed for run in runs(world, 4, both))
        assert speed > 0.97 * world.best(16)


def test_the_reason_says_what_was_lost_and_when_it_is_tried_again() -> None:
    run = steer([LOSING["by a third"]], GUARDED, 2)
    resting = [why for why in run.why if "resting" in why]
    assert resting[0].startswith("Speculation is resting: it lost ") and "next try in " in resting[0]
    assert any(why.startswith("trying speculation again") for why in run.why)
    assert all(run.why)


def test_what_is_said_while_it_loses_is_true() -> None:
    """Rounds that take 1.25 plain steps for each of their tokens: not one is told to be no slower than plain."""
    said = told(1.25)
    assert said[0] == "the guard watches: nothing to compare yet"
    assert said[1] == "the guard watches: 25 % slower than plain decoding of late", said
    assert set(told(0.9)[1:]) == {"the guard watches: not slower than plain decoding of late"}
    assert set(told(1.001)[1:]) == {"the guard watches: less than 1 % slower than plain decoding of late"}


def told(ratio: float) -> list[str]:
    """What the pilot says in the first speculative rounds, of 2 tokens each, that take so many plain steps a token."""
    pilot, dice, world, said = Pilot(), random.Random(1), World([1.0], jitter=0.0), []
    for index in range(9):
        gamma, why = pilot.choose(GUARDED)
        event = world.round(index, gamma, dice)
        if gamma:
            said.append(why)
            plain = pilot.guard.plain.value
            event = replace(
                event, tokens=event.tokens[:2], accepted=1, draft_s=0.0,
                verify_s=2 * ratio * plain - event.sample_s - event.host_s,
            )  # fmt: skip
        pilot.learn(event)
    return said


def test_the_stated_loss_is_that_of_the_stretch_that_sent_it_to_rest() -> None:
    """Long good, then suddenly bad: over all recent rounds nothing was lost yet, but the last ones took twice as long."""
    good, bad = World([1.0], jitter=0.0), World([0.0], draft=0.004, jitter=0.0)
    pilot = Pilot()
    steer([good], GUARDED, 1, tokens=1200, pilot=pilot)
    run = steer([bad], GUARDED, 1, tokens=60, pilot=pilot)
    resting = [why for why in run.why if "resting" in why]
    assert resting and f"it lost {100 * (bad.speed(0) / bad.speed(4) - 1):.0f} %" in resting[0], resting


def test_a_block_that_the_replys_end_cut_is_no_loss() -> None:
    guard, dice, world = Guard(), random.Random(1), World([1.0])
    for index in range(1, 4):
        guard.learn(world.round(index, 0, dice))
    for index in range(1, 60):
        whole = world.round(index, 4, dice)
        guard.learn(replace(whole, tokens=whole.tokens[:1], accepted=1, drafted=1))
    assert guard.state == "on" and guard.lost == 0


def test_nothing_is_compared_before_a_plain_step_was_measured() -> None:
    guard, dice, world = Guard(), random.Random(1), LOSING["ruinously"]
    for index in range(3):
        assert guard.choose(4)[0] == 0
        guard.learn(world.round(index, 0, dice))
    assert guard.choose(4) == (4, "")


def test_other_settings_are_tried_at_once() -> None:
    pilot = Pilot()
    steer([LOSING["ruinously"]], GUARDED, 1, pilot=pilot)
    assert pilot.rests(GUARDED)
    assert not pilot.rests(replace(GUARDED, guard=False))
    assert not pilot.rests(replace(GUARDED, gamma=2))
    assert pilot.choose(replace(GUARDED, gamma=2))[0] == 2


def test_a_plain_step_that_met_a_busy_machine_does_not_hide_a_loss_for_long() -> None:
    """The first plain steps took ten times as long: speculation looks splendid, and loses by half."""
    world, pilot, dice = LOSING["by half"], Pilot(), random.Random(1)
    gammas = []
    for index in range(400):
        gamma, _ = pilot.choose(GUARDED)
        event = world.round(index, gamma, dice)
        pilot.learn(replace(event, verify_s=event.verify_s * (10 if index < 3 else 1)))
        gammas.append(gamma)
    assert sum(gammas[150:]) < 60, "it still speculates"


def test_woken_by_another_reply_it_tries_what_adaptive_gamma_would() -> None:
    """Not the slider's 16: one round of that may lose all that a trial is for."""
    both, bad = Settings(16, guard=True, adaptive=True), World([0.15], draft=0.0004, row=0.0002, jitter=0.0)
    pilot = Pilot()
    steer([replace(bad)], replace(both, adaptive=False), 1, pilot=pilot)
    run = steer([replace(bad)], both, 1, tokens=200, pilot=pilot)
    assert max(run.gammas) <= 8, "more than adaptive γ itself ever measures"
