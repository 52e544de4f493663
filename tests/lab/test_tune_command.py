"""`python -m specchat tune` over a tiny pair: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specchat import cli
from specchat.lab import tune_command
from specchat.lab.tune_words import duration
from tests.worker.jobs import pair_of


@pytest.fixture(autouse=True)
def tiny_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tune_command, "open_pair", lambda options, progress: pair_of())


def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("hello\nwhat is that?", encoding="utf-8")
    return str(path)


def test_it_prints_prediction_stages_and_recommendation_and_writes_its_files(tmp_path: Path, capsys) -> None:
    record = tmp_path / "r.jsonl"
    command = [
        "tune", "--quick", "--prompts", prompts(tmp_path), "--tokens", "16", "--gammas", "1,2", "--drafter", "model",
        "--html", str(tmp_path / "r.html"), "--json", str(tmp_path / "r.json"), "--record", str(record),
    ]  # fmt: skip
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    for words in ("Predicted", "1 baseline", "3 aligned", "γ 2", "6 prefix cache", "Recommended:"):
        assert words in out, words
    assert "runs, about" in err and f"Record: {record}" in err
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    before = record.read_bytes()
    assert cli.main([*command[:-6], "--json", "-", "--record", str(record)]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["units"] == found["units"], "a finished record is only told again"
    assert record.read_bytes() == before


def test_exhaustive_prints_the_check(tmp_path: Path, capsys) -> None:
    assert (
        cli.main(["tune", "--quick", "--prompts", prompts(tmp_path), "--tokens", "12", "--exhaustive"]) == 0
    )
    out = capsys.readouterr().out
    assert "Check: a guided sweep measures γ 1" in out
    assert "| γ 8 " in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gammas", "two"], "--gammas is 'two'"),
        (["--gammas", "0,3"], "between 1 and 16"),
        (["--tokens", "2"], "too few"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--prompts", "missing.txt"], "neither a number"),
        (["--prompts", "0"], "too few"),
        (["--temperature", "-1"], "temperature"),
        (["--html", "/nowhere/at/all.html"], "There is no folder"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(arguments, words, capsys, monkeypatch) -> None:
    monkeypatch.setattr(tune_command, "open_pair", lambda *_: pytest.fail("loaded"))
    assert cli.main(["tune", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_a_record_of_another_plan_is_refused_with_a_sentence(tmp_path: Path, capsys) -> None:
    record = tmp_path / "r.jsonl"
    base = ["tune", "--prompts", prompts(tmp_path), "--seeds", "1", "--gammas", "1", "--record", str(record)]
    assert cli.main([*base, "--tokens", "12"]) == 0
    assert cli.main([*base, "--tokens", "13"]) == 1
    assert "was made with other tokens" in capsys.readouterr().err


def test_durations() -> None:
    assert duration(40) == "40 s"
    assert duration(200) == "3 min"
