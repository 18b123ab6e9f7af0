"""Memory: what one step gives back, the next one asks for again.

A training step makes hundreds of large arrays and at its end drops them all. The C library then
returns the memory to the operating system, and for the next step takes it anew, 4096 bytes at a
time, each piece cleared first. That is work without a use, and not little: of two workers' step it was
13 % at width 512 (6 layers) and 23 % at width 256 (4 layers).
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt, in the words of its manual page
LARGEST = 2**31 - 1                      # bytes that may lie unused before any are returned
HEAP_ARRAY = 2**25                       # bytes of the largest array that is kept: many versions of the library allow no more


def keep_freed_memory() -> bool:
    """Have this process keep the memory that its arrays free, for the arrays to come; False where that cannot be asked.

    For a program that trains: it then holds to its end as much memory as it ever needed at once. Linux with
    the GNU C library knows the request; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return bool(mallopt and mallopt(TRIM_THRESHOLD, LARGEST) and mallopt(MMAP_THRESHOLD, HEAP_ARRAY))
