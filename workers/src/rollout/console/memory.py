"""What the process keeps of memory that it no longer needs.

The largest sample of a run is in memory while its page is made. glibc keeps up to 44 MB of what was freed, for each
thread that reads, once it has seen a block of 22 MB; a fixed threshold has every large block returned to the system.
"""

from __future__ import annotations

import ctypes

LARGE_BYTES = 1 << 20
"""Blocks from this size on go back when they are freed."""
_M_MMAP_THRESHOLD = -3
"""Its number in glibc's malloc.h."""


def return_large_blocks() -> None:
    """Do so from now on, in the whole process; nothing where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
