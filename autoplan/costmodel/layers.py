"""A single-device training program as a chain of layers, cut where one tensor crosses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costmodel.backward_map import forward_op_of
from autoplan.costmodel.costs import Costs, cost_ops, require_known, unknown_types
from autoplan.costmodel.graph import OpGraph, TensorInfo
from autoplan.costmodel.memory import block_peak_bytes
from autoplan.costmodel.shapes import resolved
from autoplan.errors import InputError, require, words
from autoplan.workload import CostCurve, Layer, Provenance, Workload

_SMALLEST_SHARE = 0.1
"""A part with less than this of the time of the layer before joins it: a bias its product."""
_TINY_ELEMENTS = 64
"""Integers of at most this many elements are shapes, which every stage computes itself."""


def workload_of_program(
    graph: OpGraph,
    costs: Costs,
    batch_sizes: Sequence[int],
    *,
    name: str,
    provenance: Provenance,
    crossing: int = 1,
    strict: bool = True,
) -> Workload:
    """Layers of a training program, with forward and backward seconds at each batch size.

    Args:
        graph: one device's whole step, as read; open dimensions are the batch.
        costs: seconds of its operators.
        batch_sizes: rising; a program with a fixed batch has one.
        name: what the model is called.
        provenance: where the figures come from.
        crossing: tensors that may cross a cut; more than one allows cuts inside skip connections.
        strict: refuse operators of unknown cost.

    Raises:
        InputError: the program has no forward, or an operator has no cost and `strict` is set.
    """
    rising = bool(batch_sizes) and list(batch_sizes) == sorted(set(batch_sizes))
    require(rising and batch_sizes[0] >= 1, "batch_sizes", batch_sizes, "rising numbers from 1")
    largest = _Costed.of(graph, costs, batch_sizes[-1], strict=strict)
    parts = _merged_parts(largest, _cut_points(largest.graph, crossing))
    sizes = [_Costed.of(graph, costs, n, strict=strict) for n in batch_sizes[:-1]] + [largest]
    ways = [each.part_seconds(parts) for each in sizes]
    owned = _own_tensors(largest, parts)
    layers = tuple(
        _layer(largest, part, f".{i}", batch_sizes, [way[i] for way in ways], owned[i])
        for i, part in enumerate(parts)
    )
    samples = batch_sizes[-1]
    crossings = [_crossing_bytes(largest.graph, part[0]) / samples for part in parts[1:]]
    fed = sum(largest.graph.tensors[index].size_bytes for index in largest.graph.feeds)
    return Workload(
        name=name,
        layers=layers,
        cut_bytes_per_sample=(fed / samples, *crossings, 0.0),
        provenance=provenance,
    )


Part = tuple[int, int]
"""Half-open range of forward operators, by position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costed:
    """A graph at one batch size, the seconds of its operators, and whose backward each is."""

    graph: OpGraph
    seconds: tuple[float, ...]
    forward_of: tuple[int | None, ...]

    @classmethod
    def of(cls, graph: OpGraph, costs: Costs, batch_size: int, *, strict: bool) -> _Costed:
        sized = resolved(graph, batch_size)
        costed = cost_ops(sized, costs)
        if strict:
            require_known(unknown_types(sized, costed, costs))
        return cls(
            graph=sized,
            seconds=tuple(cost.seconds for cost in costed),
            forward_of=tuple(forward_op_of(sized)),
        )

    def part_seconds(self, parts: Sequence[Part]) -> list[tuple[float, float]]:
        """(forward, backward) seconds of each part."""
        return [
            (math.fsum(self.seconds[first:end]), self._backward_s(first, end))
            for first, end in parts
        ]

    def _backward_s(self, first: int, end: int) -> float:
        return math.fsum(self.seconds[i] for i in self.backward(first, end))

    def backward(self, first: int, end: int) -> list[int]:
        """Positions of the backward operators of a part."""
        return [
            position
            for position, owner in enumerate(self.forward_of)
            if owner is not None and first <= owner < end and owner != position
        ]


def _cut_points(graph: OpGraph, crossing: int) -> list[int]:
    """Positions of forward operators before which at most `crossing` tensors cross."""
    end = _forward_end(graph)
    if not end:
        raise InputError("program", words("no forward operators"), "a training program")
    last_read = _last_forward_read(graph, end)
    sent = _sent_tensors(graph, end)
    alive: set[int] = set()
    cuts = []
    for position in range(end):
        alive = {tensor for tensor in alive if last_read.get(tensor, -1) >= position}
        if position and 0 < len(alive) <= crossing:
            cuts.append(position)
        alive.update(t for t in graph.ops[position].outputs if t in sent)
    return cuts


def _forward_end(graph: OpGraph) -> int:
    """One past the last forward operator."""
    return max((i + 1 for i, op in enumerate(graph.ops) if op.role == "forward"), default=0)


def _last_forward_read(graph: OpGraph, end: int) -> dict[int, int]:
    return {tensor: i for i in range(end) for tensor in graph.ops[i].inputs}


def _sent_tensors(graph: OpGraph, end: int) -> set[int]:
    """Results that a later stage cannot make itself: those that depend on data or parameters."""
    depends = set(graph.feeds) | {i for i, t in enumerate(graph.tensors) if t.persistable}
    sent: set[int] = set()
    for op in graph.ops[:end]:
        if op.type == "shape" or not depends.intersection(op.inputs):
            continue
        for index in op.outputs:
            tensor = graph.tensors[index]
            tiny = tensor.dtype.startswith("int") and tensor.elements <= _TINY_ELEMENTS
            if not tensor.persistable and not tiny:
                depends.add(index)
                sent.add(index)
    return sent


def _merged_parts(costed: _Costed, cuts: Sequence[int]) -> list[Part]:
    """Parts between cuts; those without parameters or with hardly any time join the one before."""
    graph = costed.graph
    end = _forward_end(graph)
    before_s = 0.0
    parts: list[Part] = []
    for first, stop in zip([0, *cuts], [*cuts, end], strict=True):
        trained = any(graph.tensors[i].parameter for op in graph.ops[first:stop] for i in op.inputs)
        part_s = math.fsum(costed.seconds[first:stop])
        if parts and not (trained and part_s > _SMALLEST_SHARE * before_s):
            parts[-1] = (parts[-1][0], stop)
            before_s += part_s
        else:
            parts.append((first, stop))
            before_s = part_s
    return parts


def _crossing_bytes(graph: OpGraph, position: int) -> int:
    """Bytes of the tensors made before a position of the forward and read at or behind it."""
    end = _forward_end(graph)
    last_read = _last_forward_read(graph, end)
    sent = _sent_tensors(graph, end)
    made = {tensor for op in graph.ops[:position] for tensor in op.outputs if tensor in sent}
    crossing = (tensor for tensor in made if last_read.get(tensor, -1) >= position)
    return sum(graph.tensors[tensor].size_bytes for tensor in crossing)


def _own_tensors(costed: _Costed, parts: Sequence[Part]) -> list[list[TensorInfo]]:
    """The persistable tensors of each part; one that several use belongs to the first.

    The first is the last to add to its gradient. Uses that nothing differentiates (copies of
    weights) count only for tensors without any other.
    """
    graph = costed.graph
    differentiated = {
        owner for i, owner in enumerate(costed.forward_of) if owner is not None and owner != i
    }
    owner_of: dict[int, int] = {}
    for certain in (True, False):
        for number, (first, end) in enumerate(parts):
            for position in range(first, end):
                if (position in differentiated) == certain:
                    for index in graph.ops[position].inputs:
                        owner_of.setdefault(index, number)
    owned: list[list[TensorInfo]] = [[] for _ in parts]
    for index, number in owner_of.items():
        if graph.tensors[index].persistable:
            owned[number].append(graph.tensors[index])
    return owned


def _layer(
    costed: _Costed,
    part: Part,
    suffix: str,
    batch_sizes: Sequence[int],
    seconds: Sequence[tuple[float, float]],
    owned: Sequence[TensorInfo],
) -> Layer:
    """The layer of a part of the forward and of its backward."""
    graph, (first, end) = costed.graph, part
    samples = batch_sizes[-1]
    backward = [graph.ops[i] for i in costed.backward(first, end)]
    passed_on = _crossing_bytes(graph, first) if first else 0
    workspace = block_peak_bytes(graph, backward) - passed_on
    by_type: defaultdict[str, float] = defaultdict(float)
    for i in range(first, end):
        by_type[graph.ops[i].type] += costed.seconds[i]
    return Layer(
        name=f"{max(by_type, key=lambda kind: by_type[kind])}{suffix}",
        forward=_curve(batch_sizes, [way[0] for way in seconds]),
        backward=_curve(batch_sizes, [way[1] for way in seconds]),
        gradient_elements=sum(tensor.elements for tensor in owned if tensor.parameter),
        parameter_bytes=float(sum(tensor.size_bytes for tensor in owned)),
        stash_bytes_per_sample=_stash_bytes(graph, first, end) / samples,
        workspace_bytes_per_sample=max(0, workspace) / samples,
    )


def _stash_bytes(graph: OpGraph, first: int, end: int) -> int:
    """Results of a part that backward reads the content of, and those that leave the part."""
    made = {t for op in graph.ops[first:end] for t in op.outputs}
    read = {
        tensor
        for op in graph.ops
        if op.role == "backward"
        for place, tensor in enumerate(op.inputs)
        if place not in op.shape_only
    }
    later = {t for op in graph.ops[end : _forward_end(graph)] for t in op.inputs}
    kept = (made & (read | later)) - set(graph.feeds)
    return sum(graph.tensors[t].size_bytes for t in kept if not graph.tensors[t].persistable)


def _curve(batch_sizes: Sequence[int], seconds: Sequence[float]) -> CostCurve:
    """Points, and the intercept of the line through the first two as the overhead of a call."""
    overhead = 0.0
    if len(batch_sizes) > 1:
        slope = (seconds[1] - seconds[0]) / (batch_sizes[1] - batch_sizes[0])
        overhead = min(max(0.0, seconds[0] - slope * batch_sizes[0]), seconds[0])
    return CostCurve(
        samples=tuple(float(n) for n in batch_sizes), seconds=tuple(seconds), overhead_s=overhead
    )
