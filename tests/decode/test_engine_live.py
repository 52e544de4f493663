"""Settings that change while a reply is written, and random draws that can be repeated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from specchat.decode.engine import MAX_GAMMA, Settings
from specchat.decode.sampling import Sampling, probs
from tests.fakes import Script, Watched, arbitrary
from tests.oracle import GREEDY, reference
from tests.rigs import collect, engine_of, noisy, runner, tiny

PROMPT = [0, 1, 2, 0, 1]


def in_turn(*sequence: Settings) -> Callable[[], Settings]:
    """Read once when the request starts, then once a round: one settings after the other, then the last."""
    source = itertools.chain([sequence[0]], sequence, itertools.repeat(sequence[-1]))
    return lambda: next(source)


def test_gamma_applies_at_the_next_round_and_is_the_gamma_used() -> None:
    engine = engine_of(Script(arbitrary(1, 5), 5), Script(arbitrary(1, 5), 5))
    gammas = [4, 0, 0, 4, 16, 1, 0, 3]
    reply = collect(engine, PROMPT, in_turn(*(Settings(gamma, GREEDY, "model", 200) for gamma in gammas)))
    assert [event.gamma for event in reply.rounds[: len(gammas)]] == gammas
    assert [event.drafted for event in reply.rounds[: len(gammas)]] == gammas
    changed = [b != a for a, b in itertools.pairwise([gammas[0], *gammas])]
    assert [event.settings_changed for event in reply.rounds[: len(gammas)]] == changed
    assert not any(event.settings_changed for event in reply.rounds[len(gammas) :])


def test_a_gamma_of_17_or_a_half_is_refused_with_a_sentence() -> None:
    for gamma in (-1, MAX_GAMMA + 1, math.nan, 17):
        with pytest.raises(ValueError, match=r"gamma is .*between 0 and 16"):
            Settings(gamma=gamma)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"max_new_tokens is 0.*1 or more"):
        Settings(max_new_tokens=0)


def test_any_change_under_greedy_leaves_the_text_as_it_was() -> None:
    """Every γ, every drafter and an unknown one, switched off and on again, each round another."""
    drafters = ["model", "ngram", "chain", "none", "model", "chain"]
    changing = [Settings((7 * i) % 17, GREEDY, drafters[i % 6], 90) for i in range(60)]
    engine = engine_of(runner(tiny()), runner(noisy()))
    reply = collect(engine, [5, 6, 7, 5, 6], in_turn(*changing))
    reference(tiny(), [5, 6, 7, 5, 6], 90).check(reply.ids, "settings changed at every round")
    assert {event.drafter for event in reply.rounds} >= {"model", ""}
    for seed in range(4):
        law = arbitrary(seed, 3)
        engine = engine_of(Script(law, 3), Script(arbitrary(seed + 9, 3), 3))
        reply = collect(engine, PROMPT, in_turn(*changing))
        assert reply.ids == reference(Script(law, 3), PROMPT, 90).ids


def test_a_draft_switched_off_and_on_accepts_again_at_once() -> None:
    """It missed what was written meanwhile, and must read it before it proposes."""
    draft = Watched(Script(arbitrary(1, 5), 5))
    engine = engine_of(Script(arbitrary(1, 5), 5), draft)
    on, off = Settings(4, GREEDY, "model", 40), Settings(0, GREEDY, "model", 40)
    reply = collect(engine, PROMPT, in_turn(on, off, off, off, on))
    assert all(event.accepted == event.drafted == event.gamma for event in reply.rounds)
    assert [event.draft_forwards for event in reply.rounds[:5]] == [4, 0, 0, 0, 4]


def test_a_draft_that_is_off_costs_nothing() -> None:
    draft = Watched(Script(arbitrary(1, 5), 5))
    engine = engine_of(Script(arbitrary(1, 5), 5), draft)
    for settings in (
        Settings(0, GREEDY, "model", 9),
        Settings(4, GREEDY, "ngram", 9),
        Settings(4, GREEDY, "none", 9),
    ):
        collect(engine, PROMPT, settings)
    assert draft.calls == 0


def test_sampling_settings_apply_at_the_next_round_to_target_and_draft() -> None:
    row = [0.5, 1.5, 0.0, -1.0]
    engine = engine_of(Script(lambda prefix: row, 4), Script(lambda prefix: row, 4))
    each = [
        Sampling(1.0, 0, seed=1),
        Sampling(0.4, 2, seed=1),
        Sampling(2.0, 0, 0.8, seed=1),
        Sampling(0.0, seed=1),
    ]
    reply = collect(engine, [0], in_turn(*(Settings(2, sampling, "model", 99) for sampling in each)))
    for event, sampling in zip(reply.rounds, each, strict=False):
        law = probs(torch.tensor([row]), [], sampling)[0].tolist()
        assert event.accepted == 2, "the draft was sampled with other settings than it is judged with"
        for token in event.tokens:
            assert token.p == pytest.approx(law[token.id], abs=1e-6)


def test_a_budget_lowered_below_what_is_written_ends_the_reply() -> None:
    engine = engine_of(Script(arbitrary(1, 5), 5), Script(arbitrary(1, 5), 5))
    reply = collect(
        engine, PROMPT, in_turn(Settings(2, GREEDY, "model", 50), Settings(2, GREEDY, "model", 1))
    )
    assert len(reply.ids) == 3 and reply.finished.reason == "length"
    raised = in_turn(Settings(2, GREEDY, "model", 4), Settings(2, GREEDY, "model", 20))
    assert len(collect(engine, PROMPT, raised).ids) == 20


@pytest.mark.parametrize("drafter", ["model", "ngram", "chain", "none"])
@pytest.mark.parametrize("gamma", [0, 1, 4, 16])
def test_the_same_seed_gives_the_same_text_on_a_cold_and_on_a_warm_engine(drafter: str, gamma: int) -> None:
    def settings(seed: int | None) -> Settings:
        return Settings(gamma, Sampling(1.0, 20, 0.95, seed=seed), drafter, 24)

    law, other = arbitrary(1, 8), arbitrary(2, 8)
    engine = engine_of(Script(law, 8), Script(other, 8))
    first = collect(engine, PROMPT, settings(7))
    again = collect(engine, PROMPT, settings(7))
    cold = collect(engine_of(Script(law, 8), Script(other, 8)), PROMPT, settings(7))
    assert first.ids == again.ids == cold.ids and first.origins == again.origins == cold.origins
    assert len({tuple(collect(engine, PROMPT, settings(seed)).ids) for seed in range(8)}) == 8
    assert len({tuple(collect(engine, PROMPT, settings(None)).ids) for _ in range(8)}) > 1, (
        "no seed means fresh draws"
    )


def test_draws_touch_no_global_state() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    collect(
        engine_of(Script(arbitrary(1, 5), 5), Script(arbitrary(2, 5), 5)),
        PROMPT,
        Settings(4, Sampling(1.0), "model", 20),
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_a_real_pair_repeats_itself_with_a_seed() -> None:
    settings = Settings(4, Sampling(1.0, 40, seed=11), "chain", 30)
    engine = engine_of(runner(tiny()), runner(noisy()))
    first, again = collect(engine, PROMPT, settings), collect(engine, PROMPT, settings)
    assert first.ids == again.ids and first.origins == again.origins
