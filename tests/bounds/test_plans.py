"""Certified bounds against plans that try to beat them."""

import dataclasses
import random
from itertools import product

import numpy as np
import pytest
from builders import (
    cluster,
    layer,
    link,
    random_cluster,
    random_job,
    random_plan,
    random_workload,
    workload,
)

from autoplan import Job
from autoplan.batch_scores import BatchScorer, BatchShape
from autoplan.bounds.plans import PlanBounds, PlanDomain, divisors
from autoplan.cluster import TopK
from autoplan.pipeline.certificate import (
    GPIPE,
    ONE_F_ONE_B,
    REPLICA,
    STAGE,
    reachable,
    walk_arguments,
)
from autoplan.plan import RANK_ORDERS, SCHEDULES
from autoplan.predict import Predictor
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace


def every_layout(num_layers, devices, samples_of, space):
    """All layouts there are: partitions, replicas, microbatches, schedules, rank orders."""
    schedules, recomputes, policy = space.schedules, space.recompute, space.grouping[0]

    def partitions(start):
        yield (num_layers,)
        for cut in range(start + 1, num_layers):
            for rest in partitions(cut):
                yield (cut, *rest)

    def replicas(count, left, allowed):
        if count == 0:
            yield ()
            return
        for r in allowed:
            if r <= left - (count - 1):
                for rest in replicas(count - 1, left - r, allowed):
                    yield (r, *rest)

    for m, samples in samples_of.items():
        for tail in partitions(0):
            bounds = (0, *tail)
            for counts in replicas(len(bounds) - 1, devices, divisors(samples)):
                for schedule, recompute in product(schedules, recomputes):
                    for order in RANK_ORDERS:
                        yield Layout(
                            bounds=bounds,
                            replicas=counts,
                            microbatches=m,
                            schedule=schedule,
                            rank_order=order,
                            recompute=recompute,
                            policy=policy,
                            cap_bytes=1.0,
                        )


def best_of_all(model, where, job, space):
    """The least step time over every plan, and the predictor it was found with."""
    proposer = Proposer(model, where, job, space)
    samples_of = {m: job.global_batch // m for m in proposer.domain.microbatches}
    layouts = every_layout(len(model.layers), where.num_devices, samples_of, space)
    predictor = proposer.predictor
    scores = [predictor.score(assemble(layout, predictor, space)) for layout in layouts]
    fitting = [score.step_s for score in scores if score.feasible]
    return min(fitting, default=None), predictor


@pytest.mark.parametrize("recompute", [("never",), ("never", "where-needed"), ("always",)])
@pytest.mark.parametrize("schedules", [SCHEDULES, ("1f1b",)])
def test_the_certificate_never_exceeds_the_best_of_all_plans(schedules, recompute):
    rng = random.Random(11)
    space = SearchSpace(schedules=schedules, recompute=recompute)
    exact = tighter = 0
    for _ in range(60):
        model = random_workload(rng, max_layers=4)
        where = random_cluster(rng)
        job = dataclasses.replace(random_job(rng), global_batch=rng.choice([2, 4, 6]))
        best_s, predictor = best_of_all(model, where, job, space)
        if best_s is None:
            continue
        for reached_s in (best_s, 1.5 * best_s, 20 * best_s):
            bound_s = PlanBounds(predictor.costs, predictor.domain).certified_s(reached_s)
            assert bound_s <= best_s * (1 + 1e-12)
            assert bound_s >= predictor.bounds.quick_s
        certified_s = predictor.bounds.certified_s(best_s)
        exact += certified_s >= best_s * (1 - 1e-9)
        tighter += certified_s > predictor.bounds.quick_s * 1.01
    assert exact >= 15
    assert tighter >= 3


def test_the_certificate_holds_for_thousands_of_random_plans():
    rng = random.Random(12)
    for _ in range(150):
        model, where, job = random_workload(rng), random_cluster(rng), random_job(rng)
        predictor = Predictor(model, where, job)
        plans = [
            random_plan(rng, len(model.layers), where.num_devices, job.global_batch)
            for _ in range(30)
        ]
        scores = [predictor.score(plan) for plan in plans]
        steps = [score.step_s for score in scores if score.feasible]
        if not steps:
            continue
        assert predictor.bounds.certified_s(max(steps)) <= min(steps) * (1 + 1e-12)


def random_shape(rng, devices, global_batch):
    """Replicas of a random number of stages, microbatches, and the other choices."""
    m = rng.choice(divisors(global_batch))
    choices = divisors(global_batch // m)
    replicas = []
    while not replicas or rng.random() < 0.7:
        fitting = [r for r in choices if r <= devices - sum(replicas)]
        if not fitting:
            break
        replicas.append(rng.choice(fitting))
    return BatchShape(
        replicas=tuple(replicas),
        microbatches=m,
        schedule=rng.choice(SCHEDULES),
        rank_order=rng.choice(RANK_ORDERS),
        recompute="where-needed",
    )


def test_millions_of_random_plans_do_not_beat_the_certificate():
    rng, numbers = random.Random(14), np.random.default_rng(14)
    looked_at = reached = 0
    for nodes, per_node in ((1, 4), (2, 2), (2, 4), (4, 16)):
        layers = [
            layer(rng.uniform(0.5, 2), rng.uniform(1, 4), rng.randint(0, 40)) for _ in range(30)
        ]
        cuts = [rng.uniform(0.1, 20) for _ in range(31)]
        where = cluster(per_node, nodes=nodes)
        predictor = Predictor(workload(layers, cuts), where, Job(global_batch=48))
        batch, best_s = BatchScorer(predictor), np.inf
        for _ in range(130):
            shape = random_shape(rng, where.num_devices, 48)
            stages = len(shape.replicas)
            if stages > 30:
                continue
            inner_KS = np.argsort(numbers.random((4096, 29)), axis=1)[:, : stages - 1] + 1
            bounds_KB = np.zeros((4096, stages + 1), dtype=np.int64)
            bounds_KB[:, 1:-1], bounds_KB[:, -1] = np.sort(inner_KS, axis=1), 30
            step_K, missing_K = batch.score(bounds_KB, shape)
            looked_at += len(step_K)
            best_s = min(best_s, step_K[missing_K == 0].min(initial=np.inf))
        if best_s < np.inf:
            reached += 1
            # Told of a slower plan only, it must not rule out the best one.
            assert predictor.bounds.certified_s(1.3 * best_s) <= best_s * (1 + 1e-12)
            assert predictor.bounds.quick_s <= best_s * (1 + 1e-12)
    assert looked_at > 2_000_000
    assert reached == 4


def test_the_certificate_holds_where_groups_may_be_sparse():
    rng = random.Random(13)
    space = SearchSpace(densities=(1.0, 0.1))
    for _ in range(25):
        model = random_workload(rng, max_layers=4)
        where = random_cluster(rng)
        top_k = TopK(elements=(5.0, 10.0), seconds=(0.3, 0.7), scatter_add_s_per_element=0.01)
        where = dataclasses.replace(where, device=dataclasses.replace(where.device, top_k=top_k))
        job = dataclasses.replace(random_job(rng), global_batch=4)
        best_s, predictor = best_of_all(model, where, job, space)
        if best_s is None:
            continue
        assert predictor.bounds.certified_s(1.2 * best_s) <= best_s * (1 + 1e-12)


def test_the_same_inputs_give_the_same_certificate():
    rng = random.Random(14)
    model, where, job = random_workload(rng), random_cluster(rng), random_job(rng)
    first, again = (Predictor(model, where, job).bounds.certified_s(9.0) for _ in range(2))
    assert first == again


def test_a_restricted_domain_has_a_bound_of_its_own():
    model = workload([layer(1.0, 2.0)] * 4)
    where = cluster(4)
    job = Job(global_batch=4)
    domain = PlanDomain.everything(4, where, job)
    alone = dataclasses.replace(domain, replicas=(1,), stages=(1,))
    everything = Predictor(model, where, job).bounds.certified_s(48.0)
    single = Predictor(model, where, job, alone).bounds.certified_s(48.0)
    assert everything < single == pytest.approx(48.0)


def test_the_compiled_walk_equals_the_same_walk_interpreted():
    rng = random.Random(15)
    answers = set()
    for _ in range(40):
        model, where, job = random_workload(rng, 4), random_cluster(rng), random_job(rng)
        bounds = Predictor(model, where, job).bounds
        terms = bounds._terms(rng.choice(bounds.domain.microbatches))
        stages = rng.choice(bounds.domain.stages)
        choices = (stages, rng.choice([REPLICA, STAGE]), rng.choice([GPIPE, ONE_F_ONE_B]))
        arguments = walk_arguments(
            terms, choices, bounds._space(), rng.uniform(0.5, 4) * bounds.quick_s
        )
        answer = reachable(*arguments)
        assert answer == reachable.py_func(*arguments)
        answers.add(answer[0])
    assert answers == {False, True}


@pytest.mark.timeout(60)
def test_bounds_next_to_nothing_are_not_halved_for_ever():
    seconds = [1.5e-323, 2e-323, 0.0, 1.5e-323, 1e-323, 5e-324]
    layers = [layer(*pair) for pair in zip(seconds[::2], seconds[1::2], strict=True)]
    fast = cluster(4, intra_node=link(bandwidth_bytes_per_s=1e9))
    bounds = Predictor(workload(layers, (0.0,) * 4), fast, Job(global_batch=4)).bounds
    assert 0 <= bounds.certified_s(20.0) < 1e-11
