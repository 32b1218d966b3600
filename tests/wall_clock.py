"""A wall clock that can be set while a program runs, by Debian's libfaketime; others stay alone."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_PACKAGE = "libfaketime"
_FETCH_S = 60
_SLEEP = """import select, time
time.sleep = lambda seconds: select.select([], [], [], seconds)
"""
"""Python sleeps until a moment of the monotonic clock, which libfaketime 0.9.10 takes for one of
the wall clock and refuses."""


@functools.cache
def library() -> Path | None:
    """libfaketime, of the system or unpacked from its package; None where there is neither."""
    for folder in ("/usr/lib", "/usr/local/lib"):
        if found := next(Path(folder).glob("**/faketime/libfaketime.so.1"), None):
            return found
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    folder = Path(tempfile.mkdtemp(prefix="autoplan-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _unpacked(folder)


def _unpacked(folder: Path) -> Path | None:
    """Fetches the package and unpacks it, which takes no rights; None where that fails."""
    try:
        command = ["apt-get", "download", _PACKAGE]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_FETCH_S)
        (package,) = folder.glob("*.deb")
        command = ["dpkg-deb", "-x", package, folder]
        subprocess.run(command, check=True, capture_output=True, timeout=_FETCH_S)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return next(folder.glob("**/libfaketime.so.1"), None)


class WallClock:
    """Shifts the wall clock of programs that run in its `environment`."""

    def __init__(self, folder: Path) -> None:
        """A file in the folder tells the programs the shift; it starts at 0."""
        self._file = folder / "shift"
        start = folder / "at-start"
        start.mkdir()
        (start / "sitecustomize.py").write_text(_SLEEP)
        self.shift(0)
        self.environment = {
            "LD_PRELOAD": str(library()),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(start), os.environ.get("PYTHONPATH")))),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def shift(self, seconds: int) -> None:
        """Sets the clock so many seconds after the real one."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self._file)
