"""How long a program's collectives, sends and receives take on a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoplan.cluster import Cluster
from autoplan.cluster.collectives import GroupShape, collective_cost
from autoplan.costmodel.graph import Collective, Op, OpGraph, TensorInfo
from autoplan.errors import InputError, require, words

Groups = Mapping[int, Sequence[Sequence[int]]]
"""For each ring the groups of ranks that use that number, where programs do not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicators:
    """Which ranks each rank exchanges with on each ring."""

    cluster: Cluster
    members: Mapping[tuple[int, int], tuple[int, ...]]
    """(ring, rank) to the ranks of its group."""

    def seconds(self, op: Op, tensors: Sequence[TensorInfo], rank: int) -> float:
        """Seconds of a collective, send or receive on `rank`.

        Raises:
            InputError: the operator's group or peer is unknown, or lies outside the cluster.
        """
        exchange = op.collective
        assert exchange is not None
        size_bytes = buffer_bytes(op, tensors)
        if exchange.kind in {"send", "recv"}:
            found = words(f"{op.type} without a peer")
            if exchange.peer is None:
                raise InputError("program", found, "a peer")
            return transfer_seconds(self.cluster, rank, exchange.peer, size_bytes)
        group = self.members.get((exchange.ring, rank), (rank,))
        if exchange.num_ranks is not None and exchange.num_ranks != len(group):
            found = words(f"{op.type} over {exchange.num_ranks} ranks, {len(group)} have the ring")
            raise InputError(f"ring {exchange.ring}", found, "groups that say which ranks exchange")
        return group_seconds(self.cluster, group, exchange, size_bytes)


def communicators(
    cluster: Cluster, graphs: Sequence[OpGraph], groups: Groups | None = None
) -> Communicators:
    """The groups of a job's programs.

    By default all ranks whose programs use a ring form one group, as each rank numbers its rings
    alike; `groups` says otherwise for rings that several groups use.
    """
    users: defaultdict[int, list[int]] = defaultdict(list)
    for rank, graph in enumerate(graphs):
        rings = {op.collective.ring for op in graph.walk() if op.collective is not None}
        for ring in rings:
            users[ring].append(rank)
    stated = groups or {}
    members: dict[tuple[int, int], tuple[int, ...]] = {}
    for ring, ranks in users.items():
        for group in stated.get(ring, [ranks]):
            members.update({(ring, rank): tuple(group) for rank in group})
    for (ring, _), group in members.items():
        sound = all(0 <= rank < cluster.num_devices for rank in group)
        allowed = f"ranks 0 to {cluster.num_devices - 1}, the devices of the cluster"
        require(sound, f"ring {ring}", list(group), allowed)
    return Communicators(cluster=cluster, members=members)


def buffer_bytes(op: Op, tensors: Sequence[TensorInfo]) -> int:
    """Bytes as nccl-tests counts them: the whole buffer of whichever side has all of it.

    An all-gather's result and a reduce-scatter's operand hold every rank's part; the others have
    operand and result of one size. A receive has a result only.
    """
    sizes = [
        sum(tensors[index].size_bytes for index in indices) for indices in (op.inputs, op.outputs)
    ]
    return max(sizes)


def transfer_seconds(cluster: Cluster, source: int, target: int, size_bytes: int) -> float:
    """Seconds to send a buffer from one rank to another."""
    for rank in (source, target):
        sound = 0 <= rank < cluster.num_devices
        require(sound, "peer", rank, f"0 to {cluster.num_devices - 1}, the devices of the cluster")
    link = cluster.intra_node
    if source // cluster.devices_per_node != target // cluster.devices_per_node:
        assert cluster.inter_node is not None
        link = cluster.inter_node
    if source == target:
        return 0.0
    return link.alpha_s + size_bytes / link.bandwidth_bytes_per_s


def group_seconds(
    cluster: Cluster, group: Sequence[int], exchange: Collective, size_bytes: int
) -> float:
    """Seconds of a collective over a group of ranks.

    Bus bytes follow nccl-tests (facts/costmodels.md section 6.3): of a buffer of S bytes on n
    ranks an all-reduce moves 2(n-1)/n S over the slowest link, all-gather, reduce-scatter and
    all-to-all (n-1)/n S, broadcast and reduce S. Scatter and gather move (n-1)/n S through the
    root's port.
    """
    if len(group) <= 1:
        return 0.0
    shape = group_shape(cluster, group)
    if exchange.kind == "all_reduce":
        return collective_cost(cluster, shape, "all_reduce").at(size_bytes)
    gather = collective_cost(cluster, shape, "all_gather")
    if exchange.kind == "barrier":
        return collective_cost(cluster, shape, "all_reduce").at(1)
    if exchange.kind in {"broadcast", "reduce"}:
        n = shape.devices
        return gather.at(size_bytes * n / (n - 1))
    return gather.at(size_bytes)


def group_shape(cluster: Cluster, group: Sequence[int]) -> GroupShape:
    """How the ranks of a group lie on the cluster's nodes, alone on the network."""
    nodes = {rank // cluster.devices_per_node for rank in group}
    if len(nodes) == 1 or cluster.inter_node is None:
        return GroupShape(devices=len(group), nodes=len(nodes))
    per_node = -(-len(group) // len(nodes))
    ports = min(per_node, cluster.nics_per_node)
    return GroupShape(
        devices=len(group),
        nodes=len(nodes),
        inter_node_bytes_per_s=ports * cluster.inter_node.bandwidth_bytes_per_s,
    )
