"""Balanced pipelines of every depth, each with its best cuts: where a search starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, product

from autoplan.search.layout import Layout
from autoplan.search.proposal import BOUND, COMPUTE, UNIFORM, Proposer
from autoplan.search.refine import Candidate, Scorer

_SPLITS = 8
"""Numbers of microbatches that are looked at: those with the least bounds."""
_MOST_IN_BATCHES, _MOST_ALONE, _MOST_LARGE = 512, 64, 24
"""Layouts looked at where cuts are moved in batches, where plans are scored alone, and where the
problem is so large that each takes seconds."""
_ESTIMATED = 600
"""Layers beyond which the most promising layouts by estimate come first."""


def sweep(
    scorer: Scorer, proposer: Proposer, heuristics: Iterable[Layout], until_s: float
) -> Candidate | None:
    """The best of the heuristics' layouts and the balanced ones; None where there is none.

    Args:
        scorer: scores the layouts.
        proposer: knows what the space leaves open.
        heuristics: layouts that are looked at however long it takes.
        until_s: a time.monotonic() value at which to stop, a safeguard for large models: whatever
            ends within it is the same in every run.
    """
    best: Candidate | None = None
    first = list(heuristics)
    layouts = chain(first, balanced_layouts(scorer, proposer))
    for n, layout in enumerate(layouts):
        if n >= max(len(first), 1) and scorer.now_s() > until_s:
            break
        candidate = scorer.near(layout)
        if best is None or candidate.rank < best.rank:
            best = candidate
    return best


def balanced_layouts(
    scorer: Scorer, proposer: Proposer, most: int = _MOST_IN_BATCHES
) -> Iterator[Layout]:
    """The balanced layouts to look at, at most so many, and fewer where each takes long."""
    limit = min(most, _MOST_IN_BATCHES if scorer.moves_cuts else _MOST_ALONE)
    if proposer.predictor.bounds.large:
        limit = min(most, _MOST_LARGE)
    return islice(_layouts(proposer, limit), limit)


def _layouts(proposer: Proposer, limit: int) -> Iterator[Layout]:
    """Every number of stages with equal replicas, the most promising microbatches first.

    Where there are more than can be looked at, or each takes long, the most promising of all.
    """
    domain, bounds = proposer.domain, proposer.predictor.bounds
    splits = sorted(domain.microbatches, key=lambda m: bounds.quick(m).step_s)[:_SPLITS]
    pairs: Iterable[tuple[int, int]] = product(splits, domain.stages)
    many = len(splits) * len(domain.stages) > limit or proposer.num_layers > _ESTIMATED
    if many:
        pairs = _promising(proposer)
    for m, stages in pairs:
        yield from _of_shape(proposer, m, stages)


def _promising(proposer: Proposer) -> Iterator[tuple[int, int]]:
    """Microbatches and stages, the shortest steps by estimate first, and the bound's partitions."""
    domain, coarse = proposer.domain, proposer.coarse
    recompute = proposer.space.recompute[-1]
    bounds = proposer.predictor.bounds
    least = min(domain.microbatches, key=lambda m: bounds.quick(m).step_s)
    every = [
        rough
        for m in domain.microbatches
        for rough in coarse.even_pipelines(m, domain.stages, recompute)
    ]
    every.sort(key=lambda rough: rough.rank)
    yield from ((rough.microbatches, rough.stages) for rough in every[:2])
    yield least, len(bounds.quick(least).replicas)
    yield from ((rough.microbatches, rough.stages) for rough in every[2:])


def _of_shape(proposer: Proposer, m: int, stages: int) -> Iterator[Layout]:
    """The balanced partition with equal replicas, and the bound's where it has so many stages."""
    space = proposer.space
    found = proposer.predictor.bounds.quick(m)
    base = UNIFORM if space.cuts == "uniform" else COMPUTE
    policy = "exact" if "exact" in space.grouping else space.grouping[0]
    partitions = []
    replicas = proposer.equal_replicas(m, stages)
    if replicas > 0:
        counts = (replicas,) * stages
        partitions.append((proposer.partition(base, m, counts), counts))
    if BOUND in proposer.bases and len(found.replicas) == stages:
        partitions.append((found.bounds, found.replicas))
    choices = product(partitions, space.schedules, space.rank_orders)
    for (cuts, counts), schedule, rank_order in choices:
        yield Layout(
            bounds=cuts,
            replicas=counts,
            microbatches=m,
            schedule=schedule,
            rank_order=rank_order,
            recompute=space.recompute[-1],
            policy=policy,
            cap_bytes=space.cap_bytes[0],
        )
