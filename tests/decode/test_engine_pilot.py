"""γ chosen by measurements, in the engine: the text keeps its law, the caches stay with it, a resting draft costs nothing."""

from __future__ import annotations

import pytest
import torch

from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from tests.decode.test_engine_law import EVERYTHING, LENGTH, PROMPT, SCRIPT_TEXTS, count
from tests.fakes import Script, Watched, arbitrary, slow
from tests.oracle import GREEDY, check_law, law_of_text, reference
from tests.rigs import collect, engine_of, noisy, runner, tiny

CHOSEN = {"adaptive": {"adaptive": True}, "guard": {"guard": True}, "both": {"adaptive": True, "guard": True}}


@pytest.mark.parametrize("who", list(CHOSEN))
@pytest.mark.parametrize("drafter", ["model", "chain"])
def test_greedy_text_is_plain_text_whoever_chooses(who: str, drafter: str) -> None:
    prompt = [5, 6, 7, 5, 6]
    right = reference(tiny(), prompt, 120)
    engine = engine_of(runner(tiny()), runner(noisy()))
    gammas = set()
    for _ in range(2):
        reply = collect(engine, prompt, Settings(8, GREEDY, drafter, 120, **CHOSEN[who]))
        right.check(reply.ids, f"{who}, {drafter}")
        gammas |= {event.gamma for event in reply.rounds}
        assert all(event.choice for event in reply.rounds)
    assert len(gammas) > 1, "γ was never chosen"


@pytest.mark.parametrize(("drafter", "confidence"), [("model", 0.0), ("chain", 0.5)])
def test_scripted_text_has_the_targets_law_while_measurements_choose(drafter: str, confidence: float) -> None:
    vocab = 4
    target, draft = arbitrary(51, vocab, 1.0), arbitrary(52, vocab, 1.5)
    engine = engine_of(Script(target, vocab), Script(draft, vocab))
    law = law_of_text(lambda ids: torch.tensor(target(ids)), PROMPT, LENGTH, Sampling(**EVERYTHING))

    def of(seed: int):  # type: ignore[no-untyped-def]
        sampling = Sampling(**EVERYTHING, seed=seed)
        settings = Settings(4, sampling, drafter, LENGTH, None, confidence, True, True)
        return lambda: settings

    check_law(count(engine, SCRIPT_TEXTS, of), law, f"{drafter}, confidence {confidence}")


def test_a_ruinous_draft_rests_reads_nothing_meanwhile_and_catches_up_when_tried_again() -> None:
    law = arbitrary(1, 5)
    draft = Watched(slow(Script(arbitrary(9, 5), 5, 4096), 0.003))
    target = Script(law, 5, 4096)
    engine = engine_of(target, draft)
    settings = Settings(4, GREEDY, "model", 200, guard=True)
    reply = collect(engine, [0, 1, 2], settings)
    resting = [event for event in reply.rounds if "resting" in event.choice]
    assert len(resting) > 60 and all(event.gamma == event.draft_forwards == 0 for event in resting)
    assert reply.ids == reference(target, [0, 1, 2], 200).ids
    assert engine.pilots["model"].guard.resting
    calls = draft.calls
    again = collect(engine, [3, 3, *[1, 2] * 150], Settings(4, GREEDY, "model", 1, guard=True))
    assert draft.calls == calls, "a resting draft read the prompt"
    assert again.finished.draft_cached == 0 and "resting" in again.rounds[0].choice
    collect(engine, [3, 3, *[1, 2] * 150], settings)
    assert draft.calls > calls + 1, "it was never tried again"


def test_switching_the_choosing_off_makes_gamma_what_the_slider_says() -> None:
    engine = engine_of(Script(arbitrary(1, 5), 5), Script(arbitrary(1, 5), 5))
    collect(engine, [0, 1], Settings(6, GREEDY, "model", 60, adaptive=True))
    reply = collect(engine, [0, 1], Settings(3, GREEDY, "model", 60))
    assert {event.gamma for event in reply.rounds[:-1]} == {3}
    assert {event.choice for event in reply.rounds} == {""}


def test_each_drafter_has_its_own_measurements() -> None:
    engine = engine_of(Script(arbitrary(1, 5), 5), Script(arbitrary(1, 5), 5))
    for name in ("model", "ngram"):
        collect(engine, [0, 1], Settings(6, GREEDY, name, 30, adaptive=True))
    assert set(engine.pilots) == {"model", "ngram"}
    assert engine.pilots["model"].adaptive.forward.count > 0
    assert engine.pilots["ngram"].adaptive.forward.count == 0
