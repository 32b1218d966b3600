"""Bounds over all lineups against every partition of every lineup."""

import dataclasses
import random
import typing
from itertools import combinations, product

import numpy as np
import pytest
from builders import (
    cluster,
    layer,
    link,
    random_job,
    random_plan,
    random_workload,
    workload,
)

from autoplan import Job
from autoplan.batch_scores import BatchScorer, BatchShape
from autoplan.bounds.lineup_terms import chosen
from autoplan.bounds.plans import PlanBounds, PlanDomain
from autoplan.cluster import FusedCopy, MeasuredCollective
from autoplan.cluster.collectives import GroupShape, collective_cost
from autoplan.pipeline import lineup_walk, lineups
from autoplan.pipeline.certificate import GPIPE, ONE_F_ONE_B, REPLICA, STAGE
from autoplan.pipeline.lineup_walk import within
from autoplan.pipeline.lineups import CHOICE, possible
from autoplan.plan import RANK_ORDERS, SCHEDULES
from autoplan.predict import Predictor

KERNELS = {
    lineups: ["stage_limits", "between", "stage_seconds", "receive_s", "least_step_s"],
    lineup_walk: [
        "_lineup_within",
        "_stages_from",
        "_exchange_s",
        "_followed",
        "_alternating_s",
        "_keep",
        "between",
        "cut_ranges",
        "receive_s",
        "round_trips",
        "stage_limits",
        "stage_seconds",
        "widest",
    ],
}


def slow_network(rng):
    """A few nodes of a few devices, much slower between nodes than within."""
    return cluster(
        devices_per_node=rng.randint(1, 4),
        nodes=rng.randint(1, 3),
        memory_bytes=rng.choice([1e12, rng.uniform(200, 900)]),
        intra_node=link(rng.uniform(0, 0.1), rng.uniform(20, 200)),
        inter_node=link(rng.uniform(0, 1), rng.uniform(0.5, 20)),
        nics_per_node=rng.randint(1, 2),
        all_reduce=rng.choice(["auto", "ring", "tree", "hierarchical"]),
    )


def compositions(devices, replicas, stages):
    found = [()]
    for count in range(1, max(stages) + 1):
        found = [(*some, r) for some in found for r in replicas if sum(some) + r <= devices]
        if count in stages:
            yield from found


def best_partition(predictor, recompute="where-needed"):
    """The least step of all partitions, gradients grouped in the best way and without buffers."""
    domain, layers = predictor.domain, len(predictor.workload.layers)
    batch = BatchScorer(predictor)
    best_s = np.inf
    for m in domain.microbatches:
        replicas = domain.replicas_for(predictor.job.global_batch // m)
        for counts in compositions(predictor.cluster.num_devices, replicas, domain.stages):
            cuts = list(combinations(range(1, layers), len(counts) - 1))
            bounds_KB = np.array([(0, *some, layers) for some in cuts])
            for order, schedule in product(RANK_ORDERS, SCHEDULES):
                shape = BatchShape(
                    replicas=counts,
                    microbatches=m,
                    schedule=schedule,
                    rank_order=order,
                    recompute=recompute,
                )
                step_K, missing_K = batch.score(bounds_KB, shape, buffers=False)
                best_s = min(best_s, step_K[missing_K == 0].min(initial=np.inf))
    return float(best_s)


def test_no_partition_of_any_lineup_beats_the_bound():
    rng = random.Random(31)
    near = loose = 0
    for _ in range(30):
        model, where = random_workload(rng, max_layers=6), slow_network(rng)
        job = dataclasses.replace(random_job(rng), global_batch=rng.choice([2, 4, 8, 12]))
        if where.num_devices > 6:
            continue
        predictor = Predictor(model, where, job)
        best_s = best_partition(predictor)
        if best_s == np.inf:
            continue
        for reached_s in (best_s, 1.1 * best_s, 3 * best_s):
            bound_s = PlanBounds(predictor.costs, predictor.domain).certified_s(reached_s)
            assert bound_s <= best_s * (1 + 1e-12)
            near += bound_s >= best_s * 0.97
            loose += bound_s < best_s * 0.8
    assert near >= 45
    assert loose <= 5


def layers_in_turn(rng, count):
    """Layers with long ones among short ones, so that only some stages can take some layers."""
    return [
        layer(
            rng.choice([0.1, 1.0, 8.0]),
            rng.choice([0.1, 2.0, 9.0]),
            rng.choice([0, 1, 200]),
            stash_bytes_per_sample=rng.choice([0.0, 30.0]),
        )
        for _ in range(count)
    ]


def test_the_bound_holds_where_layers_are_very_uneven():
    rng = random.Random(32)
    for _ in range(25):
        layers = layers_in_turn(rng, rng.randint(3, 8))
        cuts = [rng.choice([0.0, 1.0, 40.0]) for _ in range(len(layers) + 1)]
        where = dataclasses.replace(slow_network(rng), nodes=2, devices_per_node=rng.randint(1, 3))
        predictor = Predictor(workload(layers, cuts), where, Job(global_batch=rng.choice([4, 6])))
        best_s = best_partition(predictor)
        for reached_s in (best_s, 1.3 * best_s) if best_s < np.inf else ():
            bound_s = PlanBounds(predictor.costs, predictor.domain).certified_s(reached_s)
            assert bound_s <= best_s * (1 + 1e-12)


def least_of_lineups(predictor, microbatches, order, schedule):
    """Each lineup that this order is the first to place so, what it is, its least step."""
    terms = predictor.bounds._lineups.terms
    replicas = tuple(predictor.bounds._replicas(microbatches))
    batch, layers = BatchScorer(predictor), len(predictor.workload.layers)
    code = {"replica": REPLICA, "stage": STAGE}[order]
    found = terms.placed(terms.unplaced(replicas), replicas, code)
    for n, stages in enumerate(found.stages_N):
        shape = BatchShape(
            replicas=tuple(replicas[r] for r in found.indices_N3S[n, CHOICE, :stages]),
            microbatches=microbatches,
            schedule=schedule,
            rank_order=order,
            recompute="where-needed",
        )
        inner = combinations(range(1, layers), stages - 1)
        bounds_KB = np.array([(0, *cuts, layers) for cuts in inner])
        step_K, missing_K = batch.score(bounds_KB, shape, buffers=False)
        best_s = float(step_K[missing_K == 0].min(initial=np.inf))
        yield chosen(found, np.array([n])), shape, best_s


def ways_that_rule_out(predictor, lineup, shape, step_s):
    """Which of the looks at one lineup, from the quickest to the closest, find no cuts."""
    terms = predictor.bounds._lineups.terms
    split = terms.split(shape.microbatches, tuple(predictor.bounds._replicas(shape.microbatches)))
    gpipe = shape.schedule == "gpipe"
    looks = {"possible": possible(terms.model, split, lineup, gpipe, step_s)[0]}
    for name, (exchanges, each) in {
        "within": (terms.exchanges, lineup),
        "exact": terms.exact_tables(split, lineup, 10**6),
    }.items():
        looks[name] = within(terms.model, exchanges, split, each, gpipe, step_s, 10**9)[0][0]
    return [name for name, may in looks.items() if not may]


def test_no_lineup_is_ruled_out_at_its_own_least_step():
    rng = random.Random(37)
    near = far = 0
    for n in range(120):
        where = dataclasses.replace(slow_network(rng), nodes=2, devices_per_node=rng.randint(1, 3))
        model = random_workload(rng, max_layers=7)
        if n % 2:
            layers = layers_in_turn(rng, rng.randint(3, 7))
            model = workload(layers, [rng.choice([0.0, 1.0, 40.0]) for _ in range(len(layers) + 1)])
        predictor = Predictor(model, where, Job(global_batch=rng.choice([4, 6, 12])))
        m = rng.choice(predictor.domain.microbatches)
        for schedule in SCHEDULES:
            every = least_of_lineups(predictor, m, rng.choice(RANK_ORDERS), schedule)
            for lineup, shape, best_s in every:
                if best_s == np.inf:
                    continue
                above_s = best_s * (1 + 1e-9)
                assert ways_that_rule_out(predictor, lineup, shape, above_s) == []
                far += 1
                near += bool(ways_that_rule_out(predictor, lineup, shape, 0.95 * best_s))
    assert near >= 0.9 * far > 800


def test_a_stage_may_have_to_leave_a_layer_to_the_next_that_it_cannot_take_itself():
    # Two replicas can take the first two layers, but then one replica cannot take the third.
    small, large, tiny = layer(0.25, 0.25), layer(2.0, 2.0), layer(0.005, 0.005)
    model = workload([large, small, large, tiny, tiny])
    domain = PlanDomain(microbatches=(4,), replicas=(1, 2), stages=(3,))
    predictor = Predictor(model, cluster(5), Job(global_batch=8), domain)
    every = least_of_lineups(predictor, 4, "replica", "1f1b")
    [(lineup, shape, best_s)] = [each for each in every if each[1].replicas == (2, 1, 2)]
    assert ways_that_rule_out(predictor, lineup, shape, best_s * (1 + 1e-9)) == []
    assert "possible" in ways_that_rule_out(predictor, lineup, shape, 0.8 * best_s)


def test_a_stage_may_have_to_start_early_to_receive_what_fits():
    # What crosses the cut in the middle fits once, not once for each microbatch in flight.
    layers = [layer(parameter_bytes=size) for size in (10.0, 10.0, 60.0, 60.0)]
    model = workload(layers, [0.0, 0.0, 20.0, 0.0, 0.0])
    domain = PlanDomain(microbatches=(4,), replicas=(1,), stages=(3,))
    predictor = Predictor(model, cluster(3, memory_bytes=100.0), Job(global_batch=4), domain)
    [(lineup, shape, best_s)] = least_of_lineups(predictor, 4, "replica", "1f1b")
    assert best_s < np.inf
    assert ways_that_rule_out(predictor, lineup, shape, best_s * (1 + 1e-9)) == []


def test_gpipe_of_two_stages_may_be_the_best():
    # Transfers as long as a forward: 1F1B waits for the gradients of two microbatches in flight.
    model = workload([layer(1.0, 1.0)] * 2, [0.0, 1.0, 0.0])
    domain = PlanDomain(microbatches=(8,), replicas=(1,), stages=(2,))
    where = cluster(2, intra_node=link(1.0, 1e9))
    predictor = Predictor(model, where, Job(global_batch=8), domain)
    [(_, _, gpipe_s)] = least_of_lineups(predictor, 8, "replica", "gpipe")
    [(_, _, alternating_s)] = least_of_lineups(predictor, 8, "replica", "1f1b")
    assert gpipe_s < 0.9 * alternating_s
    for reached_s in (gpipe_s, alternating_s):
        bound_s = predictor.bounds.certified_s(reached_s)
        assert 0.99 * gpipe_s <= bound_s <= gpipe_s * (1 + 1e-12)


def test_gpipe_without_replicas_is_bounded_exactly():
    rng = random.Random(33)
    for _ in range(30):
        model, where = random_workload(rng, max_layers=7), slow_network(rng)
        devices = min(where.num_devices, len(model.layers))
        domain = PlanDomain(
            microbatches=(4,),
            replicas=(1,),
            stages=(rng.randint(1, devices),),
            schedules=("gpipe",),
            rank_orders=("replica",),
        )
        predictor = Predictor(model, where, Job(global_batch=8), domain)
        shape = BatchShape(
            replicas=(1,) * domain.stages[0],
            microbatches=4,
            schedule="gpipe",
            rank_order="replica",
            recompute="where-needed",
        )
        inner = combinations(range(1, len(model.layers)), domain.stages[0] - 1)
        bounds_KB = np.array([(0, *some, len(model.layers)) for some in inner])
        step_K, missing_K = BatchScorer(predictor).score(bounds_KB, shape, buffers=False)
        best_s = float(step_K[missing_K == 0].min(initial=np.inf))
        if best_s < np.inf and predictor.bounds.quick_s < best_s:
            assert predictor.bounds.certified_s(best_s) == pytest.approx(best_s, rel=1e-9)
            assert predictor.bounds.certified_s(2 * best_s) >= best_s * (1 - 2e-4)


@pytest.mark.parametrize("kind", ["measured", "fused copy"])
def test_the_bound_holds_for_measured_exchanges(kind):
    rng = random.Random(34)
    for _ in range(8):
        model, where = random_workload(rng, max_layers=5), slow_network(rng)
        where = dataclasses.replace(where, nodes=2, devices_per_node=2)
        if kind == "measured":
            table = MeasuredCollective(
                collective="all_reduce",
                devices=2,
                nodes=rng.randint(1, 2),
                size_bytes=(8.0, 64.0),
                seconds=(rng.uniform(0.01, 1), rng.uniform(0.01, 9)),
            )
            where = dataclasses.replace(where, measured=(table,))
        else:
            copy = FusedCopy(s_per_group=rng.random(), s_per_element=rng.random() / 9)
            device = dataclasses.replace(where.device, fused_copy=copy)
            where = dataclasses.replace(where, device=device)
        predictor = Predictor(model, where, Job(global_batch=4))
        plans = [random_plan(rng, len(model.layers), 4, 4) for _ in range(300)]
        scores = [predictor.score(plan) for plan in plans]
        best_s = min((score.step_s for score in scores if score.feasible), default=None)
        if best_s is not None:
            assert predictor.bounds.certified_s(1.5 * best_s) <= best_s * (1 + 1e-12)


def test_a_table_on_the_formulas_own_line_leaves_the_bounds_as_they_are():
    rng = random.Random(36)
    told_apart = 0
    for _ in range(10):
        model, slow = (
            random_workload(rng, max_layers=5),
            link(rng.uniform(0, 1), rng.uniform(1, 20)),
        )
        where = cluster(4, intra_node=slow, all_reduce="ring")
        job, sizes = Job(global_batch=4), (8.0, 64.0, 1e4)
        domain = PlanDomain(microbatches=(1, 2), replicas=(2, 4), stages=(1, 2))

        def measured(times, where=where, sizes=sizes):
            tables = []
            for devices in (2, 3, 4):
                formula = collective_cost(where, GroupShape(devices=devices), "all_reduce")
                tables.append(
                    MeasuredCollective(
                        collective="all_reduce",
                        devices=devices,
                        nodes=1,
                        size_bytes=sizes,
                        seconds=tuple(times * formula.at(size) for size in sizes),
                    )
                )
            return dataclasses.replace(where, measured=tuple(tables))

        formula, same, slower = (
            Predictor(model, each, job, domain).bounds for each in (where, measured(1), measured(3))
        )
        assert same.quick_s == pytest.approx(formula.quick_s, rel=1e-9)
        reached_s = 1.3 * formula.quick_s
        expected_s = formula.certified_s(reached_s)
        assert same.certified_s(reached_s) == pytest.approx(expected_s, rel=1e-9)
        told_apart += slower.certified_s(reached_s) > expected_s * (1 + 1e-6)
    assert told_apart >= 3


def test_the_compiled_walk_equals_the_same_walk_interpreted(monkeypatch):
    rng = random.Random(35)
    arguments, answers = [], []
    for _ in range(40):
        model, where = random_workload(rng, max_layers=6), slow_network(rng)
        bounds = Predictor(model, where, random_job(rng)).bounds
        terms = bounds._lineups.terms
        m = rng.choice(bounds.domain.microbatches)
        replicas = tuple(bounds._replicas(m))
        order = rng.choice([REPLICA, STAGE])
        found = terms.placed(terms.unplaced(replicas), replicas, order)
        if len(found.stages_N) == 0:
            continue
        costs = terms.split(m, replicas)
        step_s = rng.uniform(0.5, 4) * bounds.quick_s
        gpipe = rng.choice([GPIPE, ONE_F_ONE_B]) == GPIPE
        arguments.append((terms.model, terms.exchanges, costs, found, gpipe, step_s, 10**6))
        answers.append(within(*arguments[-1]))
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name).py_func)
    seen = set()
    for each, (may_N, looked_at) in zip(arguments, answers, strict=True):
        again_N, looked_at_again = within.py_func(*each)
        assert may_N.tolist() == again_N.tolist()
        assert looked_at == looked_at_again
        seen |= set(may_N.tolist())
    assert seen == {False, True}


def test_the_labels_that_are_kept_stand_for_all_that_came():
    # Those that do not fit any more are merged into one that is at least as good as either.
    rng = np.random.default_rng(38)
    merged = 0
    for _ in range(50):
        fields = len(typing.get_args(lineup_walk.Label))
        came_NF = rng.choice([0.0, 1.0, 2.0, 5.0, 9.0], size=(40, fields))
        labels_CKF = np.full((2, lineup_walk._MOST_LABELS, fields), -np.inf)
        count_C = np.zeros(2, dtype=np.int64)
        for label_F in came_NF:
            lineup_walk._keep((labels_CKF, count_C), 1, tuple(label_F))
        kept_KF = labels_CKF[1, : count_C[1]]
        as_good_NK = (kept_KF[None] <= came_NF[:, None]).all(axis=2)
        assert as_good_NK.any(axis=1).all()
        merged += count_C[1] == lineup_walk._MOST_LABELS
    assert merged > 15


def test_too_many_lineups_are_left_to_the_other_certificate():
    model = workload([layer(1.0, 2.0)] * 20)
    predictor = Predictor(model, cluster(20), Job(global_batch=2**6 * 3 * 5 * 7 * 11))
    assert predictor.bounds._lineups.terms.num_lineups > 1 << 16
    step_s = predictor.bounds.quick_s * 1.5
    assert predictor.bounds._lineups.certify((), step_s, 1e-3) is None


def test_what_takes_too_much_effort_gives_no_bound(monkeypatch):
    monkeypatch.setattr("autoplan.bounds.lineups._EFFORT", 10)
    rng = random.Random(36)
    model = random_workload(rng, max_layers=6)
    predictor = Predictor(model, cluster(4), Job(global_batch=4))
    reached_s = 3 * predictor.bounds.quick_s
    fewer = predictor.bounds.certified_s(reached_s)
    monkeypatch.undo()
    more = Predictor(model, cluster(4), Job(global_batch=4)).bounds.certified_s(reached_s)
    assert predictor.bounds.quick_s <= fewer <= more * (1 + 1e-4)
