"""The processes of a launch: started, watched, and ended together, so that none is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from autoplan.execute.paddle_device import visible_gpus

_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV")
_PASSED_ON_PREFIXES = ("LD_LIBRARY_PATH", "PYTHON", "NUMBA_", "CUDA_", "NVIDIA_", "NCCL_", "FLAGS_")
"""What ranks inherit of the environment: where things are, and settings of the framework."""
_TAIL_BYTES = 16_384
_POLL_S = 0.02
_KILL_S = 10.0
"""A killed process is gone at once unless the system is stuck."""


class Processes(Protocol):
    """The running ranks of a launch, wherever they are."""

    def exit_codes(self) -> list[int | None]:
        """Per rank; negative for the signal that ended it, None while it runs."""

    def wait(self, limit_s: float) -> None:
        """Waits for all to end by themselves, and kills what is left after `limit_s`."""

    def kill(self) -> None:
        """Kills every rank's process group, whatever it started included."""

    def last_line(self, rank: int) -> str:
        """The last line that a rank wrote to its standard error, empty if none."""


class Starter(Protocol):
    """Starts one process per rank."""

    host: str | None
    """This machine's name for ranks on others; None where all ranks run here."""

    def start(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> Processes:
        """Starts them; `environment` is beside what ranks inherit."""

    def device(self, rank: int) -> int:
        """The number by which a rank knows its GPU."""

    def gpus(self) -> int:
        """GPUs that ranks could have."""


class LocalStarter:
    """Starts all ranks on this machine."""

    host: str | None = None

    def start(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> Processes:
        """Starts them as children of this process."""
        return RankProcesses(commands, rank_environment(environment))

    def device(self, rank: int) -> int:
        """GPUs are taken in order."""
        return rank

    def gpus(self) -> int:
        """Those that Paddle sees here; raises InputError where there is no Paddle."""
        return visible_gpus()


class RankProcesses:
    """One child process per rank, each in a session of its own."""

    def __init__(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> None:
        """Starts all of them; their output goes to files without a name."""
        self._logs = [tempfile.TemporaryFile() for _ in commands]  # noqa: SIM115 - kept open
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for command, log in zip(commands, self._logs, strict=True):
                self._processes.append(_started(command, environment, log))
        except BaseException:
            self.kill()
            raise

    def exit_codes(self) -> list[int | None]:
        """Per rank; negative for the signal that ended it, None while it runs.

        Ended processes are left unreaped until `kill`, so that their numbers, by which it finds
        what they started, are not given to others.
        """
        return [_exit_code(process) for process in self._processes]

    def wait(self, limit_s: float) -> None:
        """Waits for all to end by themselves, and kills what is left after `limit_s`."""
        until_s = time.monotonic() + limit_s
        while None in self.exit_codes() and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        self.kill()

    def kill(self) -> None:
        """Kills every rank's process group, whatever it started included."""
        unreaped = [process for process in self._processes if process.returncode is None]
        for process in unreaped:
            # The group can outlive its leader, so that it is killed even if that has ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in unreaped:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_S)

    def last_line(self, rank: int) -> str:
        """The last line that a rank wrote to its standard error, empty if none."""
        descriptor = self._logs[rank].fileno()
        start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
        text = os.pread(descriptor, _TAIL_BYTES, start).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def _started(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Without reaping it; None while it runs."""
    if process.returncode is not None:
        return process.returncode
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def rank_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank: an allow-list of ours, one compute thread, and `more`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    paths = [path for path in (inherited.get("PYTHONPATH"), _source_tree()) if path]
    fixed = {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return {**inherited, **fixed, **more}


def _source_tree() -> str | None:
    """Where this package lies, unless it is installed, where ranks find it by themselves."""
    root = Path(__file__).resolve().parents[2]
    return None if root.name in {"site-packages", "dist-packages"} else str(root)


def rank_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Runs one of our modules; no file of the current folder can stand in for another module."""
    return (sys.executable, "-P", "-m", module, *arguments)
