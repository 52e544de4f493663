"""Tuning runs over beds whose best γ is known: order, resuming, what is recommended and why."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specchat.lab import tune, tune_record
from specchat.lab.tune import Outcome, Progress, Tuning
from specchat.lab.tune_bed import Unit
from specchat.lab.tune_plan import PLAIN, Plan, Variant
from specchat.lab.tune_probe import Prediction
from specchat.lab.tune_record import Record
from specchat.lab.tune_sums import sums
from specchat.lab.tune_sweep import check, following, guided, score, sweep_scores
from specchat.lab.tune_table import (
    cache_table,
    category_table,
    lines,
    markdown,
    prediction_table,
    stage_table,
)
from tests.lab.tune_beds import PLAN, Planted


def tuned(bed: Planted, plan: Plan = PLAN, record: Record | None = None) -> Outcome:
    return Tuning(bed, plan, record or Record(), bed.cancelled, lambda outcome: None).run()


@pytest.mark.parametrize(
    ("alpha", "c", "v"),
    [(0.7, 0.08, 0.03), (0.9, 0.05, 0.01), (0.4, 0.1, 0.05), (0.8, 0.02, 0.15), (0.95, 0.01, 0.0)],
)
def test_the_planted_best_gamma_is_recommended(alpha: float, c: float, v: float) -> None:
    bed = Planted(alpha, c, v)
    outcome = tuned(bed)
    assert outcome.advice is not None
    assert bed.speedup(outcome.advice.gamma) >= 0.99 * bed.speedup(bed.best())
    assert outcome.advice.speedup == pytest.approx(bed.speedup(bed.best()), rel=0.03)


@pytest.mark.parametrize("wrong", [0.4, 0.7, 1.3])
def test_a_probe_that_is_wrong_about_alpha_is_put_right_by_measuring(wrong: float) -> None:
    bed = Planted(0.75, 0.06, 0.03, wrong=wrong)
    outcome = tuned(bed)
    assert outcome.advice is not None
    assert bed.speedup(outcome.advice.gamma) >= 0.97 * bed.speedup(bed.best())


def test_an_exhaustive_run_measures_every_gamma_and_checks_the_guided_choice() -> None:
    bed = Planted()
    outcome = tuned(bed, replace(PLAN, exhaustive=True))
    scores = sweep_scores(outcome.units, "chain")
    assert sorted(scores) == list(range(1, 9))
    assert outcome.advice is not None
    assert outcome.advice.checked is not None
    found = outcome.advice.checked
    assert found.best == found.chosen == bed.best(limit=8) == outcome.advice.gamma
    assert found.holds
    assert found.sentence in outcome.advice.remarks
    assert len(found.visited) < 8, "a guided sweep measures less"


def test_the_check_tells_when_a_guided_sweep_would_have_missed_the_best() -> None:
    prediction = Planted().probe(PLAN, "chain", lambda: False)
    assert prediction is not None
    scores = {1: 1.2, 2: 1.3, 3: 1.4, 4: 1.35, 5: 1.3, 6: 1.2, 7: 1.1, 8: 1.9}
    found = check(prediction, scores)
    assert 8 not in found.visited
    assert (found.chosen, found.best, found.holds) == (3, 8, False)
    assert found.shortfall == pytest.approx(1.9 / 1.4 - 1)
    assert "more than the 3 %" in found.sentence


def test_the_sweep_stops_when_the_trend_has_turned_or_the_curve_has_nothing_left() -> None:
    prediction = Planted(0.7, 0.08, 0.03).probe(PLAN, "chain", lambda: False)
    assert prediction is not None
    best = prediction.best()
    turned = {gamma: prediction.speedup(gamma) for gamma in range(best - 2, best + 3)}
    assert following(prediction, turned) == ()
    rising = {gamma: 1 + 0.2 * gamma for gamma in range(1, 4)}
    assert following(prediction, rising)[0] == 4
    assert guided(prediction, turned | {1: prediction.speedup(1)}) == tuple(sorted({1, *turned}))


def test_variants_take_turns_the_first_place_rotates_and_the_drift_does_not_count() -> None:
    bed = Planted()
    outcome = tuned(bed)
    first = [asked for asked in bed.asked if asked[0] == "sweep 1"]
    width = len({key for _, key, _, _ in first})
    starts = [first[i * width][1] for i in range(len(first) // width)]
    assert len(set(starts)) == min(width, len(starts)), "another variant begins each unit"
    for gamma in sweep_scores(outcome.units, "chain"):
        assert score(outcome.units, Variant(gamma, "chain")) == pytest.approx(bed.speedup(gamma), rel=0.02)
    assert bed.warmed == 0, "the probe has warmed everything up"


def test_the_stages_come_in_order_and_misaligned_sampling_is_seen_to_cost() -> None:
    outcome = tuned(Planted(drafters=("chain", "model"), alphas={"chain": 0.7, "model": 0.5}))
    stages = [line.stage for line in lines(outcome)]
    assert stages == sorted(stages)
    assert [s[2:] for s in dict.fromkeys(stages)] == [
        "baseline",
        "misaligned",
        "aligned",
        "γ sweep",
        "drafter",
    ]
    at = outcome.gamma
    aligned, apart = (score(outcome.units, Variant(at, "chain", m)) for m in (False, True))
    assert apart < aligned
    rows = stage_table(outcome)
    assert rows[-1][0] == "6 prefix cache" and "0.30 s instead of 1.00 s (30 of 100 ids read)" in rows[-1][1]
    assert all(len(row) == len(rows[0]) for row in rows)
    assert category_table(outcome)[0] == ("stage", "change", "code", "summary")
    assert cache_table(outcome.turns)[1] == ("2", "100", "99", "30", "1.00 s", "0.30 s", "70%")
    assert markdown(rows).count("\n") == len(rows)
    overheads = [row[-1] for row in prediction_table(outcome)[1:]]
    assert all(abs(int(cell.rstrip("%"))) <= 3 for cell in overheads), overheads


def test_a_faster_drafter_is_recommended_instead() -> None:
    bed = Planted(drafters=("chain", "model"), alphas={"chain": 0.4, "model": 0.8})
    outcome = tuned(bed)
    assert outcome.advice is not None
    assert outcome.advice.drafter == "model"
    assert "model" in outcome.advice.headline
    assert any("chain" in remark for remark in outcome.advice.remarks)


def test_the_reason_is_built_from_what_was_measured() -> None:
    bed = Planted(0.7, 0.08, 0.03)
    advice = tuned(bed).advice
    assert advice is not None
    gamma = advice.gamma
    share = gamma * bed.c / (gamma * bed.c + bed.v(gamma))
    assert f"× {gamma} is {share:.0%} of the round" in advice.reason
    assert f"kept {0.7 ** (gamma + 1):.0%} of the time and costs more than it saves" in advice.reason
    assert f"{advice.speedup:.2f}× plain decoding" in advice.headline


def test_the_reason_of_a_draft_that_often_proposes_less_adds_up() -> None:
    class Sparing(Planted):
        """Proposes half of what it might, as n-grams do that find nothing."""

        def planted(self, *args: Any) -> Unit:
            unit = super().planted(*args)
            return replace(unit, drafted=unit.drafted // 2)

    outcome = tuned(Sparing(0.7, 0.08, 0.03))
    assert outcome.advice is not None
    said = re.search(
        r"a round drafts ([\d.]+) tokens on average, ([\d.]+) ms each, which is (\d+)% of the round",
        outcome.advice.reason,
    )
    assert said is not None, outcome.advice.reason
    drafted, each, share = map(float, said.groups())
    measured = sums(outcome.units, Variant(outcome.advice.gamma, outcome.advice.drafter))
    assert drafted * each / 1e3 / measured.round_s == pytest.approx(share / 100, rel=0.1)


def test_the_time_left_is_reckoned_from_the_units_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(tune.time, "monotonic", lambda: now)

    class Slow(Planted):
        """A probe of a hundred seconds, then a unit a second."""

        def probe(self, *args: Any) -> Prediction | None:
            nonlocal now
            now += 100
            return super().probe(*args)

        def unit(self, *args: Any) -> Unit | None:
            nonlocal now
            now += 1
            return super().unit(*args)

    seen: list[Progress] = []
    bed = Slow(stop_after=3)
    Tuning(
        bed, PLAN, tune_record.Record(), bed.cancelled, lambda outcome: seen.append(outcome.progress)
    ).run()
    first = next(progress for progress in seen if progress.done == 1)
    assert first.seconds_left == pytest.approx(first.total - 1)


def test_off_is_recommended_with_its_reason_where_speculation_does_not_pay() -> None:
    advice = tuned(Planted(0.2, 0.5, 0.1)).advice
    assert advice is not None
    assert advice.gamma == 0
    assert advice.headline.startswith("Speculation off")
    assert "drafting is" in advice.reason and "plain decoding writes" in advice.reason


def test_a_pair_without_a_drafter_gets_a_baseline_and_a_sentence() -> None:
    outcome = tuned(Planted(drafters=(), alphas={}))
    assert {unit.variant for unit in outcome.units} == {PLAIN}
    assert outcome.advice is not None
    assert "cannot speculate" in outcome.advice.reason
    assert stage_table(outcome)[1][0] == "1 baseline"


def test_ties_are_told() -> None:
    class Noisy(Planted):
        def unit(self, plan, wave, variant, prompt, seed, cancelled):
            found = super().unit(plan, wave, variant, prompt, seed, cancelled)
            return found and replace(
                found, seconds=found.seconds * (1 + 0.1 * ((len(self.asked) * 7) % 5 - 2))
            )

    advice = tuned(Noisy()).advice
    assert advice is not None
    assert ", ± " in advice.headline
    busy = tuned(Noisy(), replace(PLAN, seeds=(0,), prompts=PLAN.prompts[:2])).advice
    assert busy is not None
    assert any("vary much" in remark for remark in busy.remarks)
    assert any("cannot be told from" in remark for remark in advice.remarks), advice.remarks


def test_a_slow_machine_runs_fewer_prompts_each_category_at_least_once() -> None:
    bed = Planted()
    outcome = tuned(bed, replace(PLAN, budget_s=1.0))
    assert [prompt.id for prompt in outcome.plan.prompts] == ["code-01", "summary-01"]
    assert {unit.prompt for unit in outcome.units} == {"code-01", "summary-01"}
    assert outcome.complete
    assert any("2 of 4 prompts were left out" in remark for remark in outcome.remarks)
    assert outcome.progress.done == outcome.progress.total
    whole = tuned(Planted(), replace(PLAN, budget_s=1e6))
    assert len(whole.plan.prompts) == 4 and not whole.remarks


# -- stopping and going on ---------------------------------------------------------------------------


def test_a_stopped_run_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    whole = Planted()
    expected = tuned(whole)
    asked: list[tuple[str, str, str, int]] = []
    for stop_after in (7, 11, None):
        bed = Planted(stop_after=stop_after)
        record = tune_record.open_record(path, PLAN, bed.identity, {})
        outcome = tuned(bed, record=record)
        assert outcome.complete is (stop_after is None)
        asked += bed.asked
        with path.open("a") as file:
            file.write("" if stop_after is None else '{"unit": {"wave": "swe')
    assert asked == whole.asked
    assert bed.probes == 0, "the prediction is kept, so the same γ follow"
    assert bed.warmed == 1, "a fresh start is warmed up before anything counts"
    assert outcome.advice is not None and expected.advice is not None
    assert outcome.advice.gamma == expected.advice.gamma
    again = Planted(stop_after=0)
    assert tuned(again, record=tune_record.open_record(path, PLAN, again.identity, {})).complete
    assert (again.asked, again.scripts) == ([], 0)


def test_a_stopped_run_shows_what_there_is() -> None:
    outcome = tuned(Planted(stop_after=5))
    assert not outcome.complete
    assert len(outcome.units) == 5
    assert stage_table(outcome)


@pytest.mark.parametrize(
    ("bed", "plan", "words"),
    [
        (Planted(target="another"), PLAN, "another pair"),
        (Planted(), replace(PLAN, tokens=65), "other tokens"),
        (Planted(), replace(PLAN, seeds=(3,)), "other seeds"),
    ],
)
def test_a_record_of_another_pair_or_plan_is_refused(
    tmp_path: Path, bed: Planted, plan: Plan, words: str
) -> None:
    path = tmp_path / "r.jsonl"
    mine = Planted(stop_after=3)
    tuned(mine, record=tune_record.open_record(path, PLAN, mine.identity, {}))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=words):
        tune_record.open_record(path, plan, bed.identity, {})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text", ["name,age\n", "{}\n", '{"tune": 99}\n', "[1]\n", "\n", '{"tune": 1, "plan": 3, "identity": 4}\n']
)
def test_a_foreign_file_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"not a tuning record|another pair"):
        tune_record.open_record(path, PLAN, Planted().identity, {})
    with pytest.raises(ValueError, match="not a tuning record"):
        tune_record.read(path)
    assert path.read_text(encoding="utf-8") == text
