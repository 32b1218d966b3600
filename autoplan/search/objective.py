"""What a search minimises: the value of a score, and what no plan of the space is below."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from autoplan.bounds.device_time import DeviceTimeBounds
from autoplan.bounds.loads import LoadBounds
from autoplan.predict import Predictor

ObjectiveName = Literal[
    "step_time", "max_stage_load", "throughput_per_device", "step_time_and_memory"
]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""Names that an experiment may ask for."""


class Scored(Protocol):
    """What is known of a plan: a `Score` or a `Prediction`."""

    @property
    def step_s(self) -> float:
        """Seconds per step."""

    @property
    def max_load_s(self) -> float:
        """Seconds per step that the busiest stage works."""

    @property
    def num_devices(self) -> int:
        """Devices that the plan uses."""

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest device."""


def value_of(name: ObjectiveName, scored: Scored) -> float:
    """What an objective makes of a plan, in seconds or device-seconds per step; less is better."""
    if name == "max_stage_load":
        return scored.max_load_s
    if name == "throughput_per_device":
        return scored.num_devices * scored.step_s
    return scored.step_s


class Objective(Protocol):
    """One figure in seconds; less is better."""

    name: ObjectiveName

    def value(self, scored: Scored) -> float:
        """The figure of a plan."""

    def quick_bound(self) -> float:
        """A figure that no plan of the domain is below, found at once."""

    def certified_bound(self, reached: float) -> float:
        """A higher one, given the figure that some plan reaches."""


class StepTime:
    """Seconds per step."""

    def __init__(
        self, predictor: Predictor, name: Literal["step_time", "step_time_and_memory"] = "step_time"
    ) -> None:
        """`predictor` knows the bounds; within a memory limit this is half of two objectives."""
        self.name: ObjectiveName = name
        self._bounds = predictor.bounds

    def value(self, scored: Scored) -> float:
        """Seconds per step."""
        return value_of(self.name, scored)

    def quick_bound(self) -> float:
        """One pass for each number of microbatches."""
        return self._bounds.quick_s

    def certified_bound(self, reached: float) -> float:
        """The bound of the predictor."""
        return self._bounds.certified_s(reached)


class MaxStageLoad:
    """Seconds per step that the busiest stage works: the time of a pipeline that never drains."""

    name: ObjectiveName = "max_stage_load"

    def __init__(self, predictor: Predictor) -> None:
        """`predictor` knows what is open."""
        self.bounds = LoadBounds(predictor.bounds)

    def value(self, scored: Scored) -> float:
        """Load of the busiest stage."""
        return value_of(self.name, scored)

    def quick_bound(self) -> float:
        """The best partition by dynamic programs over cuts, replicas and devices."""
        return self.bounds.least_s

    def certified_bound(self, reached: float) -> float:
        """The same: it cannot be tightened."""
        return min(self.quick_bound(), reached)


class ThroughputPerDevice:
    """Device-seconds per step: least where each device in use trains the most samples/s."""

    name: ObjectiveName = "throughput_per_device"

    def __init__(self, predictor: Predictor) -> None:
        """`predictor` knows what is open."""
        self.bounds = DeviceTimeBounds(predictor.bounds, LoadBounds(predictor.bounds))

    def value(self, scored: Scored) -> float:
        """Devices times seconds per step."""
        return value_of(self.name, scored)

    def quick_bound(self) -> float:
        """The least over all numbers of devices."""
        return self.bounds.quick_s

    def certified_bound(self, reached: float) -> float:
        """The same, each promising number of devices bounded with care."""
        return self.bounds.certified_s(reached)


def objective_named(name: ObjectiveName, predictor: Predictor) -> Objective:
    """The objective of that name over what the predictor's bounds cover."""
    if name == "max_stage_load":
        return MaxStageLoad(predictor)
    if name == "throughput_per_device":
        return ThroughputPerDevice(predictor)
    return StepTime(predictor, name)
