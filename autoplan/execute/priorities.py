"""Which threads of a rank go first on its core."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def go_first() -> None:
    """Has this thread, and those that it starts, go before others where that is granted.

    A thread that communicates sleeps nearly all the time and takes little; behind one that
    computes it would wait for its turn at every message, milliseconds each, and so would its peers.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


@contextlib.contextmanager
def starting_first() -> Iterator[None]:
    """Threads that are started in the meantime go first; this one does not afterwards."""
    go_first()
    try:
        yield
    finally:
        if sys.platform == "linux":
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
