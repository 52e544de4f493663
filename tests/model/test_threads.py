"""The number of threads in planted machines, and that results do not depend on it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from specchat.model.compact import CompactDecoder
from specchat.model.cores import LOAN, Loan
from specchat.model.threads import FIRST, LENDS_S, LONGEST_REST, TRIAL, Threads, agree, in_use, settle
from tests.tiny import TINY_VOCAB, Kind, tiny_model

Busy = Callable[[float], bool]
"""Whether something else has a core at this second."""


def quiet(now: float) -> bool:
    return False


def always(now: float) -> bool:
    return True


def bursts(share: float) -> Busy:
    """Something that comes ten times a second."""
    return lambda now: now % 0.1 < 0.1 * share


class Machine:
    """Two cores. few: seconds of a forward by rows with one; two take `gain` of it, several times as long while busy."""

    def __init__(self, busy: Busy, gain: float, seed: int, collapse: float = 3.0) -> None:
        self.busy, self.gain, self.collapse = busy, gain, collapse
        self.dice = random.Random(seed)
        self.count, self.now, self.slower = 1, 0.0, 1.0
        self.threads = Threads(1, 2, use=self.use, used=lambda: self.count)
        self.wide: list[bool] = []

    def use(self, count: int) -> None:
        self.count = count

    def seconds(self, count: int, rows: int) -> float:
        found = self.slower * (0.016 + 0.002 * rows) * (1.0 if count == 1 else self.gain)
        if count == 2 and self.busy(self.now):
            found *= self.collapse
        return found * max(0.8, self.dice.gauss(1, 0.05))

    def run(self, forwards: int, rows: Callable[[int], int] = lambda n: 4) -> float:
        """Seconds of so many forwards."""
        started = self.now
        for n in range(forwards):
            self.threads.begin()
            spent = self.seconds(self.count, rows(n))
            self.now += spent
            self.threads.learn(rows(n), spent)
            self.wide.append(self.count == 2)
        return self.now - started


def fixed(
    busy: Busy, gain: float, count: int, forwards: int, rows: Callable[[int], int] = lambda n: 4
) -> float:
    """The same with one number all the time."""
    machine = Machine(busy, gain, 1)
    machine.threads = Threads(count, count, use=machine.use, used=lambda: machine.count)
    machine.use(count)
    return machine.run(forwards, rows)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("busy", "gain"), [(quiet, 0.7), (quiet, 0.9), (quiet, 1.1), (always, 0.7), (bursts(0.15), 0.7), (bursts(0.5), 0.8)]
)  # fmt: skip
def test_it_is_within_4_percent_of_the_better_number(busy: Busy, gain: float, seed: int) -> None:
    better = min(fixed(busy, gain, count, 3000) for count in (1, 2))
    assert Machine(busy, gain, seed).run(3000) < 1.04 * better


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_change_from_round_to_round_do_not_confuse_it(seed: int) -> None:
    def rows(n: int) -> int:
        return (1, 6, 3, 1, 9)[n % 5]

    assert Machine(quiet, 0.75, seed).run(2000, rows) < 1.04 * fixed(quiet, 0.75, 2, 2000, rows)
    assert Machine(always, 0.75, seed).run(2000, rows) < 1.04 * fixed(always, 0.75, 1, 2000, rows)


@pytest.mark.parametrize("rows_then", [4, 7])
def test_a_machine_that_becomes_busy_is_left_to_the_other_within_a_few_forwards(rows_then: int) -> None:
    """Also where the number of rows changes at the same moment, so that nothing like it was timed before."""
    busy = False
    machine = Machine(lambda now: busy, 0.7, 2, collapse=20.0)
    machine.run(300)
    assert machine.wide[-1]
    busy = True
    machine.run(40, lambda n: rows_then)
    assert sum(machine.wide[-40:]) <= 6, "four, and two of the next trial"
    busy = False
    machine.run(1500)
    assert machine.wide[-1], "never tried again"


def test_trials_grow_rare_while_they_fail() -> None:
    machine = Machine(always, 0.7, 3)
    machine.run(3 * LONGEST_REST)
    machine.wide.clear()
    machine.run(2 * LONGEST_REST)
    assert 1 <= sum(machine.wide) <= 4


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_results_are_the_same_bits_with_one_thread_and_with_two(kind: Kind, precision: str) -> None:
    """What `agree` looks for holds here, so that it is really two threads that people get."""
    decoder = CompactDecoder.from_module(tiny_model(kind), TINY_VOCAB, 64, precision)  # type: ignore[arg-type]
    try:
        assert decoder.agrees(Threads(1, 2))
    finally:
        torch.set_num_threads(1)


def test_results_that_depend_on_the_threads_are_noticed() -> None:
    count = 0

    def use(n: int) -> None:
        nonlocal count
        count = n

    def results() -> list[Tensor]:
        return [torch.ones(3), torch.full((5, 3), 1.0 + (1e-6 if count == 2 else 0.0))]

    threads = Threads(1, 2, use=use, used=lambda: count)
    assert not agree(threads, results)
    assert count == 1
    assert agree(threads, lambda: [torch.ones(3)])


@pytest.mark.parametrize("collapse", [3.0, 20.0])
def test_a_machine_that_becomes_busy_just_after_the_switch_is_noticed(collapse: float) -> None:
    busy = False
    machine = Machine(lambda now: busy, 0.7, 2, collapse)
    while not machine.threads.wide:
        machine.run(1)
    busy = True
    machine.wide.clear()
    machine.run(40)
    assert sum(machine.wide) <= 8, "four, and two of each of the next trials"


def share_of_every_core(machine: Machine, forwards: int) -> float:
    """Of so many forwards, once it has run for some time."""
    machine.run(200)
    machine.wide.clear()
    machine.run(forwards)
    return sum(machine.wide) / len(machine.wide)


@pytest.mark.parametrize("seed", range(5))
def test_a_browser_that_draws_a_replys_beginning_costs_few_forwards_with_one_core(seed: int) -> None:
    """Replies of 100 forwards; at the beginning of each something has the other core for a quarter of a second."""
    machine = Machine(lambda now: now % 2.5 < 0.25, 0.72, seed, collapse=2.0)
    assert share_of_every_core(machine, 1500) > 0.8


@pytest.mark.parametrize("seed", range(5))
def test_two_slow_forwards_now_and_then_do_not_end_the_use_of_every_core(seed: int) -> None:
    """Once a second the page needs a core for longer; all in all two threads are a quarter faster all the same."""
    machine = Machine(lambda now: now % 1.0 < 0.05, 0.72, seed, collapse=2.0)
    assert share_of_every_core(machine, 2000) > 0.95


@pytest.mark.parametrize("seed", range(5))
def test_forwards_that_become_slower_with_either_number_are_no_reason_to_leave_every_core(seed: int) -> None:
    """A long prompt: from one forward to the next everything takes twice as long, and two threads are still faster."""
    machine = Machine(quiet, 0.7, seed)
    machine.run(200)
    machine.slower = 2.0
    machine.wide.clear()
    machine.run(1000)
    assert sum(machine.wide) > 0.97 * len(machine.wide)


def test_a_single_stall_ends_nothing() -> None:
    machine = Machine(quiet, 0.7, 4)
    machine.run(200)
    assert machine.threads.wide
    machine.threads.begin()
    machine.threads.learn(4, 5.0)
    machine.wide.clear()
    machine.run(20)
    assert all(machine.wide)


def test_a_trial_of_rows_never_seen_is_neither_won_nor_lost() -> None:
    machine = Machine(quiet, 0.7, 1)
    machine.run(FIRST)
    machine.run(TRIAL, lambda n: 5 + n)
    assert not machine.threads.wide and sum(machine.wide[-TRIAL:]) == TRIAL
    machine.run(FIRST + TRIAL)
    assert machine.threads.wide, "it had to wait as after a loss"


def test_a_record_tells_what_forwards_have_whoever_asks() -> None:
    before = torch.get_num_threads()
    try:
        settle(3)
        assert torch.get_num_threads() == in_use() == 3
        settle(Threads(1, 2))
        assert in_use() == "1 or 2"
    finally:
        settle(before)


# -- a core lent to the page ---------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Loan:
    """A loan that is asked for whenever `_asked` is set, in place of the process's own."""
    loan = Loan()
    loan.lenders = True
    monkeypatch.setattr("specchat.model.threads.LOAN", loan)
    return loan


def learnt(threads: Threads) -> dict[str, object]:
    return {name: value for name, value in asdict(threads).items() if not callable(value)}


def test_one_forward_leaves_a_core_alone_when_asked_and_teaches_nothing(asked: Loan) -> None:
    machine = Machine(quiet, 0.7, 1)
    machine.threads.every, machine.slower = 2, LENDS_S / 0.05
    machine.run(200)
    assert machine.wide[-1]
    before = learnt(machine.threads)
    asked._asked.set()
    machine.slower *= 5
    machine.threads.begin()
    assert machine.count == 1
    machine.threads.learn(4, 1.0)
    assert machine.count == 2, "what follows has every core again"
    assert learnt(machine.threads) == before, "a forward that lent a core says nothing of its number"
    machine.slower /= 5
    machine.run(1)
    assert machine.wide[-1], "one forward, no more"


def test_long_forwards_leave_no_core_alone_but_let_the_page_go_on(asked: Loan) -> None:
    machine = Machine(quiet, 0.7, 1)
    machine.slower = 3 * LENDS_S / 0.024
    machine.run(200)
    asked._asked.set()
    machine.run(1)
    assert machine.wide[-1]
    assert asked._given.is_set()


def test_whoever_asks_waits_for_the_next_forward_and_not_for_ever() -> None:
    loan = Loan()
    loan.lenders = True
    started = time.perf_counter()
    assert not loan.ask(0.05)
    assert 0.04 < time.perf_counter() - started < 2
    assert not loan.give(), "nobody waits any more"
    given: list[bool] = []
    waits = threading.Thread(target=lambda: given.append(loan.ask(20)))
    waits.start()
    while not loan.give():
        time.sleep(0.001)
    waits.join(20)
    assert given == [True]
    assert not loan.give(), "once"


def test_where_nothing_lends_nobody_waits() -> None:
    started = time.perf_counter()
    assert not Loan().ask(60)
    assert time.perf_counter() - started < 30
    before = in_use()
    try:
        settle(Threads(1, 2, use=lambda count: None))
        assert LOAN.lenders
        settle(before if isinstance(before, int) else 1)
        assert not LOAN.lenders
    finally:
        settle(before if isinstance(before, int) else 1)
