"""`estimate_cost` with the signature of Paddle's, for callers of Paddle's cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan.cluster import Cluster
from autoplan.costmodel.collectives import communicators
from autoplan.costmodel.costs import Given
from autoplan.costmodel.estimate import CostEstimate, estimate_graphs
from autoplan.costmodel.graph import OpGraph
from autoplan.costmodel.paddle_program import read_program
from autoplan.costmodel.shapes import is_settled, resolved
from autoplan.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What Paddle's `estimate_cost` returns, in bytes and in the unit of the given costs."""

    runtime: float
    """Of a step."""
    static_mem: list[int]
    """Bytes of parameters, optimizer state and gradients, by rank."""
    peak_mem: list[int]
    """Bytes at the peak, by rank; programs of the old IR count nothing as done in place."""
    unknown: tuple[str, ...]
    """Operators for which no cost was given; the runtime lacks them."""
    detail: CostEstimate
    """Everything else."""


def estimate_cost(
    distributed_program: Sequence[Any],
    cluster: Cluster | None,
    pipeline_config: Sequence[Sequence[int]] | None,
    standalone_cost_data: Sequence[Mapping[int, float]],
    batch_size: int,
    *,
    microbatches: int = 1,
    default_trips: int | None = None,
    strict: bool = False,
) -> Cost:
    """A drop-in for `paddle.distributed.auto_parallel.static.cost_model.estimate_cost`.

    Args:
        distributed_program: the program of each rank, of the old IR or of PIR, or an OpGraph.
        cluster: what they run on; None, which is all that Paddle takes, looks
            exchanges up in the cost data too.
        pipeline_config: ranks of each stage, or None for a single stage.
        standalone_cost_data: for each stage (one entry without stages) seconds by operator number
            (`op.desc.id()`, in PIR `op.id()`).
        batch_size: samples that open dimensions stand for.
        microbatches: per step; Paddle's function always takes 1.
        default_trips: iterations of loops in programs of PIR; None refuses them.
        strict: refuse operators without a cost.

    Raises:
        InputError: ranks, stages and cost data do not match, or an operator has no cost and
            `strict` is set.
    """
    graphs = [
        resolved(_graph(program, default_trips), batch_size) for program in distributed_program
    ]
    stages = [list(range(len(graphs)))] if pipeline_config is None else pipeline_config
    sound = len(standalone_cost_data) >= len(stages)
    allowed = f"{len(stages)} mappings, one per stage"
    require(sound, "standalone_cost_data", len(standalone_cost_data), allowed)
    given = [Given(seconds_by_id=seconds) for seconds in standalone_cost_data]
    stage_of = {rank: stage for stage, ranks in enumerate(stages) for rank in ranks}
    detail = estimate_graphs(
        graphs,
        None if cluster is None else communicators(cluster, graphs),
        [given[stage_of.get(rank, 0)] for rank in range(len(graphs))],
        stage_ranks=pipeline_config,
        microbatches=microbatches,
        strict=strict,
    )
    return Cost(
        runtime=detail.step_s,
        static_mem=list(detail.static_bytes),
        peak_mem=list(detail.peak_bytes),
        unknown=detail.unknown,
        detail=detail,
    )


def _graph(program: Any, default_trips: int | None) -> OpGraph:
    if isinstance(program, OpGraph):
        return program
    graph = read_program(program, default_trips=default_trips, costs_only=True)
    # Open dimensions follow from slots and attributes, which the quick reading leaves out.
    return graph if is_settled(graph) else read_program(program, default_trips=default_trips)
