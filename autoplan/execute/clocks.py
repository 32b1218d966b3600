"""The clocks of a step: wall, a virtual clock of CPU time, and the load that others caused."""

from __future__ import annotations

import os
import time
from pathlib import Path

from autoplan.execute.real_run import ComputeMode

_SPIN_S = 8e-5
"""Sleeps end that much late on an idle machine; a short spin at the end makes up for it."""


def sleep_until(monotonic_s: float) -> None:
    """Returns at that time.monotonic(), or at once where it is over."""
    time.sleep(max(0.0, monotonic_s - _SPIN_S - time.monotonic()))
    while time.monotonic() < monotonic_s:
        pass


class StepClock:
    """A rank's time since the step began, by the wall and by the virtual clock.

    The virtual clock stands for a machine on which every rank has a core of its own: it runs with
    the CPU time of the process, whose threads share that core, waits for messages by their virtual
    time of arrival (which they carry), and takes transfers to last as long as the model says. With
    emulated compute it runs with the emulated seconds, so that it follows the planner's own
    arithmetic through the real order of messages.

    The computing thread alone calls it, except for `wall_s` and `sleep_until`.
    """

    def __init__(self, compute: ComputeMode, start_at_s: float | None = None) -> None:
        """Starts now, or waits for a time.monotonic() value first."""
        self._emulated = compute == "emulated"
        if start_at_s is not None:
            time.sleep(max(0.0, start_at_s - time.monotonic()))
        self._started_s = time.monotonic() if start_at_s is None else start_at_s
        self._virtual_s = 0.0 if self._emulated else -time.process_time()
        self._due_s = 0.0

    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def virtual_s(self) -> float:
        """Virtual seconds since the start."""
        return self._virtual_s + (0.0 if self._emulated else time.process_time())

    def wait_virtually(self, until_s: float) -> None:
        """Moves the virtual clock on to `until_s` if it is not there yet."""
        self._virtual_s += max(0.0, until_s - self.virtual_s())

    def begin_work(self) -> None:
        """A piece of emulated work starts now."""
        self._due_s = self.wall_s()

    def spend(self, seconds: float) -> None:
        """Sleeps the next emulated seconds of the piece of work that has begun.

        Sleeping until a point in time, not for a while, keeps wake-ups that come late from
        adding up within one piece of work.
        """
        self._due_s += seconds
        self.sleep_until(self._due_s)
        self._virtual_s += seconds

    def sleep_until(self, wall_s: float) -> None:
        """Sleeps until that many wall seconds after the start."""
        sleep_until(self._started_s + wall_s)


class LoadMeter:
    """How much of the machine's cores others used: /proc/stat less the CPU time of one's own."""

    def __init__(self) -> None:
        """Reads the counters for the first time."""
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self.restart()

    def restart(self) -> None:
        """Measures from now on."""
        self._busy, self._started_s = _busy_ticks(), time.monotonic()

    def foreign_share(self, own_cpu_s: float) -> float:
        """Share of all cores' time since the start that was busy and not one's own.

        Ticks last 10 ms, so that a step of a few of them has a coarse share; where the system
        keeps no such counters the share is 1, so that no wall clock is trusted by mistake.
        """
        busy = _busy_ticks()
        if busy is None or self._busy is None:
            return 1.0
        cores = os.cpu_count() or 1
        available_s = max(time.monotonic() - self._started_s, 1.0 / self._ticks_per_s) * cores
        foreign_s = (busy - self._busy) / self._ticks_per_s - own_cpu_s
        return min(1.0, max(0.0, foreign_s / available_s))


def _busy_ticks() -> int | None:
    """Ticks of all cores that were not idle, steal included."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guest time is part of user.
    user, nice, system, _, _, irq, softirq, steal, *_ = (int(n) for n in first.split()[1:])
    return user + nice + system + irq + softirq + steal
