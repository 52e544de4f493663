"""Files on their way to and from the browser: a private folder, hidden download buttons, uploads that do not stay."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path

import gradio as gr
from gradio.utils import get_upload_folder

from specchat.lab.record_parts import Record
from specchat.lab.record_read import read_all
from specchat.lab.record_write import file_name, write_atomically

MOST_TOKENS = 30_000
"""Of a reply that the page still shows smoothly."""

KEPT_FILES = 30
"""Files kept for download; the oldest goes."""

PRESS = """() => { const button = document.querySelector('#%s');
  if (button) (button.querySelector('button, a') || button).click(); }"""
"""Presses the hidden download button once its file is there."""


@cache
def _folder() -> Path:
    """Readable by this user only, gone when the program ends, and inside the one folder that Gradio serves from."""
    served = Path(get_upload_folder())
    served.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="specchat-", dir=served))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def offer(content: bytes, ending: str = "jsonl") -> str:
    """Puts a file where the browser can fetch it, once it is told the path. Raises OSError."""
    folder = _folder()
    older = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in older[: max(0, len(older) - KEPT_FILES + 1)]:
        shutil.rmtree(path, ignore_errors=True)
    # A folder of its own, whose name nobody can guess, so that the file's name may be a plain one.
    path = Path(tempfile.mkdtemp(dir=folder)) / file_name(datetime.now(), ending)
    write_atomically(path, content)
    return str(path)


def download_button(elem_id: str) -> gr.DownloadButton:
    """A hidden button that the browser presses by itself when it is given a file."""
    return gr.DownloadButton("Download", elem_id=elem_id, visible="hidden")


def wire_download(button: gr.DownloadButton, elem_id: str) -> None:
    """Downloads whatever file the button is given."""
    button.change(None, js=PRESS % elem_id, show_progress="hidden", api_visibility="private")


def uploaded(path: str | None) -> tuple[Record, ...]:
    """The replies an uploaded record holds; the copy that the upload left on this machine is removed.

    Raises ValueError with a sentence.
    """
    if not path:
        raise ValueError("No file arrived.")
    try:
        records = read_all(Path(path))
    except ValueError as problem:
        raise ValueError(str(problem).replace(path, Path(path).name)) from None
    finally:
        with suppress(OSError):
            Path(path).unlink()
    longest = max(len(record.ids) for record in records)
    if longest > MOST_TOKENS:
        raise ValueError(
            f"A reply of {longest} tokens is too long for the page; `python -m specchat replay` takes it."
        )
    return records
