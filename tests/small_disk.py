"""A disk of a few megabytes: a tmpfs in a namespace of its own, which takes no rights to mount."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

_START_S = 30
_OWN_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount")


@functools.cache
def absent() -> str | None:
    """Why no disk can be mounted here, or None."""
    if not all(shutil.which(program) for program in ("unshare", "nsenter", "mount")):
        return "util-linux is not installed"
    command = [*_OWN_NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=_START_S)
    if tried.returncode:
        return f"user namespaces may not mount here ({tried.stderr.strip()})"
    return None


class SmallDisk:
    """Mounted at `folder` for programs that `start` starts; `seen` is the same from outside."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Mounts it, empty; `folder` must exist."""
        self.folder = folder
        script = f"mount -t tmpfs -o size={size_bytes} tmpfs '{folder}' && echo ready && exec cat"
        # The mount lives as long as this process, which ends when its input does.
        self._holder = subprocess.Popen(
            [*_OWN_NAMESPACES, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout.readline() == "ready\n"
        self.seen = Path(f"/proc/{self._holder.pid}/root") / folder.relative_to("/")

    def start(self, *arguments: object, **options: object) -> subprocess.Popen:
        """Starts Python with these arguments where the disk is mounted."""
        enter = ("nsenter", f"--target={self._holder.pid}", "--user", "--mount",
                 "--preserve-credentials")  # fmt: skip
        return subprocess.Popen(
            [*enter, sys.executable, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: object, seconds: float = 120) -> tuple[int, str, str]:
        """Runs Python to its end: exit code, standard output, standard error."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()
        return process.returncode, out, err

    def fill(self) -> None:
        """Leaves no byte free."""
        with (self.seen / "ballast").open("ab", buffering=0) as ballast:
            size = 2**20
            while size:
                try:
                    ballast.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Gives the room back."""
        (self.seen / "ballast").unlink()

    def close(self) -> None:
        """Unmounts it."""
        self._holder.communicate(timeout=_START_S)
