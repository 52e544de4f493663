"""Loops as machine code, by numba: for what torch would take many small operations for on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

SUMS = {"reassoc", "contract", "nsz", "arcp"}
"""Sums in any order; not what would make nan disappear."""

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(kernel: Kernel) -> Kernel:
    """The kernel, compiled at its first call and kept on disk where there is a place for it. One thread."""
    # A division that is checked for zero would not be vectorised.
    how: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": SUMS}
    try:
        return cast(Kernel, njit(cache=True, **how)(kernel))
    except RuntimeError:
        return cast(Kernel, njit(**how)(kernel))
