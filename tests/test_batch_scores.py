"""Batches of partitions against the oracle that scores one plan at a time."""

import dataclasses
import random
from itertools import pairwise

import numpy as np
import pytest
from builders import (
    cluster,
    layer,
    random_cluster,
    random_job,
    random_measured,
    random_workload,
    workload,
)

from autoplan import Job
from autoplan.batch_scores import BatchScorer, BatchShape
from autoplan.bounds.plans import divisors
from autoplan.gradsync import (
    GroupCost,
    GroupingProblem,
    group_problem,
    interval_table,
    policy_named,
)
from autoplan.gradsync.costs import Affine
from autoplan.gradsync.interval_table import FinishTimes, _finish_times, finish_table
from autoplan.pipeline.partition import uniform_bounds
from autoplan.plan import RANK_ORDERS, SCHEDULES
from autoplan.predict import Predictor
from autoplan.search.climb import climb_cuts
from autoplan.search.layout import Layout, assemble
from autoplan.search.space import SearchSpace

SPACE = SearchSpace()


def random_layouts(rng, predictor, count):
    """Layouts that share all but their cuts."""
    layers, devices = len(predictor.workload.layers), predictor.cluster.num_devices
    batch = predictor.job.global_batch
    m = rng.choice(divisors(batch))
    stages = rng.randint(1, min(layers, devices))
    choices = [r for r in divisors(batch // m) if r <= devices]
    replicas = [1] * stages
    for s in range(stages):
        room = devices - sum(replicas)
        replicas[s] = rng.choice([r for r in choices if r <= 1 + room])
    common = {
        "replicas": tuple(replicas),
        "microbatches": m,
        "schedule": rng.choice(SCHEDULES),
        "rank_order": rng.choice(RANK_ORDERS),
        "recompute": rng.choice(["never", "where-needed", "always"]),
    }
    cuts = [sorted(rng.sample(range(1, layers), stages - 1)) for _ in range(count)]
    return [
        Layout(bounds=(0, *cut, layers), policy="exact", cap_bytes=1.0, **common) for cut in cuts
    ], BatchShape(**common)


def test_step_times_equal_the_oracle_and_missing_bytes_bound_it_from_above():
    rng = random.Random(21)
    misfits = 0
    for n in range(200):
        where = random_cluster(rng)
        if n % 2:
            where = random_measured(rng, where, exchange_handling=False)
            where = dataclasses.replace(where, measured=())
        predictor = Predictor(random_workload(rng), where, random_job(rng))
        batch = BatchScorer(predictor)
        assert batch.exact
        layouts, shape = random_layouts(rng, predictor, 5)
        bounds_KB = np.array([layout.bounds for layout in layouts])
        step_K, missing_K = batch.score(bounds_KB, shape)
        for layout, step_s, missing in zip(layouts, step_K, missing_K, strict=True):
            plan = assemble(layout, predictor, SPACE)
            score = predictor.score(plan)
            if layout.recompute != "where-needed" or score.missing_bytes == missing:
                assert step_s == pytest.approx(score.step_s, rel=1e-9)
            assert missing >= score.missing_bytes - 1e-6
            misfits += missing > 0
            alone = all(stage.replicas == 1 for stage in plan.stages)
            if alone and layout.recompute != "where-needed":
                assert missing == pytest.approx(score.missing_bytes, abs=1e-6)
    assert misfits > 0


def test_no_plan_takes_less_than_its_batch_says_where_that_is_not_exact():
    rng = random.Random(26)
    nearest = []
    for _ in range(150):
        where = random_measured(rng, random_cluster(rng))
        predictor = Predictor(random_workload(rng), where, random_job(rng))
        batch = BatchScorer(predictor)
        layouts, shape = random_layouts(rng, predictor, 5)
        bounds_KB = np.array([layout.bounds for layout in layouts])
        step_K, missing_K = batch.score(bounds_KB, shape, buffers=False)
        for layout, step_s, missing in zip(layouts, step_K, missing_K, strict=True):
            score = predictor.score(assemble(layout, predictor, SPACE))
            assert missing <= score.missing_bytes + 1e-6
            assert step_s <= score.step_s * (1 + 1e-9)
            if not batch.exact:
                nearest.append(step_s / score.step_s)
    assert len(nearest) > 200
    assert np.median(nearest) > 0.9


def test_every_interval_of_the_table_is_the_exact_grouping_of_that_stage():
    rng = random.Random(22)
    for _ in range(60):
        layers = rng.randint(1, 8)
        backward = np.array([rng.choice([0.0, rng.random()]) for _ in range(layers)])
        elements = np.array([rng.choice([0.0, 10 * rng.random()]) for _ in range(layers)])
        lines = [(rng.random(), rng.random() / 5) for _ in range(rng.randint(1, 3))]
        table = finish_table(backward, elements, np.array(lines))

        class Cheapest:
            def __call__(self, x, lines=lines):
                return min(a + b * x for a, b in lines) if x > 0 else 0.0

        for i in range(layers):
            for j in range(i + 1, layers + 1):
                problem = GroupingProblem(
                    backward_s=backward[i:j].tolist(),
                    elements=elements[i:j].tolist(),
                    costs=(GroupCost(communicate=Cheapest()),),
                )
                exact_s = group_problem(problem, policy_named("exact")).finish_s
                assert table[i, j] == pytest.approx(exact_s, rel=1e-12, abs=1e-12)


def test_pieces_worked_out_one_by_one_equal_the_table():
    rng = np.random.default_rng(24)
    for _ in range(60):
        layers = int(rng.integers(1, 30))
        backward = rng.random(layers) * rng.integers(0, 2, layers)
        elements = 10 * rng.random(layers) * rng.integers(0, 2, layers)
        lines = rng.random((int(rng.integers(1, 4)), 2)) / (1, 4)
        table = finish_table(backward, elements, lines)
        first, end = np.triu_indices(layers + 1, 1)
        times = _finish_times(backward, elements, lines, first, end)
        assert times == pytest.approx(table[first, end], rel=1e-12, abs=1e-12)


def test_asking_for_stages_of_a_long_model_gives_what_the_kernel_finds(monkeypatch):
    rng = np.random.default_rng(25)
    inputs = rng.random(20), rng.random(20), np.array([[0.1, 0.5]])
    short = FinishTimes(*inputs)
    monkeypatch.setattr(interval_table, "_TABLE_LAYERS", 10)
    monkeypatch.setattr(interval_table, "_MOST_KEPT", 8)
    long = FinishTimes(*inputs)
    for _ in range(10):
        first = rng.integers(0, 19, 12)
        end = np.minimum(first + rng.integers(1, 9, 12), 20)
        assert long.at(first, end) == pytest.approx(short.at(first, end), rel=1e-12)


def even_layout(num_layers, num_stages, microbatches=4):
    return Layout(
        bounds=uniform_bounds(num_layers, num_stages),
        replicas=(1,) * num_stages,
        microbatches=microbatches,
        schedule="1f1b",
        rank_order="replica",
        recompute="never",
        policy="exact",
        cap_bytes=1.0,
    )


def test_a_deep_pipeline_is_improved_where_it_is_busiest_and_the_deepest_is_left():
    layers = [layer(1.0, 2.0) for _ in range(700)]
    layers[300] = layer(40.0, 80.0)
    predictor = Predictor(workload(layers), cluster(devices_per_node=600), Job(global_batch=4))
    batch = BatchScorer(predictor)
    start = even_layout(700, 70)
    before_s = predictor.score(assemble(start, predictor, SPACE)).step_s
    climbed = climb_cuts(start, batch)
    assert climbed.step_s < 0.97 * before_s
    after_s = predictor.score(assemble(climbed.layout, predictor, SPACE)).step_s
    assert climbed.step_s == pytest.approx(after_s, rel=1e-9)
    deepest = even_layout(700, 600)
    assert climb_cuts(deepest, batch).layout == deepest


def test_one_line_is_an_affine_cost():
    backward, elements = np.array([1.0, 2.0, 0.5]), np.array([3.0, 1.0, 2.0])
    problem = GroupingProblem(
        backward_s=backward.tolist(),
        elements=elements.tolist(),
        costs=(GroupCost(communicate=Affine(0.25, 0.5)),),
    )
    exact_s = group_problem(problem, policy_named("exact")).finish_s
    assert finish_table(backward, elements, np.array([[0.25, 0.5]]))[0, 3] == exact_s


def test_a_climb_never_ends_behind_its_start_and_keeps_everything_but_the_cuts():
    rng = random.Random(23)
    improved = 0
    for _ in range(60):
        where = random_measured(rng, random_cluster(rng))
        predictor = Predictor(random_workload(rng), where, random_job(rng))
        batch = BatchScorer(predictor)
        (layout,), shape = random_layouts(rng, predictor, 1)
        step_K, missing_K = batch.score(np.array([layout.bounds]), shape)
        climbed = climb_cuts(layout, batch)
        start = (bool(missing_K[0] > 0), missing_K[0] if missing_K[0] > 0 else 0.0, step_K[0])
        assert climbed.rank <= start
        improved += climbed.rank < start
        assert climbed.layout.replicas == layout.replicas
        assert all(a < b for a, b in pairwise(climbed.layout.bounds))
    assert improved >= 8
