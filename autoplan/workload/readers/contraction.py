"""Joins forward and backward nodes that must share a device into the layers of one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoplan.workload.graph import Tensor, strong_components
from autoplan.workload.readers.base import Costs


class Edge(NamedTuple):
    """A tensor from one operation to another."""

    source: int
    target: int
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A node before contraction."""

    id: int
    name: str
    group: int | None
    """Operations of one group must share a device; None stands alone."""
    backward: bool
    time: float
    parameter_bytes: float
    stash_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracted:
    """The joined layers, and the tensors between them by their indices."""

    costs: list[Costs]
    members: list[list[int]]
    """Ids of the operations in each layer."""
    links: dict[tuple[int, float, int], set[int]]
    """(operation, size, producing layer) to the layers that read it."""

    def tensors(self, samples: int) -> tuple[Tensor, ...]:
        """The tensors with their bytes per sample."""
        names = [cost.name for cost in self.costs]
        return tuple(
            Tensor(
                producer=names[layer],
                consumers=tuple(names[reader] for reader in sorted(readers)),
                bytes_per_sample=size / samples,
            )
            for (_, size, layer), readers in self.links.items()
        )


def contract(operations: Sequence[Operation], edges: Sequence[Edge]) -> Contracted:
    """Joins groups, then whatever must share a stage because it lies on a cycle of groups.

    The layers follow the forward edges. A backward operation rides with the forward ones of its
    group. A group without forward operations (a loss; the sum of a tied weight's gradients) becomes
    a layer without forward time, and its backward edges are mirrored: if gradients flow from layer
    A to it, it lies before A, since backward runs through the layers in reverse. Edges from forward
    operations into other backward operations are stashes that ride with the layer, or cross with
    the forward tensor, and set no order.
    """
    units = _units(operations)
    unit_of = {operation.id: unit for unit, group in enumerate(units) for operation in group}
    links = _links(operations, edges, unit_of)
    successors: list[set[int]] = [set() for _ in units]
    for (_, _, producer), readers in links.items():
        successors[producer] |= readers
    component = strong_components(successors)
    position: dict[int, int] = {}
    for number in component:
        position.setdefault(number, len(position))
    layer_of = [position[number] for number in component]
    members: list[list[Operation]] = [[] for _ in position]
    for unit, layer in enumerate(layer_of):
        members[layer] += units[unit]
    joined: dict[tuple[int, float, int], set[int]] = {}
    for (operation, size, producer), readers in links.items():
        layer = layer_of[producer]
        outside = {layer_of[reader] for reader in readers} - {layer}
        if outside:
            joined.setdefault((operation, size, layer), set()).update(outside)
    return Contracted(
        costs=[_costs(group) for group in members],
        members=[[operation.id for operation in group] for group in members],
        links=joined,
    )


def _units(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Groups in the order of their first operation, those without forward ones behind."""
    groups: dict[tuple[str, int], list[Operation]] = {}
    for operation in operations:
        alone = operation.group is None
        key = ("alone", operation.id) if alone else ("group", operation.group or 0)
        groups.setdefault(key, []).append(operation)
    return sorted(groups.values(), key=_lacks_forward)


def _lacks_forward(group: list[Operation]) -> bool:
    return all(operation.backward for operation in group)


def _links(
    operations: Sequence[Operation], edges: Sequence[Edge], unit_of: dict[int, int]
) -> dict[tuple[int, float, int], set[int]]:
    """The edges between units that count: (operation, size, producing unit) to reading units."""
    by_id = {operation.id: operation for operation in operations}
    forward_units = {unit_of[o.id] for o in operations if not o.backward}
    links: dict[tuple[int, float, int], set[int]] = {}
    mirrored = []
    joined: set[tuple[int, int]] = set()
    for edge in edges:
        source, target = unit_of[edge.source], unit_of[edge.target]
        lonely = source not in forward_units or target not in forward_units
        if by_id[edge.source].backward:
            if lonely and source != target:
                mirrored.append((edge, target, source))
        elif not by_id[edge.target].backward or lonely:
            links.setdefault((edge.source, edge.size_bytes, source), set()).add(target)
            joined.add((source, target))
    for edge, before, after in mirrored:
        # Where a tensor goes forward the same way, this is its gradient, and counts with it.
        if (before, after) not in joined:
            links.setdefault((edge.source, edge.size_bytes, before), set()).add(after)
    return links


def _costs(group: list[Operation]) -> Costs:
    """The sums over a layer; it is called after its longest forward operation."""
    forward = [operation for operation in group if not operation.backward] or group
    lead = max(forward, key=lambda operation: operation.time)
    more = f" +{len(forward) - 1}" if len(forward) > 1 else ""
    return Costs(
        name=lead.name + more,
        forward=sum(operation.time for operation in group if not operation.backward),
        backward=sum(operation.time for operation in group if operation.backward),
        parameter_bytes=sum(operation.parameter_bytes for operation in group),
        stash_bytes=sum(operation.stash_bytes for operation in group),
    )
