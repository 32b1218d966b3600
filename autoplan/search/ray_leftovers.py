"""Ends what a Ray of our own leaves behind when the driver is killed.

Ray's agents outlive a driver that dies of SIGKILL by up to a minute. A small process of ours waits
for the driver's end of a pipe to close, and kills what still belongs to the driver's Ray session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_GRACE_S = 2.0
"""How long Ray may take to end by itself."""
_TRIES = 20


class Watch:
    """The process that waits, and the pipe that it waits on."""

    def __init__(self) -> None:
        """Starts it in a session of its own, so that a Ctrl-C on the terminal passes it by."""
        command = [sys.executable, "-I", str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, env={}
        )

    def session(self, name: str) -> None:
        """Tells it the session's name, which the command lines of its processes carry."""
        assert self._process.stdin is not None
        self._process.stdin.write(name.encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Lets it look once more, now, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def _processes_of(session: str) -> list[int]:
    """Our processes whose command lines name the session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = folder.stat().st_uid == os.getuid()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if ours and session.encode() in command and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def _main() -> None:
    """Reads the name, waits for the pipe to close, and ends what is left."""
    lines = sys.stdin.read().split()
    if not lines:
        return
    until_s = time.monotonic() + _GRACE_S
    while _processes_of(lines[-1]) and time.monotonic() < until_s:
        time.sleep(0.1)
    for _ in range(_TRIES):
        left = _processes_of(lines[-1])
        if not left:
            return
        for number in left:
            try:
                os.kill(number, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.1)


if __name__ == "__main__":
    _main()
