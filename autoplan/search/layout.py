"""A plan before its gradients are grouped: the choices that proposals and moves change."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from autoplan.cluster.placement import place
from autoplan.documents import STRICT
from autoplan.gradsync import policy_named
from autoplan.gradsync.policies import PolicyName
from autoplan.pipeline.schedule import in_flight
from autoplan.plan import Plan, RankOrder, Schedule, Stage
from autoplan.predict import Predictor
from autoplan.search.space import Recompute, SearchSpace
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


def assemble(layout: Layout, predictor: Predictor, space: SearchSpace) -> Plan:
    """Groups the gradients of each stage and recomputes where the layout says so.

    The space gives what holds for all groupings: densities and limits.
    """
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
    stages = []
    for s, (layers, replicas) in enumerate(
        zip(pairwise(layout.bounds), layout.replicas, strict=True)
    ):
        samples = per_microbatch / replicas
        stage = Stage(
            layers=layers,
            replicas=replicas,
            recompute=layout.recompute == "always",
            groups=costs.grouped(layers, samples, placement.groups[s], rule),
        )
        if layout.recompute == "where-needed":
            held = in_flight(layout.schedule, s, count, layout.microbatches)
            if costs.memory(stage, samples, held).missing_bytes > 0:
                stage = Stage(layers=layers, replicas=replicas, recompute=True, groups=stage.groups)
        stages.append(stage)
    return Plan(
        stages=tuple(stages),
        microbatches=layout.microbatches,
        schedule=layout.schedule,
        rank_order=layout.rank_order,
    )
