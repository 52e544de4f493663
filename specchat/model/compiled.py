"""Loops as machine code, by numba: for what torch would take many small operations for on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import cfunc, njit, types

log = logging.getLogger(__name__)

SUMS = {"reassoc", "contract", "nsz", "arcp"}
"""Sums in any order; not what would make nan disappear. (numba keeps machine code by the file of the kernel: after a
change here, or of what a kernel takes from another file, touch the kernels' files too.)"""

TRIES = 8
"""Of a first call: more than there are kernels that one of them calls, and itself."""

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(kernel: Kernel) -> Kernel:
    """The kernel, compiled at its first call and kept on disk where there is a place for it. One thread."""
    # A division that is checked for zero would not be vectorised.
    how: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": SUMS}
    try:
        return cast(Kernel, njit(cache=True, **how)(kernel))
    except RuntimeError:
        return cast(Kernel, njit(**how)(kernel))


def entry(kernel: Callable[[Any], None], beside: Callable[..., Any]) -> Any:
    """The kernel, compiled now, as a C function of one pointer; kept like the one of the same file it stands beside."""
    how: dict[str, Any] = {"nopython": True, "error_model": "numpy"}
    make = cfunc(types.void(types.voidptr), cache=True, **how)
    for _ in range(2):
        try:
            return make(kernel)
        except Exception:
            log.warning("what was kept of %s cannot be used; it is compiled anew", kernel, exc_info=True)
            _forget(beside)
    return cfunc(types.void(types.voidptr), **how)(kernel)


def first_call(kernel: Callable[..., Any], *arguments: object) -> None:
    """Calls it, so that it is compiled now. What was kept of it may be damaged, or the disk full: then it does without."""
    for left in reversed(range(TRIES)):
        try:
            kernel(*arguments)
            return
        except Exception:
            if not left:
                raise
            if left == TRIES - 1:
                log.warning("what was kept of %s cannot be used; it is compiled anew", kernel, exc_info=True)
                _forget(kernel)
            # If only keeping it failed, it is there by now; what it calls fails to be kept one after another.


def _forget(kernel: Callable[..., Any]) -> None:
    """Deletes what is on disk of the kernels of this one's file."""
    folder = getattr(getattr(kernel, "stats", None), "cache_path", None)
    for kept in Path(folder).glob(f"{kernel.__module__.rpartition('.')[2]}.*.nb[ci]") if folder else ():
        kept.unlink(missing_ok=True)
