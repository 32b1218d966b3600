"""Seconds of each operator, and where each figure comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from autoplan.cluster import Device
from autoplan.costmodel.collectives import Communicators
from autoplan.costmodel.graph import Op, OpGraph, TensorInfo
from autoplan.costmodel.measurements import Measurements
from autoplan.costmodel.op_names import FREE
from autoplan.costmodel.signature import signature
from autoplan.costmodel.work import work_of
from autoplan.errors import InputError, require, words

Mode = Literal["benchmarking", "analysis", "mixed"]
MODES: tuple[Mode, ...] = ("benchmarking", "analysis", "mixed")
Source = Literal["measured", "analytic", "given", "free", "link", "blocks", "unknown"]

_LISTED = 12


class OpSeconds(NamedTuple):
    """One operator's cost; a tuple, since there are as many as operators."""

    seconds: float
    """Of one call; 0 where the source is "free" or "unknown"."""
    source: Source
    """Where the figure comes from."""


_FREE = OpSeconds(seconds=0.0, source="free")
_UNKNOWN = OpSeconds(seconds=0.0, source="unknown")


class Costs(Protocol):
    """Something that knows what operators cost."""

    def of(self, op: Op, tensors: Sequence[TensorInfo]) -> OpSeconds | None:
        """Seconds of an operator that computes, or None where this source does not know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds that were measured on this device."""

    measurements: Measurements

    def of(self, op: Op, tensors: Sequence[TensorInfo]) -> OpSeconds | None:
        """The measurement of the same type, shapes, formats and attributes."""
        found = self.measurements.ops.get(signature(op, tensors))
        return None if found is None else OpSeconds(seconds=found.seconds, source="measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The larger of arithmetic and memory time, and the time to start an operator."""

    flop_per_s: float
    """Achieved by a large matrix product."""
    bytes_per_s: float
    """Achieved by streaming through memory."""
    call_overhead_s: float = 0.0
    """Seconds of any call, however small."""
    vector_share: float = 1 / 16
    """Rate of other arithmetic over that of matrix products: 19.5 to 312 TFLOP/s on an A100."""

    def __post_init__(self) -> None:
        """Refuses rates that are not positive."""
        for name in ("flop_per_s", "bytes_per_s", "vector_share"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, name, value, "a finite number above 0")
        value = self.call_overhead_s
        sound = math.isfinite(value) and value >= 0
        require(sound, "call_overhead_s", value, "a finite number of seconds, at least 0")

    @classmethod
    def of_device(
        cls,
        device: Device,
        *,
        flop_efficiency: float = 0.7,
        memory_efficiency: float = 0.8,
        call_overhead_s: float = 5e-6,
    ) -> Roofline:
        """The rates of a catalog's device.

        The default shares of the peaks are what large matrix products and copies reach (80 to 87 %
        at best, facts/costmodels.md section 6.2); a kernel launch takes about 5 us.

        Raises:
            InputError: the device states no peaks.
        """
        peaks = (device.peak_flop_per_s, device.memory_bandwidth_bytes_per_s)
        if peaks[0] is None or peaks[1] is None:
            found = words(f"a device without peaks ({device.name})")
            allowed = "peak_flop_per_s and memory_bandwidth_bytes_per_s"
            raise InputError("cluster.device", found, allowed)
        return cls(
            flop_per_s=peaks[0] * flop_efficiency,
            bytes_per_s=peaks[1] * memory_efficiency,
            call_overhead_s=call_overhead_s,
        )

    def of(self, op: Op, tensors: Sequence[TensorInfo]) -> OpSeconds | None:
        """The roofline's time, or None where no formula counts the operator's work."""
        work = work_of(op, tensors)
        if work is None:
            return None
        products = work.matrix_flops + work.vector_flops / self.vector_share
        busy_s = max(products / self.flop_per_s, work.bytes / self.bytes_per_s)
        return OpSeconds(seconds=self.call_overhead_s + busy_s, source="analytic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Seconds by operator number, as Paddle's cost data have them."""

    seconds_by_id: Mapping[int, float]
    call_overhead_s: float = 0.0
    """Added to every call."""

    def of(self, op: Op, tensors: Sequence[TensorInfo]) -> OpSeconds | None:
        """The given seconds of this very operator."""
        number = op.id
        seconds = None if number is None else self.seconds_by_id.get(number)
        if seconds is None:
            return None
        if not 0 <= seconds < math.inf:
            require(False, f"cost of op {number}", seconds, "a finite number, at least 0")
        return OpSeconds(seconds + self.call_overhead_s, "given")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstKnown:
    """Several sources, the first that knows an operator counting."""

    sources: tuple[Costs, ...]

    def of(self, op: Op, tensors: Sequence[TensorInfo]) -> OpSeconds | None:
        """The first source's answer that is one."""
        answers = (source.of(op, tensors) for source in self.sources)
        return next((answer for answer in answers if answer is not None), None)


def costs_for(mode: Mode, measurements: Measurements | None, roofline: Roofline | None) -> Costs:
    """The costs of a mode.

    Args:
        mode: "benchmarking" takes measurements alone, "analysis" the roofline alone, "mixed"
            measurements where there are some, else the roofline.
        measurements: needed for benchmarking and mixed.
        roofline: needed for analysis and mixed.

    Raises:
        InputError: the mode is not known, or what it needs is not there.
    """
    require(mode in MODES, "mode", mode, " or ".join(MODES))
    sources: list[Costs] = []
    if mode != "analysis":
        if measurements is None:
            raise InputError("costs", words("no measurements"), f"measurements, for {mode}")
        sources.append(Measured(measurements=measurements))
    if mode != "benchmarking":
        if roofline is None:
            raise InputError("costs", words("no rates"), f"a roofline, for {mode}")
        sources.append(roofline)
    return FirstKnown(sources=tuple(sources))


def cost_ops(
    graph: OpGraph, costs: Costs, links: Communicators | None = None, rank: int = 0
) -> list[OpSeconds]:
    """The seconds of each operator of a graph, those of its blocks summed into it.

    Args:
        graph: with resolved shapes.
        costs: of operators that compute.
        links: of collectives, sends and receives; None leaves these unknown.
        rank: the rank that runs the graph.
    """
    known, tensors = costs.of, graph.tensors
    return [
        known(op, tensors) or _UNKNOWN
        if op.collective is None and op.type not in FREE and not op.blocks
        else _cost(op, tensors, costs, links, rank)
        for op in graph.ops
    ]


def _cost(
    op: Op, tensors: Sequence[TensorInfo], costs: Costs, links: Communicators | None, rank: int
) -> OpSeconds:
    if op.blocks:
        return _of_blocks(op, tensors, costs, links, rank)
    if op.collective is not None:
        if links is None:
            return costs.of(op, tensors) or _UNKNOWN
        return OpSeconds(seconds=links.seconds(op, tensors, rank), source="link")
    if op.type in FREE:
        return _FREE
    return costs.of(op, tensors) or _UNKNOWN


def _of_blocks(
    op: Op, tensors: Sequence[TensorInfo], costs: Costs, links: Communicators | None, rank: int
) -> OpSeconds:
    """A loop's body times its trips; of branches the longest, as either may run."""
    bodies = [[_cost(inner, tensors, costs, links, rank) for inner in block] for block in op.blocks]
    if any(inner.source == "unknown" for body in bodies for inner in body):
        return _UNKNOWN
    longest_s = max(sum(inner.seconds for inner in body) for body in bodies)
    trips = 1 if op.trips is None else op.trips
    return OpSeconds(seconds=trips * longest_s, source="blocks")


def unknown_types(graph: OpGraph, costed: Sequence[OpSeconds], costs: Costs) -> tuple[str, ...]:
    """Names of the operators without a cost, each with how often it occurs, the commonest first."""
    missing: Counter[str] = Counter()
    for op, cost in zip(graph.ops, costed, strict=True):
        if cost.source == "unknown":
            missing.update(_unknown_inside(op, graph.tensors, costs))
    return tuple(f"{name} x{count}" for name, count in missing.most_common())


def _unknown_inside(op: Op, tensors: Sequence[TensorInfo], costs: Costs) -> list[str]:
    if not op.blocks:
        return [op.type]
    inner = [each for block in op.blocks for each in block]
    return [
        name
        for each in inner
        if each.blocks or (each.type not in FREE and costs.of(each, tensors) is None)
        for name in _unknown_inside(each, tensors, costs)
    ]


def require_known(unknown: Sequence[str]) -> None:
    """Refuses a program with operators that have no cost.

    Raises:
        InputError: there are some; the message names them.
    """
    if unknown:
        more = ", ..." if len(unknown) > _LISTED else ""
        found = words(f"no cost of {', '.join(unknown[:_LISTED])}{more}")
        raise InputError("program", found, "measured operators, or ones with a formula")
