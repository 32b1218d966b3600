"""What a step of a job costs: seconds and bytes of every rank, and the pipeline's step time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.cluster import Cluster
from autoplan.costmodel.collectives import Communicators, Groups, communicators
from autoplan.costmodel.costs import (
    Costs,
    Mode,
    OpSeconds,
    Roofline,
    cost_ops,
    costs_for,
    require_known,
    unknown_types,
)
from autoplan.costmodel.dag import Dag, build_dag
from autoplan.costmodel.graph import ROLES, OpGraph, Role
from autoplan.costmodel.measurements import Measurements
from autoplan.costmodel.memory import MemoryEstimate, estimate_memory
from autoplan.costmodel.merging import merged_s
from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.shapes import resolved
from autoplan.errors import require
from autoplan.pipeline.schedule import in_flight
from autoplan.pipeline.simulator import simulate

StageRanks = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSources:
    """Where seconds come from."""

    measurements: Measurements | None = None
    """Operators measured on this device."""
    roofline: Roofline | None = None
    """Rates for operators without a measurement; by default those of the cluster's device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEstimate:
    """One rank's program, called for one microbatch."""

    rank: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    """Once per step, exchanges of gradients included as far as they outlast backward."""
    overhead_s: float
    """Seconds to start the program, however few operators it has."""
    memory: MemoryEstimate
    peak_bytes: int
    """With the microbatches that the schedule keeps in flight."""
    op_costs: tuple[OpSeconds, ...]
    """Of each operator in program order, with where it comes from."""
    seconds_by_source: Mapping[str, float]
    """Sum over operators by where their figures come from."""
    unknown: tuple[str, ...]
    """Operators without a cost, which count as 0 here: the estimate is too low by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Predicted cost of one training step."""

    step_s: float
    """From the first forward to the end of the last update."""
    ranks: tuple[RankEstimate, ...]
    send_forward_s: tuple[float, ...]
    """Across each cut between stages, per microbatch."""
    send_backward_s: tuple[float, ...]

    @property
    def static_bytes(self) -> tuple[int, ...]:
        """Parameters, optimizer state and gradients of each rank."""
        return tuple(rank.memory.static_bytes for rank in self.ranks)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """Peak of each rank."""
        return tuple(rank.peak_bytes for rank in self.ranks)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Operators without a cost, over all ranks."""
        return tuple(dict.fromkeys(name for rank in self.ranks for name in rank.unknown))


def estimate(
    programs: Any,
    cluster: Cluster,
    *,
    batch_size: int,
    costs: CostSources | Costs,
    mode: Mode = "mixed",
    stage_ranks: StageRanks | None = None,
    microbatches: int = 1,
    schedule: str = "1f1b",
    groups: Groups | None = None,
    compute_streams: int = 1,
    default_trips: int | None = None,
    strict: bool = False,
) -> CostEstimate:
    """Predicts seconds and bytes of a step from the programs of its ranks.

    Args:
        programs: a Paddle program or an OpGraph, or one for each rank in rank order.
        cluster: what they run on; rank r is device r.
        batch_size: samples in one call of a program, which open dimensions stand for.
        costs: where seconds of computing operators come from, for CostSources as `mode` says.
        mode: "benchmarking", "analysis" or "mixed".
        stage_ranks: ranks of each stage; all in one by default. Sends between neighbouring stages
            are transfers of the pipeline, not work of a rank.
        microbatches: calls per step; the update runs once.
        schedule: "1f1b" or "gpipe".
        groups: rings whose number several groups of ranks use.
        compute_streams: streams of a device that compute at the same time.
        default_trips: iterations of loops in Paddle programs; None refuses programs with loops.
        strict: refuse programs with operators of unknown cost.

    Raises:
        InputError: ranks and programs do not match, a shape is open, or a cost is missing.
    """
    graphs = [resolved(graph, batch_size) for graph in graphs_of(programs, default_trips)]
    fits = len(graphs) <= cluster.num_devices
    require(fits, "programs", len(graphs), "at most one per device of the cluster")
    known, overhead_s = _sources(costs, mode, cluster)
    return estimate_graphs(
        graphs,
        communicators(cluster, graphs, groups),
        [known] * len(graphs),
        overhead_s=overhead_s,
        stage_ranks=stage_ranks,
        microbatches=microbatches,
        schedule=schedule,
        compute_streams=compute_streams,
        strict=strict,
    )


def estimate_graphs(
    graphs: Sequence[OpGraph],
    links: Communicators | None,
    costs: Sequence[Costs],
    *,
    overhead_s: float = 0.0,
    stage_ranks: StageRanks | None = None,
    microbatches: int = 1,
    schedule: str = "1f1b",
    compute_streams: int = 1,
    strict: bool = False,
) -> CostEstimate:
    """`estimate` for graphs whose shapes are resolved, each with costs of its own.

    Args:
        graphs: one per rank.
        links: what exchanges cost; None asks `costs` for them too.
        costs: one per rank.
        overhead_s: to start a program.
        stage_ranks: as in `estimate`, like those below.
        microbatches: calls per step.
        schedule: "1f1b" or "gpipe".
        compute_streams: of a device.
        strict: refuse operators of unknown cost.

    Raises:
        InputError: ranks and stages do not match, or `strict` finds an operator without cost.
    """
    stages = _stages(stage_ranks, len(graphs))
    stage_of = {rank: s for s, ranks in enumerate(stages) for rank in ranks}
    flights = [in_flight(schedule, s, len(stages), microbatches) for s in range(len(stages))]
    crossings = _Crossings(stage_of, links, len(stages))
    ranks = tuple(
        _rank(
            rank,
            graph,
            costs[rank],
            crossings,
            compute_streams=compute_streams,
            overhead_s=overhead_s,
            flights=flights[stage_of[rank]],
        )
        for rank, graph in enumerate(graphs)
    )
    if strict:
        require_known([name for rank in ranks for name in rank.unknown])
    return _step(ranks, stages, crossings.seconds, microbatches, schedule)


def _step(
    ranks: tuple[RankEstimate, ...],
    stages: Sequence[Sequence[int]],
    sends_s: Mapping[str, Sequence[float]],
    microbatches: int,
    schedule: str,
) -> CostEstimate:
    """The step of a pipeline whose stages take as long as their slowest ranks."""
    members = [[ranks[rank] for rank in stage] for stage in stages]
    timeline = simulate(
        [max(rank.forward_s + rank.overhead_s for rank in stage) for stage in members],
        [max(rank.backward_s for rank in stage) for stage in members],
        microbatches,
        schedule,
        sends_s["forward"],
        sends_s["backward"],
        [max(rank.optimizer_s for rank in stage) for stage in members],
    )
    return CostEstimate(
        step_s=timeline.step_s,
        ranks=ranks,
        send_forward_s=tuple(sends_s["forward"]),
        send_backward_s=tuple(sends_s["backward"]),
    )


def graphs_of(programs: Any, default_trips: int | None = None) -> list[OpGraph]:
    """Operator graphs of one program or several, of whatever kind."""
    several = list(programs) if isinstance(programs, (list, tuple)) else [programs]
    require(bool(several), "programs", several, "at least one program")
    return [
        program
        if isinstance(program, OpGraph)
        else read_program(program, name=f"rank {rank}", default_trips=default_trips)
        for rank, program in enumerate(several)
    ]


def phase_seconds(dag: Dag, roles: Sequence[Role]) -> dict[Role, float]:
    """Seconds that each phase adds to the ones before it, streams overlapping as they do.

    What a phase leaves running on another stream counts where it is waited for, so that the three
    add up to the whole.
    """
    total_s = 0.0
    added: dict[Role, float] = {}
    if len(set(dag.streams)) <= 1:  # one thing after the other
        return {
            role: math.fsum(s for s, each in zip(dag.seconds, roles, strict=True) if each == role)
            for role in ROLES
        }
    for number, role in enumerate(ROLES, start=1):
        kept = [i for i, each in enumerate(roles) if each in ROLES[:number]]
        until_s = merged_s(_restricted(dag, kept)) if role in roles else total_s
        added[role] = max(0.0, until_s - total_s)
        total_s = max(total_s, until_s)
    return added


def _restricted(dag: Dag, kept: Sequence[int]) -> Dag:
    """Some pieces of a graph, and the waits among them."""
    if len(kept) == len(dag.seconds):
        return dag
    place = {old: new for new, old in enumerate(kept)}
    return Dag(
        seconds=tuple(dag.seconds[i] for i in kept),
        streams=tuple(dag.streams[i] for i in kept),
        waits_for=tuple(tuple(place[n] for n in dag.waits_for[i] if n in place) for i in kept),
    )


def _stages(stage_ranks: StageRanks | None, num_ranks: int) -> list[list[int]]:
    """The ranks of each stage; every program's rank in exactly one."""
    stages = [list(range(num_ranks))] if stage_ranks is None else [list(s) for s in stage_ranks]
    listed = sorted(rank for stage in stages for rank in stage)
    allowed = f"each rank from 0 to {num_ranks - 1} once, as there are {num_ranks} programs"
    require(listed == list(range(num_ranks)), "stage_ranks", stages, allowed)
    require(all(stages), "stage_ranks", stages, "at least one rank in every stage")
    return stages


def _sources(costs: CostSources | Costs, mode: Mode, cluster: Cluster) -> tuple[Costs, float]:
    """The costs of computing operators, and what starting a program takes."""
    if not isinstance(costs, CostSources):
        return costs, 0.0
    roofline = costs.roofline
    if roofline is None and mode != "benchmarking":
        roofline = Roofline.of_device(cluster.device)
    measured = costs.measurements
    overhead_s = measured.step_overhead_s if measured is not None and mode != "analysis" else 0.0
    return costs_for(mode, measured, roofline), overhead_s


class _Crossings:
    """Sends between neighbouring stages: taken out of the ranks, given to the pipeline."""

    def __init__(
        self, stage_of: Mapping[int, int], links: Communicators | None, num_stages: int
    ) -> None:
        self.links = links
        self.seconds = {way: [0.0] * (num_stages - 1) for way in ("forward", "backward")}
        self._stage_of = stage_of

    def taken_out(self, rank: int, graph: OpGraph, costed: Sequence[OpSeconds]) -> list[float]:
        """The seconds of a rank's operators without its sends to and receives from neighbours."""
        if all(op.collective is None for op in graph.ops):
            return [cost.seconds for cost in costed]
        left = []
        sent: defaultdict[tuple[str, int], float] = defaultdict(float)
        for op, cost in zip(graph.ops, costed, strict=True):
            seconds = cost.seconds
            exchange = op.collective
            if exchange is not None and exchange.kind in {"send", "recv"}:
                here = self._stage_of[rank]
                there = self._stage_of.get(-1 if exchange.peer is None else exchange.peer, here)
                if abs(there - here) == 1:
                    if exchange.kind == "send":
                        sent["forward" if there > here else "backward", min(here, there)] += seconds
                    seconds = 0.0
            left.append(seconds)
        for (way, cut), total_s in sent.items():
            self.seconds[way][cut] = max(self.seconds[way][cut], total_s)
        return left


def _rank(
    rank: int,
    graph: OpGraph,
    costs: Costs,
    crossings: _Crossings,
    *,
    compute_streams: int,
    overhead_s: float,
    flights: int,
) -> RankEstimate:
    """Seconds and bytes of one rank."""
    costed = cost_ops(graph, costs, crossings.links, rank)
    seconds = crossings.taken_out(rank, graph, costed)
    dag = build_dag(graph.ops, seconds, compute_streams=compute_streams)
    phases = phase_seconds(dag, [op.role for op in graph.ops])
    by_source: defaultdict[str, float] = defaultdict(float)
    for cost in costed:
        by_source[cost.source] += cost.seconds
    memory = estimate_memory(graph)
    return RankEstimate(
        rank=rank,
        forward_s=phases["forward"],
        backward_s=phases["backward"],
        optimizer_s=phases["optimizer"],
        overhead_s=overhead_s,
        memory=memory,
        peak_bytes=memory.peak_bytes + (flights - 1) * memory.stash_bytes,
        op_costs=tuple(costed),
        seconds_by_source=dict(by_source),
        unknown=unknown_types(graph, costed, costs),
    )
