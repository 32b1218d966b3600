import dataclasses
import itertools
import math
import random
import time

import pytest
from builders import random_cluster, random_job, random_measured, random_plan, random_workload

from autoplan.bounds.plans import divisors
from autoplan.errors import NothingFeasibleError
from autoplan.search.exhaust import exhaust
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Scorer
from autoplan.search.run import search
from autoplan.search.space import SearchSpace

EVERYTHING = SearchSpace(recompute=("never", "where-needed"))


def random_proposer(rng, space=EVERYTHING, exchange_handling=False):
    """Every other of them with measured costs; what exchanges take from compute only if asked."""
    where = random_cluster(rng, max_nodes=2)
    if rng.random() < 0.5:
        where = random_measured(rng, where, exchange_handling=exchange_handling)
    return Proposer(random_workload(rng, max_layers=5), where, random_job(rng), space)


def exhausted(proposer, reached_s=math.inf, **options):
    scorer = Scorer(proposer.predictor, proposer.space, time.monotonic() + 60)
    return exhaust(scorer, proposer, reached_s, **options)


def every_layout(proposer):
    """All layouts of the space, by a walk that shares nothing with the one under test."""
    space, layers, devices = proposer.space, proposer.num_layers, proposer.num_devices
    batch = proposer.predictor.job.global_batch
    for m, stages in itertools.product(divisors(batch), range(1, min(layers, devices) + 1)):
        replicas = itertools.product(divisors(batch // m), repeat=stages)
        for counts in (counts for counts in replicas if sum(counts) <= devices):
            if space.equal_replicas and len(set(counts)) > 1:
                continue
            for cuts in itertools.combinations(range(1, layers), stages - 1):
                for schedule, order, recompute in itertools.product(
                    space.schedules, space.rank_orders, space.recompute
                ):
                    yield Layout(
                        bounds=(0, *cuts, layers),
                        replicas=counts,
                        microbatches=m,
                        schedule=schedule,
                        rank_order=order,
                        recompute=recompute,
                        policy="exact",
                        cap_bytes=1.0,
                    )


def least_step_s(proposer):
    scores = [
        proposer.predictor.score(assemble(layout, proposer.predictor, proposer.space))
        for layout in every_layout(proposer)
    ]
    return min((score.step_s for score in scores if score.feasible), default=math.inf)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recompute": ("never",)},
        {"recompute": ("never", "always"), "schedules": ("gpipe",)},
        {"equal_replicas": True, "rank_orders": ("stage",)},
    ],
    ids=str,
)
def test_the_best_plan_is_the_best_of_all_plans_scored_one_by_one(changes):
    rng, space = random.Random(31), dataclasses.replace(EVERYTHING, **changes)
    outcomes = set()
    for _ in range(12):
        proposer = random_proposer(rng, space)
        found, least_s = exhausted(proposer), least_step_s(proposer)
        assert found.complete
        assert found.bound_s <= least_s * (1 + 1e-9)
        best_s = found.best.score.step_s if found.best else math.inf
        assert best_s == pytest.approx(least_s, rel=1e-9)
        outcomes.add((math.isfinite(best_s), best_s <= found.bound_s))
    assert (True, True) in outcomes


def test_no_plan_beats_the_bound_whatever_its_groups_and_whichever_stages_recompute():
    rng = random.Random(32)
    fitting = 0
    for _ in range(40):
        proposer = random_proposer(rng, exchange_handling=True)
        bound_s, devices = exhausted(proposer).bound_s, proposer.num_devices
        batch = proposer.predictor.job.global_batch
        for _ in range(60):
            score = proposer.predictor.score(random_plan(rng, proposer.num_layers, devices, batch))
            assert not score.feasible or score.step_s >= bound_s * (1 - 1e-9)
            fitting += score.feasible
    assert fitting > 500


def with_memory(proposer, memory_bytes):
    parts = proposer.predictor
    device = dataclasses.replace(parts.cluster.device, memory_bytes=memory_bytes)
    where = dataclasses.replace(parts.cluster, device=device)
    return Proposer(parts.workload, where, parts.job, proposer.space)


def test_the_best_plan_is_proven_to_be_where_buffers_do_not_fit():
    rng = random.Random(35)
    proven = loose = 0
    for _ in range(60):
        ample = with_memory(random_proposer(rng), 1e12)
        peak_bytes = exhausted(ample).best.score.peak_bytes
        proposer = with_memory(ample, peak_bytes * rng.uniform(0.9, 1.1))
        found = exhausted(proposer)
        assert found.complete
        if found.best:
            best_s = found.best.score.step_s
            assert found.bound_s <= best_s
            proven += found.bound_s == best_s
            loose += found.bound_s < best_s
    assert proven > 30
    assert loose <= 2


def test_a_plan_that_is_the_best_already_is_proven_to_be():
    rng = random.Random(33)
    proven = 0
    for _ in range(15):
        proposer = random_proposer(rng)
        first = exhausted(proposer)
        reached_s = first.best.score.step_s if first.best else math.inf
        again = exhausted(proposer, reached_s=reached_s)
        if again is None:  # the quick bounds prove as much
            assert proposer.predictor.bounds.quick_s >= reached_s * (1 - 1e-9)
        elif first.best:
            assert again.best is None
            assert again.complete
            assert again.bound_s == pytest.approx(first.bound_s, rel=1e-9)
            proven += 1
    assert proven > 0


def test_nothing_is_said_of_spaces_that_are_too_large_or_group_by_other_rules(experiment):
    parts = experiment.workload, experiment.cluster, experiment.job
    assert exhausted(Proposer(*parts, SearchSpace()), effort=1000) is None
    for changes in (
        {"grouping": ("threshold",)},
        {"max_groups": 2},
        {"cuts": "balanced"},
    ):
        assert exhausted(Proposer(*parts, SearchSpace(**changes))) is None


def test_the_effort_is_at_least_the_number_of_partitions_scored():
    rng = random.Random(34)
    for space in (EVERYTHING, dataclasses.replace(EVERYTHING, equal_replicas=True)):
        for _ in range(10):
            proposer = random_proposer(rng, space)
            scorer = Scorer(proposer.predictor, proposer.space, time.monotonic() + 60)
            assert exhaust(scorer, proposer, math.inf) is not None
            partitions = sum(1 for _ in every_layout(proposer)) // len(space.recompute)
            assert exhausted(proposer, effort=partitions) is None


def test_a_search_of_a_small_space_ends_with_a_proof(experiment):
    budget = dataclasses.replace(experiment.budget, exhaustive_plans=1_500_000)
    result = search(dataclasses.replace(experiment, budget=budget))
    assert result.stopped_by == "optimal"
    assert result.gap == 0
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, experiment.space)
    assert result.value == pytest.approx(exhausted(proposer).best.score.step_s, rel=1e-9)


def test_where_no_plan_fits_the_search_still_says_what_is_missing(experiment):
    device = dataclasses.replace(experiment.cluster.device, memory_bytes=1e6)
    cluster = dataclasses.replace(experiment.cluster, device=device)
    proposer = Proposer(experiment.workload, cluster, experiment.job, experiment.space)
    found = exhausted(proposer)
    assert found.best is None
    assert found.bound_s == math.inf
    budget = dataclasses.replace(experiment.budget, exhaustive_plans=1_500_000, trials=6)
    with pytest.raises(NothingFeasibleError, match="the closest lacks"):
        search(dataclasses.replace(experiment, cluster=cluster, budget=budget))
