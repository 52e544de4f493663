"""Folders in the user's cache that are either complete or treated as absent.

A folder is built beside its final place, described by a manifest (name, size, checksum of every file) and
renamed in one step, so an interrupted download or conversion leaves nothing that looks usable. A file lock
makes two starting programs take turns. Knows nothing of models.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import platformdirs

from specchat.model.errors import FetchFailed

Progress = Callable[[str], None]
MANIFEST = "complete.json"


def silent(_: str) -> None:
    """A progress callback for callers who do not want to hear."""


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """Where fetched and converted models live: the argument, else SPECCHAT_CACHE, else the user's cache folder."""
    return Path(
        cache_dir or os.environ.get("SPECCHAT_CACHE") or platformdirs.user_cache_dir("specchat")
    ).expanduser()


@dataclass(frozen=True)
class FileRecord:
    """One file of a finished folder. `mtime_ns` only decides whether the checksum has to be computed again."""

    size: int
    sha256: str
    mtime_ns: int


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in pieces (about a second per gigabyte)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_complete(folder: Path) -> bool:
    """True if every file the manifest names is there as it was written.

    Costs a `stat` per file; a file is hashed again only if its modification time has changed.
    """
    try:
        records = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, record in records.items():
            status = (folder / name).stat()
            if status.st_size != record["size"]:
                return False
            if status.st_mtime_ns != record["mtime_ns"] and sha256_of(folder / name) != record["sha256"]:
                return False
        return bool(records)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def build_once(folder: Path, build: Callable[[Path], None], progress: Progress = silent) -> Path:
    """Return `folder`, first building it with `build(empty_folder)` unless it is complete already.

    Raises FetchFailed for a full or unwritable disk; whatever `build` raises passes through. In every case
    nothing half-finished stays at `folder`.
    """
    if is_complete(folder):
        return folder
    with disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _turn(folder, progress):
            if is_complete(folder):  # the other program has done it meanwhile
                return folder
            for leftover in folder.parent.glob(f".{folder.name}.*.part"):
                shutil.rmtree(leftover, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
            try:
                build(work)
                _write_manifest(work)
                if folder.exists():
                    shutil.rmtree(folder)
                os.replace(work, folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


@contextmanager
def _turn(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock that belongs to `folder`, saying so when another program has it."""
    lock = filelock.FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress("Another SpecChat is preparing this model; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write_manifest(folder: Path) -> None:
    """Flush every file to the disk, then describe them; the manifest itself comes last."""
    records: dict[str, dict[str, int | str]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        status = path.stat()
        record = FileRecord(status.st_size, sha256_of(path), status.st_mtime_ns)
        records[path.relative_to(folder).as_posix()] = asdict(record)
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into one sentence (FetchFailed)."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchFailed(_full(place)) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise FetchFailed(
                f"{place} cannot be written to ({error.strerror}); set SPECCHAT_CACHE to a folder that can."
            ) from error
        raise
    except Exception as error:
        # safetensors reports a full disk as its own exception type, with the number only in the text.
        if "os error 28" in str(error) or "No space left on device" in str(error):
            raise FetchFailed(_full(place)) from error
        raise


def _full(place: Path) -> str:
    return (
        f"The disk that holds {place} is full; free some space there, or set SPECCHAT_CACHE to a folder on another "
        "disk, then start again (nothing half-finished was kept)."
    )
