"""What people do today, each at its best: the baselines of a search, and its first proposals."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from autoplan.gradsync import GroupLimits
from autoplan.gradsync.policies import DDP_CAP_BYTES
from autoplan.plan import Plan
from autoplan.predict import Predictor, Score
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import COMMUNICATION, COMPUTE, UNIFORM, Proposer
from autoplan.search.space import SearchSpace

BASELINES = {
    "uniform-layers": UNIFORM,
    "balanced-compute": COMPUTE,
    "balanced-communication": COMMUNICATION,
}
"""Pipelines that people cut by hand or by a balancer, and the partition behind each."""
DATA_PARALLEL = "data-parallel"
_PLAIN = SearchSpace()
"""Dense groups without limits, as frameworks make them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The best that a heuristic reaches over stages, microbatches and rank orders."""

    name: str
    plan: Plan
    score: Score
    layout: Layout


def baselines(
    proposer: Proposer,
    until_s: float = math.inf,
    value: Callable[[Score], float] = lambda score: score.step_s,
) -> dict[str, Baseline | None]:
    """The best feasible plan of each heuristic, None where none of its plans fits.

    Every pipeline uses the same number of replicas per stage, a number of stages that divides the
    devices, 1F1B, no recomputation and PyTorch DDP's default buckets; stages, microbatches and
    rank order are tried in all combinations that the space allows. "data-parallel" has one stage.
    After `until_s`, a time.monotonic() value, a heuristic that has a plan keeps it. The best plan
    is that of the least `value`.
    """
    predictor = proposer.predictor
    found: dict[str, Baseline | None] = {}
    for name, base in BASELINES.items():
        layouts = _layouts(proposer, base, pipeline=True)
        found[name] = _best(name, predictor, layouts, until_s, value)
    layouts = _layouts(proposer, UNIFORM, pipeline=False)
    found[DATA_PARALLEL] = _best(DATA_PARALLEL, predictor, layouts, until_s, value)
    return found


def _best(
    name: str,
    predictor: Predictor,
    layouts: Iterator[Layout],
    until_s: float,
    value: Callable[[Score], float],
) -> Baseline | None:
    best: Baseline | None = None
    for layout in layouts:
        if best is not None and time.monotonic() > until_s:
            break
        plan = assemble(layout, predictor, _PLAIN)
        score = predictor.score(plan)
        if score.feasible and (best is None or value(score) < value(best.score)):
            best = Baseline(name=name, plan=plan, score=score, layout=layout)
    return best


def _layouts(proposer: Proposer, base: str, *, pipeline: bool) -> Iterator[Layout]:
    """All layouts of a heuristic: pipelines of at least two stages, or a single stage."""
    domain, devices = proposer.domain, proposer.num_devices
    several = [s for s in domain.stages if s > 1]
    even = [s for s in several if devices % s == 0]
    stages = (even or several) if pipeline else [s for s in domain.stages if s == 1]
    for num_stages in stages:
        for m in domain.microbatches:
            replicas = proposer.equal_replicas(m, num_stages)
            if replicas == 0 or proposer.coarse.cannot_fit(m, num_stages, replicas):
                continue
            counts = (replicas,) * num_stages
            bounds = proposer.partition(base, m, counts)
            for rank_order in proposer.space.rank_orders:
                yield Layout(
                    bounds=bounds,
                    replicas=counts,
                    microbatches=m,
                    schedule="1f1b",
                    rank_order=rank_order,
                    recompute="never",
                    policy="threshold",
                    cap_bytes=DDP_CAP_BYTES,
                )


_CUTS = {"uniform": (UNIFORM,), "balanced": (COMPUTE, COMMUNICATION)}
"""Partitions of the spaces that do not leave the cuts open."""


def starting_layouts(found: Iterable[Baseline | None], space: SearchSpace) -> list[Layout]:
    """Where a search starts from: the defaults that are, or can be made, plans of the space."""
    return [_conforming(each, space) for each in found if each and _has_cuts_of(each, space)]


def lies_within(baseline: Baseline, space: SearchSpace) -> bool:
    """Whether a default is surely a plan of the space.

    Its stages, replicas, microbatches and rank order always are. The grouping that a space calls
    exact stands for all groups.
    """
    layout = baseline.layout
    limited = space.limits(1.0) != GroupLimits() or 1.0 not in space.densities
    capped = layout.policy in space.grouping and layout.cap_bytes in space.cap_bytes
    pipelined = min(layout.microbatches, len(layout.replicas)) > 1
    return (
        _has_cuts_of(baseline, space)
        and (layout.schedule in space.schedules or not pipelined)
        and ("never" in space.recompute or "where-needed" in space.recompute)
        and ("exact" in space.grouping or capped)
        and not limited
    )


def _has_cuts_of(baseline: Baseline, space: SearchSpace) -> bool:
    """Whether the space leaves a default its cuts."""
    alone = len(baseline.layout.replicas) == 1
    return alone or space.cuts == "open" or BASELINES[baseline.name] in _CUTS[space.cuts]


def _conforming(baseline: Baseline, space: SearchSpace) -> Layout:
    """A baseline's layout with the nearest choices that the space allows."""
    layout = baseline.layout
    orders = space.rank_orders
    return dataclasses.replace(
        layout,
        schedule=layout.schedule if layout.schedule in space.schedules else space.schedules[0],
        rank_order=layout.rank_order if layout.rank_order in orders else orders[0],
        recompute=space.recompute[-1],
        policy="exact" if "exact" in space.grouping else space.grouping[0],
        cap_bytes=space.cap_bytes[0],
    )
