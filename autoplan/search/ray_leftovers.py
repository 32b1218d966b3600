"""Ends what a Ray of our own leaves behind when the driver is killed.

Ray's agents outlive a driver that dies of SIGKILL by up to a minute. All of Ray's processes inherit
a mark in their environment; a small process of ours waits for the driver's end of a pipe to close,
and kills whatever still carries the mark.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_MARK = "AUTOPLAN_RAY_OF"
_KEEPS_ENVIRONMENT = "SPT_NOENV"
"""Ray's processes write their titles over their environment unless this is set."""
_FIRST_LOOK_S, _GRACE_S = 0.5, 2.0
"""A process that is being started shows its environment only then; and how long Ray may take to
end by itself."""
_LOOKS, _BETWEEN_LOOKS_S = 100, 0.1
_QUIET_LOOKS, _QUIET_AFTER_A_KILL = 2, 30
"""Looks in a row that must find nothing: a process that is just being started has no environment
for a moment, and workers that outlive their node notice it only after half a minute."""
_ORDERLY = b"."
_CLOSE_S = 60.0


class Watch:
    """The process that waits, and the pipe that it waits on."""

    def __init__(self) -> None:
        """Starts it in a session of its own, so that a Ctrl-C on the terminal passes it by."""
        self._token = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self._token.encode())
        self._process.stdin.flush()

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Marks the processes that are started within it, and all that they start."""
        before = {name: os.environ.pop(name, None) for name in (_MARK, _KEEPS_ENVIRONMENT)}
        os.environ |= {_MARK: self._token, _KEEPS_ENVIRONMENT: "1"}
        try:
            yield
        finally:
            for name, value in before.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value

    def close(self) -> None:
        """Has it look now, and end."""
        assert self._process.stdin is not None
        self._process.stdin.write(_ORDERLY)
        self._process.stdin.close()
        self._process.wait(timeout=_CLOSE_S)


def _marked(token: str) -> list[int]:
    """Processes that carry the mark; those of others cannot be read."""
    found, mark = [], f"{_MARK}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _main() -> None:
    """Reads the token, waits for the pipe to close, and ends what is left."""
    told = sys.stdin.read()
    token = told.removesuffix(_ORDERLY.decode())
    enough = _QUIET_AFTER_A_KILL if told == token else _QUIET_LOOKS
    time.sleep(_FIRST_LOOK_S)
    until_s = time.monotonic() + _GRACE_S
    while _marked(token) and time.monotonic() < until_s:
        time.sleep(_BETWEEN_LOOKS_S)
    quiet = 0
    for _ in range(_LOOKS):
        left = _marked(token)
        quiet = 0 if left else quiet + 1
        if quiet == enough:
            return
        for number in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        time.sleep(_BETWEEN_LOOKS_S)


if __name__ == "__main__":
    _main()
