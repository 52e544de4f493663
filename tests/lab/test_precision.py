"""The divergence from float32: its own arithmetic, and that the command tells it of the pair that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specchat import cli
from specchat.lab.precision import divergence, laws
from tests.oracle import full_logits
from tests.rigs import tiny
from tests.tiny import save_tiny
from tests.worker.jobs import pair_of


def test_divergence_is_that_of_the_definition_and_leaves_out_what_no_law_has() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.25, 0.5, 0.25]]).log()
    right = 0.5 * torch.tensor(2.0).log() + 0.25 * torch.tensor(0.5).log()
    assert divergence(p, q) == pytest.approx(float(right)) and divergence(p, p) == 0
    missing = torch.tensor([[-torch.inf]])
    assert divergence(torch.cat([p, missing], 1), torch.cat([q, missing], 1)) == pytest.approx(float(right))


def test_the_laws_are_those_behind_the_last_ids_of_the_text() -> None:
    ids = [7 * i % 200 for i in range(40)]
    torch.testing.assert_close(laws(pair_of(), ids), full_logits(tiny(), ids)[-16:], atol=1e-4, rtol=1e-4)


def test_the_command_says_what_was_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path / "target")
    assert (
        cli.main(["selfcheck", "precision", "--target", str(tmp_path / "target"), "--context", "2048"]) == 0
    )
    said = capsys.readouterr().out
    assert "to float32" in said and "nats" in said and "30 prompts (16 places each)" in said
