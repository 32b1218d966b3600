"""A plan before its gradients are grouped: the choices that proposals and moves change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from autoplan.cluster.placement import place
from autoplan.documents import STRICT
from autoplan.gradsync import policy_named
from autoplan.gradsync.policies import PolicyName
from autoplan.pipeline.schedule import in_flight
from autoplan.plan import Plan, RankOrder, Schedule
from autoplan.predict import Predictor, Score
from autoplan.search.space import Recompute, SearchSpace
from autoplan.search.stage_options import Choice, StageOptions
from autoplan.stage_costs import GroupingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything that a search decides; the groups follow from the policy."""

    __pydantic_config__ = STRICT

    bounds: tuple[int, ...]
    """First layer of each stage, then the number of layers."""
    replicas: tuple[int, ...]
    """Replicas of each stage."""
    microbatches: int
    schedule: Schedule
    rank_order: RankOrder
    recompute: Recompute
    policy: PolicyName
    cap_bytes: float


MOST_UNDECIDED = 4
"""Stages of a plan of which all combinations of keeping and recomputing are compared."""


def assemble(
    layout: Layout,
    predictor: Predictor,
    space: SearchSpace,
    value: Callable[[Score], float] | None = None,
) -> Plan:
    """Groups the gradients of each stage and recomputes where the layout says so.

    Where buffers of gradient groups do not fit, stages get groups that do, or recompute where that
    is better and allowed.

    Args:
        layout: what was decided.
        predictor: knows what plans take.
        space: gives what holds for all groupings: densities and limits.
        value: what makes a plan better if less, by default its step.
    """
    choices = _choices(layout, predictor, space)
    undecided = sum(len(choice.stages) > 1 for choice in choices)
    most = 2 if undecided <= MOST_UNDECIDED else 1
    plans = [
        Plan(
            stages=stages,
            microbatches=layout.microbatches,
            schedule=layout.schedule,
            rank_order=layout.rank_order,
        )
        for stages in itertools.product(*(choice.stages[:most] for choice in choices))
    ]
    if len(plans) == 1:
        return plans[0]

    def figure(plan: Plan) -> float:
        score = predictor.score(plan)
        return score.step_s if value is None else value(score)

    return min(plans, key=figure)


def is_settled(layout: Layout, predictor: Predictor, space: SearchSpace) -> bool:
    """Whether no plan of a layout's partition is faster than the one that `assemble` makes of it.

    That is, none with other groups, where the layout asks for exact ones, or that recomputes
    elsewhere, where the layout leaves that open.
    """
    choices = _choices(layout, predictor, space)
    undecided = sum(len(choice.stages) > 1 for choice in choices)
    return undecided <= MOST_UNDECIDED and all(choice.settled for choice in choices)


def _choices(layout: Layout, predictor: Predictor, space: SearchSpace) -> list[Choice]:
    """What to choose from for each stage."""
    costs, job = predictor.costs, predictor.job
    element_bytes = job.gradient_bytes_per_element
    rule = GroupingRule(
        policy=policy_named(
            layout.policy, cap_bytes=layout.cap_bytes, bytes_per_element=element_bytes
        ),
        densities=space.densities,
        limits=space.limits(element_bytes),
    )
    placement = place(predictor.cluster, layout.replicas, layout.rank_order)
    per_microbatch = job.global_batch // layout.microbatches
    count = len(layout.replicas)
    choices = []
    for s, (layers, replicas) in enumerate(
        zip(pairwise(layout.bounds), layout.replicas, strict=True)
    ):
        at_place = StageOptions(
            costs=costs,
            rule=rule,
            shape=placement.groups[s],
            samples=per_microbatch / replicas,
            held=in_flight(layout.schedule, s, count, layout.microbatches),
            microbatches=layout.microbatches,
        )
        choices.append(at_place.of(layers, replicas, layout.recompute))
    return choices
