"""Graphs of layers and tensors, and the chains that keep what crosses their cuts small."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from autoplan.errors import InputError, require, words
from autoplan.workload.model import Layer

_NAMED_NODES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """What one layer makes and others read; it is sent once to wherever it is needed."""

    producer: str
    """Name of the layer that makes it."""
    consumers: tuple[str, ...]
    """Names of the layers that read it."""
    bytes_per_sample: float
    """Its size; 0 where an edge only gives an order."""

    def __post_init__(self) -> None:
        """Refuses sizes that are negative or not finite."""
        size = self.bytes_per_sample
        sound = math.isfinite(size) and size >= 0
        require(sound, f"bytes of {self.producer}'s output", size, "a finite number, at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Layers by their unique names, in the order that ties are broken by, and their tensors."""

    layers: tuple[Layer, ...]
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        """Refuses an empty graph, a name that stands for two layers, an edge to no layer."""
        require(bool(self.layers), "graph", words("no layers"), "at least one layer")
        known: set[str] = set()
        for layer in self.layers:
            require(layer.name not in known, "graph", layer.name, "each node once")
            known.add(layer.name)
        for tensor in self.tensors:
            for name in (tensor.producer, *tensor.consumers):
                require(name in known, "graph", name, "edges between nodes of the graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A topological order of a graph's layers and what crosses each cut of it."""

    order: tuple[int, ...]
    """Indices into `Graph.layers`."""
    cut_bytes_per_sample: tuple[float, ...]
    """One number per cut, L+1 of them; cut i lies before the i-th layer of the order."""


def chain(graph: Graph) -> Chain:
    """The order, among a few, whose cuts carry the fewest bytes in total.

    Tried are Kahn's order with ties broken by position, a depth-first one (last ready, first
    placed), and one that always places the ready layer that leaves the fewest bytes alive. Equal
    totals fall to the earlier of these. The best order is NP-hard to find (minimum linear
    arrangement of a directed graph), so none of them is claimed to be it.

    Raises:
        InputError: the graph has a cycle; the message names its nodes.
    """
    wiring = _Wiring(graph)
    keys: tuple[_Key, ...] = (
        lambda node, step, live: (node,),
        lambda node, step, live: (-step, node),
        lambda node, step, live: (live, node),
    )
    chains = []
    for key in keys:
        order = _order(wiring, key)
        if len(order) < len(graph.layers):
            raise _cycle_error(graph, wiring)
        chains.append(Chain(order=order, cut_bytes_per_sample=cut_bytes(graph, order)))
    return min(chains, key=lambda candidate: math.fsum(candidate.cut_bytes_per_sample))


def cut_bytes(graph: Graph, order: Sequence[int]) -> tuple[float, ...]:
    """Bytes per sample that cross each of the L+1 cuts of `order`.

    A tensor counts once at every cut between its producer and its last consumer. Sums run over
    the tensors that cross, not over differences, so that a cut that nothing crosses is exactly 0.
    """
    position = {graph.layers[node].name: place for place, node in enumerate(order)}
    totals = np.zeros(len(order) + 1)
    for tensor in graph.tensors:
        start = position[tensor.producer]
        stop = max((position[name] for name in tensor.consumers), default=start)
        totals[start + 1 : stop + 1] += tensor.bytes_per_sample
    return tuple(float(total) for total in totals)


def strong_components(successors: Sequence[Collection[int]]) -> list[int]:
    """The number of each node's strongly connected component (Kosaraju's algorithm).

    Args:
        successors: for each node the nodes that its edges lead to.
    """
    predecessors: list[list[int]] = [[] for _ in successors]
    for node, targets in enumerate(successors):
        for target in targets:
            predecessors[target].append(node)
    component = [-1] * len(successors)
    for number, root in enumerate(reversed(_finish_order(successors))):
        stack = [root] if component[root] < 0 else []
        while stack:
            node = stack.pop()
            if component[node] < 0:
                component[node] = number
                stack.extend(before for before in predecessors[node] if component[before] < 0)
    return component


def cycle_names(successors: Sequence[Collection[int]], names: Sequence[str]) -> str:
    """The nodes of one cycle, for a message, or "" where there is none."""
    component = strong_components(successors)
    members: dict[int, list[int]] = {}
    for node, number in enumerate(component):
        members.setdefault(number, []).append(node)
    for nodes in members.values():
        if len(nodes) > 1 or nodes[0] in successors[nodes[0]]:
            more = ", ..." if len(nodes) > _NAMED_NODES else ""
            return ", ".join(names[node] for node in nodes[:_NAMED_NODES]) + more
    return ""


def _finish_order(successors: Sequence[Collection[int]]) -> list[int]:
    """Nodes in the order in which a depth-first search leaves them."""
    finished: list[int] = []
    seen = [False] * len(successors)
    for root in range(len(successors)):
        if seen[root]:
            continue
        seen[root] = True
        stack = [(root, iter(successors[root]))]
        while stack:
            node, targets = stack[-1]
            fresh = next((target for target in targets if not seen[target]), None)
            if fresh is None:
                finished.append(node)
                stack.pop()
            else:
                seen[fresh] = True
                stack.append((fresh, iter(successors[fresh])))
    return finished


_Key = Callable[[int, int, float], tuple[float, ...]]
"""Rank of a ready node: its index, the step at which it became ready, the bytes it adds."""


class _Wiring:
    """A graph's edges by index: what each tensor joins, what each node makes and reads."""

    def __init__(self, graph: Graph) -> None:
        index = {layer.name: node for node, layer in enumerate(graph.layers)}
        self.size = [tensor.bytes_per_sample for tensor in graph.tensors]
        self.consumers = [
            tuple(dict.fromkeys(index[name] for name in tensor.consumers))
            for tensor in graph.tensors
        ]
        self.made: list[list[int]] = [[] for _ in graph.layers]
        self.read: list[list[int]] = [[] for _ in graph.layers]
        for number, tensor in enumerate(graph.tensors):
            self.made[index[tensor.producer]].append(number)
            for node in self.consumers[number]:
                self.read[node].append(number)

    def successors(self) -> list[set[int]]:
        """For each node the nodes that read what it makes."""
        return [{node for t in made for node in self.consumers[t]} for made in self.made]

    def added_bytes(self) -> list[float]:
        """For each node the change of the live bytes if it were the next to run."""
        made = (sum(self.size[t] for t in made if self.consumers[t]) for made in self.made)
        freed = (sum(self.size[t] for t in r if len(self.consumers[t]) == 1) for r in self.read)
        return [plus - minus for plus, minus in zip(made, freed, strict=True)]


def _order(wiring: _Wiring, key: _Key) -> tuple[int, ...]:
    """Places ready nodes by smallest key; stops short where a cycle leaves none ready."""
    waiting = [len(read) for read in wiring.read]
    readers_left = [len(consumers) for consumers in wiring.consumers]
    added = wiring.added_bytes()
    ready_step = [0] * len(waiting)
    placed = [False] * len(waiting)
    heap = [(key(node, 0, added[node]), node) for node, left in enumerate(waiting) if not left]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        _, node = heapq.heappop(heap)
        if placed[node]:
            continue
        placed[node] = True
        order.append(node)
        changed = []
        for t in wiring.made[node]:
            for reader in wiring.consumers[t]:
                waiting[reader] -= 1
                ready_step[reader] = len(order)
                changed.append(reader)
        for t in wiring.read[node]:
            readers_left[t] -= 1
            if readers_left[t] == 1:
                last = next(reader for reader in wiring.consumers[t] if not placed[reader])
                added[last] -= wiring.size[t]
                changed.append(last)
        for other in dict.fromkeys(changed):
            # A node that was ready before is pushed again: its older entry, now with too high a
            # key, comes up after it is placed and is skipped.
            if not waiting[other]:
                heapq.heappush(heap, (key(other, ready_step[other], added[other]), other))
    return tuple(order)


def _cycle_error(graph: Graph, wiring: _Wiring) -> InputError:
    names = cycle_names(wiring.successors(), [layer.name for layer in graph.layers])
    return InputError("graph", words(f"a cycle through {names}"), "edges without cycles")
