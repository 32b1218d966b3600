"""One factor between what devices were predicted to take and what they took in real runs.

A profile is taken layer by layer, alone and at another time than the runs that it is to predict;
what these have in common (Python between layers, caches shared with a communication thread, a
machine at another speed) shows as one factor on everything that a device does. Links are measured
on their own, so that the factor leaves them alone.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autoplan.cluster import Cluster
from autoplan.documents import STRICT, build_json, pretty_json, read_bytes, write_atomic
from autoplan.errors import require
from autoplan.job import Job
from autoplan.workload import CostCurve, Workload

NOTE = "calibrated: "
"""How the note begins that a calibrated workload carries into predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A factor, and the real runs that it was fitted to."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-calibration/1"] = "autoplan-calibration/1"
    device_factor: float
    """Device seconds of the files times this are device seconds of real runs."""
    clock: Literal["wall", "virtual"]
    """The clock of those runs."""
    plans_sha256: tuple[str, ...]
    """The plans that were run."""
    errors_before: tuple[float, ...]
    """Predicted over measured step less 1 of each, as it was predicted before the fit."""
    errors_after: tuple[float, ...]
    """The same with it."""
    workload: str
    """Name of the workload."""
    device: str
    """Name of the cluster's device."""

    def __post_init__(self) -> None:
        """Refuses factors that are not positive, and ones without runs."""
        sound = math.isfinite(self.device_factor) and self.device_factor > 0
        require(sound, "device_factor", self.device_factor, "a finite number above 0")
        require(bool(self.plans_sha256), "plans_sha256", self.plans_sha256, "at least one plan")
        for name in ("errors_before", "errors_after"):
            values = getattr(self, name)
            sound = len(values) == len(self.plans_sha256) and all(map(math.isfinite, values))
            require(sound, name, values, "a finite number for each plan")

    @property
    def note(self) -> str:
        """What a reader of a prediction must know."""
        runs = len(self.plans_sha256)
        mean = sum(map(abs, self.errors_after)) / runs
        return (
            f"{NOTE}device seconds times {self.device_factor:.4g}, fitted to {runs} real runs of "
            f"{self.workload} on {self.device} ({self.clock} clock), which it predicts to "
            f"{100 * mean:.1f} %"
        )

    def save(self, path: str | Path) -> None:
        """Writes it as JSON, whole or not at all; raises InputError where it cannot."""
        write_atomic(path, pretty_json(self))


def load_calibration(path: str | Path) -> Calibration:
    """Reads a calibration file.

    Raises:
        InputError: it cannot be read, or is not a valid calibration.
    """
    return build_json(Calibration, read_bytes(path), str(path))


def calibrated(
    workload: Workload, cluster: Cluster, job: Job, calibration: Calibration
) -> tuple[Workload, Cluster, Job]:
    """The same three with the factor on all device seconds, and a note of it."""
    scaled, slowed, timed = scaled_devices(workload, cluster, job, calibration.device_factor)
    notes = (*scaled.provenance.notes, calibration.note)
    provenance = dataclasses.replace(scaled.provenance, notes=notes)
    return dataclasses.replace(scaled, provenance=provenance), slowed, timed


def scaled_devices(
    workload: Workload, cluster: Cluster, job: Job, factor: float
) -> tuple[Workload, Cluster, Job]:
    """The same three with all device seconds times a factor: layers, update, top-k, copies."""
    layers = tuple(
        dataclasses.replace(
            layer, forward=_curve(layer.forward, factor), backward=_curve(layer.backward, factor)
        )
        for layer in workload.layers
    )
    rate = job.optimizer_s_per_element
    return (
        dataclasses.replace(workload, layers=layers),
        dataclasses.replace(cluster, device=cluster.device.slowed(factor)),
        dataclasses.replace(job, optimizer_s_per_element=None if rate is None else rate * factor),
    )


def _curve(curve: CostCurve, factor: float) -> CostCurve:
    spread = curve.spread_s
    return CostCurve(
        samples=curve.samples,
        seconds=tuple(s * factor for s in curve.seconds),
        # The product must not end above the first point by a rounding.
        overhead_s=min(curve.overhead_s * factor, curve.seconds[0] * factor),
        spread_s=None if spread is None else tuple(s * factor for s in spread),
    )
