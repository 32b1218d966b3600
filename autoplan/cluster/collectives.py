"""How long a collective takes: alpha-beta formulas by algorithm, or a measured table."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster.model import Cluster, Collective, MeasuredCollective
from autoplan.interpolation import interpolate, interpolate_many, line_below

Floats = NDArray[np.float64]
Piece = tuple[float, float]
"""(alpha in seconds, beta in seconds per byte)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """How the members of one collective lie in the cluster."""

    devices: int
    """Participants."""
    nodes: int = 1
    """Nodes that they are spread over."""
    inter_node_bytes_per_s: float = math.inf
    """Network bandwidth per node left to this group by the others on the same nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """Seconds as a function of the bytes in the buffer: the cheapest of some straight lines."""

    pieces: tuple[Piece, ...]
    table: MeasuredCollective | None = None
    contention_s_per_byte: float = 0.0
    """Added to a table's figures, which were measured without neighbours on the network."""

    def at(self, size_bytes: float) -> float:
        """Seconds for a buffer of `size_bytes`; nothing to exchange takes no time."""
        if size_bytes <= 0 or not self.pieces:
            return 0.0
        if self.table is not None:
            table = interpolate(self.table.size_bytes, self.table.seconds, size_bytes)
            return table + self.contention_s_per_byte * size_bytes
        return min(alpha + beta * size_bytes for alpha, beta in self.pieces)

    def many(self, size_bytes: Floats) -> Floats:
        """`at` for each element of an array of any shape."""
        if not self.pieces:
            return np.zeros(np.shape(size_bytes))
        if self.table is not None:
            best = interpolate_many(self.table.size_bytes, self.table.seconds, size_bytes)
            best = best + self.contention_s_per_byte * size_bytes
        else:
            lines = [alpha + beta * size_bytes for alpha, beta in self.pieces]
            best = lines[0] if len(lines) == 1 else np.minimum.reduce(lines)
        return np.where(size_bytes > 0, best, 0.0)

    @property
    def floor(self) -> CollectiveCost:
        """A cost that this is nowhere below, and that rises and is subadditive, as formulas are.

        A table need be neither: a line below it takes its place.
        """
        if self.table is None:
            return self
        alpha, beta = line_below(self.table.size_bytes, self.table.seconds)
        line = (alpha, beta + self.contention_s_per_byte)
        return replace(self, pieces=(line,), table=None, contention_s_per_byte=0.0)


def collective_cost(cluster: Cluster, shape: GroupShape, collective: Collective) -> CollectiveCost:
    """The cost of a collective over a group of this shape.

    Buffers are counted as nccl-tests counts them: the reduced buffer for an all-reduce, the whole
    gathered buffer for an all-gather (facts/costmodels.md section 6.3).
    """
    if shape.devices <= 1:
        return CollectiveCost(pieces=())
    pieces = _pieces(cluster, shape, collective)
    for table in cluster.measured:
        key = (table.collective, table.devices, table.nodes)
        if key == (collective, shape.devices, shape.nodes):
            alone = _pieces(cluster, _alone(cluster, shape), collective)
            contention = min(beta for _, beta in pieces) - min(beta for _, beta in alone)
            return CollectiveCost(
                pieces=pieces, table=table, contention_s_per_byte=max(0.0, contention)
            )
    return CollectiveCost(pieces=pieces)


def _alone(cluster: Cluster, shape: GroupShape) -> GroupShape:
    """The same group without neighbours that use the network."""
    if cluster.inter_node is None:
        return shape
    members = math.ceil(shape.devices / shape.nodes)
    ports = min(members, cluster.nics_per_node)
    bandwidth = ports * cluster.inter_node.bandwidth_bytes_per_s
    return GroupShape(devices=shape.devices, nodes=shape.nodes, inter_node_bytes_per_s=bandwidth)


def _pieces(cluster: Cluster, shape: GroupShape, collective: Collective) -> tuple[Piece, ...]:
    """One line per algorithm that may be used."""
    if collective == "all_gather":
        alpha, beta = _ring(cluster, shape)
        return ((alpha / 2, beta / 2),)
    formulas = {"ring": _ring, "tree": _tree, "hierarchical": _hierarchical}
    if cluster.all_reduce != "auto":
        return (formulas[cluster.all_reduce](cluster, shape),)
    return tuple(formula(cluster, shape) for formula in formulas.values())


def _network(cluster: Cluster, shape: GroupShape) -> Piece:
    """(seconds per message, seconds per byte) between nodes; no cost within one node."""
    if shape.nodes == 1 or cluster.inter_node is None:
        return 0.0, 0.0
    return cluster.inter_node.alpha_s, 1 / shape.inter_node_bytes_per_s


def _ring(cluster: Cluster, shape: GroupShape) -> Piece:
    """2(P-1) steps of which 2(N-1) cross nodes; 2(P-1)/P of the buffer over the slowest link."""
    devices, nodes = shape.devices, shape.nodes
    inter_alpha, inter_beta = _network(cluster, shape)
    inter_steps = 2 * (nodes - 1)
    intra_steps = 2 * (devices - 1) - inter_steps
    alpha = intra_steps * cluster.intra_node.alpha_s + inter_steps * inter_alpha
    intra_beta = 1 / cluster.intra_node.bandwidth_bytes_per_s if devices > nodes else 0.0
    return alpha, 2 * (devices - 1) / devices * max(intra_beta, inter_beta)


def _tree(cluster: Cluster, shape: GroupShape) -> Piece:
    """Up and down a chain within each node and a binary tree between them, as NCCL builds it."""
    members = math.ceil(shape.devices / shape.nodes)
    inter_alpha, inter_beta = _network(cluster, shape)
    depth = math.ceil(math.log2(shape.nodes))
    alpha = 2 * ((members - 1) * cluster.intra_node.alpha_s + depth * inter_alpha)
    intra_beta = 1 / cluster.intra_node.bandwidth_bytes_per_s if members > 1 else 0.0
    return alpha, 2 * max(intra_beta, inter_beta)


def _hierarchical(cluster: Cluster, shape: GroupShape) -> Piece:
    """Reduce-scatter in each node, all-reduce of the shards between nodes, all-gather in each."""
    members = math.ceil(shape.devices / shape.nodes)
    inter_alpha, inter_beta = _network(cluster, shape)
    alpha = 2 * (members - 1) * cluster.intra_node.alpha_s + 2 * (shape.nodes - 1) * inter_alpha
    intra = 2 * (members - 1) / members / cluster.intra_node.bandwidth_bytes_per_s
    return alpha, intra + 2 * (shape.nodes - 1) / shape.nodes * inter_beta
