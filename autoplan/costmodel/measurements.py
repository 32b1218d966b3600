"""The database of measured operators: one JSON file per device, which grows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from autoplan.documents import STRICT, build_json, pretty_json, read_bytes, write_atomic
from autoplan.errors import InputError, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One operator's seconds."""

    __pydantic_config__ = STRICT

    seconds: float
    """Median seconds of a call, dispatch included."""
    spread_s: float = 0.0
    """Half the interquartile range."""
    samples: int = 1
    """Readings that the median is of."""

    def __post_init__(self) -> None:
        """Refuses times that are negative or not finite."""
        for name in ("seconds", "spread_s"):
            value = getattr(self, name)
            sound = math.isfinite(value) and value >= 0
            require(sound, name, value, "a finite number of seconds, at least 0")
        require(self.samples >= 1, "samples", self.samples, "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What was measured on one device with one version of the framework."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-op-costs/1"] = "autoplan-op-costs/1"
    device: str
    """The processor's name."""
    framework: str
    """Name and version."""
    threads: int | None = None
    """Compute threads, on a CPU."""
    step_overhead_s: float = 0.0
    """Seconds that running any program takes, however few operators it has."""
    ops: dict[str, Measurement] = field(default_factory=dict)
    """By signature."""

    def __post_init__(self) -> None:
        """Refuses an overhead that is negative or not finite."""
        value = self.step_overhead_s
        sound = math.isfinite(value) and value >= 0
        require(sound, "step_overhead_s", value, "a finite number of seconds, at least 0")

    def including(self, ops: Mapping[str, Measurement], step_overhead_s: float) -> Measurements:
        """With more operators; those measured again replace the older ones."""
        merged = {**self.ops, **ops}
        return dataclasses.replace(self, ops=merged, step_overhead_s=step_overhead_s)

    def require_same_device(self, other: Measurements) -> None:
        """Refuses to mix measurements of different devices or versions.

        Raises:
            InputError: device, framework or threads differ.
        """
        for name in ("device", "framework", "threads"):
            ours, theirs = getattr(self, name), getattr(other, name)
            require(ours == theirs, name, theirs, f"{ours!r}, as in the measurements so far")

    def save(self, path: str | Path) -> None:
        """Writes the file whole or not at all; raises InputError where it cannot."""
        write_atomic(path, pretty_json(self))


def load_measurements(path: str | Path) -> Measurements:
    """Reads a database of measurements.

    Raises:
        InputError: it cannot be read, or is not one.
    """
    return build_json(Measurements, read_bytes(path), str(path))


def grow(path: str | Path, new: Measurements) -> Measurements:
    """Adds measurements to a file, making it where it is absent; returns all of them.

    Raises:
        InputError: the file is of another device, or cannot be read or written.
    """
    everything = new
    if Path(path).exists():
        old = load_measurements(path)
        try:
            old.require_same_device(new)
        except InputError as error:
            raise error.inside(str(path)) from None
        everything = old.including(new.ops, new.step_overhead_s)
    everything.save(path)
    return everything
