"""At the first start of a version the loops are compiled in a process of their own, while this one imports and serves.

Their machine code is kept on disk (see `loops`). Compiling takes some seconds of one core, which are seconds of waiting
for the first answer if they come after everything else. Imports nothing heavy itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from specchat.model import loops

log = logging.getLogger(__name__)

LONGEST_S = 60.0
"""After that they are compiled here, whatever the other process does."""

_PROGRAM = (
    "from specchat.model import attention, kernels, search; "
    "kernels.prepare(); attention.prepare(); search.prepare()"
)
_NOTE = "import pathlib, sys; mark = pathlib.Path(sys.argv[1]); mark.parent.mkdir(parents=True, exist_ok=True); mark.touch()"

_running: list[subprocess.Popen[bytes]] = []
"""Of this process, as what is compiled is."""


def begin() -> None:
    """Starts compiling, if this version's loops were not compiled here before and there is a core to spare."""
    try:
        folder = loops.folder()
        if folder is None or (os.cpu_count() or 1) < 2:
            return
        mark = folder / _stamp()
        if mark.exists():
            return
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"{_PROGRAM}; {_NOTE}", str(mark)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # where there are such: Ctrl-C in the terminal is not meant for it
        )
    except OSError:
        log.warning("the loops could not be compiled ahead", exc_info=True)
        return
    _running.append(process)


def finish(progress: Callable[[str], None]) -> None:
    """Waits until they are compiled. If that failed, whoever needs them compiles them."""
    while _running:
        process = _running.pop()
        if process.poll() is None:
            progress("Compiling a few loops for this processor, once for this version.")
        try:
            process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _stamp() -> str:
    """Another one for another Python, numba, machine or folder; that of the loops is in the name of theirs."""
    parts = (str(loops.folder()), sys.version, version("numba"), platform.node(), platform.machine())
    return f"ready-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
