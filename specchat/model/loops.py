"""Where machine code of the compiled loops is kept: a folder for each state of their source. Imports nothing heavy.

Numba looks at the file of a function alone, while a loop also holds what it takes from the others: after an update of
one of them it would run the old code. So the folder's name stands for all of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

import platformdirs

LOOPS = ("compiled", "team", "kernels", "attention", "search", "verdicts")
"""Files of this folder with compiled loops, and what they are compiled by."""


@cache
def stamp() -> str:
    """Another one after every change of one of those files."""
    files = [Path(__file__).with_name(f"{name}.py") for name in LOOPS]
    texts = [file.read_bytes() for file in files if file.exists()]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


@cache
def folder() -> Path:
    """Beside the source, where what other states left is deleted; else in the user's cache. NUMBA_CACHE_DIR decides."""
    name = f"loops-{stamp()}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return Path(given) / name
    beside = Path(__file__).parent / "__pycache__"
    if not os.access(beside if beside.exists() else beside.parent, os.W_OK):
        return Path(platformdirs.user_cache_dir("specchat")) / name
    for other in beside.glob("loops-*"):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)
    return beside / name
