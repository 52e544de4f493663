"""Where machine code of the compiled loops is kept: a folder for each state of their source. Imports nothing heavy.

Numba looks at the file of a function alone, while a loop also holds what it takes from the others: after an update of
one of them it would run the old code. So the folder's name stands for all of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from specchat.model.store import cache_root

ROOT = Path(__file__).parents[1]

LOOPS = (
    "decode/largest.py",
    *(f"model/{name}.py" for name in ("compiled", "team", "kernels", "attention", "search", "verdicts")),
)
"""Files with compiled loops, what they are compiled by, and what they take numbers from."""


@cache
def stamp() -> str:
    """Another one after every change of one of those files."""
    return hashlib.sha256(b"\0".join((ROOT / name).read_bytes() for name in LOOPS)).hexdigest()[:16]


@cache
def folder() -> Path | None:
    """NUMBA_CACHE_DIR, else beside the source, else in the program's own cache; None where nothing can be written.

    Beside the source, what other states left is deleted. Elsewhere several installations may share the place.
    """
    name = f"loops-{stamp()}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    beside = Path(__file__).parent / "__pycache__"
    for root in [Path(given)] if given else [beside, cache_root()]:
        if not _writable(root / name):
            continue
        if root == beside:
            with suppress(OSError):
                _tidy(beside, name)
        return root / name
    return None


def _writable(place: Path) -> bool:
    """By trying: what a system says of its folders need not be so."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


def _tidy(beside: Path, name: str) -> None:
    """Deletes what other states left, and what versions before there were such folders did."""
    for other in beside.glob("loops-*"):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)
    for old in beside.glob("*.nb[ci]"):
        old.unlink(missing_ok=True)
