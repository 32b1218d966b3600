"""The decision: how the model is cut, replicated, scheduled, and how its gradients are merged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from autoplan.documents import STRICT, build_json, identity, pretty_json, read_bytes, write_atomic
from autoplan.errors import InputError, require, words

Schedule = Literal["gpipe", "1f1b"]
RankOrder = Literal["replica", "stage"]

MAX_MICROBATCHES = 2**20
"""Keeps a mistyped number from exhausting memory."""
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
RANK_ORDERS: tuple[RankOrder, ...] = ("replica", "stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientGroup:
    """Layers whose gradients are exchanged in one collective."""

    __pydantic_config__ = STRICT

    layers: tuple[int, int]
    """Half-open range of layers, in forward numbering."""
    density: float = 1.0
    """1.0 is a dense all-reduce; less keeps that share of the elements (top-k)."""

    def __post_init__(self) -> None:
        """Refuses empty ranges and densities outside (0, 1]."""
        _require_range(self.layers)
        require(0 < self.density <= 1, "density", self.density, "above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A contiguous piece of the model and the devices that run it."""

    __pydantic_config__ = STRICT

    layers: tuple[int, int]
    """Half-open range of layers, in forward numbering."""
    replicas: int = 1
    """Devices that run this stage, each on an equal share of every microbatch."""
    recompute: bool = False
    """Whether backward runs the forward again from the stage's input instead of stashing."""
    groups: tuple[GradientGroup, ...]
    """Gradient groups in backward order; together they cover the stage's layers."""

    def __post_init__(self) -> None:
        """Refuses empty stages, stages without devices, and groups that do not cover the stage."""
        _require_range(self.layers)
        require(self.replicas >= 1, "replicas", self.replicas, "at least 1")
        first, end = self.layers
        for i, group in enumerate(self.groups):
            sound = group.layers[1] == end
            allowed = f"[..., {end}]: groups run from the last layer to the first without gaps"
            require(sound, f"groups[{i}].layers", list(group.layers), allowed)
            end = group.layers[0]
        missing = f"groups that reach down to layer {first}, the first of the stage"
        require(end == first, "groups", words(f"layers down to {end}"), missing)

    @property
    def num_layers(self) -> int:
        """Layers in the stage."""
        return self.layers[1] - self.layers[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one training step is run. Only valid plans can be built."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-plan/1"] = "autoplan-plan/1"
    stages: tuple[Stage, ...]
    """From the first layers to the last."""
    microbatches: int
    """Microbatches per step; each holds global_batch / microbatches samples."""
    schedule: Schedule = "1f1b"
    """The order of forwards and backwards on each stage."""
    rank_order: RankOrder = "replica"
    """Which neighbours are packed inside a node: replicas of a stage, or stages of a replica."""

    def __post_init__(self) -> None:
        """Refuses plans whose stages leave gaps or overlap, and steps without microbatches."""
        require(bool(self.stages), "stages", self.stages, "at least one stage")
        sound = 1 <= self.microbatches <= MAX_MICROBATCHES
        require(sound, "microbatches", self.microbatches, f"1 to {MAX_MICROBATCHES}")
        require(self.schedule in SCHEDULES, "schedule", self.schedule, " or ".join(SCHEDULES))
        known = self.rank_order in RANK_ORDERS
        require(known, "rank_order", self.rank_order, " or ".join(RANK_ORDERS))
        start = self.stages[0].layers[0]
        require(start == 0, "stages[0].layers", list(self.stages[0].layers), "[0, ...]")
        for i, (before, after) in enumerate(pairwise(self.stages), start=1):
            sound = after.layers[0] == before.layers[1]
            allowed = f"[{before.layers[1]}, ...], where the stage before ends"
            require(sound, f"stages[{i}].layers", list(after.layers), allowed)

    @property
    def num_layers(self) -> int:
        """Layers that the plan covers."""
        return self.stages[-1].layers[1]

    @property
    def num_devices(self) -> int:
        """Devices that the plan uses."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def cuts(self) -> tuple[int, ...]:
        """First layer of each stage but the first."""
        return tuple(stage.layers[0] for stage in self.stages[1:])

    @property
    def sha256(self) -> str:
        """The plan's identity: two plans that do the same have the same."""
        return identity(self)

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON, whole or not at all; raises InputError where it cannot."""
        write_atomic(path, pretty_json(self))

    def require_fits(self, num_layers: int, num_devices: int, global_batch: int) -> None:
        """Checks the plan against what it is for.

        Raises:
            InputError: it covers another number of layers, needs more devices than there are, or
                the batch cannot be split as it asks.
        """
        allowed = f"{num_layers}, the layers of the workload"
        require(self.num_layers == num_layers, "stages: layers covered", self.num_layers, allowed)
        allowed = f"at most {num_devices}, the devices of the cluster"
        require(self.num_devices <= num_devices, "stages: devices", self.num_devices, allowed)
        sound = global_batch % self.microbatches == 0
        allowed = f"a divisor of the global batch of {global_batch} samples"
        require(sound, "microbatches", self.microbatches, allowed)
        samples = global_batch // self.microbatches
        for i, stage in enumerate(self.stages):
            allowed = f"a divisor of the {samples} samples in a microbatch"
            sound = samples % stage.replicas == 0
            require(sound, f"stages[{i}].replicas", stage.replicas, allowed)


def load_plan(path: str | Path) -> Plan:
    """Reads a plan file.

    Raises:
        InputError: it cannot be read, or is not a valid plan.
    """
    return build_json(Plan, read_bytes(path), str(path))


def _require_range(layers: tuple[int, int]) -> None:
    """Refuses ranges that are empty, reversed or negative."""
    if not 0 <= layers[0] < layers[1]:
        raise InputError("layers", list(layers), "[first, end] with 0 <= first < end")
