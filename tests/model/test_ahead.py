"""Compiling ahead: once for a version, in another process, and never in the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specchat.model import ahead, loops


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that were started instead of the compiler. The first fails, the others note that it is done."""
    found: list[list[str]] = []
    real = subprocess.Popen

    def start(command: list[str], **how: Any) -> Any:
        found.append(command)
        program = "raise SystemExit(1)" if len(found) == 1 else ahead._NOTE
        return real([sys.executable, "-c", program, command[-1]], **how)

    monkeypatch.setattr(ahead.subprocess, "Popen", start)
    return found


@pytest.fixture(autouse=True)
def two_cores_and_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 2)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    folder = loops.folder
    folder.cache_clear()
    yield
    folder.cache_clear()


def test_it_is_done_once_for_a_version_and_again_where_it_failed(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for expected in (1, 2, 2):  # the first fails, the second does not
        ahead.begin()
        ahead.finish(lambda _: None)
        assert len(started) == expected
    monkeypatch.setattr(loops, "stamp", lambda: "of another version")
    loops.folder.cache_clear()
    ahead.begin()
    ahead.finish(lambda _: None)
    assert len(started) == 3


def test_a_process_that_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(ahead, "LONGEST_S", 0.1)
    said: list[str] = []
    ahead.begin()
    process = ahead._running[0]
    ahead.finish(said.append)
    assert process.wait(20) != 0 and not ahead._running and not list(tmp_path.rglob("ready-*"))
    assert len(said) == 1 and "once for this version" in said[0]


def test_nothing_is_started_on_a_single_core_or_where_it_cannot_be(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 1)
    ahead.begin()
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 2)

    def refused(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(ahead.subprocess, "Popen", refused)
    ahead.begin()
    monkeypatch.setattr(loops, "folder", lambda: None)
    ahead.begin()
    assert not started and not ahead._running


def test_what_is_compiled_ahead_is_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, into an empty folder: afterwards a process in which a small pair replies compiles none."""
    monkeypatch.setattr(ahead, "LONGEST_S", 600.0)
    ahead.begin()
    ahead.finish(lambda _: None)
    folder = loops.folder()
    assert folder is not None and (folder / ahead._stamp()).exists()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert len(kept) >= 16
    program = """
import sys
from pathlib import Path
from specchat.decode.engine import Settings
from specchat.decode.sampling import Sampling
from specchat.model.catalog import PairOptions
from specchat.pair import open_pair
from tests.tiny import save_tiny
folder = str(save_tiny(Path(sys.argv[1])))
pair = open_pair(PairOptions(folder, "shallow", context=256, device="cpu"), print)
for sampling in (Sampling(0.6, 20), Sampling(0.0), Sampling(0.6, 20, 0.9)):
    list(pair.engine.generate([5, 6, 7], lambda: Settings(3, sampling, "chain", 40)))
"""
    root = Path(ahead.__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "tiny")], check=True, cwd=root)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == kept
