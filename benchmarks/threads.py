"""Threads: how many BLAS may use. It reads the environment once, while NumPy is being imported, so
nothing here imports NumPy."""

import os

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "OMP_NUM_THREADS")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(threads: int) -> dict[str, str]:
    """Return the variables that hold every known BLAS to so many threads."""
    return dict.fromkeys(VARIABLES, str(threads))
