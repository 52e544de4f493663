"""What is said while a model of the hub is being fetched."""

from __future__ import annotations

import threading
from pathlib import Path

import huggingface_hub
import pytest

from specchat.model import sources
from specchat.model.errors import BadCheckpoint, FetchFailed


def test_a_download_tells_how_much_has_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    blobs = tmp_path / "models--some--model" / "blobs"
    said, heard = [], threading.Event()

    def progress(message: str) -> None:
        said.append(message)
        if "MB" in message:
            heard.set()

    def download(source: str, **rest: object) -> str:
        blobs.mkdir(parents=True)
        (blobs / "weights.incomplete").write_bytes(bytes(3_000_000))
        assert heard.wait(20)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert sources.resolve("some/model", progress=progress) == tmp_path
    assert said[0].startswith("Looking for some/model")
    assert said[1] == "Fetching some/model from the hub: 3 MB so far."
    assert not [thread for thread in threading.enumerate() if thread.name == "fetching"]


def test_a_failed_download_ends_the_watch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    def download(source: str, **rest: object) -> str:
        raise OSError("The line was cut.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(FetchFailed, match=r"The line was cut"):
        sources.resolve("some/model")
    assert not [thread for thread in threading.enumerate() if thread.name == "fetching"]


def test_the_hubs_local_copy_is_found_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("the hub was asked")
    )
    assert sources.cached_folder("nobody/has-this") is None
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *a: str(tmp_path / "config.json"))
    assert sources.cached_folder("some/model") == tmp_path
    monkeypatch.undo()
    with pytest.raises(BadCheckpoint, match="valid hub id"):
        sources.cached_folder("a--b/..c")
