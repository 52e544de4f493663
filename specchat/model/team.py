"""Compiled loops on the threads that torch multiplies with: they are awake then, and no others want the same cores.

A loop takes pieces of a job by number until there are none left, as many of them at once as there are threads; what
a piece computes does not depend on who takes it. GNU's interface to OpenMP is asked, which torch's builds for Linux
bring; where there is none the calling thread does all of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Run = Callable[[int, int], None]
"""Of the address of a job, which must stay where it is meanwhile, and a number of threads."""


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
        counter = builder.inttoptr(arguments[0], context.get_value_type(types.int64).as_pointer())
        return builder.atomic_rmw("add", counter, context.get_constant(types.int64, 1), "acq_rel")

    return types.int64(types.int64), generate


count_up: Any = intrinsic(_count_up)


def by_all(function: Any) -> Run:
    """Calls a C function (see `compiled.entry`) with so many threads, and waits for all of them."""
    parallel = _parallel()
    if parallel is None:
        return lambda job, _: function.ctypes(job)
    return lambda job, threads: parallel(function.address, job, threads, 0)


@cache
def _parallel() -> Callable[[int, int, int, int], None] | None:
    """How OpenMP is asked to call a function with every thread of a team; None where it cannot be.

    Arguments as of libgomp's GOMP_parallel: function, its argument, threads, flags. Whichever OpenMP torch itself uses
    is asked (one that was preloaded, else the one it brings): a second one would have threads of its own.
    """
    for library in (None, torch._C.__file__):
        try:
            call = ctypes.CDLL(library).GOMP_parallel
        except (OSError, AttributeError, TypeError):  # TypeError: on Windows there is no library of no name
            continue
        call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        call.restype = None
        return cast(Callable[[int, int, int, int], None], call)
    return None
