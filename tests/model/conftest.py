"""Tiny checkpoints on disk, whole and in shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import save_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "tiny")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = save_tiny(tmp_path / "sharded", max_shard_size="100KB")
    assert (folder / "model.safetensors.index.json").exists()
    return folder
