"""Small spaces: the best of all plans, proven by looking at every one.

Everything but the gradient groups is enumerated and scored in batches as if no group needed a
buffer. No plan with these stages is faster than its figure, whatever its groups and whichever of
its stages recompute; and none fits where even that does not. The plans themselves are then built in
the order of the figures, until the next figure is no better than the best plan. Where buffers do
not fit, a figure may be out of reach; it is left out where the plan that is built is known to be
the best of its partition.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.batch_scores import BatchShape
from autoplan.cluster.placement import place
from autoplan.plan import RankOrder
from autoplan.prediction import ROUNDING
from autoplan.search.layout import Layout, is_settled
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Candidate, Scorer
from autoplan.search.space import Recompute, SearchSpace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_EFFORT = 1_500_000
"""Effort up to which a space counts as small, about a second. A partition has an effort of 1."""
_SHAPE_EFFORT = 150
"""Effort of a batch, however few partitions it scores."""
_MOST_IN_BATCH = 1 << 16
_MOST_BUILT = 2000
"""Plans that are built at most, about half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """What looking at every plan of a space found."""

    best: Candidate | None
    """The best plan; None where none is better than what was known."""
    bound_s: float
    """No plan of the space is faster, whatever its groups; infinite where none fits."""
    complete: bool
    """Whether every plan that might have been the best was built: no search finds a better one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Partitions of one shape that might beat what is known. Axes: K partitions, B bounds."""

    shape: BatchShape
    bounds_KB: Ints
    least_s_K: Floats


def exhaust(
    scorer: Scorer, proposer: Proposer, reached_s: float, effort: int = MOST_EFFORT
) -> Exhausted | None:
    """Looks at every plan of a small space.

    Returns None where the space is too large, limits gradient groups, makes them sparse or leaves
    no exact ones, where the quick bounds leave nothing to look for, and where the scorer's time
    ends first.

    Args:
        scorer: scores the plans.
        proposer: knows what the space leaves open.
        reached_s: the step of the best plan that is known; infinite where none is.
        effort: what to spend at most.
    """
    bounds = proposer.predictor.bounds
    if not scorer.moves_cuts or "exact" not in proposer.space.grouping or bounds.large:
        return None
    quick = bounds.quick
    splits = [m for m in proposer.domain.microbatches if quick(m).step_s < reached_s]
    if not splits or sum(_effort(proposer, m) for m in splits) > effort:
        return None
    batches: list[_Batch] = []
    for shape in _shapes(proposer, splits):
        if scorer.expired:
            return None
        batches += _promising(scorer, shape, proposer.num_layers, reached_s)
    return _build(scorer, proposer.space, batches, reached_s)


def _promising(
    scorer: Scorer, shape: BatchShape, num_layers: int, reached_s: float
) -> Iterator[_Batch]:
    """The partitions of a shape that might be faster than what is known and might fit."""
    every_KB = _partitions(num_layers, len(shape.replicas))
    for first in range(0, len(every_KB), _MOST_IN_BATCH):
        bounds_KB = every_KB[first : first + _MOST_IN_BATCH]
        least_s_K, missing_K = scorer.least(bounds_KB, shape)
        kept = (missing_K == 0) & (least_s_K < reached_s * (1 - ROUNDING))
        if kept.any():
            yield _Batch(shape=shape, bounds_KB=bounds_KB[kept], least_s_K=least_s_K[kept])


def _build(
    scorer: Scorer, space: SearchSpace, batches: list[_Batch], reached_s: float
) -> Exhausted:
    """Builds plans in the order of their figures while the next one might be the best."""
    best: Candidate | None = None
    best_s, least_s, complete = reached_s, math.inf, True
    decisive = "where-needed" in space.recompute or len(space.recompute) == 1
    for built, (figure_s, layouts) in enumerate(_in_order(batches, space)):
        if figure_s >= best_s * (1 - ROUNDING):
            break
        if built == _MOST_BUILT or scorer.expired:
            least_s, complete = min(least_s, figure_s), False
            break
        for layout in layouts:
            candidate = scorer.candidate(layout)
            if not (decisive and is_settled(layout, scorer.predictor, space)):
                least_s = min(least_s, figure_s)
            if candidate.score.feasible and candidate.score.step_s < best_s:
                best, best_s = candidate, candidate.score.step_s
    proven = least_s >= best_s * (1 - ROUNDING)
    complete &= proven or scorer.predictor.costs.earliest_is_best
    return Exhausted(best=best, bound_s=best_s if proven else least_s, complete=complete)


def _in_order(
    batches: list[_Batch], space: SearchSpace
) -> Iterator[tuple[float, Iterable[Layout]]]:
    """The figure of each partition, rising, with the layouts that it stands for."""
    if not batches:
        return
    least_s_K = np.concatenate([batch.least_s_K for batch in batches])
    starts = np.cumsum([0, *(len(batch.least_s_K) for batch in batches)])
    for k in np.argsort(least_s_K, kind="stable"):
        n = int(np.searchsorted(starts, k, side="right")) - 1
        bounds = batches[n].bounds_KB[k - starts[n]]
        yield float(least_s_K[k]), _layouts(batches[n].shape, bounds, space)


def _layouts(shape: BatchShape, bounds: Ints, space: SearchSpace) -> Iterator[Layout]:
    """The layouts of one partition; recomputing where needed is at least as good as any other."""
    modes = ("where-needed",) if "where-needed" in space.recompute else space.recompute
    for recompute in modes:
        yield Layout(
            bounds=tuple(bounds.tolist()),
            replicas=shape.replicas,
            microbatches=shape.microbatches,
            schedule=shape.schedule,
            rank_order=shape.rank_order,
            recompute=recompute,
            policy="exact",
            cap_bytes=space.cap_bytes[0],
        )


def _shapes(proposer: Proposer, splits: list[int]) -> Iterator[BatchShape]:
    """All that a plan decides but its cuts and groups; one of several that mean the same."""
    space, cluster = proposer.space, proposer.predictor.cluster
    for m, stages in itertools.product(splits, proposer.domain.stages):
        schedules = space.schedules if min(m, stages) > 1 else space.schedules[:1]
        for replicas in _replicas(proposer, m, stages):
            orders: dict[tuple[object, ...], RankOrder] = {}
            for order in space.rank_orders:
                placement = place(cluster, replicas, order)
                orders.setdefault((placement.transfers, placement.groups), order)
            for schedule, order in itertools.product(schedules, orders.values()):
                yield BatchShape(
                    replicas=replicas,
                    microbatches=m,
                    schedule=schedule,
                    rank_order=order,
                    recompute=_least_recompute(space),
                )


def _least_recompute(space: SearchSpace) -> Recompute:
    """The choice whose figures bound those of all choices of the space."""
    return space.recompute[0] if len(space.recompute) == 1 else "where-needed"


def _replicas(proposer: Proposer, m: int, stages: int) -> Iterator[tuple[int, ...]]:
    """The replicas of all stages, in every way that the devices and the batch allow."""
    choices = proposer.domain.replicas_for(proposer.predictor.job.global_batch // m)
    if proposer.space.equal_replicas:
        yield from ((r,) * stages for r in choices if r * stages <= proposer.num_devices)
        return

    def longer(chosen: tuple[int, ...], devices: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == stages:
            yield chosen
            return
        for r in choices:
            if r + (stages - len(chosen) - 1) * choices[0] <= devices:
                yield from longer((*chosen, r), devices - r)

    yield from longer((), proposer.num_devices)


def _effort(proposer: Proposer, m: int) -> int:
    """Effort of scoring every plan with so many microbatches, known without enumerating them."""
    space, devices = proposer.space, proposer.num_devices
    choices = proposer.domain.replicas_for(proposer.predictor.job.global_batch // m)
    each = len(space.schedules) * len(space.rank_orders)
    most = max(proposer.domain.stages)
    ways_D = [1] + [0] * devices  # ways to give the stages so far exactly so many devices
    effort = 0
    for stages in range(1, most + 1):
        ways_D = [sum(ways_D[d - r] for r in choices if r <= d) for d in range(devices + 1)]
        if stages in proposer.domain.stages:
            ways = sum(ways_D)
            if space.equal_replicas:
                ways = sum(r * stages <= devices for r in choices)
            cuts = math.comb(proposer.num_layers - 1, stages - 1)
            effort += ways * each * (cuts + _SHAPE_EFFORT)
    return effort


@functools.lru_cache(maxsize=16)
def _partitions(num_layers: int, num_stages: int) -> Ints:
    """All bounds of so many stages, K x (S + 1)."""
    inner = itertools.combinations(range(1, num_layers), num_stages - 1)
    return np.array([(0, *cuts, num_layers) for cuts in inner], dtype=np.int64)
