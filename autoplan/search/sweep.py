"""Balanced pipelines of every depth, each with its best cuts: where a search starts from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, product

from autoplan.search.layout import Layout
from autoplan.search.proposal import BOUND, COMPUTE, UNIFORM, Proposer
from autoplan.search.refine import Candidate, Scorer

_SPLITS = 8
"""Numbers of microbatches that are looked at: those with the least bounds."""
_MOST_IN_BATCHES, _MOST_ALONE = 512, 64
"""Layouts looked at where cuts are moved in batches, and where plans are scored alone."""


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
    limit = _MOST_IN_BATCHES if scorer.moves_cuts else _MOST_ALONE
    first = list(heuristics)
    for n, layout in enumerate(chain(first, islice(_layouts(proposer), limit))):
        if n >= max(len(first), 1) and scorer.now_s() > until_s:
            break
        candidate = scorer.near(layout)
        if best is None or candidate.rank < best.rank:
            best = candidate
    return best


def _layouts(proposer: Proposer) -> Iterator[Layout]:
    """Every number of stages with equal replicas, the most promising microbatches first."""
    space, domain = proposer.space, proposer.domain
    bounds = proposer.predictor.bounds
    splits = sorted(domain.microbatches, key=lambda m: bounds.quick(m).step_s)[:_SPLITS]
    base = UNIFORM if space.cuts == "uniform" else COMPUTE
    policy = "exact" if "exact" in space.grouping else space.grouping[0]
    for m, stages in product(splits, domain.stages):
        partitions = []
        replicas = proposer.equal_replicas(m, stages)
        if replicas > 0:
            counts = (replicas,) * stages
            partitions.append((proposer.partition(base, m, counts), counts))
        if BOUND in proposer.bases and len(bounds.quick(m).replicas) == stages:
            partitions.append((bounds.quick(m).bounds, bounds.quick(m).replicas))
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
