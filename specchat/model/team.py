"""Compiled loops on the threads that torch multiplies with: they are awake then, and no others want the same cores.

A loop takes pieces of a job by number until there are none left, as many of them at once as there are threads; what
a piece computes does not depend on who takes it. GNU's OpenMP, which torch's builds for Linux bring, is asked directly;
where there is no such thing the calling thread does all of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Run = Callable[[int, int], None]
"""Of the address of a job, and a number of threads. Job and function must stay where they are meanwhile."""


def _pointer(_: Any, address: Any) -> Any:
    """What `carray` takes, from an address kept as a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


pointer: Any = intrinsic(_pointer)


def _count_up(_: Any, address: Any) -> Any:
    """Adds 1 to the int64 at an address, and returns what was there: another number for every thread that asks.

    What the others wrote before they asked is seen after it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.inttoptr(arguments[0], cgutils.intp_t.as_pointer())
        return builder.atomic_rmw("add", counter, context.get_constant(types.int64, 1), "acq_rel")

    return types.int64(types.int64), generate


count_up: Any = intrinsic(_count_up)


def shared(entry: Any) -> Run:
    """Runs a C function (see `compiled.entry`) with every thread, and waits for all of them."""
    parallel = _parallel()
    if parallel is None:
        alone = entry.ctypes

        def run(job: int, threads: int) -> None:
            alone(job)
    else:
        place = entry.address

        def run(job: int, threads: int) -> None:
            parallel(place, job, threads, 0)

    return run


@cache
def _parallel() -> Callable[[int, int, int, int], None] | None:
    """OpenMP's way to call a function with every thread of a team, from the library that torch itself uses; None of none.

    Of the arguments (function, its argument, threads, flags) libgomp's own header says the same.
    """
    try:
        call = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    call.restype = None
    return call
