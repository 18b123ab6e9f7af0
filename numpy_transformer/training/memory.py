"""Memory: what one step gives back, the next one asks for again.

A training step makes hundreds of large arrays and at its end drops them all. The C library gives a
large array memory of its own, which goes back to the operating system at once; smaller ones lie in
a common heap, whose unused end is returned now and then. For the next step all is taken anew, 4096
bytes at a time, each piece cleared first. That is work without a use, and not little: with two processes
it took 13 % of a step at width 512 (6 layers) and 23 % at width 256 (4 layers).
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt, in the words of its manual page
MOST_UNUSED = 2**31 - 1                  # bytes that may lie unused at the heap's end before any are returned
LARGEST_IN_HEAP = 2**25                  # bytes; a larger array gets memory of its own: many versions of the library allow no more


def keep_freed_memory() -> bool:
    """Have this process keep the memory that its arrays free, for the arrays to come; False where that cannot be asked.

    For a program that trains: it then holds to its end as much memory as its arrays of up to 32 MB ever needed at once.
    Linux with the GNU C library knows the request; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return bool(mallopt and mallopt(TRIM_THRESHOLD, MOST_UNUSED) and mallopt(MMAP_THRESHOLD, LARGEST_IN_HEAP))
