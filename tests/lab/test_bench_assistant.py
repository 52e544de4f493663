"""The draft of transformers' assisted generation in a benchmark: the row says what it is, for either kind."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from specchat import cli
from specchat.lab import bench, bench_command
from specchat.lab.bench_arguments import add_arguments
from specchat.lab.contestants import HuggingFace
from specchat.model.catalog import PairOptions
from specchat.model.errors import BadCheckpoint, PairMismatch
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("target"), tiny_model("llama", num_hidden_layers=4)))


def assisted(target: str, *arguments: str) -> HuggingFace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--against", "hf", *arguments])
    found = bench_command._peers(args, PairOptions(target=target), lambda message: None)
    plain, last = (contestant for contestant in found if isinstance(contestant, HuggingFace))
    assert plain.name == "transformers" and plain.draft is None
    return last


def test_without_a_folder_the_row_says_untrained(target: str) -> None:
    row = assisted(target)
    assert row.name == "transformers, assisted by the target's first 2 layers (untrained)"
    assert row.draft is not None and row.draft.config.num_hidden_layers == 2
    assert row.run([5, 6, 7], 12, 0).tokens > 0


def test_a_folder_is_named_with_what_its_provenance_says(target: str, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "short-0.1", tiny_model("llama", seed=4))
    assert (
        assisted(target, "--assistant", str(folder)).name == "transformers, assisted by short-0.1 (2 layers)"
    )
    about = {"held_out": {"acceptance_by_position": [0.4567]}}
    (tmp_path / "short-0.1.json").write_text(json.dumps(about), encoding="utf-8")
    row = assisted(target, "--assistant", str(folder))
    assert row.name == "transformers, assisted by short-0.1 (2 layers, trained, held-out acceptance 0.46)"
    assert row.draft is not None and row.draft.dtype == row.model.dtype
    shared = {id(weight) for weight in row.model.parameters()} & {id(w) for w in row.draft.parameters()}
    assert not shared, "the folder's own weights"
    assert row.run([5, 6, 7], 12, 0).tokens > 0


def test_the_table_and_the_record_name_it(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "read_bandwidth", lambda: 1e10)
    folder = save_tiny(tmp_path / "short", tiny_model("llama", seed=4))
    record, plot = tmp_path / "record.jsonl", tmp_path / "plot.svg"
    sizes = ["--prompts", "1", "--tokens", "8", "--seeds", "1", "--gammas", "2", "--context", "256"]
    common = [
        "bench",
        "--target",
        target,
        "--draft",
        "shallow",
        "--against",
        "hf",
        "--assistant",
        str(folder),
    ]
    assert cli.main([*common, *sizes, "--out", str(record), "--plot", str(plot)]) == 0
    name = "transformers, assisted by short (2 layers)"
    assert f"| {name} | 1 |" in capsys.readouterr().out
    assert name in {result.contestant for result in bench.read(record)[1]}
    assert f">{name}</text>" in plot.read_text(encoding="utf-8")


def test_what_cannot_assist_is_refused_in_a_sentence(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadCheckpoint, match="is no folder"):
        assisted(target, "--assistant", str(tmp_path / "nothing"))
    other = save_tiny(tmp_path / "other", tiny_model("llama", vocab=300), tiny_tokenizer(("hello", "there")))
    with pytest.raises(PairMismatch):
        assisted(target, "--assistant", str(other))
    assert cli.main(["bench", "--target", target, "--assistant", str(other)]) == 1
    assert "add --against hf" in capsys.readouterr().err
