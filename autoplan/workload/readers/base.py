"""What the readers of foreign formats share: the file, the options, building a workload."""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

from autoplan import documents
from autoplan.errors import InputError, require
from autoplan.workload.cost_curve import CostCurve
from autoplan.workload.graph import Graph, chain
from autoplan.workload.model import Layer, Provenance, Workload
from autoplan.workload.units import (
    SECONDS_PER,
    TimeTotals,
    TimeUnit,
    choose_time_unit,
    imbalance_notes,
)

LARGEST_AMOUNT = 1e18
"""Bound of every time and size in a file, so that no sum of them overflows."""

_LISTED_LAYERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a user knows about a file that the file does not say."""

    batch_size: int | None = None
    """Samples in the profiled minibatch; without it one minibatch is one sample."""
    time_unit: TimeUnit | None = None
    """Unit of the file's times, where it is not the one that its format documents."""
    bytes_per_element: int = 4
    """Bytes of one parameter, by which parameter bytes become gradient elements."""

    def __post_init__(self) -> None:
        """Refuses sizes below 1 and unknown units."""
        batch, width, units = self.batch_size, self.bytes_per_element, get_args(TimeUnit)
        require(batch is None or 1 <= batch <= 10**9, "batch_size", batch, "1 to 1e9")
        known = self.time_unit is None or self.time_unit in units
        require(known, "time_unit", self.time_unit, ", ".join(units))
        require(1 <= width <= 64, "bytes_per_element", width, "1 to 64")


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file that is being read. It keeps its parsed form, so it has no slots."""

    source: str
    """The path as the user gave it, for messages."""
    data: bytes

    @functools.cached_property
    def text(self) -> str:
        """The content as text; raises InputError where it is none."""
        return documents.decode(self.data, self.source)

    @functools.cached_property
    def value(self) -> Any:
        """The content as JSON, None where it does not begin like it; raises InputError."""
        if not self.text.lstrip().startswith(("{", "[")):
            return None
        return documents.json_value(self.data, self.source)

    def has_keys(self, *names: str) -> bool:
        """Whether the file is a JSON object with one of these fields."""
        return isinstance(self.value, dict) and any(name in self.value for name in names)

    def first_node_has(self, *names: str) -> bool:
        """Whether it is a JSON object whose first entry of `nodes` has one of these fields."""
        nodes = self.value.get("nodes") if isinstance(self.value, dict) else None
        first = nodes[0] if isinstance(nodes, list) and nodes else None
        return isinstance(first, dict) and any(name in first for name in names)

    @property
    def name(self) -> str:
        """What the model is called, from the file's name."""
        return (
            Path(self.source).name.removesuffix(".txt").removesuffix(".json").removesuffix(".graph")
            or "workload"
        )

    def provenance(self, *notes: str) -> Provenance:
        """Where the figures came from: the file's name, never the path to it."""
        return Provenance(
            source=Path(self.source).name,
            source_sha256=hashlib.sha256(self.data).hexdigest(),
            notes=notes,
        )


class Reader(Protocol):
    """One file format."""

    @property
    def format(self) -> str:
        """The format in a few words, for messages."""

    def matches(self, document: Document) -> bool:
        """Whether the content, whatever the file is called, is meant to be of this format."""

    def read(self, document: Document, options: ReadOptions) -> Workload:
        """Builds the workload; raises InputError, and nothing else, for a file that is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A node's figures as the file has them: its own time unit, for the whole minibatch."""

    name: str
    forward: float
    backward: float
    parameter_bytes: float
    stash_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a file's figures become seconds and bytes per sample."""

    seconds: float
    """Seconds in the file's unit of time."""
    samples: int
    """Samples in the profiled minibatch."""
    bytes_per_element: int

    def layer(self, costs: Costs) -> Layer:
        """The layer of one node."""
        return Layer(
            name=costs.name,
            forward=CostCurve.proportional(costs.forward * self.seconds, self.samples),
            backward=CostCurve.proportional(costs.backward * self.seconds, self.samples),
            gradient_elements=round(costs.parameter_bytes / self.bytes_per_element),
            parameter_bytes=costs.parameter_bytes,
            stash_bytes_per_sample=costs.stash_bytes / self.samples,
        )


def scale_for(
    nodes: Sequence[Costs], documented: TimeUnit, options: ReadOptions
) -> tuple[Scale, tuple[str, ...]]:
    """The scale of a file's figures, and the notes on it.

    Raises:
        InputError: the time unit can be none of those known.
    """
    totals = TimeTotals(
        time=math.fsum(node.forward + node.backward for node in nodes),
        parameter_elements=math.fsum(node.parameter_bytes for node in nodes)
        / options.bytes_per_element,
        samples=options.batch_size or 1,
        num_layers=len(nodes),
    )
    unit, notes = choose_time_unit(totals, documented, options.time_unit)
    scale = Scale(
        seconds=SECONDS_PER[unit],
        samples=options.batch_size or 1,
        bytes_per_element=options.bytes_per_element,
    )
    return scale, notes


def workload_of(
    graph: Graph,
    document: Document,
    *,
    sample: str,
    notes: Iterable[str],
    bytes_per_s: float | None = None,
) -> Workload:
    """Lays a graph out as a chain and says where it came from.

    Args:
        graph: layers and tensors, scaled.
        document: the file that they were read from.
        sample: what one sample is.
        notes: what is to be known about the figures.
        bytes_per_s: the bandwidth that the file names, if it does.

    Raises:
        InputError: the graph has a cycle.
    """
    laid = chain(graph)
    layers = tuple(graph.layers[node] for node in laid.order)
    calls_s = [layer.forward.seconds[0] + layer.backward.seconds[0] for layer in layers]
    samples = layers[0].forward.samples[0]
    sent_bytes = samples * math.fsum(t.bytes_per_sample for t in graph.tensors if t.consumers)
    return Workload(
        name=document.name,
        sample=sample,
        layers=layers,
        cut_bytes_per_sample=laid.cut_bytes_per_sample,
        provenance=document.provenance(
            *notes,
            *imbalance_notes(math.fsum(calls_s), sent_bytes, bytes_per_s),
            *_free_cut_notes(layers, calls_s, laid.cut_bytes_per_sample),
        ),
    )


def _free_cut_notes(
    layers: Sequence[Layer], calls_s: Sequence[float], cuts: Sequence[float]
) -> tuple[str, ...]:
    """A warning where nothing crosses a cut between layers that compute: a planner cuts there.

    PipeDream's nasnetalarge states an output of 0 bytes for its last View and AvgPool2d.
    """
    busy = [i for i, call_s in enumerate(calls_s) if call_s > 0] or [0]
    free = [layers[i].name for i in range(busy[0] + 1, busy[-1] + 1) if not cuts[i]]
    if not free:
        return ()
    more = ", ..." if len(free) > _LISTED_LAYERS else ""
    names = ", ".join(free[:_LISTED_LAYERS]) + more
    return (f"warning: the file gives 0 bytes to what crosses the cuts before {names}",)


def require_amount(field: str, value: float) -> None:
    """Refuses a time or a size that is negative, not finite or absurdly large."""
    allowed = f"a number from 0 to {LARGEST_AMOUNT:g}"
    if not 0 <= value <= LARGEST_AMOUNT:
        raise InputError(field, value, allowed)


def unique_names(names_and_ids: Sequence[tuple[str, int]]) -> list[str]:
    """The names, those that occur twice with their node's number behind them."""
    times = Counter(name for name, _ in names_and_ids)
    return [f"{name}#{number}" if times[name] > 1 else name for name, number in names_and_ids]
