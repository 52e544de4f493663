"""The race: what is run, in which order, what is counted, and what is said where the texts part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specchat.decode.engine import Settings
from specchat.decode.events import Finished, Round
from specchat.decode.ids import Ids
from specchat.decode.sampling import Sampling
from specchat.decode.stats import Stats
from specchat.lab.measure import Sample, forget, measure, prompt_ids
from specchat.lab.race import WARM_TOKENS, Began, Lane, Lap, Race, Run, Spread, order, plain, race
from specchat.lab.race_texts import Comparison, Text, compare
from specchat.pair import Pair
from tests.fakes import Script, Watched, arbitrary, failing, logs, writes
from tests.rigs import noisy, runner, tiny
from tests.tiny import TINY_VOCAB
from tests.worker.jobs import END, GREEDY, TOKENIZER, pair_of

ON = GREEDY
FREE = Settings(4, Sampling(1.0, top_k=0), "model", 24)


def lanes(settings: Settings = ON) -> list[Lane]:
    return [Lane("A", plain(settings)), Lane("B", settings)]


def run(
    pair: Pair, given: Sequence[Lane], repeats: int = 1, cancelled=lambda: False
) -> tuple[Race, list[object]]:
    news: list[object] = []
    return race(pair, prompt_ids(pair, "hello"), given, repeats, cancelled, news.append), news


# -- what is run -----------------------------------------------------------------------------------


def test_the_order_is_rotated_and_every_lane_has_the_seed_of_its_repeat():
    assert [order(3, repeat) for repeat in range(3)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    three = [*lanes(FREE), Lane("C", replace(FREE, gamma=2))]
    found, news = run(pair_of(), three, 2)
    began = [event for event in news if isinstance(event, Began)]
    assert [(e.lane, e.repeat, e.warming, e.done) for e in began] == [
        (0, 0, True, 0), (1, 0, True, 0), (2, 0, True, 0),
        (0, 0, False, 0), (1, 0, False, 1), (2, 0, False, 2), (1, 1, False, 3), (2, 1, False, 4), (0, 1, False, 5),
    ]  # fmt: skip
    assert {e.runs for e in began} == {6}
    seeds = {r.repeat: r.sample.settings.sampling.seed for r in found.runs}
    assert all(r.sample.settings.sampling.seed == seeds[r.repeat] for r in found.runs)
    assert seeds == {0: found.seed, 1: found.seed + 1}
    assert [r.lane for r in found.heat(1)] == [0, 1, 2]


def test_a_race_is_repeated_by_its_seed_and_every_prompt_is_read_cold():
    pair = pair_of()
    first, _ = run(pair, lanes(FREE), 2)
    again, _ = run(pair, lanes(replace(FREE, sampling=replace(FREE.sampling, seed=first.seed))), 2)
    assert [r.sample.ids for r in again.runs] == [r.sample.ids for r in first.runs]
    for each in first.runs:
        assert each.sample.rounds[0].prefill is not None
        assert each.sample.rounds[0].prefill.reused == 0


def test_the_off_lane_is_a_plain_run_forward_for_forward():
    """Not by the clock: the same forwards of the target, and of the draft neither a forward nor a start."""
    target, draft = Watched(runner(tiny(), 512)), Watched(runner(noisy(), 512))
    pair = pair_of(target, draft)
    ids = prompt_ids(pair, "hello")
    forget(pair)
    bare = [e for e in pair.engine.generate(ids, lambda: plain(ON)) if isinstance(e, Round)]
    alone, target.rows[:] = list(target.rows), []
    seen: dict[tuple[int, bool], tuple[int, int]] = {}
    starts: list[int] = []
    drafter = pair.engine.drafters["model"]
    drafter.start = lambda *given, real=drafter.start: (starts.append(1), real(*given))[1]

    def put(event: object) -> None:
        if isinstance(event, Began):
            seen[event.lane, event.warming] = (len(target.rows), draft.calls)
        if isinstance(event, Run) and event.lane == 0:
            assert target.rows[seen[0, False][0] :] == alone
            assert draft.calls == seen[0, False][1], "the off lane had the draft at work"
            assert event.stats.draft_forwards == 0
            assert len(starts) == 1, "started by the other lane's warm-up alone"

    found = race(pair, ids, lanes(), 1, lambda: False, put)
    assert found.runs[0].stats.rounds == len(bare)
    assert found.runs[1].stats.draft_forwards > 0
    only = Watched(runner(noisy(), 512))
    race(pair_of(None, only), ids, lanes()[:1], 1, lambda: False, lambda event: None)
    assert only.calls == 0


def test_the_warm_up_is_not_counted_and_the_laps_tell_what_is_written():
    found, news = run(pair_of(), lanes(), 1)
    warm = [i for i, e in enumerate(news) if isinstance(e, Began) and e.warming]
    first = next(i for i, e in enumerate(news) if isinstance(e, Began) and not e.warming)
    assert max(warm) < first
    assert not any(isinstance(event, Lap) for event in news[:first])
    for each in found.runs:
        laps = [e for e in news if isinstance(e, Lap) and e.lane == each.lane]
        assert "".join(lap.text for lap in laps) + each.tail == each.text
        assert laps[-1].emitted == each.stats.emitted == len(each.sample.ids) > WARM_TOKENS
        assert [lap.at for lap in laps] == [beat.at for beat in each.beats]
        assert [len(beat.pieces) for beat in each.beats] == [len(r.tokens) for r in each.sample.rounds]


def test_cancelled_it_keeps_the_lanes_that_were_finished():
    whole, news = run(pair_of(), lanes(), 1)
    assert not whole.cancelled
    total = len([e for e in news if isinstance(e, Lap) and (e.lane, e.repeat) == (0, 0)])
    seen: list[object] = []
    pair = pair_of()

    def put(event: object) -> None:
        if isinstance(event, Lap):
            seen.append(event)

    found = race(pair, prompt_ids(pair, "hello"), lanes(), 3, lambda: len(seen) > total, put)
    assert found.cancelled
    assert [(r.lane, r.repeat) for r in found.runs] == [(0, 0)]
    assert len(seen) == total + 1, "stopped within a round"
    assert found.gain(1) is None
    assert found.comparisons == ()


def test_cancelled_at_once_there_is_nothing():
    found, _ = run(pair_of(), lanes(), 1, lambda: True)
    assert found.runs == ()
    assert found.cancelled


def test_a_target_that_fails_is_a_sentence_and_what_was_finished_is_kept():
    pair = pair_of(failing(runner(tiny(), 512), 45, RuntimeError("The weights are gone.")))
    found, _ = run(pair, lanes(), 1)
    assert found.problem == "The weights are gone."
    assert [r.lane for r in found.runs] == [0]
    again, _ = run(pair, lanes(), 1)
    assert not again.problem
    assert len(again.runs) == 2


@pytest.mark.parametrize(
    ("given", "repeats", "said"),
    [
        ([], 1, "lanes"),
        (lanes(), 6, "repeats"),
        ([Lane("A", plain(ON)), Lane("B", FREE)], 1, "sample alike"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: list[Lane], repeats: int, said: str):
    with pytest.raises(ValueError, match=said):
        run(pair_of(), given, repeats)


# -- numbers ---------------------------------------------------------------------------------------


def made(lane: int, repeat: int, tok_per_s: float) -> Run:
    stats = Stats(rounds=11, emitted=11, first_tokens=1, first_token_s=1.0, elapsed_s=1.0 + 10 / tok_per_s)
    return Run(lane, repeat, Sample(ON, [], stats, Finished("length", 11, stats.elapsed_s, 0, 0)), ())


def test_the_speed_up_is_told_with_its_spread_over_repeats_that_have_both():
    runs = (made(0, 0, 10), made(1, 0, 20), made(1, 1, 15), made(0, 1, 10), made(0, 2, 20), made(1, 2, 60),
            made(1, 3, 999))  # fmt: skip
    found = Race(tuple(lanes()), 4, 1, runs)
    gain = found.gain(1)
    assert gain is not None
    assert (gain.median, gain.low, gain.high, gain.count) == pytest.approx((2.0, 1.5, 3.0, 3))
    assert found.gain(0) == Spread(1.0, 1.0, 1.0, 3)
    speed = found.spread(0, lambda stats: stats.tok_per_s)
    assert speed is not None
    assert speed.median == pytest.approx(10)
    assert found.spread(2, lambda stats: stats.tok_per_s) is None


# -- texts -----------------------------------------------------------------------------------------


def text(*ids: int, reason: str = "length") -> Text:
    return Text(ids, (1.0,) * len(ids), reason)  # type: ignore[arg-type]


def law_of(row: Sequence[float]):
    return lambda prefix: row


def judged(row: Sequence[float], a: Text, b: Text, sampling: Sampling = GREEDY.sampling) -> Comparison:
    target = Script(law_of(row), len(row))
    return compare(pair_of(target, Script(law_of(row), len(row))), [5, 6], a, b, sampling, lambda: False)


ROW = [0.0] * 60 + [5.0, 5.0004, 2.0]
A, B, C = 60, 61, 62


def test_identical_texts():
    assert judged(ROW, text(A, B), text(A, B)).verdict == "identical"


def test_a_numerical_tie_is_told_with_its_gap():
    found = judged(ROW, text(A, A, B), text(A, B, A))
    assert found.verdict == "tie"
    assert found.place == 1
    assert found.first is not None
    assert found.other is not None
    assert (found.first.text, found.other.text) == (TOKENIZER.decode([A]), TOKENIZER.decode([B]))
    assert found.margin is not None
    assert found.margin.gap == pytest.approx(4e-4, rel=0.05)


def test_greedy_texts_that_part_at_a_clear_choice_are_a_fault():
    found = judged(ROW, text(A, A), text(A, C))
    assert found.verdict == "different", "the third best is no party to a tie of the best two"
    clear = judged([0.0] * 60 + [5.0, 7.5, 2.0], text(B), text(A))
    assert clear.verdict == "different"
    assert clear.margin is not None
    assert clear.margin.gap == pytest.approx(2.5, rel=1e-4)


def test_penalties_count_for_the_gap():
    """Without its penalty B would win by 2.5; both have been written once, so only the difference of 2.5 stays."""
    bent = Sampling(0.0, presence_penalty=2.4998)
    found = judged([0.0] * 60 + [5.0, 7.5, 2.0], text(B, A), text(B, B), bent)
    assert found.verdict == "tie"


def test_with_sampling_on_texts_may_differ():
    found = judged(ROW, text(A, C), text(A, B), Sampling(0.8))
    assert found.verdict == "sampling"
    assert found.place == 1
    assert found.margin is None


def test_one_text_that_only_ends_earlier():
    found = judged(ROW, text(A, B, C), text(A, B, reason="context"))
    assert (found.verdict, found.place, found.reason) == ("cut", 2, "context")
    assert found.other is None


def test_the_end_of_the_reply_is_named():
    end = next(iter(END))
    found = judged(ROW, text(A, end, reason="eos"), text(A, B), Sampling(0.8))
    assert found.first is not None
    assert found.first.text == "the end of the reply"


def test_a_stopped_race_judges_no_greedy_texts():
    target = Script(law_of(ROW), len(ROW))
    pair = pair_of(target, Script(law_of(ROW), len(ROW)))
    assert compare(pair, [5], text(A), text(B), GREEDY.sampling, lambda: True).verdict == "unknown"


def test_a_real_race_of_greedy_lanes_is_identical():
    found, _ = run(pair_of(), lanes(), 2)
    assert [c.verdict for c in found.comparisons] == ["identical", "identical"]
    assert [(c.lane, c.repeat) for c in found.comparisons] == [(1, 0), (1, 1)]


def test_a_real_race_of_sampled_lanes_parts_and_says_why():
    found, _ = run(pair_of(), lanes(replace(FREE, sampling=replace(FREE.sampling, seed=3))))
    one = found.compared(1, 0)
    assert one is not None
    assert one.verdict == "sampling"
    assert one.first is not None
    assert 0 < one.first.p < 1


class Bent(Script):
    """A target whose block forwards are wrong: the second row of a block prefers another id than it should."""

    def forward(self, ids: Ids) -> Tensor:
        logits = super().forward(ids)
        if len(ids) == 5:  # A verification; prompts are read in other lengths here.
            logits[1] = torch.tensor(logs([float(i == 70) for i in range(self.vocab)]))
        return logits


def test_a_broken_verification_is_found_by_a_race():
    ids = list(range(65, 90))
    scratch = pair_of(
        Script(arbitrary(1, TINY_VOCAB), TINY_VOCAB), Script(arbitrary(1, TINY_VOCAB), TINY_VOCAB)
    )
    law = writes(ids, len(prompt_ids(scratch, "hello")), TINY_VOCAB)
    pair = pair_of(Bent(law, TINY_VOCAB), Script(law, TINY_VOCAB))
    found, _ = run(pair, lanes())
    one = found.compared(1, 0)
    assert not found.problem
    assert one is not None
    assert one.verdict == "different"
    assert one.margin is not None
    assert not one.margin.tie


def test_no_run_begins_with_what_another_has_learnt():
    """Adaptive γ starts each run with the rounds that measure its parts, whatever ran before, and in the chat."""
    pair = pair_of()
    adaptive = replace(ON, gamma=8, adaptive=True, max_new_tokens=32)
    ids = prompt_ids(pair, "hello")
    first = [[event.choice for event in measure(pair, ids, adaptive).rounds[:2]] for _ in range(2)]
    assert first == [["measuring each part of a round"] * 2] * 2
    assert pair.engine.pilots == {}


def test_measure_and_race_count_alike():
    pair = pair_of()
    found, _ = run(pair, lanes())
    alone = measure(
        pair, prompt_ids(pair, "hello"), replace(ON, sampling=replace(ON.sampling, seed=found.seed))
    )
    assert found.runs[1].sample.ids == alone.ids
    assert found.runs[1].stats.drafted == alone.stats.drafted
