"""Which threads of a rank go first on its core."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_own_core = False


def claim_core(core: int) -> None:
    """Keeps this process on a core that no other rank uses; threads that communicate go first.

    Where ranks share cores, those of one rank would keep the others from computing.
    """
    global _own_core
    os.sched_setaffinity(0, {core})
    _own_core = True


def go_first() -> None:
    """Has this thread, and those that it starts, go before others where that is granted."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def communicate_first() -> None:
    """Has this thread go before the one that computes on the rank's own core.

    A thread that communicates sleeps nearly all the time and takes little; behind one that
    computes it would wait for its turn at every message, milliseconds each, and so would its peers.
    """
    if _own_core:
        go_first()


@contextlib.contextmanager
def starting_first() -> Iterator[None]:
    """Threads that are started in the meantime go first on the rank's own core once this is left.

    Not before: ranks that connect all at once overrun each other's queues of callers.
    """
    before = _threads()
    yield
    for thread in _threads() - before if _own_core else ():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def _threads() -> set[int]:
    """The numbers that the system gives to this process's threads."""
    if sys.platform != "linux":
        return set()
    return {int(name) for name in os.listdir("/proc/self/task")}
