"""Which process searches a study, and whether it still runs, as far as that is known here."""

from __future__ import annotations

import enum
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from autoplan.errors import require

_PROC = Path("/proc")
_BOOT = _PROC / "sys/kernel/random/boot_id"
_LONGEST_NAME = 200
_STATE, _STARTED = 0, 19
"""Places in /proc/PID/stat after the command's name (proc(5) counts them from 3)."""


class Presence(enum.Enum):
    """What is known of a process."""

    GONE = "gone"
    """Its host says that it has ended."""
    RUNNING = "running"
    """Its host says that it runs."""
    SUSPENDED = "suspended"
    """Its host says that it was stopped by a signal, and may go on or not."""
    UNKNOWN = "unknown"
    """It belongs to another host or container, or this host tells nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One process that searches, or one search of several within it."""

    token: str
    """Random: no two searches ever share it."""
    host_name: str
    """Only shown."""
    host_identity: str
    """The same for processes that see each other's numbers; empty where that is not known."""
    pid: int
    process_start: int | None
    """Clock ticks after the host's start; tells processes apart that had the number in turn."""

    def __post_init__(self) -> None:
        """Refuses what no process can be."""
        require(len(self.token) > 0, "token", self.token, "some characters")
        require(self.pid > 0, "pid", self.pid, "at least 1")

    @classmethod
    def here(cls) -> Driver:
        """A new search of this process."""
        pid = os.getpid()
        status = _status_of(pid)
        return cls(
            token=secrets.token_hex(16),
            host_name=socket.gethostname()[:_LONGEST_NAME],
            host_identity=_host_identity(),
            pid=pid,
            process_start=None if status is None else int(status[_STARTED]),
        )

    @property
    def shown(self) -> str:
        """For messages."""
        return f"process {self.pid} on {self.host_name}"

    def presence(self) -> Presence:
        """Whether it still runs."""
        if not self.host_identity or self.host_identity != _host_identity():
            return Presence.UNKNOWN
        if _has_ended(self.pid):
            return Presence.GONE
        status = _status_of(self.pid)
        if status is None or self.process_start is None:
            return Presence.UNKNOWN
        if int(status[_STARTED]) != self.process_start or status[_STATE] in "ZXx":
            return Presence.GONE
        return Presence.SUSPENDED if status[_STATE] in "Tt" else Presence.RUNNING


def _host_identity() -> str:
    """One boot of one kernel and, since containers count their processes anew, one such count."""
    try:
        return f"{_BOOT.read_text().strip()}/{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False


def _status_of(pid: int) -> list[str] | None:
    """The fields of a process's state after its name, which may hold anything; None if unknown."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
