"""The device that Paddle computes on: its name, its allocator's counts, and when it is done."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Protocol

from autoplan.errors import InputError, require
from autoplan.execute.model_source import require_paddle


class Device(Protocol):
    """What a measurement asks of a device."""

    description: str
    """The processor's model name."""
    threads: int | None
    """Compute threads of the framework, on a CPU."""

    def synchronize(self) -> None:
        """Returns when all work given to the device is done."""

    def allocated_bytes(self) -> int:
        """Bytes that tensors hold now."""

    def peak_bytes(self, *, reset: bool = False) -> int:
        """Most bytes held since the last reset; with `reset`, starts anew from now."""


class CpuDevice:
    """The host; the figures are those of Paddle's host allocator, exact to its alignment."""

    def __init__(self, paddle: Any) -> None:
        """Reads the processor's name and the number of compute threads."""
        self._core = paddle.base.core
        self.description = cpu_name()
        # Paddle sets the variable to 1 at its import where the user has not set it.
        self.threads: int | None = int(os.environ.get("OMP_NUM_THREADS", "1").split(",")[0])

    def synchronize(self) -> None:
        """Nothing to wait for: an operator on the host returns when it is done."""

    def allocated_bytes(self) -> int:
        """Bytes that tensors on the host hold now."""
        return int(self._core.host_memory_stat_current_value("Allocated", 0))

    def peak_bytes(self, *, reset: bool = False) -> int:
        """Most bytes held since the last reset; with `reset`, starts anew from now."""
        if reset:
            self._core.host_memory_stat_reset_peak_value("Allocated", 0)
        return int(self._core.host_memory_stat_peak_value("Allocated", 0))


class GpuDevice:
    """A CUDA device; the figures are those of Paddle's allocator on it."""

    threads: int | None = None

    def __init__(self, paddle: Any) -> None:
        """Reads the device's name."""
        self._cuda = paddle.device.cuda
        self.description = str(self._cuda.get_device_name())

    def synchronize(self) -> None:
        """Waits for the kernels launched so far."""
        self._cuda.synchronize()

    def allocated_bytes(self) -> int:
        """Bytes that tensors on the device hold now."""
        return int(self._cuda.memory_allocated())

    def peak_bytes(self, *, reset: bool = False) -> int:
        """Most bytes held since the last reset; with `reset`, starts anew from now."""
        if reset:
            self._cuda.reset_max_memory_allocated()
        return int(self._cuda.max_memory_allocated())


def current_device() -> Device:
    """The device on which Paddle places new tensors.

    Raises:
        InputError: paddle is missing, or the device is neither a CPU nor a CUDA GPU.
    """
    paddle = require_paddle()
    place = str(paddle.get_device())
    if place == "cpu":
        return CpuDevice(paddle)
    if place.startswith("gpu"):
        return GpuDevice(paddle)
    raise InputError("device", place, "cpu or gpu (paddle.set_device chooses)")


def visible_gpus() -> int:
    """CUDA devices that Paddle can use here; raises InputError where it is missing."""
    paddle = require_paddle()
    return int(paddle.device.cuda.device_count()) if paddle.is_compiled_with_cuda() else 0


def set_threads(threads: int) -> None:
    """Has Paddle compute with `threads` threads on the CPU from now on.

    Raises:
        InputError: paddle is missing, or `threads` is below 1.
    """
    require(threads >= 1, "threads", threads, "at least 1")
    paddle = require_paddle()
    paddle.base.core.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


def cpu_name() -> str:
    """The model name that Linux gives, elsewhere the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
