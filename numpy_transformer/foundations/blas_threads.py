"""BLAS threads: how many cores one matrix product may use.

BLAS, NumPy's library for products, cuts every large one into pieces and gives each core one. That is
right for a process alone on its machine. Where each core has a process or a Python thread of its own,
the pieces only wait for one another: on two cores, two of them with two BLAS threads each are slower
than one alone.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock

import numpy as np

from .checks import check_count

# How the makers of BLAS call the two functions that tell and set the number: OpenBLAS, as NumPy's own
# packages have it and as others do, and MKL.
TELL_AND_SET = (("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
                ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
                ("openblas_get_num_threads", "openblas_set_num_threads"),
                ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"))

_lock, _limits = Lock(), []  # of all open blocks; the first is how many there were before any


def cores() -> int:
    """Return how many cores this process may use: fewer than the machine has where the system keeps some from it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limit_blas_threads(most: int) -> Iterator[None]:
    """Let this process's products use at most so many threads within the block, and as many as before after it.

    The number is one for the whole process. While several blocks are open, in several Python threads too, the least holds.
    Where NumPy's BLAS cannot be asked (on Windows, or another maker's) nothing happens; there its own variable, such as
    OPENBLAS_NUM_THREADS, can be set before Python starts.
    """
    check_count("most", most)
    tell, set_to = _functions() or (lambda: most, lambda threads: None)
    with _lock:
        if not _limits:
            _limits.append(tell())
        _limits.append(most)
        set_to(min(_limits))
    try:
        yield
    finally:
        with _lock:
            _limits.remove(most)
            set_to(min(_limits))
            if len(_limits) == 1:
                _limits.clear()


@cache
def _functions() -> tuple[Callable, Callable] | None:
    """Find the two functions by way of the part of NumPy that multiplies: what that library can call, ctypes can too."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)
        for tell, set_to in TELL_AND_SET:
            if hasattr(library, set_to):
                return getattr(library, tell), getattr(library, set_to)
    return None
