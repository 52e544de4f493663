"""At the first start of a version the loops are compiled in a process of their own, while this one imports and serves.

Numba keeps machine code on disk, beside the source or in its cache folder. Compiling takes some seconds of one core,
which are seconds of waiting for the first answer if they come after everything else. Imports nothing heavy itself.
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

from specchat.model.store import cache_root

log = logging.getLogger(__name__)

LOOPS = ("compiled", "kernels", "attention", "team", "search", "verdicts")
"""Files of this folder with compiled loops, and what they are compiled by."""

LONGEST_S = 60.0
"""After that they are compiled here, whatever the other process does."""

_PROGRAM = (
    "from specchat.model import attention, kernels, search; "
    "kernels.prepare(); attention.prepare(); search.prepare()"
)
_NOTE = "import pathlib, sys; mark = pathlib.Path(sys.argv[1]); mark.parent.mkdir(parents=True, exist_ok=True); mark.touch()"

_running: list[subprocess.Popen[bytes]] = []
"""Of this process, as what is compiled is."""


def begin(cache_dir: Path | str | None) -> None:
    """Starts compiling, if this version's loops were not compiled here before and there is a core to spare."""
    try:
        mark = cache_root(cache_dir) / "compiled" / _stamp()
        if mark.exists() or (os.cpu_count() or 1) < 2:
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
    """Another one after every change of the loops' files, of Python, numba, the machine or this very folder."""
    folder = Path(__file__).parent
    files = [(folder / f"{name}.py").stat() for name in LOOPS]
    versions = (sys.version, version("numba"), platform.node(), platform.machine())
    parts = (str(folder), *versions, *((file.st_mtime_ns, file.st_size) for file in files))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
