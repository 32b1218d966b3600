"""What was measured of one plan: its steps on every clock, memory, losses, or why there is none."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from autoplan.documents import STRICT, plain
from autoplan.errors import require

Status = Literal["ok", "failed", "timeout", "oom"]
Clock = Literal["wall", "virtual"]
ComputeMode = Literal["real", "emulated"]
LinkMode = Literal["native", "emulated"]
DeviceKind = Literal["cpu", "gpu"]

STATUSES: tuple[Status, ...] = ("ok", "failed", "timeout", "oom")
COMPUTE_MODES: tuple[ComputeMode, ...] = ("real", "emulated")
LINK_MODES: tuple[LinkMode, ...] = ("native", "emulated")
DEVICE_KINDS: tuple[DeviceKind, ...] = ("cpu", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """What of a run is real, and on which kind of device."""

    __pydantic_config__ = STRICT

    compute: ComputeMode = "real"
    """"real" runs the user's layers; "emulated" sleeps their profiled seconds."""
    link: LinkMode = "native"
    """"emulated" sleeps the cluster file's latency and bandwidth beside every transfer."""
    device: DeviceKind = "cpu"

    def __post_init__(self) -> None:
        """Refuses unknown modes, and emulation on a GPU."""
        require(self.compute in COMPUTE_MODES, "compute", self.compute, " or ".join(COMPUTE_MODES))
        require(self.link in LINK_MODES, "link", self.link, " or ".join(LINK_MODES))
        require(self.device in DEVICE_KINDS, "device", self.device, " or ".join(DEVICE_KINDS))
        native = self.compute == "real" and self.link == "native"
        allowed = "cpu, since emulated compute and links are slept on the host"
        require(native or self.device == "cpu", "device", self.device, allowed)

    @property
    def needs_framework(self) -> bool:
        """Whether ranks compute or communicate with Paddle."""
        return self.compute == "real" or self.link == "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the ranks ran on."""

    __pydantic_config__ = STRICT

    framework: str
    """Name and version, or "none" where everything was emulated."""
    device: str
    """The processor's model name."""
    threads: int
    """Compute threads of each rank."""
    ranks: int
    """Processes."""
    cores: int
    """Cores that these could use."""
    pinned: bool
    """Whether each rank kept to one core."""
    collectives: str
    """Who exchanged gradients, such as "gloo"."""
    profile_ratio_before: float | None = None
    """What all layers took in the ranks before any plan ran, over what the workload says; None
    where compute was emulated or on GPUs."""
    profile_ratio_after: float | None = None
    """The same after the last round."""

    @property
    def drift(self) -> float | None:
        """How much slower the layers were after the sweep than before, as a share."""
        before, after = self.profile_ratio_before, self.profile_ratio_after
        return None if before is None or after is None else after / before - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """One plan, measured or not; JSON-ready by `to_document`."""

    __pydantic_config__ = STRICT

    plan_sha256: str
    status: Status
    reason: str | None = None
    """Why there is no measurement, in one line."""
    modes: Modes
    clock: Clock = "wall"
    """Which clock `step_s` comes from."""
    wall_s: tuple[float, ...] = ()
    """Wall seconds of every measured round's step, slowest rank."""
    virtual_s: tuple[float, ...] = ()
    """The same by the virtual clock; empty on a GPU, which has none."""
    foreign_load: tuple[float, ...] = ()
    """Share of the cores' time that other work took during each step."""
    losses: tuple[float, ...] = ()
    """Loss of every step of the warm-up round, from the initial parameters on."""
    replicas_agree: bool | None = None
    """Whether all replicas of each stage held bit-identical parameters after the warm-up."""
    peak_memory_bytes: tuple[float, ...] = ()
    """Per stage, the fullest replica; empty where compute was emulated."""
    environment: Environment | None = None
    """None where no rank got as far as telling."""

    def __post_init__(self) -> None:
        """Refuses runs that are neither measured nor explained."""
        require(self.status in STATUSES, "status", self.status, " or ".join(STATUSES))
        explained = self.status == "ok" or bool(self.reason)
        require(explained, "reason", self.reason, f"a line that explains status {self.status!r}")
        measured = self.status != "ok" or bool(self.step_s)
        require(measured, "wall_s", self.wall_s, "at least one round, since status is 'ok'")
        for name in ("wall_s", "virtual_s", "foreign_load"):
            values = getattr(self, name)
            sound = all(math.isfinite(value) and value >= 0 for value in values)
            require(sound, name, values, "finite numbers of at least 0")

    @property
    def step_s(self) -> tuple[float, ...]:
        """Seconds of every round by the run's clock."""
        return self.wall_s if self.clock == "wall" else self.virtual_s

    @property
    def median_s(self) -> float | None:
        """Median of the rounds; None without a measurement."""
        return statistics.median(self.step_s) if self.status == "ok" else None

    @property
    def spread(self) -> float | None:
        """(largest - smallest) / median of the rounds; None without a measurement."""
        if self.status != "ok":
            return None
        median_s = statistics.median(self.step_s)
        return (max(self.step_s) - min(self.step_s)) / median_s if median_s > 0 else 0.0

    def to_document(self) -> dict[str, Any]:
        """The run as JSON-ready values, derived figures included."""
        document: dict[str, Any] = plain(self)
        # A loss that is not finite is a finding; JSON has no word for it but null.
        document["losses"] = [loss if math.isfinite(loss) else None for loss in self.losses]
        derived = {"step_s": self.step_s, "median_s": self.median_s, "spread": self.spread}
        return document | {name: plain(value) for name, value in derived.items()}
