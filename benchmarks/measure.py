"""Measuring: how long a call takes, how much memory it needs, and how fast this machine can be at best.

Two limits bound every operation (Williams, Waterman and Patterson 2009, the roofline): floating-point
work W cannot go faster than the machine's best matrix product, and Q bytes cannot move faster than
its memory delivers them:

    time ≥ max(W / product rate, Q / memory rate)

Which of the two is larger says what an operation is bound by; how near the time comes to it, how
good the page is.
"""

import os
import platform
import subprocess
import sys
import timeit
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from .threads import cores


@dataclass(frozen=True)
class Sizes:
    """The book's letters, for single operations. S = T and K = D / H."""

    B: int
    T: int
    D: int
    H: int
    F: int
    V: int

    @property
    def N(self) -> int:
        return self.B * self.T

    @property
    def K(self) -> int:
        return self.D // self.H


FULL = Sizes(B=4, T=256, D=512, H=8, F=2048, V=8000)
QUICK = Sizes(B=2, T=64, D=128, H=4, F=512, V=1000)


@dataclass(frozen=True)
class Setting:
    """How a run measures."""

    quick: bool = False
    dtype: str = "float32"
    threads: int = 1

    @property
    def sizes(self) -> Sizes:
        return QUICK if self.quick else FULL

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 7

    @property
    def seconds(self) -> float:
        """The least duration of a repeat: far above the clock's grain."""
        return 0.01 if self.quick else 0.1

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize


def calls_per_repeat(timer: timeit.Timer, seconds: float) -> int:
    """Double the number of calls until a repeat lasts long enough; on the way everything warms up."""
    timer.timeit(1)
    number = 1
    while timer.timeit(number) < seconds:
        number *= 2
    return number


def time_calls(calls: Sequence[Callable], setting: Setting) -> list[tuple[float, ...]]:
    """Return the seconds of one call of each, once a repeat; the calls take turns, so that a slow spell strikes all."""
    timers = [timeit.Timer(call) for call in calls]
    numbers = [calls_per_repeat(timer, setting.seconds) for timer in timers]
    rounds = [[timer.timeit(number) / number for timer, number in zip(timers, numbers)]
              for _ in range(setting.repeats)]
    return list(zip(*rounds))


def peak_memory(call: Callable) -> int:
    """Return how many bytes a call has allocated at its peak, beyond what was there before."""
    call()  # what is allocated once and kept, such as a table of positions, does not count
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure_limits(setting: Setting) -> dict:
    """Return the best rates of this machine: products in flop/s; memory and cache in bytes/s.

    Memory: c = a + b and b = a over arrays far larger than any cache, each array counted once.
    NumPy adds with one core whatever the number of BLAS threads, so that is one core's rate. Cache:
    the same sum over arrays that stay in the core's own cache.
    """
    dtype = np.dtype(setting.dtype)
    n = 1024 if setting.quick else 2048
    a, b = np.ones((n, n), dtype), np.ones((n, n), dtype)                       # (n, n), (n, n)
    c = np.empty_like(a)                                                        # (n, n)
    (product,) = time_calls([lambda: np.matmul(a, b, out=c)], setting)

    def rates(nbytes):
        x, y, z = (np.ones(nbytes // dtype.itemsize, dtype) for _ in range(3))  # (N,), (N,), (N,)
        add, copy = time_calls([lambda: np.add(x, y, out=z), lambda: np.copyto(z, x)], setting)
        return 3 * nbytes / min(add), 2 * nbytes / min(copy)

    return {"product": 2 * n**3 / min(product),
            "memory": max(rates(2**25 if setting.quick else 2**27)),
            "cache": rates(2**16)[0]}


def least_time(flops: float, nbytes: float, limits: dict) -> tuple[float, str]:
    """Return the seconds that the limits demand, and the name of the limit that demands them."""
    return max((flops / limits["product"], "compute"), (nbytes / limits["memory"], "memory"))


def machine(setting: Setting) -> dict:
    """Return what a reader has to know to judge the figures."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "numpy": np.__version__,
        "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "threads": setting.threads,
        "cores": cores(),
        "cpu": cpu_model(),
        "dtype": setting.dtype,
        "quick": setting.quick,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def cpu_model() -> str:
    """Return the processor's name as the system knows it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        return asked.stdout.strip() or platform.machine()
    return platform.processor() or platform.machine() or "unknown"
