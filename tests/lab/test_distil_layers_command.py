"""`python -m specchat distil --kind layers` from end to end on a tiny checkpoint: the draft serves, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specchat import cli
from specchat.lab.distil import command
from specchat.lab.distil.short import shorten
from specchat.lab.distil.train import Recipe
from specchat.model.store import sha256_of
from tests.lab.distil_rig import SHORT
from tests.tiny import save_tiny, tiny_model

SIZES = ["--tokens", "2500", "--minutes", "0.01", "--vocabulary", "150", "--slots", "8"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("target"), tiny_model("qwen2", num_hidden_layers=4)))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Style", lambda: SHORT)
    monkeypatch.setattr(command, "Recipe", lambda **given: Recipe(held_out=4, **given))


def distil(*arguments: str) -> int:
    status = cli.main(["distil", "--kind", "layers", *arguments, "--context", "256"])
    torch.set_num_threads(1)
    return status


def reply(capsys: pytest.CaptureFixture[str], checkpoint: str, *arguments: str) -> tuple[list[int], int]:
    """The ids of a greedy reply, and how many of them were drafted and accepted."""
    sizes = ["--context", "256", "--max-new-tokens", "40", "--temperature", "0", "--precision", "float32"]
    capsys.readouterr()
    assert cli.main(["generate", "hello", "--target", checkpoint, *sizes, *arguments, "--json"]) == 0
    rounds = json.loads(capsys.readouterr().out)["rounds"]
    return [token["id"] for r in rounds for token in r["tokens"]], sum(r["accepted"] for r in rounds)


@pytest.mark.usefixtures("short")
def test_a_checkpoint_is_made_serves_here_and_elsewhere_and_is_replaced_by_the_next(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "draft-1.5"
    arguments = ["--target", checkpoint, "--out", str(out), "--work", str(tmp_path / "work"), *SIZES]
    assert distil(*arguments) == 0
    said = capsys.readouterr()
    assert "held-out acceptance by position 0." in said.out and f"--draft {out}" in said.out
    about = json.loads((tmp_path / "made" / "draft-1.5.json").read_text(encoding="utf-8"))
    assert about["sha256"] == sha256_of(out / "model.safetensors")
    assert about["command"].startswith("python -m specchat distil --kind layers --target ")
    (kept,) = about["held_out"]["acceptance_by_position"]
    assert 0 < kept < 1 and "reads ids only" in about["held_out"]["meaning"]
    assert about["recipe"]["unroll"] == 1 and about["steps"] > 0
    assert AutoModelForCausalLM.from_pretrained(out).config.num_hidden_layers == 2

    drafted, accepted = reply(capsys, checkpoint, "--draft", str(out), "--drafter", "model", "--gamma", "3")
    plain, _ = reply(capsys, checkpoint, "--gamma", "0")
    assert len(drafted) == 40 and accepted and drafted == plain

    assert distil(*arguments) == 0, "its own folder may be replaced"
    again = json.loads((tmp_path / "made" / "draft-1.5.json").read_text(encoding="utf-8"))
    assert again["steps"] == about["steps"] and len(again["earlier_commands"]) == 1


@pytest.mark.usefixtures("short")
def test_head_and_layers_share_the_texts_and_not_the_training(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--target", checkpoint, "--work", str(tmp_path / "work"), *SIZES, "--context", "256"]
    assert cli.main(["distil", *common, "--out", str(tmp_path / "head.safetensors")]) == 0
    capsys.readouterr()
    assert distil(*common, "--out", str(tmp_path / "layers")) == 0
    assert "are written already" in capsys.readouterr().err
    head, layers = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("head", "layers"))
    assert head["texts"] == layers["texts"] and len(layers["held_out"]["acceptance_by_position"]) == 1
    assert len(head["held_out"]["acceptance_by_position"]) == 5 and layers["steps"] > 0


@pytest.mark.usefixtures("short")
def test_training_goes_on_from_a_checkpoint_of_the_same_target_and_refuses_anothers(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, out, other = tmp_path / "start", tmp_path / "draft", tmp_path / "other"
    start.mkdir()
    name = "model.layers.1.mlp.down_proj.weight"
    theirs = load_file(Path(checkpoint) / "model.safetensors")[name]
    shorten(Path(checkpoint), start, {name: 2 * theirs})
    common = ["--target", checkpoint, "--out", str(out), *SIZES]
    assert distil(*common, "--work", str(tmp_path / "w1"), "--start", str(start)) == 0
    made = load_file(out / "model.safetensors")[name]
    assert 0 < (made - 2 * theirs).norm() < 0.5 * theirs.norm() < (made - theirs).norm(), "from there"
    save_tiny(other, tiny_model("qwen2", seed=3))
    capsys.readouterr()
    assert distil(*common, "--work", str(tmp_path / "w2"), "--start", str(other)) == 1
    assert "was not made for this target" in capsys.readouterr().err
    assert not (tmp_path / "w2" / "texts").exists(), "before any work"


@pytest.mark.usefixtures("short")
def test_what_stands_in_the_way_is_one_sentence_before_any_work(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    (tmp_path / "folder.json").write_text('{"kind": "something else"}')
    common = ["--target", checkpoint, "--work", str(tmp_path / "w"), *SIZES]
    for name, words in (
        ("draft.safetensors", "must not end in .safetensors"),
        ("file", "which is a file"),
        ("folder", "holds something else already"),
    ):
        assert distil(*common, "--out", str(tmp_path / name)) == 1
        said = capsys.readouterr()
        assert words in said.err and "Traceback" not in said.err and said.out == ""
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "mine" and not (tmp_path / "w").exists()


@pytest.mark.usefixtures("short")
def test_a_target_of_two_blocks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = str(save_tiny(tmp_path / "small", tiny_model("llama")))
    work = ["--work", str(tmp_path / "w"), *SIZES]
    assert distil("--target", small, "--out", str(tmp_path / "d"), *work) == 1
    assert "would be no faster" in capsys.readouterr().err
    assert not (tmp_path / "w" / "texts").exists(), "before any work"
