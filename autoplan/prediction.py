"""What a plan is predicted to do: step time, where it goes, memory, and how good it can get."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autoplan.documents import plain

ROUNDING = 1e-9
"""Relative differences below this are sums taken in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes at the peak on one device of a stage (DESIGN 3.3)."""

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    buffer_bytes: float
    """Fused buffers of gradient groups that hold several layers."""
    scratch_bytes: float
    """Buffers of groups that hold one layer: the dense ones take turns in the largest of theirs,
    the sparse ones have one each."""
    residual_bytes: float
    """What sparse groups have not sent yet (error feedback)."""
    stash_bytes: float
    """Kept activations of all microbatches in flight."""
    working_bytes: float
    """The largest working set of one layer's backward."""
    released_bytes: float
    """Stash that backward has released by the time at which it needs most: the peak is expected to
    be as much lower than what is set aside."""
    available_bytes: float
    """Memory of the device less the job's headroom."""

    @property
    def total_bytes(self) -> float:
        """All that the stage is to have set aside: its largest parts, whenever they are needed."""
        static = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        exchange = self.buffer_bytes + self.scratch_bytes + self.residual_bytes
        return static + exchange + self.stash_bytes + self.working_bytes

    @property
    def expected_bytes(self) -> float:
        """The peak that a run is expected to show."""
        return self.total_bytes - self.released_bytes

    @property
    def missing_bytes(self) -> float:
        """What it needs beyond the device; 0 where it fits."""
        return max(0.0, self.total_bytes - self.available_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One stage's share of the step, in seconds."""

    layers: tuple[int, int]
    replicas: int
    devices: tuple[int, ...]
    """Device numbers in the cluster."""
    forward_s: float
    """One forward of one microbatch."""
    backward_s: float
    """One backward of one microbatch, recomputation included."""
    send_forward_s: float
    """Activations of one microbatch to the next stage; 0 on the last."""
    compute_s: float
    """All forwards and backwards of the step, with what exchanges beside them take."""
    sparsification_s: float
    """Selecting the elements that sparse groups send, once per step."""
    exposed_communication_s: float
    """From the end of compute to the end of the last gradient group."""
    optimizer_s: float
    load_s: float
    """What the stage is busy with in a step where none of it overlaps: all forwards and backwards,
    transfers in and out, gradient exchanges, the update. The largest of all stages is the time per
    step of a pipeline that never drains (the objective of Piper and dnn-partitioning)."""
    bubble_s: float
    """The rest of the step: waiting."""
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted step of a plan."""

    step_s: float
    """Seconds per optimizer update."""
    lower_bound_s: float
    """No plan in the searched space is faster, under the model."""
    samples_per_s: float
    stages: tuple[StagePrediction, ...]
    notes: tuple[str, ...]
    """Where the figures stand on assumptions: extrapolated costs, unknown bandwidths."""

    @property
    def gap(self) -> float:
        """How far the plan can be from the best one: step / bound - 1; 0 is proven optimal."""
        if self.lower_bound_s <= 0:
            return math.inf
        gap = self.step_s / self.lower_bound_s - 1
        return 0.0 if abs(gap) < ROUNDING else gap

    @property
    def max_load_s(self) -> float:
        """The load of the busiest stage."""
        return max(stage.load_s for stage in self.stages)

    @property
    def num_devices(self) -> int:
        """Devices that the plan uses."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def peak_bytes(self) -> float:
        """Memory that the fullest stage needs on each of its devices."""
        return max(stage.memory.total_bytes for stage in self.stages)

    @property
    def missing_bytes(self) -> float:
        """Bytes that the fullest stage lacks; 0 where the plan fits."""
        return max(stage.memory.missing_bytes for stage in self.stages)

    @property
    def feasible(self) -> bool:
        """Whether the plan can run: it fits in memory and its step time is finite."""
        return self.missing_bytes == 0 and math.isfinite(self.step_s)

    def to_document(self) -> dict[str, Any]:
        """The prediction as JSON-ready values, derived figures included."""
        document: dict[str, Any] = plain(self)
        for stage, row in zip(self.stages, document["stages"], strict=True):
            row["memory"]["total_bytes"] = stage.memory.total_bytes
            row["memory"]["expected_bytes"] = stage.memory.expected_bytes
            row["memory"]["missing_bytes"] = stage.memory.missing_bytes
        gap = self.gap if math.isfinite(self.gap) else None
        return document | {"gap": gap, "feasible": self.feasible}
