"""The first proposals of a study: the heuristics, and the partitions behind the lower bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoplan.search.heuristics import BASELINES, DATA_PARALLEL, Baseline
from autoplan.search.proposal import BOUND, SHIFTED_REPLICAS, UNIFORM, Proposer

_SPLITS_SEEDED = 3
"""Microbatch counts, those with the least bounds, whose partitions are proposed."""


def first_proposals(
    proposer: Proposer, heuristics: Mapping[str, Baseline | None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and parameters of the trials to queue ahead of the sampler's own."""
    domain, space = proposer.domain, proposer.space
    most = max(domain.stages)
    still: dict[str, Any] = {f"cut_shift_{n}": 0 for n in proposer.shifted_cuts(most)}
    still |= {f"replica_shift_{s}": 0 for s in range(min(most, SHIFTED_REPLICAS))}
    still |= {
        "replica_steps_down": 0,
        "recompute": space.recompute[-1],
        "schedule": space.schedules[0],
        "grouping": space.grouping[0],
    }
    bases = {**BASELINES, DATA_PARALLEL: UNIFORM}
    for name, found in heuristics.items():
        if found is None or bases[name] not in proposer.bases:
            continue
        layout = found.layout
        if len(layout.replicas) in proposer.stages:
            yield (
                name,
                {
                    **still,
                    "base": bases[name],
                    "microbatches_index": domain.microbatches.index(layout.microbatches),
                    "stages_index": proposer.stages.index(len(layout.replicas)),
                    "rank_order": layout.rank_order,
                },
            )
    if BOUND not in proposer.bases:
        return
    splits = sorted(domain.microbatches, key=lambda m: proposer.predictor.bounds.quick(m).step_s)
    for m in splits[:_SPLITS_SEEDED]:
        for rank_order in space.rank_orders:
            yield (
                f"bound-{m}-microbatches",
                {
                    **still,
                    "base": BOUND,
                    "microbatches_index": domain.microbatches.index(m),
                    "rank_order": rank_order,
                },
            )
