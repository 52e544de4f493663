"""Sampled text follows the target's law: counted texts against every text's exact probability.

Each test draws fixed seeds and fails by chance with probability 1e-6 (`rigs.ALPHA`), were they fresh. Tables
are small and the draft is far from the target, so that a wrong q, a wrong row or a wrong history shifts the
law by tens of per cent. Small biases are excluded by the exact integrals in test_verify.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from specchat.decode.engine import Engine, Settings
from specchat.decode.sampling import Sampling
from tests.fakes import Script, arbitrary
from tests.oracle import check_law, full_logits, law_of_text
from tests.rigs import collect, engine_of, runner, small_model
from tests.tiny import noisy_copy

PROMPT = (0, 1, 2, 0, 1)
"""Ends in an n-gram it has seen, so that n-grams propose in the first round."""
LENGTH = 3
SCRIPT_TEXTS = 1000
MODEL_TEXTS = 400


def count(
    engine: Engine, texts: int, sampling: Callable[[int], Callable[[], Settings]]
) -> Counter[tuple[int, ...]]:
    return Counter(tuple(collect(engine, PROMPT, sampling(seed)).ids) for seed in range(texts))


def fixed(gamma: int, drafter: str, sampling: dict[str, float]) -> Callable[[int], Callable[[], Settings]]:
    """seed → settings callable."""

    def of(seed: int) -> Callable[[], Settings]:
        settings = Settings(gamma, Sampling(**sampling, seed=seed), drafter, LENGTH)
        return lambda: settings

    return of


EVERYTHING = {
    "temperature": 1.1,
    "top_k": 3,
    "top_p": 0.97,
    "min_p": 0.03,
    "repetition_penalty": 1.4,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
}
PLAIN = {"temperature": 1.0, "top_k": 0}


@pytest.mark.parametrize(
    ("gamma", "drafter", "sampling"),
    [
        (1, "model", PLAIN),
        (2, "model", EVERYTHING),
        (4, "model", {"temperature": 0.7, "top_k": 2}),
        (3, "ngram", EVERYTHING),
        (4, "chain", EVERYTHING),
        (0, "chain", EVERYTHING),
    ],
)
def test_scripted_text_has_the_targets_law(gamma: int, drafter: str, sampling: dict[str, float]) -> None:
    vocab = 4
    target, draft = arbitrary(21, vocab, 1.0), arbitrary(22, vocab, 1.5)
    engine = engine_of(Script(target, vocab), Script(draft, vocab))
    law = law_of_text(lambda ids: torch.tensor(target(ids)), PROMPT, LENGTH, Sampling(**sampling))
    seen = count(engine, SCRIPT_TEXTS, fixed(gamma, drafter, sampling))
    check_law(seen, law, f"γ = {gamma}, {drafter}, {sampling}")


def test_text_has_the_targets_law_while_gamma_and_drafter_change_every_round() -> None:
    vocab = 4
    target, draft = arbitrary(31, vocab, 1.0), arbitrary(32, vocab, 1.5)
    engine = engine_of(Script(target, vocab), Script(draft, vocab))

    def of(seed: int) -> Callable[[], Settings]:
        sampling = Sampling(**EVERYTHING, seed=seed)
        gammas, names = itertools.cycle([1, 0, 4, 2]), itertools.cycle(["model", "chain", "ngram"])
        return lambda: Settings(next(gammas), sampling, next(names), LENGTH)

    law = law_of_text(lambda ids: torch.tensor(target(ids)), PROMPT, LENGTH, Sampling(**EVERYTHING))
    check_law(count(engine, SCRIPT_TEXTS, of), law, "settings changing at every round")


@pytest.mark.parametrize(("gamma", "drafter"), [(2, "model"), (3, "ngram"), (3, "chain")])
def test_a_real_models_text_has_its_law_with_every_filter_and_penalty_on(gamma: int, drafter: str) -> None:
    """A tiny Llama with 6 ids and a noisy draft; the truth is recomputed without cache for every text."""
    model = small_model(5, 6)
    draft = noisy_copy(model, 0.4)
    engine = engine_of(runner(model, 64, 6), runner(draft, 64, 6))
    law = law_of_text(lambda ids: full_logits(model, ids, 6)[-1], PROMPT, LENGTH, Sampling(**EVERYTHING))
    seen = count(engine, MODEL_TEXTS, fixed(gamma, drafter, EVERYTHING))
    check_law(seen, law, f"γ = {gamma}, {drafter}")
