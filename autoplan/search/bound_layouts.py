"""The partitions behind the bounds of an objective: where its search starts and goes on from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, product

from autoplan.bounds.lineups import OpenLineup
from autoplan.bounds.loads import LoadBounds
from autoplan.plan import RankOrder, Schedule
from autoplan.search.layout import Layout
from autoplan.search.objective import MaxStageLoad, Objective, StepTime, ThroughputPerDevice
from autoplan.search.proposal import COMMUNICATION, COMPUTE, Proposer

_MOST_SPLITS, _MOST_DEVICES = 12, 8
"""Numbers of microbatches, and of devices, that are looked at: those with the least bounds."""
_FITTING_SPLITS = 3
"""Numbers of microbatches whose partitions by load are proposed for the step time."""


def bound_layouts(objective: Objective, proposer: Proposer) -> Iterator[Layout]:
    """Layouts of the partitions that come closest to the bound, as far as the space allows them.

    For the step time, whose sweep starts from its own bound, those whose busiest stage is least
    busy, as PipeDream cuts; they fit in memory where even pipelines may not.
    """
    space = proposer.space
    if space.cuts != "open" or proposer.predictor.bounds.large:
        return
    choices = list(product(space.schedules, space.rank_orders))
    for m, bounds, replicas in _partitions(objective, proposer):
        equal = len(set(replicas)) == 1 or not space.equal_replicas
        if not equal or len(replicas) not in proposer.domain.stages:
            continue
        for schedule, rank_order in choices:
            yield _layout(proposer, bounds, replicas, m, schedule, rank_order)


def lineup_layouts(lineups: Sequence[OpenLineup], proposer: Proposer) -> Iterator[Layout]:
    """Balanced partitions over the devices of each lineup."""
    if proposer.space.cuts != "open":
        return
    for lineup in lineups:
        m, replicas = lineup.microbatches, lineup.replicas
        partitions = (proposer.partition(base, m, replicas) for base in (COMPUTE, COMMUNICATION))
        for bounds in dict.fromkeys(partitions):
            yield _layout(proposer, bounds, replicas, m, lineup.schedule, lineup.rank_order)


def _layout(
    proposer: Proposer,
    bounds: tuple[int, ...],
    replicas: tuple[int, ...],
    microbatches: int,
    schedule: Schedule,
    rank_order: RankOrder,
) -> Layout:
    """A layout with what suits most plans where nothing else is known."""
    space = proposer.space
    return Layout(
        bounds=bounds,
        replicas=replicas,
        microbatches=microbatches,
        schedule=schedule,
        rank_order=rank_order,
        recompute=space.recompute[-1],
        policy="exact" if "exact" in space.grouping else space.grouping[0],
        cap_bytes=space.cap_bytes[0],
    )


def _partitions(
    objective: Objective, proposer: Proposer
) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Microbatches, bounds and replicas."""
    splits = proposer.domain.microbatches
    if isinstance(objective, StepTime):
        by_load = LoadBounds(proposer.predictor.bounds)
        rising = sorted(splits, key=lambda m: proposer.predictor.bounds.quick(m).step_s)
        fitting = (m for m in rising if math.isfinite(by_load.at(m).load_s))
        for m in islice(fitting, _FITTING_SPLITS):
            for bounds, replicas in by_load.at(m).partitions:
                yield m, bounds, replicas
    if isinstance(objective, MaxStageLoad):
        loads = objective.bounds
        for m in islice(sorted(splits, key=loads.work_s), _MOST_SPLITS):
            for bounds, replicas in loads.at(m).partitions:
                yield m, bounds, replicas
    if isinstance(objective, ThroughputPerDevice):
        for few in objective.bounds.promising(_MOST_DEVICES):
            for m in sorted(splits, key=lambda m: few.quick(m).step_s)[:_MOST_SPLITS]:
                if set(few.quick(m).replicas) <= set(proposer.domain.replicas):
                    yield m, few.quick(m).bounds, few.quick(m).replicas
