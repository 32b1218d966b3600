"""How the C library of this process hands out memory for tensors on the host."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Parameters of glibc's mallopt(3)."""
_NEVER = -1
_PAD_BYTES = 64 << 20


def keep_freed_memory() -> bool:
    """Has freed memory stay with the process, so that a step's tensors find pages that are there.

    By default glibc gives large blocks back to the system and asks for them again a moment later:
    in an MLP's step the page faults of that are 7 % of its CPU time, and the part of it that
    varies most between steps. Peaks as the allocator counts them stay the same.

    Returns:
        Whether the C library can be asked to.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _PAD_BYTES))
    return all([bool(mallopt(name, value)) for name, value in settings])
