"""How this process returns memory to the operating system: rarely, because training asks for it again at once."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's M_TRIM_THRESHOLD and M_MMAP_MAX
_TWO_GIGABYTES = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks. Tells whether it could.

    Every step of a linear model allocates and frees tens of megabytes. glibc hands such blocks back to the kernel,
    which clears them anew for the next step; on virtual machines that can take a good part of a step's time.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _TWO_GIGABYTES))
