"""Which threads of a rank go first on its core."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_on_one_core = False


def keep_to_core(core: int) -> None:
    """Keeps this process on one core, on which threads that communicate go first."""
    global _on_one_core
    os.sched_setaffinity(0, {core})
    _on_one_core = True


def go_first() -> None:
    """Has this thread, and those that it starts, go before others where that is granted."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def communicate_first() -> None:
    """Has this thread go before those that compute on the rank's core.

    A thread that communicates sleeps nearly all the time and takes little; behind one that
    computes it would wait for its turn at every message, milliseconds each, and so would its peers.
    """
    if _on_one_core:
        go_first()


@contextlib.contextmanager
def starting_first() -> Iterator[None]:
    """Threads that a library starts in the meantime go first on the rank's core, like its own."""
    before = _threads()
    yield
    for thread in _threads() - before if _on_one_core else ():
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def _threads() -> set[int]:
    """The numbers that the system gives to this process's threads."""
    if sys.platform != "linux":
        return set()
    return {int(name) for name in os.listdir("/proc/self/task")}
