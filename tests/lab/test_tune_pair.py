"""Tuning on a real tiny pair: what is measured, remembered and continued. No assertion on speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specchat.decode.sampling import Sampling
from specchat.lab import tune_record, tune_start
from specchat.lab.suite import Prompt
from specchat.lab.tune import Outcome
from specchat.lab.tune_advice import Advice
from specchat.lab.tune_bed import PairBed
from specchat.lab.tune_identity import identity_of
from specchat.lab.tune_memory import changed_at, remember, remembered
from specchat.lab.tune_plan import (
    PLAIN,
    Plan,
    Variant,
    built_in,
    misaligned,
    own_prompts,
    plan_of,
    prompts_from,
)
from tests.rigs import runner, tiny
from tests.worker.jobs import pair_of

PLAN = Plan(
    own_prompts("hello\nwhat is that?"), 24, sampling=Sampling(0.7, 20), drafter="model", gammas=(2, 3)
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECCHAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def pair():
    return pair_of()


def test_a_whole_run_has_every_unit_with_its_tokens_and_is_remembered(pair, tmp_path: Path) -> None:
    seen: list[Outcome] = []
    outcome = tune_start.tune(pair, PLAN, tmp_path / "r.jsonl", put=seen.append)
    assert outcome.complete and outcome.advice is not None and outcome.facts["remembered"] is True
    assert all(unit.emitted == 24 and unit.tokens > 0 and unit.seconds > 0 for unit in outcome.units)
    sweep = {unit.variant for unit in outcome.units if unit.wave == "sweep 1"}
    assert sweep >= {PLAIN, Variant(2, "model"), Variant(3, "model")}
    assert sum(variant.misaligned for variant in sweep) == 1
    assert {u.drafter for u in outcome.units if u.wave == "drafters"} == {"", "chain", "model", "ngram"}
    assert seen[1].prediction is not None and not seen[1].units, (
        "the prediction is shown before anything is measured"
    )
    assert [s.progress.done for s in seen[2:-1]] == sorted(s.progress.done for s in seen[2:-1])
    assert all(s.progress.done <= s.progress.total for s in seen)
    found = remembered(pair, replace(PLAN.sampling, seed=99))
    assert found is not None and found.gamma == outcome.advice.gamma
    assert remembered(pair, Sampling(0.1)) is None, "another sampling, another recommendation"
    warm = [turn for turn in outcome.turns if turn.warm]
    cold = {turn.turn: turn for turn in outcome.turns if not turn.warm}
    assert [turn.turn for turn in warm] == [2, 3]
    for turn in warm:
        assert turn.prompt_tokens == cold[turn.turn].prompt_tokens
        assert turn.read < cold[turn.turn].read == turn.prompt_tokens - 1


def test_what_could_not_be_remembered_is_told_and_keeps_the_other_remarks(pair, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(tune_start, "remember", full)
    long = Prompt("long", "own", "word " * 2000)
    outcome = tune_start.tune(pair, replace(PLAN, prompts=(long, PLAN.prompts[0])), None)
    assert outcome.complete and outcome.facts["remembered"] is False
    assert "1 prompt was left out" in outcome.remarks[0]
    assert "could not be remembered: disk full" in outcome.remarks[1]


def test_a_draft_that_draws_otherwise_is_accepted_less() -> None:
    """The tiny pair's laws are broad, so a draft at temperature 1 without top-k strays far from top-k 2 at 0.3."""
    bed = PairBed(pair_of(draft=runner(tiny(), 512)))
    plan = Plan(own_prompts("hello"), 200, sampling=Sampling(0.3, 2), drafter="model")
    units = [
        bed.unit(plan, "sweep 1", Variant(4, "model", apart), plan.prompts[0], 0, lambda: False)
        for apart in (False, True)
    ]
    aligned, apart = (unit.accepted / unit.drafted for unit in units if unit is not None)
    assert aligned == pytest.approx(1.0, abs=0.02), "the draft is the target itself"
    assert apart < aligned - 0.1


def test_stop_and_resume_on_the_real_thing(pair, tmp_path: Path) -> None:
    path = tmp_path / "tune" / "r.jsonl"
    count = 0

    def after_five(outcome: Outcome) -> None:
        nonlocal count
        count = outcome.progress.done

    stopped = tune_start.tune(pair, PLAN, path, lambda: count >= 5, after_five)
    assert not stopped.complete and len(stopped.units) == 5
    assert remembered(pair, PLAN.sampling) is None, "half a run recommends nothing"
    found = tune_start.unfinished(identity_of(pair), path.parent)
    assert found == (path, PLAN)
    outcome = tune_start.tune(pair, found[1], found[0])
    assert outcome.complete
    assert outcome.units[:5] == stopped.units
    assert len({unit.place for unit in outcome.units}) == len(outcome.units)
    assert tune_start.unfinished(identity_of(pair), path.parent) is None
    assert tune_start.unfinished({"target": "other"}, path.parent) is None


def test_a_cancelled_run_leaves_the_pair_usable(pair, tmp_path: Path) -> None:
    outcome = tune_start.tune(pair, PLAN, tmp_path / "r.jsonl", lambda: True)
    assert not outcome.complete and not outcome.units
    bed = PairBed(pair)
    assert bed.unit(PLAN, "sweep 1", PLAIN, PLAN.prompts[0], 0, lambda: False) is not None


def test_prompts_that_do_not_fit_are_left_out_with_a_note_and_none_at_all_is_a_sentence(pair) -> None:
    long = Prompt("long", "own", "word " * 2000)
    plan, notes = tune_start.fitting(pair, replace(PLAN, prompts=(long, *PLAN.prompts)))
    assert plan.prompts == PLAN.prompts
    assert notes == ["1 prompt was left out: too long for the context of this pair."]
    with pytest.raises(ValueError, match="No prompt fits"):
        tune_start.fitting(pair, replace(PLAN, prompts=(long,)))


def test_old_records_make_room(tmp_path: Path) -> None:
    for i in range(tune_start.KEPT + 3):
        (tmp_path / f"2020010{i % 10}-{i:06}.jsonl").write_text("", encoding="utf-8")
    tune_start.new_record(tmp_path).write_text("", encoding="utf-8")
    assert len(list(tmp_path.glob("*.jsonl"))) == tune_start.KEPT


# -- what is remembered ------------------------------------------------------------------------------


def test_a_broken_or_foreign_memory_is_as_none(pair, cache: Path) -> None:
    assert changed_at() == 0
    advice = Advice(3, "chain", 1.4, 60.0, "γ 3", "because", ())
    path = remember(identity_of(pair), Sampling(), advice)
    assert remembered(pair, Sampling(seed=5)) is not None
    assert changed_at() > 0
    good = path.read_text(encoding="utf-8")
    for text in ("{", "[]", '{"tuned": 3}', good.replace('"gamma": 3', '"gamma": 99'), good.replace('"chain"', '"other"'),
                 good.replace('"because"', "7"), good.replace('"when"', '"whence"')):  # fmt: skip
        path.write_text(text, encoding="utf-8")
        assert remembered(pair, Sampling()) is None, text
    remember(identity_of(pair), Sampling(), advice)
    assert remembered(pair, Sampling()) is not None, "a broken file is replaced"


# -- plans -----------------------------------------------------------------------------------------


def test_own_prompts_are_lines_or_blocks() -> None:
    assert [p.text for p in own_prompts("one\ntwo\r\nthree ")] == ["one", "two", "three"]
    assert [p.text for p in own_prompts("a\nb\n\n \n\nc")] == ["a\nb", "c"]
    assert len({p.id for p in own_prompts("same\nsame")}) == 2
    with pytest.raises(ValueError, match="no prompt"):
        own_prompts(" \n\n ")


def test_prompts_come_from_a_number_a_text_or_a_suite(tmp_path: Path) -> None:
    assert [p.category for p in prompts_from("3", quick=True)] == ["code", "summary", "questions"]
    assert len(prompts_from(None, quick=True)) == len(built_in(True)) == 6
    text = tmp_path / "mine.txt"
    text.write_text("first\nsecond", encoding="utf-8")
    assert [p.text for p in prompts_from(str(text), quick=True)] == ["first", "second"]
    suite = tmp_path / "mine.json"
    suite.write_text('{"prompts": [{"id": "x", "category": "y", "prompt": "z"}]}', encoding="utf-8")
    assert prompts_from(str(suite), quick=True) == (Prompt("x", "y", "z"),)
    for wrong in ("0", str(tmp_path / "missing.txt"), str(tmp_path)):
        with pytest.raises(ValueError, match=r"too few|neither a number"):
            prompts_from(wrong, quick=True)


def test_a_plan_survives_its_record_and_impossible_ones_are_refused() -> None:
    assert plan_of(PLAN.data()) == PLAN
    for change in ({"prompts": ()}, {"tokens": 3}, {"seeds": ()}, {"gammas": (0,)}, {"gamma": 17}):
        with pytest.raises(ValueError):
            replace(PLAN, **change)
    with pytest.raises(ValueError, match="no tuning plan"):
        plan_of({"prompts": 3})


def test_misaligned_is_never_the_same() -> None:
    for sampling in (Sampling(), Sampling(1.0, 0, seed=3), Sampling(0.0)):
        assert misaligned(sampling) != replace(sampling, seed=None)


def test_a_record_keeps_what_it_was_given(pair, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    outcome = tune_start.tune(pair, PLAN, path)
    plan, whose, record = tune_record.read(path)
    assert (plan, whose, record.complete) == (PLAN, identity_of(pair), True)
    assert tuple(record.units) == outcome.units and tuple(record.turns) == outcome.turns
    assert record.prediction == outcome.prediction
