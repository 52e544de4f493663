"""Loops as machine code, by numba: for what torch would take many small operations for on a CPU."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from numba import cfunc, config, njit, types
from numba.core.errors import NumbaError

from specchat.model import loops

log = logging.getLogger(__name__)

SUMS = {"reassoc", "contract", "nsz", "arcp"}
"""Sums in any order; not what would make nan disappear."""

TRIES = 8
"""Of a first call: more than there are kernels that one of them calls, and itself."""

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(kernel: Kernel) -> Kernel:
    """The kernel, compiled at its first call and kept on disk where there is a place for it. One thread."""
    # A division that is checked for zero would not be vectorised.
    how: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": SUMS}
    with _kept() as keeps:
        return cast(Kernel, njit(cache=keeps, **how)(kernel))


def entry(kernel: Callable[[Any], None]) -> Any:
    """The kernel as a C function of one pointer, compiled now; kept likewise."""
    signature = types.void(types.voidptr)
    try:
        with _kept() as keeps:
            return cfunc(signature, cache=keeps)(kernel)
    except (MemoryError, NumbaError):
        raise
    except Exception as error:
        if not isinstance(error, OSError):
            _forget(kernel)
        return cfunc(signature)(kernel)


def first_call(kernel: Callable[..., Any], *arguments: object) -> None:
    """Calls it, so that it is compiled now. What was kept of it may be damaged, or the disk full: then it does without."""
    for left in reversed(range(TRIES)):
        try:
            kernel(*arguments)
            return
        except (MemoryError, NumbaError):
            raise
        except Exception as error:
            if not left:
                raise
            # If only keeping it failed, it is there by now; what it calls fails to be kept one after another.
            if left == 1 or (left == TRIES - 1 and not isinstance(error, OSError)):
                _forget(kernel)


def _forget(kernel: object) -> None:
    """Deletes what is on disk of all loops: they are parts of each other."""
    log.warning("what was kept of %s cannot be used; all loops are compiled anew", kernel, exc_info=True)
    folder = loops.folder()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _kept() -> Iterator[bool]:
    """Inside, numba keeps what is made where `loops` says, and nowhere else; False if there is no place."""
    settings: Any = config
    usual = settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES
    folder = loops.folder()
    try:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = str(folder or ""), "UserProvidedCacheLocator"
        yield folder is not None
    finally:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = usual
