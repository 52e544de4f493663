"""The proof: its statistics against known laws, a broken verifier caught, a correct one let pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specchat import cli
from specchat.chat.conversation import Message
from specchat.decode import verdict as verdict_module
from specchat.decode.drafters import ModelDrafter, Proposal
from specchat.decode.engine import Settings
from specchat.decode.ids import Ids
from specchat.decode.law import Law
from specchat.decode.sampling import Sampling, Verified, draw, probs
from specchat.decode.stats import Stats
from specchat.lab import proof_stats
from specchat.lab.proof import prove
from specchat.lab.proof_law import exact_law, first_ids
from specchat.lab.proof_plan import ALPHA, Plan, Proof
from specchat.lab.proof_stats import against_law, critical, survival, survival_shifted, two_samples
from specchat.model.compact import CompactDecoder
from specchat.pair import Pair
from specchat.ui import proof_view
from tests.fakes import Script, constant, slow
from tests.oracle import full_logits
from tests.rigs import runner, tiny
from tests.tiny import TINY_VOCAB, noisy_copy, save_tiny
from tests.worker.jobs import pair_of

WARM = Settings(3, Sampling(1.0, top_k=8), "model", 64)
PROMPTS = (("a greeting", "hello"),)


def counts(p: list[float], n: int, rng: torch.Generator) -> Counter[tuple[int, ...]]:
    drawn = torch.multinomial(torch.tensor(p), n, replacement=True, generator=rng).tolist()
    return Counter((i,) for i in drawn)


# -- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dof", "x"), [(1, 3.841), (4, 9.488), (20, 31.41), (60, 79.08)])
def test_the_tail_of_chi_squared_is_the_tables(dof: int, x: float) -> None:
    assert survival(x, dof) == pytest.approx(0.05, abs=1e-4)
    assert critical(0.05, dof) == pytest.approx(x, abs=1e-2)
    scipy = pytest.importorskip("scipy.stats")
    assert survival(3 * x, dof) == pytest.approx(float(scipy.chi2.sf(3 * x, dof)), rel=1e-6)
    assert survival_shifted(x, dof, 7.0) == pytest.approx(float(scipy.ncx2.sf(x, dof, 7.0)), rel=1e-6)


def test_two_samples_of_one_law_are_called_different_as_often_as_stated() -> None:
    """600 comparisons at 5 %: 30 expected; 12 to 52 are within four deviations (a false alarm in 10,000)."""
    rng = torch.Generator().manual_seed(1)
    law = [0.4, 0.3, 0.15, 0.1, 0.03, 0.01, 0.005, 0.005]
    exact = {(i,): p for i, p in enumerate(law[:6])}
    two = one = 0
    for _ in range(600):
        a, b = counts(law, 300, rng), counts(law, 200, rng)
        two += two_samples("x", a, b, ALPHA).p < 0.05
        one += against_law("x", a, exact, ALPHA).p < 0.05
    assert 12 <= two <= 52 and 12 <= one <= 52, (two, one)


def test_the_distance_called_noticeable_is_noticed() -> None:
    """Laws exactly that far apart, in the shape that is hardest to see; 9 in 10, less than 3 in 60 missed by luck."""
    rng = torch.Generator().manual_seed(2)
    n, k = 400, 4
    flat = [1 / k] * k
    bound = two_samples("x", counts(flat, n, rng), counts(flat, n, rng), ALPHA).noticeable
    shifted = [1 / k + 2 * bound / k * (1 if i % 2 else -1) for i in range(k)]
    caught = sum(
        two_samples("x", counts(flat, n, rng), counts(shifted, n, rng), ALPHA).p < ALPHA for _ in range(60)
    )
    assert caught >= 45, (caught, bound)


def test_pooling_and_nothing_to_compare() -> None:
    one = two_samples("x", Counter({(1,): 50}), Counter({(1,): 50}), ALPHA)
    assert (one.dof, one.p, one.noticeable) == (0, 1.0, 1.0)
    assert two_samples("x", Counter(), Counter(), ALPHA).p == 1.0
    assert against_law("x", Counter(), {(1,): 1.0}, ALPHA).p == 1.0
    rare = two_samples(
        "x", Counter({(1,): 90, **{(i,): 1 for i in range(10, 20)}}), Counter({(1,): 100}), ALPHA
    )
    assert rare.dof == 1, "ten rare outcomes are one cell"
    outside = against_law("x", Counter({(1,): 60, (2,): 40}), {(1,): 1.0}, ALPHA)
    assert outside.p < 1e-12, "what the law rules out is no small matter"


# -- the law --------------------------------------------------------------------------------------


def real_pair(noise: float) -> Pair:
    """Real tiny models behind our own decoder; the draft is the target with that much noise."""
    models = (tiny(), noisy_copy(tiny(), noise))
    return pair_of(*(CompactDecoder.from_module(model, TINY_VOCAB, 256, "float32") for model in models))


def fixed_pair() -> Pair:
    """The same law at every place, and a draft that prefers what the target likes least."""
    rows = ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])
    return pair_of(*(Script(constant([*row, *[0.0] * 272]), 275) for row in rows))


def run(pair: Pair, settings: Settings = WARM, n: int = 250, **rest: object) -> Proof:
    plan = Plan(settings, PROMPTS, samples=n, seconds=1e9, greedy=False)
    return prove(pair, replace(plan, **rest), lambda: False, lambda news: None)  # type: ignore[arg-type]


def test_a_correct_pair_passes_and_drafts_were_really_judged() -> None:
    """Fixed seeds; with others this fails once in a thousand."""
    law = run(real_pair(0.05)).law
    assert law is not None and law.n == 250 and not law.differs, law.tests
    assert [test.name for test in law.tests] == [
        "on against off",
        "on against the exact law",
        "off against the exact law",
    ]
    assert 0.1 < law.stats.acceptance_rate < 0.95 and law.stats.largest_gamma == 3
    assert all(0 < test.noticeable < 0.5 for test in law.tests)
    assert sum(law.on.values()) == sum(law.off.values()) == 250
    assert all(cell.exact is not None for cell in law.cells)


def settled(p: Law, q: Law | None, drafted: Ids, rng: torch.Generator, accepted: int) -> Verified:
    """So many proposals kept, and what follows them drawn from the target's own law there."""
    ids, row = torch.as_tensor(drafted, dtype=torch.long), p.row(torch.tensor(accepted))
    following = draw(row, rng)
    q_drafted = torch.ones(len(ids)) if q is None else q.chances(ids)
    return Verified(torch.tensor(accepted), following, row.chances(following), p.chances(ids), q_drafted)


def broken(p: Law, q: Law | None, drafted: Ids, rng: torch.Generator) -> Verified:
    """The verifier with its residual skipped: after a rejection it draws from p itself."""
    for place, token in enumerate(map(int, drafted)):
        at, id = torch.tensor(place), torch.tensor([token])
        chance = 1.0 if q is None else float(q.row(at).chances(id))
        if float(torch.rand((), generator=rng)) * chance >= float(p.row(at).chances(id)):
            return settled(p, q, drafted, rng, place)
    return settled(p, q, drafted, rng, len(drafted))


def test_a_verifier_that_skips_the_residual_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_module, "verify", broken)
    law = run(real_pair(0.1), n=300).law
    assert law is not None and law.differs
    tests = {test.name: test for test in law.tests}
    assert tests["on against the exact law"].p < law.threshold
    assert tests["off against the exact law"].p > law.threshold, "plain decoding is not to blame"
    assert tests["on against the exact law"].distance > 0.05


def test_discarding_a_drawn_token_for_its_probability_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tempting mistake of a confidence stop: it must be decided before a token is drawn, or after including it."""
    honest = ModelDrafter.propose

    def picky(self: ModelDrafter, n: int, sampling: Sampling, rng: torch.Generator, *rest: float) -> Proposal:
        given = honest(self, n, sampling, rng, *rest)
        assert given.q is not None
        sure = [
            float(row[int(i)]) >= 0.4 for row, i in zip(given.q.dense(TINY_VOCAB), given.ids, strict=True)
        ]
        kept = next((place for place, it_is in enumerate(sure) if not it_is), len(sure))
        return (
            Proposal(given.ids[:kept], given.q.first(kept), given.forwards, given.source)
            if kept
            else Proposal()
        )

    monkeypatch.setattr(ModelDrafter, "propose", picky)
    law = run(fixed_pair(), replace(WARM, sampling=Sampling(1.0, top_k=0)), n=200).law
    assert law is not None and law.differs, law.tests


def test_the_exact_law_is_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, sampling = [5, 6, 7, 8], Sampling(0.8, top_k=5)
    law = exact_law(pair_of(), prefix, sampling, 2, lambda: False)
    first = probs(full_logits(tiny(), prefix)[-1:], prefix, sampling)[0]
    assert sum(law.values()) == pytest.approx(1, abs=5 * 0.005)
    for (one, two), p in list(law.items())[:8]:
        longer = [*prefix, one]
        second = probs(full_logits(tiny(), longer)[-1:], longer, sampling)[0]
        assert p == pytest.approx(float(first[one] * second[two]), rel=1e-3)


def test_an_end_of_the_reply_is_one_of_the_outcomes() -> None:
    """The end token is no id that a stop string could hold, but it is drawn like any other."""
    pair = pair_of(*(Script(constant([0.5, *[0.0] * 273, 0.5]), 275) for _ in range(2)))
    assert pair.eos_ids == {274}
    free = replace(WARM, sampling=Sampling(1.0, top_k=0))
    seen = {
        first_ids(pair.engine, [5, 6], replace(free, gamma=g), 2, seed, Stats())
        for g in (0, 3)
        for seed in range(40)
    }
    assert seen == {(274,), (0, 274), (0, 0)}
    law = run(pair, free, n=100).law
    assert (
        law is not None
        and not law.differs
        and {cell.text[-18:] for cell in law.cells} >= {"(end of the reply)"}
    )


def test_greedy_sampling_leaves_no_law_to_test_and_speculation_off_passes() -> None:
    certain = run(pair_of(), replace(WARM, sampling=Sampling(0.0)), n=20).law
    assert certain is not None and not certain.differs and max(test.dof for test in certain.tests) <= 1
    off = run(pair_of(), replace(WARM, gamma=0), n=40).law
    assert off is not None and not off.differs and off.stats.drafted == 0


def test_a_cancelled_proof_says_what_it_has() -> None:
    pair, asked = pair_of(), []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 150

    found = prove(pair, Plan(WARM, PROMPTS, seconds=1e9, tokens=8), cancelled, lambda news: None)
    assert found.stopped and found.greedy and (found.law is None or found.law.n < 150)
    assert prove(pair, Plan(WARM, PROMPTS), lambda: True, lambda news: None).greedy == []


def test_the_guard_is_left_out_said_so_and_the_chats_own_learns_nothing() -> None:
    """The draft is slow, so that the guard would soon let it rest: then plain would be compared with plain."""
    target, draft = (Script(constant([0.5, 0.3, 0.2, *[0.0] * 272]), 275) for _ in range(2))
    pair = pair_of(target, slow(draft, 0.002))
    guarded = replace(WARM, sampling=Sampling(1.0, top_k=0), guard=True)
    plan = Plan(guarded, PROMPTS, samples=60, seconds=1e9, tokens=48)
    found = prove(pair, plan, lambda: False, lambda news: None)
    assert found.law is not None and found.law.stats.speculative_rounds == found.law.stats.rounds
    assert found.greedy[0].on.largest_gamma == 3 and found.greedy[0].on.plain_rounds <= 1
    assert pair.engine.pilots == {}
    page = proof_view.limits(found)
    assert "The guard was left out" in page and ", the guard" not in page
    assert "guard" not in proof_view.limits(Proof(replace(plan, settings=WARM)))


# -- greedy ---------------------------------------------------------------------------------------


def greedy(pair: Pair) -> Proof:
    plan = Plan(WARM, (*PROMPTS, ("another", "what is the sea")), law=False, tokens=24)
    return prove(pair, plan, lambda: False, lambda news: None)


def test_greedy_texts_of_a_correct_pair_are_identical() -> None:
    for row in greedy(pair_of()).greedy:
        assert row.difference is None and row.compared + len(row.ties) >= 1
        assert row.on.drafted > 0, "nothing was proposed, so nothing was proved"


def test_a_planted_difference_is_caught_with_its_place_and_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verdict_module.verify

    def lenient(p: Law, q: Law | None, drafted: Ids, rng: torch.Generator) -> Verified:
        return settled(p, q, drafted, rng, 1) if len(drafted) else real(p, q, drafted, rng)

    monkeypatch.setattr(verdict_module, "verify", lenient)
    rows = greedy(pair_of(draft=runner(tiny(seed=5), 512))).greedy
    found = [row.difference for row in rows if row.difference is not None]
    assert found and all(not parting.tie and parting.first != parting.second for parting in found)


def test_a_tie_is_named_a_tie_and_the_comparison_goes_on() -> None:
    vocab = 275

    def law(favourite: int) -> Script:
        row = [0.0] * vocab
        row[65], row[66] = 9.0, 9.0
        row[favourite] += 1e-5
        return Script(lambda prefix: row, vocab)

    target = law(65)
    pair = pair_of(target, law(65))
    calls = []

    def wavering(prefix: tuple[int, ...]) -> list[float]:
        # A block is summed in another order than a single row: here the tie falls the other way once.
        row = [0.0] * vocab
        row[65], row[66] = 9.0, 9.0
        calls.append(len(prefix))
        row[66 if calls.count(len(prefix)) == 1 and len(prefix) == first + 3 else 65] += 1e-5
        return row

    first = len(pair.template.encode([Message("user", "hello")], "", 400).ids)
    target.law = wavering
    row = prove(pair, Plan(WARM, PROMPTS, law=False, tokens=12), lambda: False, lambda news: None).greedy[0]
    assert row.difference is None and len(row.ties) == 1
    assert row.ties[0].margin.gap < proof_stats.LEAST_EXPECTED * 1e-3 and row.compared >= 10


def test_a_draft_that_prefers_what_the_target_likes_least_changes_nothing() -> None:
    law = run(fixed_pair(), replace(WARM, sampling=Sampling(1.0, top_k=0)), n=200).law
    assert law is not None and not law.differs and law.exact_first == 2


# -- in the terminal ------------------------------------------------------------------------------


def test_the_command_says_the_verdict_and_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(save_tiny(tmp_path / "t", tiny()))
    draft = str(save_tiny(tmp_path / "d", noisy_copy(tiny(), 0.05)))
    common = ["proof", "hello", "--target", target, "--draft", draft, "--context", "256", "--texts", "1"]
    assert cli.main([*common, "--check", "greedy"]) == 0
    out = capsys.readouterr().out
    assert "No difference found" in out and "identical" in out
    cli.main([*common, "--check", "law", "--seconds", "0.3"])
    assert "on against off" in capsys.readouterr().out
    assert cli.main([*common, "--check", "greedy", "--gamma", "0"]) == 1
    assert "Nothing was put to the test" in capsys.readouterr().out
    assert cli.main([*common, "--seconds", "0"]) == 1
    assert "--seconds above 0" in capsys.readouterr().err
