"""The confidence stop, and the other settings that shape a draft: lossless, by an exact enumeration.

Every way a draft may be drawn is gone through with its probability, and each is judged with the verdict's exact law:
the sum is the law of the reply's first two tokens, without chance. The mistake that suggests itself (leaving out a
token that was drawn and has too little probability) is planted and shows at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from math import prod
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from specchat.decode import drafters, head_drafter
from specchat.decode.adaptive import Adaptive
from specchat.decode.drafters import ChainDrafter, Drafter, ModelDrafter, Proposal
from specchat.decode.engine import Engine, Settings
from specchat.decode.estimates import key_of
from specchat.decode.head_drafter import HeadDrafter
from specchat.decode.law import Law
from specchat.decode.ngrams import NgramDrafter
from specchat.decode.sampling import Sampling, probs
from specchat.decode.stats import Stats
from specchat.decode.stopping import Confident, Stopping
from tests.decode.test_head_drafter import ScriptHead
from tests.fakes import Script, arbitrary
from tests.oracle import GREEDY, exact_verdict, reference
from tests.rigs import collect, engine_of, noisy, runner, tiny

VOCAB = 3
PROMPT = (0, 1, 2, 1, 0)
TARGET, DRAFT = arbitrary(41, VOCAB, 1.0), arbitrary(42, VOCAB, 1.3)
SAMPLING = Sampling(1.0, 0)
RNG = torch.Generator()


def model() -> Drafter:
    return ModelDrafter(Script(DRAFT, VOCAB))


def head() -> Drafter:
    target = Script(TARGET, VOCAB)
    drafter = HeadDrafter(target, ScriptHead(DRAFT, range(VOCAB)))
    target.forward(PROMPT[:-1])
    return drafter


def chain() -> Drafter:
    return ChainDrafter(NgramDrafter(longest=5, shortest=5), ModelDrafter(Script(DRAFT, VOCAB)))


DRAFTERS: dict[str, Callable[[], Drafter]] = {"model": model, "head": head, "chain": chain}


def every_proposal(
    make: Callable[[], Drafter], n: int, confidence: float, stopping: Callable[[], Stopping] | None = None
) -> list[tuple[float, Proposal]]:
    """Every proposal that may be drawn, with its probability. stopping: a new one like the others, each time."""
    found = []
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        drawn: list[int] = []

        def draw(law: Law, rng: torch.Generator, script: tuple[int, ...], drawn: list[int]) -> Tensor:
            """The script's next id; behind its end 0, and the other ids of that place are left to later runs."""
            if len(drawn) >= len(script):
                scripts.extend((*drawn, id) for id in range(1, VOCAB))
            drawn.append(script[len(drawn)] if len(drawn) < len(script) else 0)
            return torch.tensor(drawn[-1:])

        drafter, by_script = make(), partial(draw, script=script, drawn=drawn)
        drafter.start(PROMPT, lambda: True)
        with patch.object(drafters, "draw", by_script), patch.object(head_drafter, "draw", by_script):
            proposal = drafter.propose(n, SAMPLING, RNG, stopping() if stopping else Confident(confidence))
        assert drawn == ([] if proposal.source == "ngram" else ids_of(proposal)), (
            "an id that was drawn was not proposed"
        )
        rows = [] if proposal.q is None else list(proposal.q.dense(VOCAB))
        found.append((prod(float(row[id]) for row, id in zip(rows, drawn, strict=True)), proposal))
    assert sum(chance for chance, _ in found) == pytest.approx(1, abs=1e-5)
    return found


def ids_of(proposal: Proposal) -> list[int]:
    return [int(id) for id in proposal.ids]


def truth(text: Sequence[int]) -> Tensor:
    return probs(torch.tensor([TARGET((*PROMPT, *text))]), (), SAMPLING)[0]


def law_of_two(proposals: Sequence[tuple[float, Proposal]]) -> Tensor:
    """[V, V]: the law of the reply's first two tokens; a second one that the round did not give follows the truth."""
    law = torch.zeros(VOCAB, VOCAB)
    for chance, proposal in proposals:
        ids = ids_of(proposal)
        p = torch.stack([truth(ids[:place]) for place in range(len(ids) + 1)])
        for (accepted, following), share in exact_verdict(p, proposal.q, ids).items():
            block = (*ids[:accepted], following)
            if len(block) > 1:
                law[block[0], block[1]] += chance * share
            else:
                law[block[0]] += chance * share * truth(block)
    return law


RIGHT = torch.stack([truth(())[id] * truth((id,)) for id in range(VOCAB)])


@pytest.mark.parametrize("name", list(DRAFTERS))
@pytest.mark.parametrize("confidence", [0.0, 0.55, 0.8, 1.0])
def test_the_law_is_the_targets_whatever_the_confidence(name: str, confidence: float) -> None:
    proposals = every_proposal(DRAFTERS[name], 2, confidence)
    assert float((law_of_two(proposals) - RIGHT).abs().max()) < 1e-4
    lengths = {len(proposal.ids) for _, proposal in proposals}
    assert lengths == {0.0: {2}, 0.55: {1, 2}, 0.8: {1, 2}, 1.0: {0}}[confidence], (
        "the stop is not where it was"
    )


@pytest.mark.parametrize("name", list(DRAFTERS))
@pytest.mark.parametrize("steps", [1.3, 2.0, 3.0])
def test_the_law_is_the_targets_wherever_adaptive_gamma_stops(name: str, steps: float) -> None:
    """It stops by how sure the draft is, and by what it has learnt; never by what was drawn in the place in question."""
    proposals = every_proposal(DRAFTERS[name], 3, 0.0, partial(taught, steps))
    assert float((law_of_two(proposals) - RIGHT).abs().max()) < 1e-4
    lengths = {len(proposal.ids) for _, proposal in proposals}
    assert lengths == {1.3: {2, 3}, 2.0: {2, 3}, 3.0: {1}}[steps]


@pytest.mark.parametrize("name", list(DRAFTERS))
@pytest.mark.parametrize("trying", [{"_forced": 2}, {"_further": True}], ids=str)
def test_the_law_is_the_targets_when_more_is_tried_than_pays(name: str, trying: dict[str, object]) -> None:
    def stopping() -> Adaptive:
        adaptive = taught(4.0)
        for field, value in trying.items():
            setattr(adaptive, field, value)
        return adaptive

    proposals = every_proposal(DRAFTERS[name], 3, 0.0, stopping)
    assert float((law_of_two(proposals) - RIGHT).abs().max()) < 1e-4
    assert {len(proposal.ids) for _, proposal in proposals} == {2 if "_forced" in trying else 1}


def test_the_law_is_the_targets_when_n_grams_are_stopped() -> None:
    def stopping() -> Adaptive:
        adaptive = taught(2.0)
        for _ in range(40):
            adaptive.rates.learn([key_of("1-gram", place, None) for place in range(2)], 1)
        adaptive._look()
        return adaptive

    def bigrams() -> Drafter:
        return ChainDrafter(NgramDrafter(longest=2, shortest=1), ModelDrafter(Script(DRAFT, VOCAB)))

    proposals = every_proposal(bigrams, 3, 0.0, stopping)
    assert float((law_of_two(proposals) - RIGHT).abs().max()) < 1e-4
    assert {(proposal.source, len(proposal.ids)) for _, proposal in proposals} == {("ngram", 1)}


def taught(steps: float) -> Adaptive:
    """One that has learnt of every draft here: a further row or draft forward takes so many tenths of a plain step."""
    adaptive = Adaptive()
    for index in range(40):
        adaptive._opening, adaptive._most = [], 3
        adaptive.choose(3)
        rows = 1 + index % 4
        for kind in ("model", "scripted head"):
            keys = [key_of(kind, place, 0.05 + 0.1 * (index % 10)) for place in range(rows - 1)]
            adaptive.rates.learn(keys, rows - 1 if index % 10 > 5 else 0)
        adaptive.judging.learn(rows, 0.01 * (1 + 0.1 * steps * (rows - 1)))
        adaptive.forward.add(0.001 * steps)
    adaptive.choose(3)
    adaptive._look()
    return adaptive


def test_leaving_out_an_id_that_was_drawn_is_caught() -> None:
    """The planted mistake: draw first, and propose only as long as what was drawn is likely enough."""
    proposals = []
    for chance, whole in every_proposal(model, 2, 0.0):
        assert whole.q is not None
        likely = [float(row[id]) >= 0.3 for row, id in zip(whole.q.dense(VOCAB), ids_of(whole), strict=True)]
        n = likely.index(False) if False in likely else 2
        proposals.append((chance, Proposal(whole.ids[:n], whole.q.first(n) if n else None)))
    assert float((law_of_two(proposals) - RIGHT).abs().max()) > 0.01


def test_another_sampling_of_the_draft_changes_what_is_proposed_and_not_the_law() -> None:
    proposals = every_proposal(model, 2, 0.0)
    with patch.object(ModelDrafter, "propose", partialmethod(_misaligned, ModelDrafter.propose)):
        other = every_proposal(model, 2, 0.0)
    first, misaligned = proposals[0][1].q, other[0][1].q
    assert (
        first is not None
        and misaligned is not None
        and not torch.allclose(first.dense(VOCAB), misaligned.dense(VOCAB), atol=0.1)
    )
    assert float((law_of_two(other) - RIGHT).abs().max()) < 1e-4


def _misaligned(
    self: ModelDrafter, propose: Callable[..., Proposal], n: int, sampling: Sampling, *more: object
) -> Proposal:
    return propose(self, n, Sampling(3.0, 0), *more)


# -- in the engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["model", "chain", "ngram"])
def test_greedy_text_is_plain_text_at_every_confidence(drafter: str) -> None:
    prompt = [5, 6, 7, 5, 6]
    right = reference(tiny(), prompt, 30)
    engine = engine_of(runner(tiny()), runner(noisy()))
    for confidence in (0.0, 0.02, 0.1, 0.5, 1.0):
        reply = collect(engine, prompt, Settings(4, GREEDY, drafter, 30, confidence=confidence))
        right.check(reply.ids, f"{drafter}, confidence {confidence}")


def test_a_greedy_draft_is_as_sure_as_its_logits_say_and_stops_the_sooner_the_more_is_asked() -> None:
    drafted = []
    for confidence in (0.0, 0.4, 0.7, 1.0):
        engine = engine_of(Script(TARGET, VOCAB), Script(DRAFT, VOCAB))
        reply = collect(engine, PROMPT, Settings(4, GREEDY, "model", 40, confidence=confidence))
        assert reply.ids == reference(Script(TARGET, VOCAB), PROMPT, 40).ids
        drafted.append(Stats.of(reply.rounds).drafted)
    assert drafted == sorted(drafted, reverse=True) and len(set(drafted)) == 4 and drafted[-1] == 0


def test_a_draft_that_is_not_sure_has_cost_its_forward_and_the_round_is_no_plain_step() -> None:
    engine = engine_of(Script(TARGET, VOCAB), Script(DRAFT, VOCAB))
    reply = collect(engine, PROMPT, Settings(4, Sampling(1.0, 0, seed=1), "model", 9, confidence=1.0))
    assert reply.origins == "p" * 9 and all(event.drafter == "" for event in reply.rounds)
    # The last round has room for the target's id alone.
    assert [event.draft_forwards for event in reply.rounds] == [*[1] * 8, 0]
    assert Stats.of(reply.rounds).plain_rounds == 1


def test_n_grams_are_certain_by_convention() -> None:
    drafter = NgramDrafter()
    drafter.start([1, 2, 3, 1, 2])
    assert drafter.propose(3, SAMPLING, RNG, Confident(1.0)).ids == (3, 1, 2)


def test_the_engine_hands_the_drafts_own_sampling_to_the_draft_alone() -> None:
    law = Script(lambda prefix: [0.5, 1.5, 0.0], 3)
    engine = engine_of(law, Script(lambda prefix: [0.5, 1.5, 0.0], 3))
    settings = Settings(2, Sampling(1.0, 0, seed=1), "model", 60, draft_sampling=Sampling(3.0, 0, seed=5))
    reply = collect(engine, [0], settings)
    target, draft = (
        probs(torch.tensor([[0.5, 1.5, 0.0]]), (), Sampling(t, 0))[0].tolist() for t in (1.0, 3.0)
    )
    for token in itertools.chain.from_iterable(event.tokens for event in reply.rounds):
        assert token.p == pytest.approx(target[token.id], abs=1e-6)
        assert token.q is None or token.q == pytest.approx(draft[token.id], abs=1e-6)
    assert any(event.rejected for event in reply.rounds), (
        "aligned, a draft equal to the target is never refused"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"confidence": -0.1}, r"confidence is -0.1.*between 0 \(off\) and 1"),
        ({"confidence": float("nan")}, "confidence is nan"),
        ({"confidence": 1.5}, "confidence is 1.5"),
        ({"confidence": "0.5"}, "confidence is 0.5"),
        ({"adaptive": 1}, "adaptive is 1; it must be True or False"),
        ({"guard": None}, "guard is None; it must be True or False"),
        ({"draft_sampling": 0.7}, "draft_sampling is 0.7; it must be a Sampling or None"),
    ],
)
def test_odd_values_are_refused_with_a_sentence(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**settings)  # type: ignore[arg-type]


def test_nobody_chooses_when_there_is_nothing_to_choose() -> None:
    engine = Engine(Script(TARGET, VOCAB), {}, frozenset())
    reply = collect(engine, PROMPT, Settings(4, GREEDY, "model", 9, adaptive=True, guard=True))
    assert {event.choice for event in reply.rounds} == {""} and engine.pilots == {}
