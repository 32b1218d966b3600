"""Bounds for large problems against plans that try to beat them, and against plain searches."""

import math
import random
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from builders import cluster, layer, random_cluster, random_job, random_workload, workload

from autoplan import Job
from autoplan.bounds.plans import PlanBounds
from autoplan.pipeline.bounds import prefix
from autoplan.pipeline.large_bounds import least_of_closer_s
from autoplan.pipeline.large_memory import StageMemory, furthest_ends
from autoplan.pipeline.large_paths import _cost, _shortest
from autoplan.plan import RANK_ORDERS
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace


def partitions_of(layers, most):
    for stages in range(1, min(layers, most) + 1):
        for cuts in combinations(range(1, layers), stages - 1):
            yield (0, *cuts, layers)


def every_layout(proposer, microbatches):
    """All plans of a space with exact groups for one number of microbatches."""
    space, domain = proposer.space, proposer.domain
    choices = domain.replicas_for(proposer.predictor.job.global_batch // microbatches)
    for bounds in partitions_of(proposer.num_layers, max(domain.stages)):
        for replicas in product(choices, repeat=len(bounds) - 1):
            if sum(replicas) > proposer.num_devices:
                continue
            for schedule, order in product(space.schedules, RANK_ORDERS):
                yield Layout(
                    bounds=bounds,
                    replicas=replicas,
                    microbatches=microbatches,
                    schedule=schedule,
                    rank_order=order,
                    recompute=space.recompute[-1],
                    policy="exact",
                    cap_bytes=1.0,
                )


@pytest.mark.parametrize("schedules", [("1f1b", "gpipe"), ("gpipe",)])
@pytest.mark.parametrize("recompute", ["never", "where-needed"])
def test_no_plan_that_fits_beats_the_bound_and_none_at_all_the_one_regardless_of_memory(
    schedules, recompute
):
    rng = random.Random(f"{schedules} {recompute}")
    space = SearchSpace(schedules=schedules, recompute=(recompute,))
    fitting = refused = 0
    for _ in range(25):
        model = random_workload(rng, max_layers=5)
        proposer = Proposer(model, random_cluster(rng), random_job(rng), space)
        predictor = proposer.predictor
        for m in proposer.domain.microbatches:
            large = predictor.bounds._large_bound(m)
            for layout in every_layout(proposer, m):
                score = predictor.score(assemble(layout, predictor, space))
                if not large.fits:
                    assert score.step_s >= large.regardless_s * (1 - 1e-9)
                if score.missing_bytes == 0:
                    fitting += 1
                    assert score.step_s >= large.quick.step_s * (1 - 1e-9)
                    assert score.step_s >= large.closer_s * (1 - 1e-9)
            refused += not large.fits
    assert fitting > 500
    assert refused > 0


def even_chain(stages, global_batch=64, memory_bytes=1e12):
    """A chain of even layers of 1 s forwards and 2 s backwards for each sample, 4 a stage."""
    layers = [layer(1.0, 2.0, parameter_bytes=1.0)] * (4 * stages)
    where = cluster(devices_per_node=stages, memory_bytes=memory_bytes)
    return workload(layers), where, Job(global_batch=global_batch, memory_headroom=0.0)


def test_on_an_even_chain_whose_memory_asks_for_a_stage_per_device_the_gap_is_a_few_percent():
    model, where, job = even_chain(16, global_batch=128, memory_bytes=4.0)
    space = SearchSpace(microbatches=(128,), replicas=(1,))
    proposer = Proposer(model, where, job, space)
    large = proposer.predictor.bounds._large_bound(128)
    best_s = (128 + 16 - 1) * 12.0
    assert best_s / 1.03 <= large.closer_s <= best_s
    assert large.quick.step_s <= large.closer_s
    assert large.quick.bounds == tuple(range(0, 65, 4))
    assert large.quick.replicas == (1,) * 16


def test_the_partition_behind_the_bound_is_a_valid_one():
    rng = random.Random(3)
    for _ in range(60):
        model = random_workload(rng, max_layers=9)
        proposer = Proposer(model, random_cluster(rng), random_job(rng), SearchSpace())
        bounds = proposer.predictor.bounds
        for m in proposer.domain.microbatches:
            found = bounds._large_bound(m).quick
            assert (found.bounds[0], found.bounds[-1]) == (0, len(model.layers))
            assert all(a < b for a, b in pairwise(found.bounds))
            assert len(found.replicas) == len(found.bounds) - 1
            assert sum(found.replicas) <= proposer.num_devices
            assert set(found.replicas) <= set(bounds._replicas(m))


def test_the_shortest_path_equals_the_least_over_all_partitions():
    rng = np.random.default_rng(5)
    for _ in range(80):
        layers, choices = int(rng.integers(1, 8)), int(rng.integers(1, 4))
        work_RC = prefix(rng.random((choices, layers)))
        own_RC = 3 * work_RC
        receive_RC = rng.random((choices, layers + 1))
        share_C = prefix(rng.dirichlet(np.ones(layers)))
        ends_RC = np.maximum.accumulate(
            np.minimum(np.arange(layers + 1) + rng.integers(0, 4, (choices, layers + 1)), layers),
            axis=1,
        )
        replicas_R = np.arange(1, choices + 1)
        weights = [(0.0, 1.0, 0.3, 0.0), (1.0, 0.0, 0.2, 0.4)][int(rng.integers(2))]
        parts = (own_RC, work_RC, receive_RC, share_C, weights)
        sums = [math.inf]
        for bounds in partitions_of(layers, layers):
            for picked in product(range(choices), repeat=len(bounds) - 1):
                stages = list(zip(picked, pairwise(bounds), strict=True))
                if all(end <= ends_RC[r, start] for r, (start, end) in stages):
                    costs = (
                        _cost(*parts, (r, start, end)) + weights[2] * replicas_R[r]
                        for r, (start, end) in stages
                    )
                    sums.append(sum(costs))
        least_s, used = _shortest(
            replicas_R, own_RC, work_RC, receive_RC, ends_RC, share_C, weights
        )
        assert least_s == pytest.approx(min(sums), abs=1e-12)
        assert (used > 0) == math.isfinite(least_s)


def test_memory_counts_a_microbatch_for_each_stage_that_must_come_later():
    memory = StageMemory(
        static_bytes_C=np.array([0.0, 5.0, 10.0, 15.0, 20.0]),
        stash_bytes_RC=np.array([[0.0, 1.0, 2.0, 3.0, 4.0]]),
        received_bytes_RC=np.zeros((1, 5)),
        available_bytes=12.0,
        may_recompute=False,
        may_alternate=True,
        microbatches=8,
    )
    # Two layers need 12 bytes with one microbatch, which a stage holds only if it is the last.
    assert furthest_ends(memory).tolist() == [[1, 2, 4, 4, 4]]


def test_only_the_numbers_of_microbatches_that_decide_the_bound_are_looked_at_closely():
    quick = {1: 5.0, 2: 3.0, 4: 2.0, 8: 9.0}
    closer = {1: 6.0, 2: 4.5, 4: 4.0, 8: 9.5}
    asked = []

    def closer_s(m):
        asked.append(m)
        return closer[m]

    assert least_of_closer_s(quick, closer_s, 100.0, most=10) == 4.0
    assert asked == [4, 2]
    assert least_of_closer_s(quick, closer_s, 2.5, most=10) == 2.5
    assert least_of_closer_s(quick, closer_s, 100.0, most=1) == 3.0
    assert least_of_closer_s(quick, closer_s, 1.0, most=10) == 1.0


def test_large_problems_get_these_bounds_and_small_ones_do_not():
    proposer = Proposer(*even_chain(4), SearchSpace())
    assert not proposer.predictor.bounds.large
    assert isinstance(proposer.predictor.bounds, PlanBounds)
