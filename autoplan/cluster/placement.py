"""Which device runs which replica of which stage, and what that makes of the links."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoplan.cluster.collectives import GroupShape
from autoplan.cluster.model import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCost:
    """Seconds to move a microbatch's activations across one cut, affine in their bytes."""

    alpha_s: float
    s_per_byte: float

    def at(self, size_bytes: float) -> float:
        """Seconds for `size_bytes` over all replicas; a cut that nothing crosses is free."""
        return self.alpha_s + self.s_per_byte * size_bytes if size_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices of a plan's stages and the costs that follow from where they lie."""

    devices: tuple[tuple[int, ...], ...]
    """Device numbers of each stage's replicas; node n holds n*devices_per_node onwards."""
    transfers: tuple[TransferCost, ...]
    """One per cut between neighbouring stages, the same in both directions."""
    groups: tuple[GroupShape, ...]
    """The shape of each stage's gradient collective."""


@functools.lru_cache(maxsize=4096)
def place(
    cluster: Cluster, replicas: tuple[int, ...], rank_order: Literal["replica", "stage"]
) -> Placement:
    """Places stages with `replicas` devices each on the cluster's devices.

    Args:
        cluster: where they run; it must have at least sum(replicas) devices.
        replicas: devices of each stage.
        rank_order: "replica" numbers all replicas of a stage before those of the next; "stage"
            numbers the stages of the first replica before those of the second, stages with fewer
            replicas lying evenly between.
    """
    seats = [(i / count, stage, i) for stage, count in enumerate(replicas) for i in range(count)]
    seats.sort(key=lambda seat: seat[:2] if rank_order == "stage" else seat[1:])
    devices: list[list[int]] = [[] for _ in replicas]
    for device, (_, stage, _) in enumerate(seats):
        devices[stage].append(device)
    placed = tuple(tuple(stage) for stage in devices)
    return Placement(
        devices=placed,
        transfers=tuple(
            _transfer(cluster, placed[s], placed[s + 1]) for s in range(len(placed) - 1)
        ),
        groups=_group_shapes(cluster, placed),
    )


@functools.lru_cache(maxsize=1 << 15)
def _transfer(
    cluster: Cluster, senders: tuple[int, ...], receivers: tuple[int, ...]
) -> TransferCost:
    """The busiest device or network port decides; replicas exchange the samples they share."""
    per_node = cluster.devices_per_node
    messages: Counter[tuple[str, int]] = Counter()
    busy: defaultdict[tuple[str, int], float] = defaultdict(float)
    alpha = 0.0
    for i, j, share in shared_samples(len(senders), len(receivers)):
        source, target = senders[i], receivers[j]
        link = cluster.intra_node
        if source // per_node != target // per_node and cluster.inter_node is not None:
            link = cluster.inter_node
            node_bandwidth = cluster.nics_per_node * link.bandwidth_bytes_per_s
            busy["node out", source // per_node] += share / node_bandwidth
            busy["node in", target // per_node] += share / node_bandwidth
        alpha = max(alpha, link.alpha_s)
        for end in (("out", source), ("in", target)):
            busy[end] += share / link.bandwidth_bytes_per_s
            messages[end] += 1
    return TransferCost(alpha_s=alpha * max(messages.values()), s_per_byte=max(busy.values()))


def shared_samples(senders: int, receivers: int) -> Iterator[tuple[int, int, float]]:
    """Pairs (sender, receiver) and the share of the microbatch that goes between them, in order."""
    i = j = 0
    done = 0
    total = senders * receivers
    while i < senders and j < receivers:
        end = min((i + 1) * receivers, (j + 1) * senders)
        yield i, j, (end - done) / total
        done = end
        i, j = end // receivers, end // senders


def _group_shapes(cluster: Cluster, placed: tuple[tuple[int, ...], ...]) -> tuple[GroupShape, ...]:
    """Each stage's collective, the network shared with those of the other stages.

    Stages end their backward passes close to each other, so the groups of all stages on a node are
    taken to use its ports at the same time; a group gets the share of its members, and no more
    than one port for each of them.
    """
    per_node = cluster.devices_per_node
    members = [Counter(device // per_node for device in stage) for stage in placed]
    spanning: Counter[int] = Counter()
    for counts in members:
        if len(counts) > 1:
            spanning.update(counts)
    shapes = []
    for counts in members:
        bandwidth = math.inf
        if len(counts) > 1 and cluster.inter_node is not None:
            port = cluster.inter_node.bandwidth_bytes_per_s
            node = cluster.nics_per_node * port
            shares = (min(n * port, node * n / spanning[where]) for where, n in counts.items())
            bandwidth = min(shares)
        shapes.append(
            GroupShape(devices=counts.total(), nodes=len(counts), inter_node_bytes_per_s=bandwidth)
        )
    return tuple(shapes)
