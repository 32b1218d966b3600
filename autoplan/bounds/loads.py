"""The least largest load of whole sets of plans.

A pipeline that never drains takes the load of its busiest stage per step (`stage_loads`), so that
the best plan is the partition whose heaviest stage is lightest. Axes: R choices of replicas, C = L
+ 1 cuts around L layers, N numbers of devices; a stage [i, j) lies between cuts i and j.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.bounds.plans import PlanBounds
from autoplan.bounds.stage_loads import StageLoads, StageTerms
from autoplan.cluster import Cluster
from autoplan.pipeline.bounds import BoundProblem
from autoplan.pipeline.minmax_placed import PlacedLoads, least_of_more_stages, min_max_placed
from autoplan.pipeline.minmax_stages import SharedOut, min_max_shared_out

Floats = NDArray[np.float64]

_MOST_STEPS = 4_000_000_000
"""Steps of the dynamic programs of all numbers of microbatches: a few seconds."""
_MARGIN = 1e-9
"""Memory within this share of what there is counts as fitting in a bound: sums are rounded."""

Partition = tuple[tuple[int, ...], tuple[int, ...]]
"""Bounds and replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBound:
    """A load that no plan's busiest stage is below, and partitions that come close to it."""

    load_s: float
    partitions: tuple[Partition, ...]


class LoadBounds:
    """Bounds on the largest load for one workload, cluster and job, over one domain."""

    def __init__(self, plan_bounds: PlanBounds) -> None:
        """Takes the least costs of stages, and what is open, from the bounds on step times."""
        self.plan_bounds = plan_bounds
        self.costs, self.domain = plan_bounds.costs, plan_bounds.domain
        self.cluster, self.devices = plan_bounds.cluster, plan_bounds.devices
        self.at = functools.lru_cache(maxsize=None)(self._at)
        self.work_s = functools.lru_cache(maxsize=None)(self._work_s)
        self._tables = StageLoads(self.costs)

    @functools.cached_property
    def least_s(self) -> float:
        """The least bound over all numbers of microbatches; infinite where nothing fits."""
        least_s = math.inf
        for m in sorted(self.domain.microbatches, key=self.work_s):
            if self.work_s(m) < least_s:
                least_s = min(least_s, self.at(m).load_s)
        return least_s

    def _work_s(self, microbatches: int) -> float:
        """A bound that takes no time: all devices equally busy, or a layer too long alone."""
        problem = self.plan_bounds.problem(microbatches)
        compute_RL = problem.forward_s_RL + problem.backward_s_RL
        replicas_R = np.array(problem.replicas_R)
        usable = replicas_R <= self.devices
        least_L = compute_RL[usable].min(axis=0)
        shared = (compute_RL[usable] * replicas_R[usable, None]).min(axis=0).sum()
        return float(microbatches * max(least_L.max(), shared / self.devices))

    def least_by_devices(self, microbatches: int) -> Floats | None:
        """Least largest load with exactly n devices, n = 0, 1, ...; None for models too large.

        Infinite where no partition over n devices fits in memory.
        """
        problem = self.plan_bounds.problem(microbatches)
        if self._too_large(problem):
            return None
        loads_RCC = self._loads(problem, self._link(problem, 1))
        return self._shared_out(problem, loads_RCC).load_N

    def _at(self, microbatches: int) -> LoadBound:
        """The bound for one number of microbatches."""
        problem = self.plan_bounds.problem(microbatches)
        if self._too_large(problem):
            return LoadBound(load_s=self.work_s(microbatches), partitions=())
        found = list(self._orders(problem))
        partitions = dict.fromkeys(partition for _, partition in found if partition)
        least_s = min((load_s for load_s, _ in found), default=math.inf)
        return LoadBound(load_s=least_s, partitions=tuple(partitions))

    def _orders(self, problem: BoundProblem) -> Iterator[tuple[float, Partition | None]]:
        """Bounds for every way in which stages lie on nodes; together they cover all plans."""
        near, far = self._link(problem, 1), self._link(problem, 2)
        near_RCC = self._loads(problem, near)
        anywhere = self._shared_out(problem, near_RCC)
        per_node = self.cluster.devices_per_node
        if self.devices <= per_node:
            yield _best(anywhere, range(self.devices + 1))
            return
        yield _best(anywhere, range(per_node + 1))
        # Where each stage has one replica, both rank orders are this one.
        placed = min_max_placed(self._placed(problem, near, far), self.devices)
        yield _best(placed, range(self.devices + 1))
        if "stage" in self.domain.rank_orders:
            for rows_far, counts in self._spanning(problem):
                link_RCC = np.where(rows_far[:, None, None], far, near)
                spread = self._shared_out(problem, self._loads(problem, link_RCC))
                yield _best(spread, counts)
            yield self._deep_s(problem, near_RCC, anywhere), None

    def _spanning(self, problem: BoundProblem) -> Iterator[tuple[NDArray[np.bool_], list[int]]]:
        """With stages of each replica in turn: which replicas surely lie over nodes, by devices.

        Of n devices at least n (r - 1) / r come before the last of r replicas, and the first one
        of at most a node's number of stages lies in the first node.
        """
        per_node, replicas_R = self.cluster.devices_per_node, np.array(self._choices(problem))
        alike: dict[tuple[bool, ...], list[int]] = {}
        for n in range(per_node + 1, self.devices + 1):
            far = n * (replicas_R - 1) >= per_node * replicas_R
            alike.setdefault(tuple(far.tolist()), []).append(n)
        for rows, counts in alike.items():
            yield np.array(rows), counts

    def _deep_s(self, problem: BoundProblem, near_RCC: Floats, anywhere: SharedOut) -> float:
        """With stages of each replica in turn, more stages than a node has devices.

        Of these, plans with one replica of every stage are looked at in the other rank order.
        """
        per_node = self.cluster.devices_per_node
        steps = self._steps(problem) * self.devices
        if steps * len(self.domain.microbatches) > _MOST_STEPS:
            return float(anywhere.load_N[per_node + 1 :].min())
        choices = tuple(self._choices(problem))
        return least_of_more_stages(near_RCC, choices, self.devices, per_node)

    def _choices(self, problem: BoundProblem) -> list[int]:
        return [r for r in problem.replicas_R if r <= self.devices]

    def _steps(self, problem: BoundProblem) -> float:
        return len(problem.replicas_R) * problem.elements_L.size**2 / 2 * self.devices

    def _too_large(self, problem: BoundProblem) -> bool:
        steps = self._steps(problem) * len(self.domain.microbatches)
        return problem.link_s_RCC is None or steps > _MOST_STEPS

    def _link(self, problem: BoundProblem, nodes: int) -> Floats:
        """Least seconds of each stage's exchanges over at least so many nodes."""
        table_RCC = self.plan_bounds.link_s(self._choices(problem), nodes)
        assert table_RCC is not None
        return table_RCC

    def _shared_out(self, problem: BoundProblem, load_RCC: Floats) -> SharedOut:
        return min_max_shared_out(load_RCC, self._choices(problem), self.devices)

    def _loads(self, problem: BoundProblem, link_RCC: Floats) -> Floats:
        """Loads with each transfer over the best link."""
        rows = range(len(link_RCC))
        return np.stack(
            [self._load(problem, row, problem.receive_s_RC[row], link_RCC[row]) for row in rows]
        )

    def _load(
        self, problem: BoundProblem, row: int, receive_s_C: Floats, link_CC: Floats
    ) -> Floats:
        """The least load of every stage with so many replicas, wherever it lies in a pipeline."""
        m = problem.microbatches
        held_C = np.full(len(receive_s_C), m)
        if "1f1b" in self.domain.schedules:
            held_C = np.full(len(receive_s_C), min(2, m))
            held_C[-1] = 1
        terms = StageTerms(
            microbatches=m,
            replicas=problem.replicas_R[row],
            receive_s_C=receive_s_C,
            send_s_C=receive_s_C,
            link_s_CC=link_CC,
            held_C=held_C,
            fused=False,
            may_keep=self.domain.may_keep,
            may_recompute=self.domain.may_recompute,
        )
        return self._tables.under(terms, self.costs.available_bytes * (1 + _MARGIN))

    def _placed(self, problem: BoundProblem, near: Floats, far: Floats) -> PlacedLoads:
        """The parts of the loads of stages on consecutive devices."""
        choices = self._choices(problem)
        nothing_C, nothing_CC = np.zeros(near.shape[1]), np.zeros(near.shape[1:])
        rows = range(len(choices))
        size_C = 2.0 * self.costs.cut_bytes_C * self.costs.job.global_batch
        size_C[[0, -1]] = 0.0
        rates = [
            [_rates(self.cluster, first, count) for first in range(self.devices)]
            for count in choices
        ]
        return PlacedLoads(
            replicas_R=tuple(choices),
            alone_RCC=np.stack([self._load(problem, r, nothing_C, nothing_CC) for r in rows]),
            link_2RCC=np.stack([near, far]),
            size_C=size_C,
            messages=2.0 * problem.microbatches,
            receive_2RD=np.array([[each.receive for each in row] for row in rates]).transpose(
                2, 0, 1
            ),
            send_2RD=np.array([[each.send for each in row] for row in rates]).transpose(2, 0, 1),
            spans_RD=np.array([[each.spans for each in row] for row in rates]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What transfers of a stage cost at least: seconds per message, and per byte."""

    receive: tuple[float, float]
    send: tuple[float, float]
    spans: bool


@functools.lru_cache(maxsize=4096)
def _rates(cluster: Cluster, first: int, replicas: int) -> _Rates:
    """Of a stage on devices [first, first + replicas), whatever the stages around it are."""
    per_node = cluster.devices_per_node
    members = Counter(device // per_node for device in range(first, first + replicas))
    return _Rates(
        receive=_least_transfer(cluster, members, (first - 1) // per_node, replicas),
        send=_least_transfer(cluster, members, (first + replicas) // per_node, replicas),
        spans=len(members) > 1,
    )


def _least_transfer(
    cluster: Cluster, members: Counter[int], other: int, replicas: int
) -> tuple[float, float]:
    """The neighbour's nearest device lies in node `other`: what lies elsewhere uses the network."""
    links = [cluster.intra_node]
    if cluster.inter_node is not None and cluster.nodes > 1:
        links.append(cluster.inter_node)
    alpha_s = min(link.alpha_s for link in links)
    s_per_byte = 1 / replicas / max(link.bandwidth_bytes_per_s for link in links)
    away = max((count for node, count in members.items() if node != other), default=0)
    if away > 0 and cluster.inter_node is not None:
        far = cluster.inter_node
        alpha_s = far.alpha_s
        busiest = max(1.0, away / cluster.nics_per_node) / replicas
        s_per_byte = max(s_per_byte, busiest / far.bandwidth_bytes_per_s)
    return alpha_s, s_per_byte


def _best(found: SharedOut, counts: range | list[int]) -> tuple[float, Partition | None]:
    """The least load over some numbers of devices, and its partition."""
    used = min(counts, key=lambda n: float(found.load_N[n]))
    load_s = float(found.load_N[used])
    return load_s, found.partition(used) if math.isfinite(load_s) else None
