from __future__ import annotations

import dataclasses
import random
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from builders import (
    cluster,
    layer,
    random_cluster,
    random_job,
    random_plan,
    random_workload,
    stage,
    workload,
)

from autoplan import Job, Plan
from autoplan.bounds.plans import PlanDomain
from autoplan.cluster import MeasuredCollective
from autoplan.cluster.placement import place
from autoplan.gradsync import POLICIES, policy_named
from autoplan.pipeline.bounds import BoundProblem, step_bound
from autoplan.predict import Predictor
from autoplan.stage_costs import GroupingRule


def regrouped(plan, predictor, rule):
    """The same plan with the gradient groups that a policy makes."""
    job, costs = predictor.job, predictor.costs
    replicas = tuple(stage.replicas for stage in plan.stages)
    shapes = place(predictor.cluster, replicas, plan.rank_order).groups
    samples = job.global_batch // plan.microbatches
    stages = (
        dataclasses.replace(
            stage, groups=costs.grouped(stage.layers, samples / stage.replicas, shape, rule)
        )
        for stage, shape in zip(plan.stages, shapes, strict=True)
    )
    return dataclasses.replace(plan, stages=tuple(stages))


def test_no_plan_of_thousands_is_faster_than_the_bound():
    rng = random.Random(5)
    tight = 0
    for _ in range(250):
        model, where, job = random_workload(rng), random_cluster(rng), random_job(rng)
        predictor = Predictor(model, where, job)
        for _ in range(8):
            plan = random_plan(rng, len(model.layers), where.num_devices, job.global_batch)
            policies = [GroupingRule(policy=policy_named(name, cap_bytes=40)) for name in POLICIES]
            plans = [plan, *(regrouped(plan, predictor, policy) for policy in policies)]
            step_s = min(predictor.score(each).step_s for each in plans)
            bound_s = predictor.bounds.quick(plan.microbatches).step_s
            assert bound_s <= step_s * (1 + 1e-12)
            assert predictor.bounds.quick_s <= bound_s
            tight += bound_s >= step_s * (1 - 1e-12)
    assert tight >= 100


def test_bound_holds_where_a_measured_table_makes_two_small_exchanges_cheaper_than_one():
    table = MeasuredCollective(
        collective="all_reduce", devices=2, nodes=1, size_bytes=(8.0, 16.0), seconds=(0.01, 100.0)
    )
    model = workload([layer(1.0, 2.0, gradient_elements=2)] * 2)
    domain = PlanDomain(microbatches=(1,), replicas=(2,), stages=(1,))
    predictor = Predictor(model, cluster(2, measured=(table,)), Job(global_batch=2), domain)
    plan = Plan(stages=(stage(0, 2, [(1, 2), (0, 1)], replicas=2),), microbatches=1)
    assert predictor.score(plan).step_s == pytest.approx(6.01)
    assert predictor.bounds.quick_s <= 6.01


def random_problem(rng):
    layers, choices = rng.randint(1, 5), rng.sample([1, 2, 3], rng.randint(1, 3))
    shape = (len(choices), layers)
    receive = np.array([[rng.uniform(0, 2) for _ in range(layers + 1)] for _ in choices])
    receive[:, [0, -1]] = 0.0

    def exchange(replicas):
        alpha, beta = rng.uniform(0, 1), rng.uniform(0, 0.2)
        return lambda x: np.where(x > 0, (replicas > 1) * (alpha + beta * x), 0.0)

    elements = np.array([rng.choice([0.0, rng.uniform(0, 40)]) for _ in range(layers)])
    total = np.concatenate([[0.0], np.cumsum(elements)])
    spans = np.maximum(total[None, :] - total[:, None], 0.0)
    costs = [exchange(replicas) for replicas in sorted(choices)]
    return BoundProblem(
        replicas_R=sorted(choices),
        forward_s_RL=np.array([rng.uniform(0, 3) for _ in range(np.prod(shape))]).reshape(shape),
        backward_s_RL=np.array([rng.uniform(0, 3) for _ in range(np.prod(shape))]).reshape(shape),
        receive_s_RC=receive,
        elements_L=elements,
        last_s_RL=np.stack([cost(elements) for cost in costs]),
        link_s_RCC=np.stack([cost(spans) for cost in costs]),
        optimizer_s_per_element=rng.choice([0.0, 0.05]),
        microbatches=rng.randint(1, 6),
        devices=rng.randint(max(choices), 6),
    )


def stage_term(problem, first, end, r):
    """The least step that a stage imposes, in the words of `step_bound`."""
    forward, backward, m = problem.forward_s_RL, problem.backward_s_RL, problem.microbatches
    left = [n <= problem.devices - problem.replicas_R[r] for n in problem.replicas_R]
    others_forward = np.where(np.array(left)[:, None], forward, np.inf).min(axis=0)
    others_backward = np.where(np.array(left)[:, None], backward, np.inf).min(axis=0)
    receive = problem.receive_s_RC[r, first]
    fill = others_forward[:first].sum()
    drain = others_backward[:first].sum() + receive
    once = forward[r, first:end].sum() + backward[r, first:end].sum()
    by_compute = fill + receive + m * once
    by_transfers = fill + m * receive + once
    back = others_forward[end:].sum() + others_backward[end:].sum()
    back += 2 * problem.receive_s_RC[:, end].min()
    by_return = (
        fill + receive + forward[r, first:end].sum() + back + m * backward[r, first:end].sum()
    )
    elements = problem.elements_L[first:end]
    whole = problem.link_s_RCC[r, first, end] - backward[r, first : end - 1].sum()
    update = elements.sum() * problem.optimizer_s_per_element
    exposed = max(problem.last_s_RL[r, first], whole) + update
    return max(by_compute, by_transfers, by_return) + max(drain, exposed)


def test_bound_is_the_least_of_its_own_formula_over_all_partitions():
    rng = random.Random(7)
    for _ in range(150):
        problem = random_problem(rng)
        layers, steps = problem.elements_L.size, {}
        for stages in range(1, layers + 1):
            for cuts in combinations(range(1, layers), stages - 1):
                for chosen in product(range(len(problem.replicas_R)), repeat=stages):
                    replicas = tuple(problem.replicas_R[r] for r in chosen)
                    if sum(replicas) <= problem.devices:
                        bounds = (0, *cuts, layers)
                        steps[bounds, replicas] = max(
                            stage_term(problem, first, end, r)
                            for (first, end), r in zip(pairwise(bounds), chosen, strict=True)
                        )
        bound = step_bound(problem)
        assert bound.step_s == pytest.approx(min(steps.values()), rel=1e-12)
        reached = steps[bound.bounds, bound.replicas]
        assert reached == pytest.approx(bound.step_s, rel=1e-12)


def test_bound_is_reached_by_a_single_layer_on_one_device():
    model, where = workload([layer(3.0, 5.0, gradient_elements=7)]), cluster()
    predictor = Predictor(model, where, Job(global_batch=6, optimizer_s_per_element=0.5))
    for microbatches in (1, 2, 3, 6):
        plan = Plan(stages=(stage(0, 1),), microbatches=microbatches)
        prediction = predictor.predict(plan)
        assert prediction.step_s == pytest.approx(6 * 8.0 + 3.5, rel=1e-12)
        assert predictor.bounds.quick(microbatches).step_s == prediction.step_s
        assert prediction.gap == 0
