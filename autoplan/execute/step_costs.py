"""What the model says of a plan's pieces, as numbers that a rank can sleep or add to its clock."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.cluster.placement import place
from autoplan.documents import STRICT
from autoplan.plan import Plan
from autoplan.predict import Predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCosts:
    """One gradient group of a stage."""

    __pydantic_config__ = STRICT

    sparsify_s: float
    """Top-k, in line with backward; 0 for dense groups."""
    handling_s: float
    """What its exchange takes from the backward that goes on meanwhile; 0 for the last group."""
    exchange_s: float
    """On the link."""
    layer_elements: tuple[int, ...]
    """Gradient elements of each layer, in forward order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """One stage, for one microbatch's share on one replica."""

    __pydantic_config__ = STRICT

    ranks: tuple[int, ...]
    """The rank of each replica."""
    samples: int
    """Samples of a microbatch on each replica."""
    forward_s_L: tuple[float, ...]
    """Per layer of the stage."""
    backward_s_L: tuple[float, ...]
    """Per layer of the stage, without recomputation."""
    send_s: float
    """Across the cut after this stage, one way, a whole microbatch; 0 after the last."""
    output_bytes_per_sample: float
    """What crosses that cut."""
    handling_s: tuple[float, float]
    """The stage's own, for a message to or from the stage before, and the one after it."""
    update_s: float
    """The optimizer."""
    groups: tuple[GroupCosts, ...]
    """In the plan's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """All stages of a plan."""

    __pydantic_config__ = STRICT

    stages: tuple[StageSeconds, ...]


def step_costs(predictor: Predictor, plan: Plan) -> StepCosts:
    """The costs from which the predictor would build the plan's step.

    Raises:
        InputError: like `Predictor.predict`.
    """
    workload, job = predictor.workload, predictor.job
    plan.require_fits(len(workload.layers), predictor.cluster.num_devices, job.global_batch)
    replicas = tuple(stage.replicas for stage in plan.stages)
    placement = place(predictor.cluster, replicas, plan.rank_order)
    per_microbatch = job.global_batch // plan.microbatches
    stages = []
    for s, stage in enumerate(plan.stages):
        inside = slice(*stage.layers)
        share = per_microbatch / stage.replicas
        seconds = predictor.costs.layer_seconds(share)
        handling_s_C = predictor.costs.handling_s_C(share)
        crossing = float(predictor.costs.cut_bytes_C[stage.layers[1]])
        last = s + 1 == len(plan.stages)
        elements = float(predictor.costs.elements_L[inside].sum())
        stages.append(
            StageSeconds(
                ranks=placement.devices[s],
                samples=per_microbatch // stage.replicas,
                forward_s_L=tuple(seconds.forward_s_L[inside].tolist()),
                backward_s_L=tuple(seconds.backward_s_L[inside].tolist()),
                handling_s=(
                    float(handling_s_C[stage.layers[0]]),
                    float(handling_s_C[stage.layers[1]]),
                ),
                send_s=0.0 if last else placement.transfers[s].at(crossing * per_microbatch),
                output_bytes_per_sample=0.0 if last else crossing,
                update_s=elements * predictor.costs.optimizer_s_per_element,
                groups=_groups(predictor, plan, s),
            )
        )
    return StepCosts(stages=tuple(stages))


def _groups(predictor: Predictor, plan: Plan, s: int) -> tuple[GroupCosts, ...]:
    stage = plan.stages[s]
    replicas = tuple(each.replicas for each in plan.stages)
    shape = place(predictor.cluster, replicas, plan.rank_order).groups[s]
    found = []
    for i, group in enumerate(stage.groups):
        counts_L = predictor.costs.elements_L[slice(*group.layers)]
        elements = float(counts_L.sum())
        sparsify_s = handling_s = exchange_s = 0.0
        if stage.replicas > 1 and elements > 0:
            cost = predictor.costs.group_cost(shape, group.density)
            sparsify_s = cost.sparsify(elements) if cost.sparsify is not None else 0.0
            if cost.handling is not None and i + 1 < len(stage.groups):
                handling_s = cost.handling(elements)
            exchange_s = cost.communicate(elements)
        found.append(
            GroupCosts(
                sparsify_s=sparsify_s,
                handling_s=handling_s,
                exchange_s=exchange_s,
                layer_elements=tuple(int(n) for n in counts_L.tolist()),
            )
        )
    return tuple(found)
