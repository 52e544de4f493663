"""Fixtures shared by all rooms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Two OpenMP threads that wait for each other collapse when anything else runs on the same two cores.
torch.set_num_threads(1)

# No test may ask a hub: a name that is not on this machine must fail at once, not after retries.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


@pytest.fixture(autouse=True)
def _nothing_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test's pair offered to the sampling of this process is not there for the next test."""
    from specchat.decode import offered

    monkeypatch.setattr(offered, "_offers", [])


@pytest.fixture(scope="session")
def builtin_folder() -> Path:
    """The converted built-in model in the user's real cache (SPECCHAT_CACHE moves it); fetched on the first run."""
    from specchat.model.builtin import ensure_builtin

    return ensure_builtin(progress=print)
