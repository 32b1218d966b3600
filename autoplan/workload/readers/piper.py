"""Piper's JSON: layer graphs with a profile per tensor-parallel degree.

A node has `TMPCs`, for each degree t a list of variants (without and with recompute) of
`timePerSample` (forward and backward together, documented in seconds), `parameterSize` (bytes) and
a memory of `memoryUsageA` bytes per sample in flight plus `memoryUsageB`. Edges carry
`communicationCost` in bytes, `bandwidth` is bytes/s. A "sample" of the format is what its figures
are for; in the published files it is a profiled microbatch.
"""
# Fields of the file's classes are named as the publisher names them.

from __future__ import annotations

from dataclasses import dataclass

from autoplan.documents import STRICT, build_json
from autoplan.errors import InputError, require, words
from autoplan.workload.graph import Graph, Tensor
from autoplan.workload.model import Workload
from autoplan.workload.readers.base import (
    Costs,
    Document,
    ReadOptions,
    require_amount,
    scale_for,
    unique_names,
    workload_of,
)

_DEGREE = "1"
_FORWARD_SHARE = 1 / 3
"""Of a training step, where no variant tells: backward computes two products, forward one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """A node's figures at one tensor-parallel degree, with or without recompute."""

    __pydantic_config__ = STRICT

    id: str
    timePerSample: float
    parameterSize: float
    memoryUsageA: float
    memoryUsageB: float
    syncTimeFw: dict[str, float]
    syncTimeBw: dict[str, float]

    def __post_init__(self) -> None:
        for name in ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB"):
            require_amount(name, getattr(self, name))
        for name in ("syncTimeFw", "syncTimeBw"):
            for key, value in getattr(self, name).items():
                require_amount(f"{name}.{key}", value)

    @property
    def recomputes(self) -> bool:
        """Whether it drops activations and runs forward again."""
        return "recomp" in self.id.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A layer."""

    __pydantic_config__ = STRICT

    id: int
    name: str
    TMPCs: dict[str, tuple[_Variant, ...]]

    def __post_init__(self) -> None:
        require(bool(self.name.strip()), "name", self.name, "a name")
        degrees = ", ".join(self.TMPCs) or "nothing"
        require(_DEGREE in self.TMPCs, "TMPCs", words(degrees), f'"{_DEGREE}" among the degrees')
        plain = [variant for variant in self.TMPCs[_DEGREE] if not variant.recomputes]
        found = words(f"{len(self.TMPCs[_DEGREE])} variants that all recompute")
        require(bool(plain), f"TMPCs.{_DEGREE}", found, "a variant without recompute")

    def costs(self, name: str) -> Costs:
        """The figures without tensor parallelism and without recompute.

        The recompute variant runs forward once more, so what it takes longer is the forward pass.
        """
        variants = self.TMPCs[_DEGREE]
        plain = [variant for variant in variants if not variant.recomputes]
        vanilla = next((variant for variant in plain if variant.id == "vanilla"), plain[0])
        total = vanilla.timePerSample
        again = [variant.timePerSample for variant in variants if variant.recomputes]
        forward = min(max(again[0] - total, 0.0), total) if again else total * _FORWARD_SHARE
        return Costs(
            name=name,
            forward=forward,
            backward=total - forward,
            parameter_bytes=vanilla.parameterSize,
            stash_bytes=vanilla.memoryUsageA,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edge:
    """A tensor from one layer to another."""

    __pydantic_config__ = STRICT

    sourceId: int
    destId: int
    communicationCost: float

    def __post_init__(self) -> None:
        require_amount("communicationCost", self.communicationCost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The whole file; the limits are of the publisher's machine and are not used."""

    __pydantic_config__ = STRICT

    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]
    bandwidth: float | None = None
    maxMemoryPerDevice: float | None = None
    maxDevices: int | None = None
    mbsInBatch: int | None = None
    maxBatchSize: int | None = None

    def __post_init__(self) -> None:
        require(bool(self.nodes), "nodes", words("nothing"), "at least one node")
        if self.bandwidth is not None:
            require_amount("bandwidth", self.bandwidth)
        ids: set[int] = set()
        for i, node in enumerate(self.nodes):
            require(node.id not in ids, f"nodes[{i}].id", node.id, "each id once")
            ids.add(node.id)
        for i, edge in enumerate(self.edges):
            for name, end in (("sourceId", edge.sourceId), ("destId", edge.destId)):
                require(end in ids, f"edges[{i}].{name}", end, "the id of a node")


class PiperReader:
    """Piper's profiles, read at tensor-parallel degree 1.

    The stash is `memoryUsageA`; `memoryUsageB` holds parameters and their gradients, which the
    planner counts itself. Edges of one source with equal cost are one tensor with several readers.
    """

    format = "Piper JSON (nodes with TMPCs)"

    def matches(self, document: Document) -> bool:
        """Whether it is a JSON object with Piper's fields."""
        return document.has_keys("mbsInBatch", "maxMemoryPerDevice") or document.first_node_has(
            "TMPCs"
        )

    def read(self, document: Document, options: ReadOptions) -> Workload:
        """Builds the workload; `options.batch_size` divides the file's sample."""
        file = build_json(_File, document.data, document.source)
        nodes = sorted(file.nodes, key=lambda node: node.id)
        names = unique_names([(node.name, node.id) for node in nodes])
        costs = [node.costs(name) for node, name in zip(nodes, names, strict=True)]
        scale, notes = scale_for(costs, "s", options)
        name_of = {node.id: name for node, name in zip(nodes, names, strict=True)}
        graph = Graph(
            layers=tuple(scale.layer(entry) for entry in costs),
            tensors=_tensors(file.edges, name_of, scale.samples),
        )
        return workload_of(
            graph,
            document,
            sample="one sample" if options.batch_size else "one sample of the file's timePerSample",
            notes=(*notes, *_notes(nodes)),
            bytes_per_s=file.bandwidth,
        )


def _notes(nodes: list[_Node]) -> list[str]:
    """How the forward pass was told from the backward pass."""
    variants = [node.TMPCs[_DEGREE] for node in nodes]
    without = sum(not any(variant.recomputes for variant in some) for some in variants)
    notes = ["figures of tensor-parallel degree 1 without recompute"]
    if without < len(nodes):
        notes.append("forward time is what the recompute variant takes longer than the plain one")
    if without:
        notes.append(f"forward time of {without} layers taken as a third of their time")
    return notes


def _tensors(edges: tuple[_Edge, ...], name_of: dict[int, str], samples: int) -> tuple[Tensor, ...]:
    """Groups the edges by source and size."""
    consumers: dict[tuple[int, float], list[str]] = {}
    for i, edge in enumerate(edges):
        if edge.sourceId == edge.destId:
            raise InputError(f"edges[{i}]", edge.destId, "another node than its source")
        readers = consumers.setdefault((edge.sourceId, edge.communicationCost), [])
        readers.append(name_of[edge.destId])
    return tuple(
        Tensor(
            producer=name_of[source],
            consumers=tuple(dict.fromkeys(readers)),
            bytes_per_sample=size / samples,
        )
        for (source, size), readers in consumers.items()
    )
