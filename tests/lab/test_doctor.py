"""Every fault planted, and the doctor names it first: in rounds that were made up, and in real tiny pairs."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from specchat import cli
from specchat.chat.conversation import Message
from specchat.decode.events import Prefill, Round, Token
from specchat.decode.sampling import Sampling
from specchat.decode.settings import Settings
from specchat.lab import doctor_causes, theory
from specchat.lab.doctor import Evidence, Finding, examine
from specchat.lab.doctor_chart import Chart
from specchat.lab.doctor_command import told
from specchat.lab.doctor_evidence import Rates, warm_up_s
from specchat.lab.doctor_measure import Examination, Subject, Surroundings, diagnose
from specchat.model.loading import Loaded, load_model
from specchat.model.pairing import check
from specchat.pair import Memory, Pair
from specchat.ui import doctor_view as view
from specchat.ui import proof_view, race_view
from tests.fakes import slow
from tests.rigs import runner, tiny
from tests.tiny import noisy_copy, save_tiny, tiny_model, tiny_tokenizer
from tests.worker.jobs import pair_of

PLAIN_S = 0.030
FLAT = {1: 0.028, 2: 0.0285, 3: 0.029, 5: 0.030, 9: 0.032, 17: 0.036}
"""Seconds of a target forward by rows, as on a machine whose speed is that of its memory."""
MEMORY = Memory("RSS", 270_000_000, 20_000_000, 30_000_000, 900_000_000, 5_000_000_000)


def rounds(
    alpha: float,
    gamma: int,
    step_s: float,
    verify_s: Mapping[int, float] = FLAT,
    count: int = 60,
    offered: float = 1.0,
) -> tuple[Round, ...]:
    """Rounds of a draft that is right with probability alpha and takes step_s a proposal."""
    dice, found, at = random.Random(3), [], 0.0
    for index in range(count):
        n = gamma if dice.random() < offered else 0
        accepted = next((i for i in range(n) if dice.random() >= alpha), n)
        spent = verify_s[1] if n == 0 else Rates((), 0, 0, 0, 0, verify_s).verify(n + 1)
        at += n * step_s + spent + 0.002
        last = "plain" if n == 0 else "bonus" if accepted == n else "recovered"
        tokens = [Token(7, "accepted", 0.5, 0.5, i) for i in range(accepted)]
        found.append(
            Round(
                index, (*tokens, Token(7, last, 0.5, None, accepted)), None, gamma, n, accepted, "model" if n else "",
                1, n, n * step_s, spent, 0.001, 0.001, at, prefill=Prefill(0, 40, 0.05) if index == 0 else None,
            )
        )  # fmt: skip
    return tuple(found)


def evidence(alpha: float = 0.7, gamma: int = 4, step_s: float = 0.0015, **rest: object) -> Evidence:
    """A healthy pair, unless told otherwise."""
    verify_s = rest.get("verify_s", FLAT)
    base = Evidence(
        Settings(gamma, drafter="model"), rounds(alpha, gamma, step_s, verify_s), rounds(0, 0, 0, verify_s, 32),  # type: ignore[arg-type]
        FLAT, prompt_tokens=40, prefill_s=0.05, reply_tokens=128, memory=MEMORY, draft_device="cpu",
    )  # fmt: skip
    return replace(base, **rest)  # type: ignore[arg-type]


def first(found: list[Finding]) -> str:
    return found[0].cause


# -- planted in rounds ----------------------------------------------------------------------------


def test_a_healthy_pair_is_told_so_with_its_gain() -> None:
    found = examine(evidence())
    assert first(found) == "healthy" and "gains 2.0" in found[0].title, found[0]
    assert not found[0].remedy.by_button


def test_a_slow_draft() -> None:
    found = examine(evidence(step_s=0.024))
    assert first(found) == "slow-draft"
    assert found[0].remedy.change == {"gamma": 0} and "0.80" in found[0].measured


def test_a_weak_draft() -> None:
    for gamma in (1, 2, 4, 8, 16):
        found = examine(evidence(alpha=0.02, gamma=gamma))
        assert first(found) == "weak-draft", (gamma, found)
        assert found[0].remedy.change == {"gamma": 0}
        assert "healthy" not in [finding.cause for finding in found]


def test_a_weak_draft_beside_a_better_one_is_exchanged_for_it() -> None:
    better = rounds(0.7, 4, 0.0015)
    found = examine(evidence(alpha=0.08, others={"chain": better, "ngram": rounds(0.5, 4, 0.0, offered=0.1)}))
    assert first(found) == "weak-draft" and found[0].remedy.change["drafter"] == "chain"
    assert found[0].remedy.applied(Settings(4, drafter="model")).drafter == "chain"


def test_a_drafter_with_nothing_to_propose() -> None:
    seldom = evidence(speculative=rounds(0.8, 4, 0.0, offered=0.05), others={"model": rounds(0.7, 4, 0.0015)})
    found = examine(seldom)
    assert first(found) == "weak-draft" and "seldom" in found[0].title
    assert found[0].remedy.change["drafter"] == "model"


@pytest.mark.parametrize("alpha", [0.4, 0.5, 0.7])
def test_gamma_too_long(alpha: float) -> None:
    found = examine(evidence(alpha=alpha, gamma=16, step_s=0.003))
    assert first(found) == "gamma-long", found
    assert 1 <= found[0].remedy.change["gamma"] <= 8  # type: ignore[operator]


def test_gamma_too_short() -> None:
    found = examine(evidence(alpha=0.93, gamma=1))
    assert first(found) == "gamma-short", found
    assert found[0].remedy.change["gamma"] >= 6  # type: ignore[operator]


def test_another_sampling_for_the_draft() -> None:
    """It looks like a weak draft and like a γ that is too long; the trial with the sampling set right tells them apart."""
    settings = Settings(8, Sampling(0.6), "model", draft_sampling=Sampling(2.0, top_k=0))
    for gamma in (2, 4, 8):
        planted = evidence(
            alpha=0.15,
            gamma=gamma,
            settings=replace(settings, gamma=gamma),
            aligned=rounds(0.7, gamma, 0.0015),
        )
        found = examine(planted)
        assert first(found) == "misaligned" and found[0].remedy.change == {"draft_sampling": None}, (
            gamma,
            found,
        )
        assert "weak-draft" not in [finding.cause for finding in found]
    weak = replace(planted, aligned=rounds(0.1, 8, 0.0015))
    assert first(examine(weak)) == "weak-draft", "where aligning does not help, the draft is to blame"
    alike = replace(
        planted, settings=Settings(8, Sampling(0.6), "model", draft_sampling=Sampling(0.6, seed=5))
    )
    assert "misaligned" not in [finding.cause for finding in examine(alike)], "the seed is no law"


def test_memory_near_full_and_spilling() -> None:
    full = examine(evidence(memory=replace(MEMORY, used=15_800_000_000, free=200_000_000)))
    assert first(full) == "memory" and "nearly full" in full[0].title and not full[0].remedy.by_button
    swapped = examine(evidence(swapped=150_000_000))
    assert first(swapped) == "memory" and "150 MB" in swapped[0].measured
    spilled = examine(evidence(spilled=("cpu", "disk"), target_device="cuda:0", draft_device="cuda:0"))
    assert first(spilled) == "memory" and "cpu and disk" in spilled[0].sentence


def test_a_draft_on_another_device() -> None:
    found = examine(evidence(step_s=0.012, target_device="cuda:0", draft_device="cpu"))
    assert first(found) == "device" and "slow-draft" not in [finding.cause for finding in found]
    assert "cuda:0" in found[0].sentence and not found[0].remedy.by_button


def test_verification_that_grows() -> None:
    steep = {rows: 0.028 * (1 + 0.6 * (rows - 1)) for rows in range(1, 18)}
    found = examine(evidence(verify_s=steep))
    assert first(found) == "verification" and "3.40 times" in found[0].measured
    advice = {
        precision: examine(evidence(verify_s=steep, precision=precision))[0].remedy.words
        for precision in ("bfloat16", "float16 weights, FBGEMM")
    }
    assert "--precision auto" in advice["bfloat16"], advice
    assert "--precision auto" not in advice["float16 weights, FBGEMM"], "it is in use already"


def test_a_short_reply_to_a_long_prompt() -> None:
    found = examine(evidence(prompt_tokens=3000, prefill_s=4.2, reply_tokens=10))
    assert first(found) == "short-reply" and "3000 tokens" in found[0].sentence
    assert first(examine(evidence(prompt_tokens=3000, prefill_s=4.2, reply_tokens=2000))) == "healthy"


def test_a_warm_up_that_was_counted() -> None:
    usual = evidence()
    slow_start = tuple(
        replace(
            event, verify_s=event.verify_s + (2.0 if event.index == 0 else 0.4 if event.index == 1 else 0)
        )
        for event in usual.speculative
    )
    assert warm_up_s(usual.speculative) < 0.05 < 2 < warm_up_s(slow_start)
    found = examine(replace(usual, speculative=slow_start))
    assert first(found) == "warm-up" and found[0].remedy.again and found[0].remedy.by_button
    assert len(found) == 1, "the warm-up is not blamed on anything else too"


def test_vocabularies_that_differ_as_the_pairs_check_reports_them(tmp_path: Path) -> None:
    def loaded(name: str, extra: str) -> Loaded:
        folder = save_tiny(tmp_path / name, tiny_model(vocab=300), tiny_tokenizer((extra,)))
        return load_model(str(folder), device="cpu")

    reason = " ".join(check(loaded("big", "<a>"), loaded("small", "<b>")).reasons)
    assert "do not share a vocabulary" in reason
    alone = examine(Evidence(Settings(), (), (), vocabulary=reason))
    assert first(alone) == "vocabulary" and "<a>" in alone[0].sentence
    assert first(examine(evidence(alpha=0.02, vocabulary=reason))) == "vocabulary"


def test_a_second_conversation() -> None:
    found = examine(evidence(waiting=1))
    assert first(found) == "shared" and "1 other job" in found[0].measured and found[0].remedy.again
    assert first(examine(evidence(waited_s=9.0))) == "shared"
    busy = examine(evidence(others_cpu=0.9))
    assert first(busy) == "shared" and "90 %" in busy[0].sentence


def test_speculation_that_is_off_is_told_what_it_would_gain() -> None:
    found = examine(evidence(settings=Settings(0, drafter="model")))
    assert first(found) == "off" and found[0].remedy.change["gamma"] >= 3  # type: ignore[operator]
    useless = examine(evidence(alpha=0.05, settings=Settings(0, drafter="model")))
    assert "off" not in [finding.cause for finding in useless]


def test_a_cost_that_was_not_found_is_not_invented() -> None:
    """Another sampling and another device that cost nothing: no finding, where there was one of 5 %."""
    other = Settings(4, Sampling(0.6), "model", draft_sampling=Sampling(2.0, top_k=0))
    same = evidence(settings=other, aligned=evidence().speculative)
    assert [finding.cause for finding in examine(same)] == ["healthy"]
    far = evidence(step_s=0.0018, target_device="cuda:0", draft_device="cpu")
    costs = {finding.cause: finding.cost for finding in examine(far)}
    assert "device" not in costs, costs


def test_the_guard_is_no_button_and_not_recommended_where_it_is_on() -> None:
    """Speculation as fast as plain decoding, without any cause: the guard is mentioned, and nothing is measured again."""
    plain = rounds(0, 0, 0, FLAT, 32)
    for guard, words in ((False, "The guard in the sidebar lets"), (True, "The guard is on: it lets")):
        found = doctor_causes.even(Chart.of(evidence(speculative=plain, settings=Settings(4, guard=guard))))
        assert not found.remedy.by_button and words in found.remedy.words


def test_adaptive_gamma_is_not_told_that_gamma_is_wrong() -> None:
    found = examine(evidence(alpha=0.5, gamma=16, settings=Settings(16, drafter="model", adaptive=True)))
    assert "gamma-long" not in [finding.cause for finding in found]


def test_the_rates_are_the_formula_when_all_places_are_alike() -> None:
    for alpha, gamma, c, v, offered in ((0.7, 5, 0.1, 1.2, 1.0), (0.8, 4, 0.3, 1.0, 0.4)):
        rates = Rates((), alpha, offered, c, 0.0, {1: 1.0, gamma + 1: v})
        assert 1 / rates.token_s(gamma) == pytest.approx(theory.expected_speedup(alpha, gamma, c, v, offered))


def test_nothing_measured_is_said() -> None:
    with pytest.raises(ValueError, match="Nothing was measured"):
        examine(Evidence(Settings(), (), ()))


def test_findings_are_ranked_by_cost_and_each_says_its_number() -> None:
    found = examine(evidence(alpha=0.4, gamma=16, step_s=0.009, others_cpu=0.6))
    assert len(found) >= 3 and [f.cost for f in found] == sorted((f.cost for f in found), reverse=True)
    for finding in found:
        assert finding.measured and finding.threshold and finding.sentence and 0 < finding.cost <= 1
        assert finding.severity in ("slight", "clear", "severe")


# -- planted in real pairs ------------------------------------------------------------------------
# Times here are the machine's own and mean little on tiny models, so the planted evidence keeps what the engine
# counted and takes the times from a table: only acceptance, lengths and settings are put to the test.


def examined(pair: Pair, settings: Settings, text: str = "hello", **rest: object) -> Examination:
    subject = Subject("a test", (Message("user", text),), **rest)  # type: ignore[arg-type]
    found = diagnose(pair, subject, settings, lambda: False, lambda news: None)
    assert found is not None
    return found


def timed(events: tuple[Round, ...], step_s: float = 0.0015) -> tuple[Round, ...]:
    flat = Rates((), 0, 0, 0, 0, FLAT)
    return tuple(
        replace(
            e, draft_s=e.drafted * step_s, verify_s=flat.verify(e.drafted + 1), sample_s=0.001, host_s=0.001
        )
        for e in events
    )


def judged(found: Examination, **rest: object) -> list[Finding]:
    seen = found.evidence
    return examine(
        replace(
            seen,
            speculative=timed(seen.speculative),
            plain=timed(seen.plain),
            aligned=timed(seen.aligned),
            verify_s=FLAT,
            others={name: timed(events) for name, events in seen.others.items()},
            others_cpu=0.0,
            memory=MEMORY,
            swapped=0,
            prefill_s=0.001 * seen.prompt_tokens,
            **rest,  # type: ignore[arg-type]
        )
    )  # fmt: skip


def test_a_real_pair_sampled_otherwise_is_named() -> None:
    settings = Settings(4, Sampling(0.3), "model", draft_sampling=Sampling(5.0, top_k=0))
    pair = pair_of(draft=runner(tiny(), 512))
    found = judged(examined(pair, settings))
    assert first(found) == "misaligned" and found[0].cost > 0.2


def test_a_real_random_draft_is_named() -> None:
    pair = pair_of(draft=runner(tiny(seed=9), 512))
    found = judged(examined(pair, Settings(4, Sampling(0.3), "model")))
    assert first(found) == "weak-draft"


def test_a_real_gamma_that_is_too_long_is_named() -> None:
    found = judged(
        examined(pair_of(draft=runner(noisy_copy(tiny(), 0.15), 512)), Settings(16, Sampling(0.6), "model"))
    )
    assert first(found) == "gamma-long", found


def test_a_real_short_reply_to_a_long_prompt_is_named() -> None:
    found = judged(examined(pair_of(), Settings(2, Sampling(0.6), "model", 3), "sea " * 80))
    assert first(found) == "short-reply"


def test_a_slow_real_draft_is_named() -> None:
    """The draft sleeps, the target does not: whatever the machine is doing, the ratio is far above the threshold."""
    pair = pair_of(draft=slow(runner(tiny(), 512), 0.05))
    causes = [finding.cause for finding in examined(pair, Settings(3, Sampling(1.0), "model")).findings]
    assert "slow-draft" in causes and "weak-draft" not in causes


def test_an_examination_says_what_it_does_and_leaves_the_pair_as_new() -> None:
    pair, said = pair_of(), []
    subject = Subject("a test", (Message("user", "hello"),))
    found = diagnose(pair, subject, Settings(0), lambda: False, said.append, Surroundings(lambda: 2, 3.0))
    assert found is not None and found.evidence.waiting == 2 and found.evidence.waited_s == 3.0
    assert set(found.evidence.others) == {"ngram", "model"} and found.evidence.gamma == 4
    assert found.evidence.prompt_tokens > 0 and found.evidence.verify_s[1] > 0
    assert any("plain" in str(line) for line in said)
    again = diagnose(pair, subject, Settings(4), lambda: False, said.append)
    assert again is not None and again.evidence.memory is not None


def test_what_was_measured_without_the_guard_says_so() -> None:
    said: list[object] = []
    subject = Subject("a test", (Message("user", "hello"),))
    pair = pair_of()
    found = diagnose(pair, subject, Settings(4, drafter="model", guard=True), lambda: False, said.append)
    assert found is not None and pair.engine.pilots == {}
    without = replace(found, settings=Settings(4, drafter="model"))
    assert "with the settings in force (the guard left out)" in str(said[0])
    for words in (told, view.headline):
        assert "(the guard left out)" in words(found) and "guard" not in words(without)


def test_that_the_chats_cache_is_lost_is_told_beforehand() -> None:
    for page in (view, proof_view, race_view):
        assert "its next message is read again" in page.empty()


def test_a_cancelled_examination_is_none_and_a_pair_without_drafters_is_a_sentence() -> None:
    subject = Subject("a test", (Message("user", "hello"),))
    assert diagnose(pair_of(), subject, Settings(), lambda: True, lambda news: None) is None
    alone = pair_of()
    alone.engine.drafters.clear()
    with pytest.raises(ValueError, match="cannot speculate"):
        diagnose(alone, subject, Settings(), lambda: False, lambda news: None)


def test_the_command_tells_the_findings_in_words_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(save_tiny(tmp_path / "t", tiny()))
    draft = str(save_tiny(tmp_path / "d", noisy_copy(tiny(), 0.05)))
    common = ["doctor", "hello", "--target", target, "--draft", draft, "--context", "256"]
    assert cli.main(common) == 0
    out = capsys.readouterr().out
    assert "your text:" in out and "1. " in out and "measured:" in out
    assert cli.main([*common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] and found["plain_s"] > 0 and "remedy" in found["findings"][0]
