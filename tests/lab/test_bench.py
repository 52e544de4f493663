"""The benchmark's bookkeeping, with contestants whose speed is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specchat.lab import bench, report, suite
from specchat.lab.contestants import Run


class Known:
    """Takes a known time for each token; notes the order in which it was asked."""

    def __init__(self, name: str, per_token: float, asked: list[str], fails_at: int = -1) -> None:
        self.name = name
        self.per_token = per_token
        self.asked = asked
        self.fails_at = fails_at

    def run(self, ids: Sequence[int], tokens: int, seed: int) -> Run:
        self.asked.append(self.name)
        if len(self.asked) == self.fails_at:
            raise KeyboardInterrupt
        # A machine that slows down from unit to unit: only paired ratios are right then.
        drift = 1 + len(ids)
        return Run(tokens, tokens * self.per_token * drift, {"rounds": tokens / 2, "emitted": tokens})


PROMPTS = (
    suite.Prompt("c1", "code", "a"),
    suite.Prompt("s1", "summary", "bb"),
    suite.Prompt("c2", "code", "ccc"),
)
PROTOCOL = bench.Protocol(PROMPTS, 10, (0, 1))


def measure(record: Path, *contestants: Known) -> list[bench.Result]:
    return bench.run(
        contestants, PROTOCOL, lambda text: list(range(len(text))), record, {"pair": "x"}, lambda line: None
    )


def test_contestants_take_turns_and_the_first_place_rotates(tmp_path: Path) -> None:
    asked: list[str] = []
    measure(tmp_path / "r", Known("a", 1, asked), Known("b", 2, asked))
    warm_up, rest = asked[:2], asked[2:]
    assert warm_up == ["a", "b"]
    assert rest == ["a", "b", "b", "a"] * 3


def test_ratios_are_paired_so_a_drifting_machine_does_not_change_them(tmp_path: Path) -> None:
    results = measure(tmp_path / "r", Known("slow", 2, []), Known("fast", 0.5, []))
    assert report.ratios(results, "fast", "slow") == pytest.approx([4.0] * 6)
    assert report.ratio(results, "fast", "slow") == pytest.approx(4.0)
    table = report.table(results, "slow")
    assert "| fast | 6 |" in table
    assert "4.00×" in table
    assert "2.00 |" in table, "tokens a round"


def test_a_run_that_was_stopped_is_continued_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    record, asked = tmp_path / "r", []
    with pytest.raises(KeyboardInterrupt):
        measure(record, Known("a", 1, asked, fails_at=10), Known("b", 2, asked))
    before = len(bench.read(record)[1])
    assert before == 7
    with record.open("a") as file:
        file.write('{"contestant": "a", "pro')
    again: list[str] = []
    results = measure(record, Known("a", 1, again), Known("b", 2, again))
    assert len(again) == 2 + 12 - before
    assert len({(r.contestant, r.prompt, r.seed) for r in results}) == len(results) == 12
    assert measure(record, Known("a", 1, again), Known("b", 2, again)) == results


def test_a_sample_for_the_slow_is_part_of_the_record_and_apart_from_the_rest(tmp_path: Path) -> None:
    assert PROTOCOL.sample(3, 10) == bench.Protocol(PROMPTS, 10, (0,), bench.SAMPLE), "a seed is left out"
    sample = PROTOCOL.sample(2, 5)
    assert sample == bench.Protocol(PROMPTS[:2], 5, (0,), bench.SAMPLE)
    assert bench.Protocol(PROMPTS, 10, (0,)).sample(3, 10) is None, "the sample would be all of it"
    record, asked = tmp_path / "r", []

    def run(protocol: bench.Protocol, *who: Known) -> list[bench.Result]:
        facts: dict[str, object] = {"pair": "x", "tokens": 10}
        return bench.run(who, protocol, lambda text: [0] * len(text), record, facts, lambda line: None)

    for _ in range(2):
        both = run(sample, Known("ours", 1, asked), Known("slow", 9, asked))
        alone = run(PROTOCOL, Known("ours", 1, asked))
    assert len(asked) == 2 + 4 + 1 + 6, "warm-ups, the sample, the whole; and nothing again"
    assert [r.tokens for r in both] == [5] * 4 and [r.tokens for r in alone] == [10] * 6
    assert len(bench.read(record)[1]) == 10


def test_a_record_of_another_protocol_or_a_foreign_file_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "r"
    measure(record, Known("a", 1, []))
    other = bench.Protocol(PROMPTS, 11, (0,))
    with pytest.raises(ValueError, match="another pair or token count"):
        bench.run([Known("a", 1, [])], other, lambda text: [0], record, {"pair": "x"}, lambda line: None)
    foreign = tmp_path / "f"
    foreign.write_text("name,age\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not a benchmark record"):
        bench.read(foreign)


def test_the_suite_has_ten_prompts_of_each_kind_and_samples_are_balanced() -> None:
    prompts = suite.load()
    counts = {kind: sum(p.category == kind for p in prompts) for kind in ("code", "summary", "questions")}
    assert counts == {"code": 10, "summary": 10, "questions": 10}
    assert len({p.id for p in prompts}) == 30
    assert [p.category for p in suite.sample(prompts, 6)] == ["code", "summary", "questions"] * 2


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    results = measure(tmp_path / "r", Known("a", 1, []), Known("b", 2, []))
    report.plot(results, "a", tmp_path / "p.svg")
    picture = ElementTree.parse(tmp_path / "p.svg").getroot()
    texts = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any("0.50×" in text for text in texts), texts


def test_the_measured_bandwidth_is_plausible() -> None:
    assert 1e8 < bench.read_bandwidth(1 << 24, 3) < 1e13
