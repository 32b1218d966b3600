"""Devices in nodes, links within and between nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from autoplan.documents import STRICT, identity
from autoplan.errors import require

MAX_DEVICES = 100_000
"""More than any training cluster has; keeps a mistyped number from exhausting memory."""

Algorithm = Literal["auto", "ring", "tree", "hierarchical"]
Collective = Literal["all_reduce", "all_gather"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """Measured seconds to select the largest elements of a gradient, and to add up what arrives.

    Straight between the points, flat below the first (a launch costs what it costs), with the last
    slope beyond. Measure on real accumulated gradients: random data is off by a factor of two
    (facts/realruns.md section 3a).
    """

    __pydantic_config__ = STRICT

    elements: tuple[float, ...]
    """Elements of the gradient, rising."""
    seconds: tuple[float, ...]
    """Seconds of one selection at each of them."""
    scatter_add_s_per_element: float = 0.0
    """Seconds to add one received element to the dense gradient."""

    def __post_init__(self) -> None:
        """Refuses tables that are empty, out of order or unmatched."""
        points = self.elements
        rising = bool(points) and all(a < b for a, b in pairwise(points))
        require(rising and points[0] > 0, "elements", points, "positive numbers in rising order")
        sound = len(self.seconds) == len(points) and all(_positive(s) for s in self.seconds)
        require(sound, "seconds", self.seconds, f"{len(points)} numbers above 0")
        rate = self.scatter_add_s_per_element
        sound = math.isfinite(rate) and rate >= 0
        require(sound, "scatter_add_s_per_element", rate, "a finite number, at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedCopy:
    """Measured seconds to copy the gradients of a group into one buffer and back."""

    __pydantic_config__ = STRICT

    s_per_group: float = 0.0
    """Seconds per group."""
    s_per_element: float = 0.0
    """Seconds per element."""

    def __post_init__(self) -> None:
        """Refuses negative and non-finite seconds."""
        for name in ("s_per_group", "s_per_element"):
            value = getattr(self, name)
            sound = math.isfinite(value) and value >= 0
            require(sound, name, value, "a finite number of seconds, at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHandling:
    """Measured seconds that a transfer takes from a device's own time, at either end.

    A core that computes also packs, sends, receives and unpacks what its stage exchanges with the
    stages beside it, while the link's own time passes. A GPU's copy engines do that for it.
    """

    __pydantic_config__ = STRICT

    s_per_message: float = 0.0
    """Seconds per message."""
    s_per_byte: float = 0.0
    """Seconds per byte."""

    def __post_init__(self) -> None:
        """Refuses negative and non-finite seconds."""
        for name in ("s_per_message", "s_per_byte"):
            value = getattr(self, name)
            sound = math.isfinite(value) and value >= 0
            require(sound, name, value, "a finite number of seconds, at least 0")

    def at(self, size_bytes: float) -> float:
        """Seconds for one message; nothing for no bytes."""
        return self.s_per_message + self.s_per_byte * size_bytes if size_bytes > 0 else 0.0

    def slowed(self, factor: float) -> MessageHandling:
        """The same, taking `factor` times as long."""
        message_s, byte_s = self.s_per_message * factor, self.s_per_byte * factor
        return MessageHandling(s_per_message=message_s, s_per_byte=byte_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Measured seconds of an optimizer's update, its gradients set to zero included."""

    __pydantic_config__ = STRICT

    optimizer: str
    """As a job calls it."""
    s_per_element: float
    """Seconds per gradient element."""

    def __post_init__(self) -> None:
        """Refuses negative and non-finite seconds."""
        sound = math.isfinite(self.s_per_element) and self.s_per_element >= 0
        allowed = "a finite number of seconds, at least 0"
        require(sound, "s_per_element", self.s_per_element, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one core where there is none."""

    __pydantic_config__ = STRICT

    name: str
    """What the maker calls it."""
    memory_bytes: float
    """Memory of one device."""
    peak_flop_per_s: float | None = None
    """Dense peak of the training precision, where known."""
    memory_bandwidth_bytes_per_s: float | None = None
    """Peak bandwidth of its memory, where known; prices the optimizer's update."""
    top_k: TopK | None = None
    """Cost of sparsification, where it was measured; needed for groups with a density below 1."""
    fused_copy: FusedCopy | None = None
    """Cost of fused buffers, where it was measured."""
    message_handling: MessageHandling | None = None
    """What transfers take from the device's own time, where it was measured."""
    exchange_handling: MessageHandling | None = None
    """The same of a collective, by the bytes that a device gives to it."""
    updates: tuple[Update, ...] = ()
    """Costs of optimizers that were measured; others follow from the memory's bandwidth."""
    source: str | None = None
    """Where the figures come from."""

    def __post_init__(self) -> None:
        """Refuses figures that are not positive."""
        require(_positive(self.memory_bytes), "memory_bytes", self.memory_bytes, "above 0 bytes")
        for name in ("peak_flop_per_s", "memory_bandwidth_bytes_per_s"):
            value = getattr(self, name)
            require(value is None or _positive(value), name, value, "a finite number above 0")

    def update_s_per_element(self, optimizer: str) -> float | None:
        """Seconds of an optimizer's update per element; None where nobody measured it."""
        return next((u.s_per_element for u in self.updates if u.optimizer == optimizer), None)

    def slowed(self, factor: float) -> Device:
        """The same device, everything that it does taking `factor` times as long."""

        def slower(rate: float | None) -> float | None:
            return None if rate is None else rate / factor

        top_k, copy = self.top_k, self.fused_copy
        messages, collectives = self.message_handling, self.exchange_handling
        if top_k is not None:
            seconds = tuple(s * factor for s in top_k.seconds)
            rate = top_k.scatter_add_s_per_element * factor
            top_k = replace(top_k, seconds=seconds, scatter_add_s_per_element=rate)
        if copy is not None:
            group_s, element_s = copy.s_per_group * factor, copy.s_per_element * factor
            copy = FusedCopy(s_per_group=group_s, s_per_element=element_s)
        return replace(
            self,
            peak_flop_per_s=slower(self.peak_flop_per_s),
            memory_bandwidth_bytes_per_s=slower(self.memory_bandwidth_bytes_per_s),
            top_k=top_k,
            fused_copy=copy,
            message_handling=None if messages is None else messages.slowed(factor),
            exchange_handling=None if collectives is None else collectives.slowed(factor),
            updates=tuple(
                Update(optimizer=u.optimizer, s_per_element=u.s_per_element * factor)
                for u in self.updates
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a connection under the alpha-beta model."""

    __pydantic_config__ = STRICT

    name: str
    """What it is called."""
    alpha_s: float
    """Seconds that any message takes."""
    bandwidth_bytes_per_s: float
    """Bytes per second in one direction, of one port."""
    measured_bytes: tuple[float, float] | None = None
    """Least and most bytes that were measured; beyond them the line is an extrapolation."""
    source: str | None = None
    """Where the figures come from."""

    def __post_init__(self) -> None:
        """Refuses negative latencies and bandwidths that are not positive."""
        sound = math.isfinite(self.alpha_s) and self.alpha_s >= 0
        require(sound, "alpha_s", self.alpha_s, "a finite number of seconds, at least 0")
        value = self.bandwidth_bytes_per_s
        require(_positive(value), "bandwidth_bytes_per_s", value, "a finite number above 0")
        span = self.measured_bytes
        sound = span is None or 0 <= span[0] < span[1] < math.inf
        require(sound, "measured_bytes", span, "[least, most] with 0 <= least < most")

    def extrapolates(self, size_bytes: float) -> bool:
        """Whether messages of this size were never measured; False where nothing is known."""
        span = self.measured_bytes
        return span is not None and not span[0] <= size_bytes <= span[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """A measured table that replaces the formula for groups of one shape."""

    __pydantic_config__ = STRICT

    collective: Collective
    """Which operation was timed."""
    devices: int
    """Participants."""
    nodes: int
    """Nodes that they were spread over, evenly."""
    size_bytes: tuple[float, ...]
    """Bytes of the buffer: reduced, or gathered in all; rising."""
    seconds: tuple[float, ...]
    """Median seconds at each size."""

    def __post_init__(self) -> None:
        """Refuses tables that are empty, out of order or unmatched."""
        require(self.devices >= 2, "devices", self.devices, "at least 2")
        require(1 <= self.nodes <= self.devices, "nodes", self.nodes, f"1 to {self.devices}")
        sizes = self.size_bytes
        rising = all(a < b for a, b in pairwise(sizes))
        sound = bool(sizes) and rising and all(_positive(size) for size in sizes)
        require(sound, "size_bytes", sizes, "positive numbers in rising order")
        sound = len(self.seconds) == len(sizes) and all(_positive(s) for s in self.seconds)
        require(sound, "seconds", self.seconds, f"{len(sizes)} numbers above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal devices."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-cluster/1"] = "autoplan-cluster/1"
    name: str
    """What the cluster is called."""
    nodes: int = 1
    """Number of nodes."""
    devices_per_node: int
    """Devices in each node."""
    device: Device
    """The device, the same everywhere."""
    intra_node: Link
    """Between two devices of one node."""
    inter_node: Link | None = None
    """One network port of a node; needed where there is more than one node."""
    nics_per_node: int = 1
    """Network ports of a node, shared by its devices."""
    all_reduce: Algorithm = "auto"
    """Algorithm of dense collectives; "auto" takes the fastest for each message."""
    measured: tuple[MeasuredCollective, ...] = ()
    """Measured tables, each in place of the formula for its group shape."""

    def __post_init__(self) -> None:
        """Refuses clusters without devices, and several nodes without a network."""
        require(self.nodes >= 1, "nodes", self.nodes, "at least 1")
        require(self.devices_per_node >= 1, "devices_per_node", self.devices_per_node, "at least 1")
        sound = self.nodes * self.devices_per_node <= MAX_DEVICES
        allowed = f"at most {MAX_DEVICES} devices in all"
        require(sound, "nodes", self.nodes, allowed)
        require(self.nics_per_node >= 1, "nics_per_node", self.nics_per_node, "at least 1")
        sound = self.nodes == 1 or self.inter_node is not None
        require(sound, "inter_node", None, f"a link, since there are {self.nodes} nodes")

    @property
    def num_devices(self) -> int:
        """Devices in all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def sha256(self) -> str:
        """The cluster's identity."""
        return identity(self)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
