"""The terminal's way in, on tiny checkpoints: what it prints, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specchat import cli
from specchat.decode.guard import COMPARING
from tests.tiny import noisy_copy, save_tiny, tiny_model


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("cli")
    model = tiny_model("llama")
    return str(save_tiny(folder / "target", model)), str(save_tiny(folder / "draft", noisy_copy(model, 0.05)))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    torch.set_num_threads(1)
    status = cli.main(["generate", "hello", "--context", "256", "--max-new-tokens", "24", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_reply_goes_to_stdout_and_its_statistics_to_stderr(
    capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, str]
) -> None:
    target, draft = checkpoints
    status, out, err = run(capsys, "--target", target, "--draft", draft, "--seed", "3")
    assert status == 0
    assert out.strip()
    line = next(line for line in err.splitlines() if "tok/s" in line)
    for part in ("tokens ·", "first token", "tokens/round", "acceptance", "reused"):
        assert part in line, f"the statistics line lacks {part!r}: {line}"


def test_json_gives_the_whole_record_and_its_numbers_agree(
    capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, str]
) -> None:
    target, draft = checkpoints
    status, out, _ = run(
        capsys, "--model", target, "--draft", draft, "--speculative-length", "3", "--seed", "3", "--json"
    )
    record = json.loads(out)
    assert status == 0
    assert record["settings"]["gamma"] == 3
    rounds = record["rounds"]
    assert record["stats"]["tokens"] == sum(len(r["tokens"]) for r in rounds) == record["finished"]["emitted"]
    assert record["stats"]["target_forwards"] == len(rounds)
    assert sum(record["stats"]["accepted_length_histogram"]) == sum(r["drafted"] > 0 for r in rounds)


def test_gamma_may_be_left_to_measurements_and_the_record_says_so(
    capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, str]
) -> None:
    common = ["--target", checkpoints[0], "--draft", checkpoints[1], "--json"]
    _, out, _ = run(capsys, *common, "--adaptive", "--guard", "--confidence", "0.1")
    record = json.loads(out)
    settings = record["settings"]
    assert (settings["gamma"], settings["adaptive"], settings["guard"]) == (8, True, True)
    assert (settings["confidence"], settings["draft_sampling"]) == (0.1, None)
    assert all(r["choice"] and r["gamma"] <= 8 for r in record["rounds"])
    _, out, _ = run(capsys, *common)
    record = json.loads(out)
    assert record["settings"]["gamma"] == 3
    assert {r["gamma"] for r in record["rounds"] if r["choice"]} <= {0}, (
        "γ is fixed, but for plain rounds to compare with"
    )
    assert {r["choice"] for r in record["rounds"]} <= {"", COMPARING}
    _, out, _ = run(capsys, *common, "--adaptive", "--gamma", "2")
    assert json.loads(out)["settings"]["gamma"] == 2


@pytest.mark.parametrize("draft", ["self", "shallow", "ngram", "none", "the other checkpoint"])
def test_greedy_text_is_the_same_whatever_drafts(
    capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, str], draft: str
) -> None:
    target, other = checkpoints
    choice = other if draft == "the other checkpoint" else draft
    common = ["--target", target, "--temperature", "0", "--precision", "float32"]
    _, plain, _ = run(capsys, *common, "--draft", "none")
    _, drafted, _ = run(capsys, *common, "--draft", choice, "--gamma", "5")
    assert drafted == plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "/nowhere/at/all"], "does not exist"),
        (["--gamma", "17"], "gamma is 17"),
        (["--confidence", "1.5"], "confidence is 1.5"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--precision", "float8"], "--precision is float8"),
        (["--context", "3"], "--context is 3"),
        (["--max-new-tokens", "0"], "max_new_tokens is 0"),
    ],
)
def test_bad_input_is_one_sentence_and_status_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert status == 1
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_blank_prompt_asks_for_a_message(
    capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, str]
) -> None:
    status = cli.main(["generate", "   ", "--target", checkpoints[0], "--context", "256"])
    assert status == 1
    assert "Type one first" in capsys.readouterr().err


def test_a_stop_string_ends_the_reply_before_it(
    capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, str]
) -> None:
    common = ["--target", checkpoints[0], "--temperature", "1", "--draft", "self", "--seed", "5"]
    _, whole, err = run(capsys, *common)
    assert "max tokens" in err, "the reply must be long enough to be cut"
    text = whole.rstrip("\n")
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    _, cut, err = run(capsys, *common, "--stop", stop)
    assert cut.rstrip("\n") == text[: text.index(stop)].rstrip("\n")
    assert "stop string" in err


def test_a_pair_that_does_not_fit_names_the_first_difference(
    capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, str], tmp_path: Path
) -> None:
    from tests.tiny import TINY_VOCAB, tiny_tokenizer

    other = save_tiny(
        tmp_path, tiny_model("llama", vocab=TINY_VOCAB + 1), tiny_tokenizer(extra_tokens=("<x>",))
    )
    status, _, err = run(capsys, "--target", checkpoints[0], "--draft", str(other))
    assert status == 1
    assert "'<x>'" in err
