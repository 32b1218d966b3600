"""The JSON of dnn-partitioning (Tarnawski et al., NeurIPS 2020): layer and operator graphs.

Nodes have `fpgaLatency` (milliseconds on the accelerator), `isBackwardNode`, `size` (bytes) and
perhaps a `colorClass`, whose nodes must share a device; edges have `size` (bytes) and `cost`, the
time of their transfer. The size of a node means two things, decided from the published data:

- In layer graphs it is parameters plus output: all 177 forward nodes of resnet50_training equal
  parameter_size + activation_size of the same node in PipeDream's profile (so does gnmt's
  classifier: 132512000 + 413696000). The output's size is also on the node's edges, so parameters
  are what remains. A node that nobody reads cannot be divided; all of it counts as stash.
- In operator graphs it is the output alone, and parameters are nodes of their own: forward nodes
  that read nothing and take no time (in the training graphs an optimizer node reads each). Where
  a file has such nodes with a size, it is read in this way. A parameter that two units read (tied
  embeddings) crosses the cuts between them like any other tensor.
"""
# Fields of the file's classes are named as the publisher names them.

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from autoplan.documents import STRICT, build_json
from autoplan.errors import require, words
from autoplan.workload.graph import Graph, cycle_names
from autoplan.workload.model import Workload
from autoplan.workload.readers.base import (
    Document,
    ReadOptions,
    require_amount,
    scale_for,
    unique_names,
    workload_of,
)
from autoplan.workload.readers.contraction import Edge, Operation, contract

_Flag = Literal[0, 1, False, True]

_LISTED_NODES = 6

_FASTEST_BYTES_PER_S = 1e12
"""Above the fastest link between two accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A layer or an operator, forward or backward."""

    __pydantic_config__ = STRICT

    id: int
    name: str
    supportedOnFpga: _Flag
    cpuLatency: float
    fpgaLatency: float
    isBackwardNode: _Flag
    size: float
    colorClass: int | None = None
    layerId: int | None = None

    def __post_init__(self) -> None:
        require(bool(self.name.strip()), "name", self.name, "a name")
        for name in ("cpuLatency", "fpgaLatency", "size"):
            require_amount(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edge:
    """A tensor from one node to another."""

    __pydantic_config__ = STRICT

    sourceId: int
    destId: int
    cost: float
    size: float

    def __post_init__(self) -> None:
        for name in ("cost", "size"):
            require_amount(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The whole file; the limits are of the publisher's machine and are not used."""

    __pydantic_config__ = STRICT

    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]
    maxSizePerFPGA: float | None = None
    maxFPGAs: int | None = None
    maxCPUs: int | None = None

    def __post_init__(self) -> None:
        require(bool(self.nodes), "nodes", words("nothing"), "at least one node")
        backward: dict[int, bool] = {}
        for i, node in enumerate(self.nodes):
            require(node.id not in backward, f"nodes[{i}].id", node.id, "each id once")
            backward[node.id] = bool(node.isBackwardNode)
        for i, edge in enumerate(self.edges):
            for name, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
                require(end in backward, f"edges[{i}].{name}", end, "the id of a node")
            sound = backward[edge.destId] or not backward[edge.sourceId]
            found = words(f"an edge from backward node {edge.sourceId} to a forward node")
            require(sound, f"edges[{i}]", found, "edges that lead on, forward before backward")
        self._require_no_cycle()

    def _require_no_cycle(self) -> None:
        index = {node.id: i for i, node in enumerate(self.nodes)}
        successors: list[set[int]] = [set() for _ in self.nodes]
        for edge in self.edges:
            successors[index[edge.sourceId]].add(index[edge.destId])
        names = cycle_names(successors, [f"{node.name} (id {node.id})" for node in self.nodes])
        require(not names, "edges", words(f"a cycle through {names}"), "edges without cycles")


class DnnPartitioningReader:
    """Layer and operator graphs of dnn-partitioning, for training and for inference.

    Nodes of a colour class become one layer, backward nodes with their forward siblings; see
    `contraction` for those that have none. Cuts carry the sizes of the edges, never their costs:
    in the layer graphs these are seconds beside latencies in milliseconds.
    """

    format = "dnn-partitioning JSON (nodes with fpgaLatency)"

    def matches(self, document: Document) -> bool:
        """Whether it is a JSON object with dnn-partitioning's fields."""
        return document.has_keys("maxFPGAs", "maxSizePerFPGA") or document.first_node_has(
            "fpgaLatency", "isBackwardNode"
        )

    def read(self, document: Document, options: ReadOptions) -> Workload:
        """Builds the workload; `options.batch_size` divides the profiled minibatch."""
        file = build_json(_File, document.data, document.source)
        operations = _operations(file, _parameter_nodes(file))
        edges = [Edge(e.sourceId, e.destId, e.size) for e in file.edges]
        contracted = contract(operations, edges)
        scale, notes = scale_for(contracted.costs, "ms", options)
        graph = Graph(
            layers=tuple(scale.layer(entry) for entry in contracted.costs),
            tensors=contracted.tensors(scale.samples),
        )
        bytes_per_s, bandwidth_notes = _bandwidth(file)
        return workload_of(
            graph,
            document,
            sample="one sample"
            if options.batch_size
            else "one profiled minibatch (batch size not in the file)",
            notes=(*notes, *bandwidth_notes, *_notes(file, operations, len(graph.layers))),
            bytes_per_s=bytes_per_s,
        )


def _parameter_nodes(file: _File) -> set[int]:
    """Nodes of an operator graph that hold parameters."""
    fed = {edge.destId for edge in file.edges}
    return {
        node.id
        for node in file.nodes
        if not (node.isBackwardNode or node.fpgaLatency or node.id in fed) and node.size > 0
    }


def _operations(file: _File, separate: set[int]) -> list[Operation]:
    """The nodes with their memory divided into parameters and stash."""
    sizes: dict[int, set[float]] = {node.id: set() for node in file.nodes}
    for edge in file.edges:
        sizes[edge.sourceId].add(edge.size)
    names = unique_names([(node.name, node.id) for node in file.nodes])
    operations = []
    for node, name in zip(file.nodes, names, strict=True):
        output = sum(sizes[node.id]) if sizes[node.id] else node.size
        if node.id in separate:
            parameters, stash = node.size, 0.0
        elif separate:
            parameters, stash = 0.0, max(output, node.size)
        else:
            parameters, stash = max(0.0, node.size - output), output
        operation = Operation(
            id=node.id,
            name=name,
            group=node.colorClass,
            backward=bool(node.isBackwardNode),
            time=node.fpgaLatency if node.supportedOnFpga else node.cpuLatency,
            # Gradients are as large as what they belong to, and are counted with it.
            parameter_bytes=0.0 if node.isBackwardNode else parameters,
            stash_bytes=0.0 if node.isBackwardNode else stash,
        )
        operations.append(operation)
    return operations


def _bandwidth(file: _File) -> tuple[float | None, tuple[str, ...]]:
    """The bandwidth that costs and sizes imply, and what unit the costs must then be in."""
    rates = [edge.size / edge.cost for edge in file.edges if edge.size > 0 and edge.cost > 0]
    if not rates:
        return None, ()
    rate = statistics.median(rates)
    if rate * 1e3 <= _FASTEST_BYTES_PER_S:
        return rate * 1e3, (f"edge costs are ms at {rate * 1e3:.4g} bytes/s; not used",)
    note = (
        f"edge costs read as ms, like the latencies, mean {rate * 1e3:.3g} bytes/s; they "
        f"must be s, at {rate:.4g} bytes/s (an error of the publisher); sizes are used, not costs"
    )
    return rate, (note,)


def _notes(file: _File, operations: list[Operation], num_layers: int) -> list[str]:
    """What was made of the nodes."""
    notes = [f"{len(file.nodes)} nodes joined into {num_layers} layers by colour class"]
    separate = _parameter_nodes(file)
    if separate:
        notes.append(f"parameters are the {len(separate)} forward nodes that only hold data")
    else:
        notes += _layer_graph_notes(file, operations)
    if not any(node.isBackwardNode for node in file.nodes):
        notes.append("no backward nodes: backward takes no time")
    unsupported = sum(not node.supportedOnFpga for node in file.nodes)
    if unsupported:
        notes.append(f"warning: {unsupported} nodes cannot run on the accelerator; cpuLatency used")
    return notes


def _layer_graph_notes(file: _File, operations: list[Operation]) -> list[str]:
    """What the figures of a layer graph leave open at both its ends."""
    notes = ["node sizes are parameters plus output; parameters are what the edges leave"]
    read, fed = {edge.sourceId for edge in file.edges}, {edge.destId for edge in file.edges}
    forward = [operation for operation in operations if not operation.backward]
    last = [o.name for o in forward if o.id not in read and o.stash_bytes]
    if last:
        notes.append(f"counted as stash, parameters included: {_listed(last)}")
    first = [o.name for o in forward if o.id not in fed and o.time and not o.parameter_bytes]
    if first and fed:
        notes.append(
            f"warning: {_listed(first)} read nothing and hold no parameters but take time, perhaps "
            "that of loading data; it is kept"
        )
    return notes


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED_NODES]) + (", ..." if len(names) > _LISTED_NODES else "")
