"""From a choice of models to a pair that can talk: what is refused, what is remarked, where it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specchat import pair as pair_module
from specchat.decode.drafters import ModelDrafter
from specchat.decode.engine import Engine, Settings
from specchat.decode.events import Finished, Round
from specchat.decode.sampling import Sampling
from specchat.model.catalog import PairOptions
from specchat.model.errors import ModelError
from specchat.model.loading import load_model
from specchat.model.pairing import plan
from specchat.pair import open_pair
from tests.fakes import Watched
from tests.rigs import runner, tiny
from tests.tiny import CONTROL, save_tiny, tiny_model


def silent(_: str) -> None:
    """A progress callback."""


def test_a_model_that_cannot_write_is_said_at_load_not_ready(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    folder = save_tiny(tmp_path, model)
    with pytest.raises(ModelError, match=r"does not work here: .*not numbers.*--precision float32"):
        open_pair(PairOptions(str(folder), "none", precision="float32", context=128), silent)


@pytest.mark.parametrize("value", [float("nan"), 1e6])
def test_weights_that_half_precision_cannot_hold_are_refused_not_clipped(
    tmp_path: Path, value: float
) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 3] = value
    folder = save_tiny(tmp_path, model)
    with pytest.raises(ValueError, match=r"cannot hold.*--precision float32"):
        open_pair(PairOptions(str(folder), "none", precision="float16", context=128), silent)


@pytest.mark.parametrize(
    ("device", "precision", "asked"),
    [
        ("cpu", "auto", "float32"),
        ("cpu", "int8", "float32"),
        ("cuda", "float32", "float32"),
        ("cuda", "auto", None),
    ],
)
def test_the_precision_reaches_the_memory_plan_and_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, precision: str, asked: str | None
) -> None:
    """Without a GPU: what would be asked for is noted, and then done on the CPU."""
    folder, seen = save_tiny(tmp_path), []

    def noted_plan(*arguments, **named):
        seen.append(("plan", named["dtype"]))
        return plan(*arguments, **{**named, "dtype": "float32", "device": "cpu"})

    def noted_load(source, **named):
        seen.append(("load", named["dtype"]))
        return load_model(source, **{**named, "dtype": "float32", "device": "cpu"})

    monkeypatch.setattr(pair_module, "plan", noted_plan)
    monkeypatch.setattr(pair_module, "load_model", noted_load)
    monkeypatch.setattr(pair_module, "pick_device", torch.device)
    open_pair(PairOptions(str(folder), "none", device, precision, context=128), silent)
    assert seen == [("plan", asked), ("load", asked)]


def test_a_precision_that_an_architecture_lacks_is_remarked(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, tiny_model("gpt2"))
    opened = open_pair(PairOptions(str(folder), "none", precision="int8", context=128), silent)
    assert any("runs in float32" in note and "int8" in note for note in opened.notes)
    assert opened.precision == "float32"


def test_a_recurrent_target_is_served_plainly_with_the_reason(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, tiny_model("mamba"))
    opened = open_pair(PairOptions(str(folder), "ngram", context=64), silent)
    assert opened.drafters == ()
    assert any("cannot take back" in note for note in opened.notes)


def test_the_second_cache_of_a_target_that_drafts_for_itself_is_planned(tmp_path: Path) -> None:
    folder = str(save_tiny(tmp_path))
    alone = plan(folder, context=128, device="cpu")
    assert plan(folder, context=128, device="cpu", own_draft=True).cache_bytes == 2 * alone.cache_bytes


def test_stop_ends_a_draft_that_is_catching_up() -> None:
    """γ goes from 0 to 4 in a long reply's round 2 and Stop comes at once: the draft reads one chunk, not all."""
    draft = Watched(runner(tiny(), 512))
    engine = Engine(runner(tiny(), 512), {"model": ModelDrafter(draft)}, frozenset())
    stopped = False

    def settings() -> Settings:
        return Settings(4 if stopped else 0, Sampling(temperature=0.0), "model", 40)

    ids = [(7 * i) % 250 for i in range(460)]
    read_before_stop = []

    def cancelled() -> bool:
        # Asked between rounds and between chunks: "yes" once the draft has begun to read.
        return stopped and bool(draft.rows)

    events = []
    for event in engine.generate(ids, settings, cancelled=cancelled):
        events.append(event)
        if len(events) == 2:
            stopped = True
            read_before_stop = list(draft.rows)
    assert read_before_stop == [], "plain decoding costs no draft forward"
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled"
    assert len(draft.rows) == 1, draft.rows
    late = [event for event in events if isinstance(event, Round)][-1]
    assert late.drafted == 0
    assert late.draft_s > late.host_s, "catching up is time of drafting"


def test_ctrl_c_in_the_terminal_ends_the_reply_with_its_statistics(tmp_path: Path) -> None:
    model = tiny_model("llama", max_position_embeddings=4096)
    # Control tokens have logit 0 where others reach 12 and more at this temperature: with this seed as with most no end
    # is drawn, and the reply is still being written when the signal comes.
    with torch.no_grad():
        model.get_output_embeddings().weight[-len(CONTROL) :] = 0
    folder = save_tiny(tmp_path, model)
    command = [
        sys.executable, "-u", "-m", "specchat", "generate", "hello", "--target", str(folder), "--draft", "none",
        "--gamma", "0", "--max-new-tokens", "3000", "--temperature", "0.5", "--context", "4096", "--seed", "12",
    ]  # fmt: skip
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    assert child.stdout is not None
    child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert b"tok/s" in err, err
    assert err.rstrip().endswith(b"stopped"), err  # not "finished" and not "stopped at max tokens"
    assert b"Traceback" not in err
    assert child.returncode == 0


def test_an_output_that_cannot_spell_a_character_shows_a_mark_and_goes_on(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, tiny_model("llama"))
    command = [
        sys.executable, "-m", "specchat", "generate", "hello", "--target", str(folder), "--draft", "none",
        "--temperature", "2", "--top-k", "0", "--max-new-tokens", "60", "--context", "256", "--seed", "1",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        capture_output=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"?" in done.stdout
    assert b"tok/s" in done.stderr
