"""Every number about a reply, on small cases whose right value is written down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Origin, Prefill, Round, Token
from specchat.decode.stats import Stats
from tests.fakes import Forced, Script, writes
from tests.oracle import GREEDY
from tests.rigs import Reply, collect

TEXT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]
WRONG = 31


def judged(blocks: list[list[int]], gamma: int = 4, eos: int | None = None, n: int = 99) -> Reply:
    """A target that writes TEXT, a drafter that offers `blocks`."""
    engine = Engine(
        Script(writes(TEXT, 1, 32), 32),
        {"f": Forced(blocks)},
        frozenset() if eos is None else frozenset({eos}),
    )
    return collect(engine, [0], Settings(gamma, GREEDY, "f", n))


def block(accepted: int, at: int = 0, size: int = 4) -> list[int]:
    """`size` proposals for the places from `at`, the first `accepted` right."""
    return [TEXT[at + i] if i < accepted else WRONG for i in range(size)]


@pytest.mark.parametrize(("accepted", "rate"), [(0, 0.0), (2, 0.5), (4, 1.0)])
def test_the_acceptance_rate_leaves_the_targets_own_token_out(accepted: int, rate: float) -> None:
    """With the bonus token above and below the line it would be 0.2, 0.6, 1.0."""
    stats = Stats.of(judged([block(accepted)], n=5).rounds[:1])
    assert stats.acceptance_rate == rate
    assert (stats.drafted, stats.accepted, stats.emitted) == (4, accepted, accepted + 1)
    assert stats.mean_accepted_length == accepted and stats.tokens_per_round == accepted + 1


def test_a_proposal_kept_behind_the_first_refusal_is_not_counted() -> None:
    stats = Stats.of(judged([[10, WRONG, 12, 13]], n=5).rounds[:1])
    assert (stats.drafted, stats.accepted, stats.emitted) == (4, 1, 2)


def test_proposals_behind_an_end_are_neither_emitted_nor_drafted_nor_accepted() -> None:
    """Block [d1, d2, EOS, d4, d5] and a bonus: 3 emitted (the naive sum says 6), 3 of 3 accepted."""
    stats = Stats.of(judged([TEXT[:5]], gamma=5, eos=12).rounds)
    assert (stats.emitted, stats.drafted, stats.accepted) == (3, 3, 3)
    assert stats.acceptance_rate == 1 and stats.histogram(5) == [0, 0, 0, 1, 0, 0]
    assert stats.by_position() == [(1, 1, 1)] * 3


def test_no_draft_and_no_round_divide_by_nothing() -> None:
    for stats in (Stats(), Stats.of(judged([], n=3).rounds)):
        assert stats.acceptance_rate == 0 and stats.mean_accepted_length == 0 and stats.drafted == 0
        assert stats.histogram(4) == [0] * 5 and stats.by_position() == []
    assert Stats().tok_per_s == 0 and Stats().tokens_per_round == 0
    assert Stats.of(judged([], n=3).rounds).tokens_per_round == 1


def test_a_whole_reply_adds_up() -> None:
    """Rounds of 4, 0 and 2 kept, one without a proposal, one clipped by the budget."""
    reply = judged([block(4), block(0, 5), block(2, 6), [], block(4, 10)], n=13)
    stats = Stats.of(reply.rounds)
    assert [event.accepted for event in reply.rounds] == [4, 0, 2, 0, 2]
    assert stats.rounds == 5 and stats.emitted == reply.finished.emitted == len(reply.ids) == 13
    assert stats.drafted == 4 + 4 + 4 + 0 + 2 and stats.accepted == 8
    assert stats.histogram(4) == [1, 0, 2, 0, 1], "the round without a proposal is in no bar"
    assert sum(stats.origins.values()) == stats.emitted, "every token has exactly one origin"
    assert stats.origins == {"accepted": 8, "bonus": 2, "recovered": 2, "plain": 1}
    assert (stats.speculative_rounds, stats.plain_rounds) == (4, 1)
    assert stats.mean_accepted_length == 8 / 5 and stats.tokens_per_round == 13 / 5
    assert stats.target_forwards == 5 and dict(stats.drafters) == {"forced": 14}
    assert dict(stats.drafters_kept) == {"forced": 8}


def test_acceptance_by_position_counts_offered_reached_and_kept() -> None:
    stats = Stats.of(judged([block(4), block(0, 5), block(2, 6)]).rounds[:3])
    assert stats.by_position() == [(3, 3, 2), (3, 2, 2), (3, 2, 1), (3, 1, 1)]


def one(tokens: int, at: float, seconds: float, drafted: int = 2, prefill: Prefill | None = None) -> Round:
    """A round that took `seconds`, a tenth of them drafting, and ended `at`."""
    origins: list[Origin] = ["accepted"] * (tokens - 1) + ["bonus"]
    written = tuple(Token(1, origin, 1.0, None, i) for i, origin in enumerate(origins))
    return Round(
        0, written, None, 2, drafted, tokens - 1, "x" if drafted else "", 1, drafted,
        seconds * 0.1, seconds * 0.6, seconds * 0.2, seconds * 0.1, at, prefill=prefill,
    )  # fmt: skip


def test_speed_is_that_of_decoding_and_the_first_token_time_holds_the_prompt() -> None:
    stats = Stats.of([one(3, 5.0, 1.0, prefill=Prefill(7, 9, 4.0)), one(3, 6.0, 1.0), one(2, 7.0, 1.0, 2)])
    assert stats.first_token_s == 5.0 and stats.elapsed_s == 7.0
    assert stats.tok_per_s == 5 / 2.0, "5 tokens in the 2 seconds after the first round"
    assert Stats.of([one(3, 5.0, 1.5)]).tok_per_s == pytest.approx(2.0), "one round: its own seconds"
    assert stats.prefill == Prefill(7, 9, 4.0)


def test_the_time_split_is_the_sum_of_the_rounds_and_leaves_the_prompt_out() -> None:
    split = Stats.of([one(3, 5.0, 1.0, prefill=Prefill(0, 9, 4.0)), one(1, 6.0, 1.0, 0)]).time_split()
    assert split == pytest.approx({"draft": 0.2, "verify": 1.2, "sample": 0.4, "host": 0.2})
    assert sum(split.values()) == pytest.approx(2.0)


def test_the_engines_clock_explains_every_second_of_a_round() -> None:
    reply = judged([block(4), block(0, 5)], n=9)
    for event in reply.rounds:
        assert min(event.draft_s, event.verify_s, event.sample_s, event.host_s) >= 0
    ends = [event.at for event in reply.rounds]
    assert ends == sorted(ends) and ends[-1] <= reply.finished.seconds
    spent = sum(event.seconds for event in reply.rounds)
    assert spent <= ends[-1], "rounds took longer than the request"


def test_counting_needs_no_torch() -> None:
    code = "import sys, specchat.decode.stats; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
