"""`python -m specchat distil` from end to end on a tiny checkpoint: the draft, its provenance, refusals."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from specchat import cli
from specchat.lab.distil import command
from specchat.lab.distil.export import export
from specchat.lab.distil.network import HeadNet
from specchat.lab.distil.start import shape_for
from specchat.lab.distil.train import Recipe
from specchat.model.head_file import load_head, read_head
from specchat.model.store import sha256_of
from tests.lab.distil_rig import SHORT, target_of
from tests.model.test_head import IDS, SUBSET, net_for, some_states
from tests.tiny import save_tiny, tiny_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("target"), tiny_model("llama")))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Style", lambda: SHORT)
    monkeypatch.setattr(command, "Recipe", lambda **given: Recipe(rows=300, unroll=2, held_out=4, **given))


def distil(*arguments: str) -> int:
    status = cli.main(["distil", *arguments, "--context", "256"])
    torch.set_num_threads(1)
    return status


@pytest.mark.usefixtures("short")
def test_a_draft_is_made_with_its_provenance_and_serves(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "draft.safetensors"
    arguments = ["--target", checkpoint, "--out", str(out), "--work", str(tmp_path / "work"), "--slots", "8"]
    sizes = ["--tokens", "2500", "--minutes", "0.02", "--vocabulary", "150", "--seed", "5"]
    assert distil(*arguments, *sizes) == 0
    said = capsys.readouterr()
    assert "held-out acceptance by position" in said.out and f"--draft {out}" in said.out
    about = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert about["sha256"] == sha256_of(out) and about["bytes"] == out.stat().st_size
    line = about["command"]
    assert line.startswith("python -m specchat distil --target ") and "--tokens 2500" in line
    assert about["seed"] == about["recipe"]["seed"] == 5 and about["vocabulary"] == 150
    assert about["texts"]["tokens"] >= 2500 and about["texts"]["conversations"] > 20
    assert about["steps"] > 0 and about["tokens_trained_on"] > 0 and about["training_loss"] > 0
    places = about["held_out"]["acceptance_by_position"]
    assert len(places) == 5 and all(0 < kept < 1 for kept in places)
    assert 1 <= about["held_out"]["conversations"] <= 4
    assert {"torch", "python", "transformers"} <= about["versions"].keys()
    assert about["recipe"]["kl"] and about["texts"]["style"]["reply"] == [0.6, 20]

    assert distil(*arguments, *sizes) == 0, "the same command again has nothing left to do"
    said = capsys.readouterr()
    assert "are written already" in said.err
    again = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert again["steps"] == about["steps"] and again["earlier_commands"] == [line]

    run = ["generate", "hello", "--target", checkpoint, "--context", "256", "--max-new-tokens", "12"]
    assert cli.main([*run, "--draft", str(out), "--drafter", "model", "--json"]) == 0
    assert any(r["drafted"] for r in json.loads(capsys.readouterr().out)["rounds"])


@pytest.mark.usefixtures("short")
def test_the_folder_of_another_target_is_refused(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "target.json").write_text(json.dumps({"target": "other", "rows": "0"}))
    assert (
        distil("--target", checkpoint, "--work", str(tmp_path), "--out", str(tmp_path / "d.safetensors")) == 1
    )
    assert "holds the work for other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", "ngram"], "--draft has no meaning here"),
        (["--out", "draft.bin"], "must end in .safetensors"),
        (["--tokens", "0"], "--tokens is 0"),
        (["--minutes", "-1"], "--minutes is -1.0"),
        (["--target", "/nowhere/at/all"], "does not exist"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert distil(*arguments) == 1
    said = capsys.readouterr()
    assert words in said.err and "Traceback" not in said.err and said.out == ""


def test_a_target_without_known_states_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "gpt2", tiny_model("gpt2"))
    assert distil("--target", str(other), "--out", str(tmp_path / "d.safetensors")) == 1
    assert "--draft ngram works with any" in capsys.readouterr().err


def test_the_first_interrupt_asks_the_second_insists() -> None:
    assert threading.current_thread() is threading.main_thread()
    with command.stop_when_interrupted() as go_on:
        assert go_on()
        os.kill(os.getpid(), signal.SIGINT)
        assert not go_on()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_exported_head_comes_back(tmp_path: Path) -> None:
    target = target_of()
    net, states = net_for(target), some_states(target, len(IDS))
    path = export(tmp_path / "new" / "d.safetensors", net, SUBSET, target, "tiny", {"command": "x"})
    from specchat.model.head import StateHead

    right = StateHead(net.shape, dict(net.named_parameters()), SUBSET, target).feed(states, IDS)
    torch.testing.assert_close(load_head(path, target).feed(states, IDS), right, atol=1e-2, rtol=1e-2)
    assert json.loads(path.with_suffix(".json").read_text())["weights"] == sum(
        w.numel() for w in net.parameters()
    )


@pytest.mark.usefixtures("short")
def test_training_goes_on_from_a_draft_of_the_same_target_and_refuses_anothers(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = target_of()
    start = tmp_path / "start.safetensors"
    net = net_for(target)
    export(start, net, SUBSET, target, "tiny", {})
    sizes = ["--tokens", "2500", "--minutes", "0.001", "--vocabulary", "150", "--slots", "8"]
    out = tmp_path / "draft.safetensors"
    arguments = ["--target", checkpoint, "--out", str(out), "--work", str(tmp_path / "work"), *sizes]
    assert distil(*arguments, "--start", str(start)) == 0
    begun, made = (read_head(path, target)[1]["join"].float() for path in (start, out))
    fitted = HeadNet(shape_for(target)).join
    assert 0 < (made - begun).norm() < 0.3 * begun.norm() < (made - fitted).norm(), "learned on from there"
    other = target_of(seed=3)
    export(start, net_for(other), SUBSET, other, "another", {})
    assert distil(*arguments[:-6], "--work", str(tmp_path / "w2"), *sizes, "--start", str(start)) == 1
    assert "was made for another" in capsys.readouterr().err
