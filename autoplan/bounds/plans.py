"""Lower bounds on the step time of whole sets of plans that fit in memory."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autoplan.bounds.large_problem import large_problem
from autoplan.bounds.lineup_terms import LineupTerms
from autoplan.bounds.lineups import Certificate, LineupBounds, OpenSplit
from autoplan.cluster import Cluster
from autoplan.cluster.collectives import GroupShape
from autoplan.gradsync import GroupCost
from autoplan.gradsync.costs import ElementCost
from autoplan.gradsync.problem import Cost
from autoplan.job import Job
from autoplan.pipeline.bounds import Bound, BoundProblem, prefix, step_bound
from autoplan.pipeline.certificate import (
    GPIPE,
    ONE_F_ONE_B,
    REPLICA,
    STAGE,
    CertificateSpace,
    StageTerms,
    certify,
)
from autoplan.pipeline.large_bounds import LargeBound, least_of_closer_s
from autoplan.plan import RANK_ORDERS, SCHEDULES, RankOrder, Schedule
from autoplan.prediction import ROUNDING
from autoplan.stage_costs import StageCosts

Floats = NDArray[np.float64]
_PRECISION = 1e-4
_FEW_LAYERS, _FEW_LINEUPS = 600, 1000
"""Sizes up to which a certificate is quick; 8 devices can be handed out in fewer ways."""
_EFFORT = 150_000_000
"""Stages that a certificate may look at: about two seconds."""
_MOST_TERMS = 30_000_000
"""Numbers in all tables of updates per interval of layers; larger models keep the quick bound."""
_MOST_QUICK_STEPS = 50_000_000_000
"""Steps of the quick bounds for all numbers of microbatches, about a minute; larger problems get
the bound of `pipeline.large_bounds`."""
_MOST_PATHS = 3_000_000
"""Layers times choices of replicas for which large problems get their closer bound: some seconds
for each million."""
_MOST_LAYERS = 2100
"""Layers up to which the link's seconds are kept for every stage; beyond, the bound leaves them
out."""
_SLOPE_MARGIN = 1e-6
"""Rounding k down to whole elements lets a slope be this little lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDomain:
    """The plans that a bound covers; every choice that is not named here is open."""

    microbatches: tuple[int, ...]
    """Numbers of microbatches per step."""
    replicas: tuple[int, ...]
    """Numbers of replicas that a stage may have."""
    stages: tuple[int, ...]
    """Numbers of stages."""
    schedules: tuple[Schedule, ...] = SCHEDULES
    """Schedules."""
    rank_orders: tuple[RankOrder, ...] = RANK_ORDERS
    """What is packed inside nodes."""
    densities: tuple[float, ...] = (1.0,)
    """Densities that a gradient group may have."""
    may_keep: bool = True
    """Whether stages may keep their stash."""
    may_recompute: bool = True
    """Whether stages may recompute it."""
    devices: int | None = None
    """The most devices that a plan uses; by default all there are."""

    @classmethod
    def everything(cls, num_layers: int, cluster: Cluster, job: Job) -> PlanDomain:
        """All dense plans that the cluster can run and the batch can be split for."""
        return cls(
            microbatches=divisors(job.global_batch),
            replicas=tuple(range(1, cluster.num_devices + 1)),
            stages=tuple(range(1, min(num_layers, cluster.num_devices) + 1)),
        )

    def replicas_for(self, samples: int) -> tuple[int, ...]:
        """Numbers of replicas that divide a microbatch of so many samples, rising."""
        return tuple(r for r in self.replicas if samples % r == 0)


class PlanBounds:
    """Bounds for one workload, cluster and job, over one domain."""

    def __init__(self, costs: StageCosts, domain: PlanDomain) -> None:
        """Keeps the inputs; nothing is computed yet."""
        self.costs, self.domain = costs, domain
        self.cluster, self.job = costs.cluster, costs.job
        self.devices = domain.devices or costs.cluster.num_devices
        self._last_s = functools.lru_cache(maxsize=256)(self._last_seconds)
        self._link_table = functools.lru_cache(maxsize=64)(self._link_seconds)
        self._large = functools.lru_cache(maxsize=2)(self._large_bound)
        self._closer_s = functools.lru_cache(maxsize=None)(lambda m: self._large(m).closer_s)
        self.quick = functools.lru_cache(maxsize=None)(self._quick)
        self.certificate = functools.lru_cache(maxsize=64)(self._certificate)

    @property
    def quick_s(self) -> float:
        """A bound in seconds that takes one pass per number of microbatches."""
        splits = self.domain.microbatches
        least_s = min(self.quick(m).step_s for m in splits)
        # Where nothing fits in memory the bound is one on plans that do not fit.
        return least_s if least_s < math.inf else min(self._large(m).regardless_s for m in splits)

    def certified_s(self, reached_s: float) -> float:
        """A tighter bound in seconds, given a step time that some plan of the domain reaches.

        The same inputs give the same bound on every machine.
        """
        return self.certificate(reached_s).bound_s

    def _certificate(self, reached_s: float) -> Certificate:
        """That bound, and where plans that take less can only be."""
        low_s = self.quick_s
        if self.large:
            quick_s = {m: self.quick(m).step_s for m in self.domain.microbatches}
            choices = max(len(self._replicas(m)) for m in quick_s)
            most = max(1, _MOST_PATHS // (choices * self.costs.elements_L.size))
            closer_s = least_of_closer_s(quick_s, self._closer_s, reached_s, most)
            return Certificate(bound_s=max(low_s, closer_s))
        splits = [m for m in self.domain.microbatches if self.quick(m).step_s < reached_s]
        if not splits or not math.isfinite(reached_s):
            return Certificate(bound_s=low_s)
        splits.sort(key=lambda m: self.quick(m).step_s)
        found = self._lineups.certify([self._open_split(m) for m in splits], reached_s, _PRECISION)
        if found is not None:
            return dataclasses.replace(found, bound_s=max(low_s, found.bound_s))
        rows = max(len(self._replicas(m)) for m in splits)
        cuts = self.costs.elements_L.size + 1
        large = cuts > _MOST_LAYERS or 2 * rows * cuts**2 * len(splits) > _MOST_TERMS
        if large:
            return Certificate(bound_s=low_s)
        terms, space = [self._terms(m) for m in splits], self._space()
        bound_s = certify(terms, space, low_s, reached_s, precision=_PRECISION, effort=_EFFORT)
        return Certificate(bound_s=bound_s)

    @property
    def certifies_quickly(self) -> bool:
        """Whether a certificate takes tenths of a second rather than seconds."""
        few_layers = self.costs.elements_L.size <= _FEW_LAYERS
        return few_layers and self._lineups.terms.num_lineups <= _FEW_LINEUPS

    @functools.cached_property
    def _lineups(self) -> LineupBounds:
        """Bounds over every way to hand the devices out, for when they are few."""
        replicas = {r for m in self.domain.microbatches for r in self._replicas(m)}
        space, densities = self._space(), self.domain.densities
        return LineupBounds(LineupTerms(self.costs, space, sorted(replicas), densities))

    def _open_split(self, microbatches: int) -> OpenSplit:
        """A number of microbatches in their words."""
        return OpenSplit(
            microbatches=microbatches,
            replicas=tuple(self._replicas(microbatches)),
            low_s=self.quick(microbatches).step_s,
        )

    def _space(self) -> CertificateSpace:
        """The domain in the certificate's words."""
        return CertificateSpace(
            stages=self.domain.stages,
            rank_orders=tuple(
                {"replica": REPLICA, "stage": STAGE}[order] for order in self.domain.rank_orders
            ),
            devices=self.devices,
            devices_per_node=self.cluster.devices_per_node,
            available_bytes=self.costs.available_bytes * (1 + ROUNDING),
            may_keep=self.domain.may_keep,
            may_recompute=self.domain.may_recompute,
            schedules=tuple(
                {"gpipe": GPIPE, "1f1b": ONE_F_ONE_B}[name] for name in self.domain.schedules
            ),
        )

    def _replicas(self, microbatches: int) -> list[int]:
        """Replicas that stages may have with so many microbatches; 1 where none divides."""
        samples = self.job.global_batch // microbatches
        limit = min(self.devices, samples)
        return [r for r in self.domain.replicas_for(samples) if r <= limit] or [1]

    def _quick(self, microbatches: int) -> Bound:
        """The bound over all partitions for one number of microbatches."""
        if self.large:
            return self._large(microbatches).quick
        return step_bound(self.problem(microbatches))

    @functools.cached_property
    def large(self) -> bool:
        """Whether the quick bound is the coarser one for long chains on many devices."""
        rows = sum(len(self._replicas(m)) for m in self.domain.microbatches)
        return rows * self.costs.elements_L.size**2 * self.devices / 2 > _MOST_QUICK_STEPS

    def _large_bound(self, microbatches: int) -> LargeBound:
        """The bounds of a large problem for one number of microbatches."""
        replicas = self._replicas(microbatches)
        problem = large_problem(
            self.costs,
            replicas,
            self._least_receive_s(replicas, self.job.global_batch // microbatches),
            lambda count: self._possible_costs(count, 1),
            microbatches=microbatches,
            devices=self.devices,
            may_recompute=self.domain.may_recompute,
            may_alternate=self.domain.schedules != ("gpipe",),
        )
        return LargeBound(problem)

    def problem(self, microbatches: int) -> BoundProblem:
        """The least costs of layers, cuts and exchanges for one number of microbatches."""
        samples = self.job.global_batch // microbatches
        replicas = self._replicas(microbatches)
        seconds = [self.costs.layer_seconds(samples / r) for r in replicas]
        return BoundProblem(
            replicas_R=replicas,
            forward_s_RL=np.stack([choice.forward_s_L for choice in seconds]),
            backward_s_RL=np.stack([choice.backward_s_L for choice in seconds]),
            receive_s_RC=self._least_receive_s(replicas, samples),
            elements_L=self.costs.elements_L,
            last_s_RL=np.stack([self._last_s(r, 1) for r in replicas]),
            link_s_RCC=self.link_s(replicas, 1),
            optimizer_s_per_element=self.costs.optimizer_s_per_element,
            microbatches=microbatches,
            devices=self.devices,
        )

    def link_s(self, replicas: list[int], nodes: int) -> Floats | None:
        """The tables of several numbers of replicas, or None where the model is too large."""
        if self.costs.elements_L.size > _MOST_LAYERS:
            return None
        return np.stack([self._link_table(r, nodes) for r in replicas])

    def _terms(self, microbatches: int) -> StageTerms:
        """The same per stage, with what lies across nodes apart."""
        problem = self.problem(microbatches)
        samples = self.job.global_batch // microbatches
        replicas = list(problem.replicas_R)
        samples_R = samples / np.array(replicas)
        far_last_s_RL = np.stack([self._last_s(r, 2) for r in replicas])
        far_link_s_RCC = self.link_s(replicas, 2)
        assert problem.link_s_RCC is not None
        assert far_link_s_RCC is not None
        both_RL = problem.forward_s_RL + problem.backward_s_RL
        after_NC = []
        for limit in range(self.devices + 1):
            allowed = np.array(replicas)[:, None] <= limit
            least_L = np.where(allowed, both_RL, np.inf).min(axis=0)
            after_NC.append(np.concatenate([np.cumsum(least_L[::-1])[::-1], [0.0]]))
        receive_2RC = np.stack([problem.receive_s_RC, self._far_receive_s(replicas, samples)])
        later_C = np.minimum.accumulate(receive_2RC[0, :, 1:-1].min(axis=0)[::-1])[::-1]
        return StageTerms(
            microbatches=microbatches,
            replicas_R=np.array(replicas, dtype=np.int64),
            forward_s_RC=prefix(problem.forward_s_RL),
            backward_s_RC=prefix(problem.backward_s_RL),
            receive_s_2RC=receive_2RC,
            update_s_2RCC=np.stack(
                [
                    _updates(problem, problem.last_s_RL, problem.link_s_RCC),
                    _updates(problem, far_last_s_RL, far_link_s_RCC),
                ]
            ),
            after_s_NC=np.stack(after_NC),
            forward_share=_least_forward_share(problem),
            least_receive_s_2C=receive_2RC.min(axis=1),
            later_receive_s_C=np.concatenate([later_C, [0.0, 0.0]]),
            static_bytes_C=prefix(self.costs.static_bytes_L),
            stash_bytes_RC=prefix(self.costs.stash_bytes_L)[None, :] * samples_R[:, None],
            received_bytes_RC=self.costs.cut_bytes_C[None, :] * samples_R[:, None],
        )

    def _least_receive_s(self, replicas: list[int], samples: int) -> Floats:
        """Seconds to receive a microbatch over the best link, wherever the stages lie."""
        links = [self.cluster.intra_node]
        if self.cluster.nodes > 1 and self.cluster.inter_node is not None:
            links.append(self.cluster.inter_node)
        alpha = min(link.alpha_s for link in links)
        bandwidth = max(link.bandwidth_bytes_per_s for link in links)
        return self._receive_s(samples, alpha, np.array(replicas) * bandwidth)

    def _far_receive_s(self, replicas: list[int], samples: int) -> Floats:
        """The same where every byte crosses nodes, through the ports of the stage's own nodes."""
        link = self.cluster.inter_node
        if link is None:
            return self._least_receive_s(replicas, samples)
        nodes = [math.ceil(r / self.cluster.devices_per_node) for r in replicas]
        pairs = zip(replicas, nodes, strict=True)
        ports = np.array([min(r, self.cluster.nics_per_node * n) for r, n in pairs])
        return self._receive_s(samples, link.alpha_s, ports * link.bandwidth_bytes_per_s)

    def _receive_s(self, samples: int, alpha_s: float, bandwidth_R: Floats) -> Floats:
        """Seconds of one microbatch over each cut, for each bandwidth; none at the ends."""
        size_C = self.costs.cut_bytes_C * samples
        seconds_RC = alpha_s + size_C[None, :] / bandwidth_R[:, None]
        receive_RC = np.where(size_C > 0, seconds_RC, 0.0)
        receive_RC[:, [0, -1]] = 0.0
        return receive_RC

    def _last_seconds(self, replicas: int, nodes: int) -> Floats:
        """Least seconds from the end of backward to the end of a group that was last ready.

        A group holds at least one layer, whose exchange alone takes no longer; it lies over at
        least so many nodes.
        """
        elements_L = self.costs.elements_L
        every = []
        for cost in self._possible_costs(replicas, nodes):
            seconds = _many(cost.communicate, elements_L)
            if cost.sparsify is not None:
                seconds = seconds + _many(cost.sparsify, elements_L)
            every.append(seconds)
        cheapest: Floats = np.minimum.reduce(every) if every else np.zeros_like(elements_L)
        return cheapest

    def _link_seconds(self, replicas: int, nodes: int) -> Floats:
        """Least seconds on the link for the gradients of every stage [i, j), however grouped."""
        elements_C = prefix(self.costs.elements_L)
        elements_CC = np.maximum(elements_C[None, :] - elements_C[:, None], 0.0)
        costs = self._possible_costs(replicas, nodes)
        if not costs:
            return np.zeros_like(elements_CC)
        if all(cost.density == 1 for cost in costs):
            every = [_many(cost.communicate, elements_CC) for cost in costs]
            cheapest: Floats = np.minimum.reduce(every)
            return cheapest
        # Mixed groups: each element costs at least the least slope over all ways to send it.
        large = np.array([2.0**40, 2.0**41])
        slopes = [float(np.diff(_many(c.communicate, large))[0]) / 2.0**40 for c in costs]
        return elements_CC * min(slopes) * (1 - _SLOPE_MARGIN)

    def _possible_costs(self, replicas: int, least_nodes: int) -> list[GroupCost]:
        """What a group can cost at least with so many replicas: every density on every placement.

        Placements over fewer nodes than asked are left out, unless none is possible.
        """
        cluster = self.cluster
        if replicas == 1:
            return []
        most = min(replicas, cluster.nodes)
        least = max(min(least_nodes, most), math.ceil(replicas / cluster.devices_per_node))
        costs = []
        for nodes in range(least, most + 1):
            bandwidth = math.inf
            if nodes > 1 and cluster.inter_node is not None:
                bandwidth = cluster.nics_per_node * cluster.inter_node.bandwidth_bytes_per_s
            shape = GroupShape(devices=replicas, nodes=nodes, inter_node_bytes_per_s=bandwidth)
            costs += [self.costs.least_group_cost(shape, d) for d in self.domain.densities]
        return costs


def _least_forward_share(problem: BoundProblem) -> float:
    """The least share of forward in one forward and backward of a layer; transfers have half."""
    forward_RL = problem.forward_s_RL
    both_RL = forward_RL + problem.backward_s_RL
    shares = np.divide(forward_RL, both_RL, out=np.full_like(both_RL, 0.5), where=both_RL > 0)
    return min(0.5, float(shares.min()))


def _updates(problem: BoundProblem, last_s_RL: Floats, link_s_RCC: Floats) -> Floats:
    """Least seconds from the end of compute to the end of the update of every stage [i, j).

    The first layer's gradient is ready only when compute ends; and no exchange of any layer or
    those before it starts before that layer's gradient is ready, so what does not fit beside the
    rest is exposed.
    """
    elements_C = prefix(problem.elements_L)
    elements_CC = np.maximum(elements_C[None, :] - elements_C[:, None], 0.0)
    tables = []
    for last_s_L, link_s_CC, backward_s_L in zip(
        last_s_RL, link_s_RCC, problem.backward_s_RL, strict=True
    ):
        backward_s_C = prefix(backward_s_L)
        beside_s_CC = np.zeros_like(elements_CC)
        beside_s_CC[:, 1:] = np.maximum(backward_s_C[None, :-1] - backward_s_C[:, None], 0.0)
        exposed_CC = np.maximum(np.append(last_s_L, 0.0)[:, None], link_s_CC - beside_s_CC)
        exposed_CC = np.maximum.accumulate(np.triu(exposed_CC), axis=1)
        tables.append(exposed_CC + elements_CC * problem.optimizer_s_per_element)
    return np.stack(tables)


def _many(cost: Cost, elements: Floats) -> Floats:
    """A cost for every element of an array; nothing for no elements."""
    every = cast(ElementCost, cost).many(elements)
    return np.where(elements > 0, every, 0.0)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, rising."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(low + [number // d for d in reversed(low) if d * d != number])
