"""A name a person typed → a folder of safetensors on this machine, or a sentence why not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from specchat.model.builtin import ensure_builtin
from specchat.model.catalog import BUILTIN
from specchat.model.errors import BadCheckpoint, FetchFailed
from specchat.model.store import Progress, disk_errors, silent

Kind = Literal["builtin", "folder", "gguf", "hub"]
_WANTED = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "*.model"]
_UNWANTED = ["*/*", "consolidated*", "*.bin.index.json"]


def kind_of(source: str) -> Kind:
    """What the name means. BadCheckpoint for something that looks like a path but is not there.

    A hub id is `owner/name`; everything else that is not on the disk is taken for a mistyped path rather than
    sent to the hub.
    """
    if source == BUILTIN:
        return "builtin"
    path = Path(source).expanduser()
    if path.is_dir():
        return "folder"
    if path.is_file():
        if path.suffix.lower() == ".gguf" or _starts_as_gguf(path):
            return "gguf"
        raise BadCheckpoint(
            f"{source} is a file but not a GGUF file; give a Hugging Face folder, a GGUF file or a hub id."
        )
    if source.startswith((".", "/", "~", "\\")) or path.is_absolute() or path.suffix.lower() == ".gguf":
        raise BadCheckpoint(f"{source} does not exist; check the path.")
    if source.count("/") != 1 or "\\" in source or " " in source or not all(source.split("/")):
        raise BadCheckpoint(
            f"'{source}' is neither a folder nor a file here, nor a hub id (owner/name); check the spelling."
        )
    return "hub"


def resolve(source: str, cache_dir: Path | str | None = None, progress: Progress = silent) -> Path:
    """The folder to load from; fetches or converts what is not here yet.

    Raises a ModelError: FetchFailed (network, disk), BadCheckpoint, UnsupportedModel or NotEnoughMemory.
    """
    kind = kind_of(source)
    if kind == "builtin":
        return ensure_builtin(cache_dir, progress)
    if kind == "folder":
        return Path(source).expanduser()
    if kind == "gguf":
        from specchat.model.gguf_convert import ensure_gguf

        return ensure_gguf(Path(source).expanduser(), cache_dir, progress)
    progress(f"Looking for {source} on the hub and in its local cache.")
    with _watched(source, progress):
        return _from_hub(source)


@contextmanager
def _watched(source: str, progress: Progress, every_s: float = 1.0) -> Iterator[None]:
    """Says once a second how much of a hub id has arrived, read off its growing folder in the hub's cache."""
    import huggingface_hub

    blobs = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{source.replace('/', '--')}" / "blobs"
    before, over = _bytes_in(blobs), threading.Event()

    def watch() -> None:
        seen = before
        while not over.wait(every_s):
            now = _bytes_in(blobs)
            if now > seen:
                seen = now
                progress(f"Fetching {source} from the hub: {(now - before) / 1e6:,.0f} MB so far.")

    watcher = threading.Thread(target=watch, name="fetching", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _bytes_in(folder: Path) -> int:
    """What the files of a folder take; those that are being moved meanwhile do not count."""
    total = 0
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                total += path.stat().st_size
    return total


def display_name(source: str) -> str:
    """The short name for the screen."""
    kind = kind_of(source)
    if kind == "builtin":
        return "SmolLM2-135M-Instruct"
    path = Path(source).expanduser()
    return path.stem if kind == "gguf" else path.resolve().name if kind == "folder" else source.split("/")[1]


def hub_config(source: str) -> Path:
    """A folder with the hub model's config.json only: enough to plan memory before anything large is fetched."""
    return _from_hub(source, ["config.json"])


def hub_description(source: str) -> Path:
    """A folder with everything of the hub's model but its weights: enough to compare it with another."""
    return _from_hub(source, [pattern for pattern in _WANTED if pattern != "*.safetensors"])


def cached_folder(source: str) -> Path | None:
    """The hub's own local copy of this id as far as it goes, without asking the hub; None without any."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(source, "config.json")
    except HFValidationError as error:
        raise BadCheckpoint(f"'{source}' is neither a path on this machine nor a valid hub id.") from error
    return Path(found).parent if isinstance(found, str) else None


def _from_hub(source: str, wanted: list[str] | None = None) -> Path:
    """Files of a hub id, taken from the hub's own local cache when the hub cannot be asked."""
    import huggingface_hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    advice = "give a local folder or a GGUF file, or start without --target for the built-in model"
    try:
        with disk_errors(Path(huggingface_hub.constants.HF_HUB_CACHE)):
            found = huggingface_hub.snapshot_download(
                source, allow_patterns=wanted or _WANTED, ignore_patterns=_UNWANTED
            )
            return Path(found)
    except GatedRepoError as error:
        raise FetchFailed(
            f"{source} is gated: accept its licence on the hub and log in (hf auth login)."
        ) from error
    except RepositoryNotFoundError as error:
        raise FetchFailed(
            f"The hub has no model '{source}' (or it is private); check the spelling."
        ) from error
    except HFValidationError as error:
        raise BadCheckpoint(f"'{source}' is neither a path on this machine nor a valid hub id.") from error
    except LocalEntryNotFoundError as error:
        raise FetchFailed(
            f"{source} is not on this machine and the hub cannot be reached; {advice}."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise FetchFailed(f"{source} could not be fetched from the hub ({reason}); {advice}.") from error


def _starts_as_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
