"""Searches over sparse groups, over grouping policies, and under limits on groups."""

import dataclasses
import json
import sqlite3
from itertools import pairwise

import pytest

import autoplan
from autoplan.cluster import TopK
from autoplan.errors import InputError, NothingFeasibleError
from autoplan.gradsync import POLICIES
from autoplan.plan import load_plan
from autoplan.search.run import search

TOP_K = TopK(elements=(1e6, 1e7), seconds=(1e-4, 1e-3))
"""Cheap enough for large groups, too dear where the link hides a dense exchange."""
BOTH = (1.0, 0.01)
ONE_STAGE = {"stages": (1,), "replicas": (4,), "microbatches": (1,), "rank_orders": ("replica",)}
TWO_STAGES = {"stages": (2,), "replicas": (2,)}


@pytest.fixture
def sparse(experiment):
    """The experiment on devices that state what top-k takes, with a budget of few trials."""
    device = dataclasses.replace(experiment.cluster.device, top_k=TOP_K)
    return dataclasses.replace(
        experiment,
        cluster=dataclasses.replace(experiment.cluster, device=device),
        budget=dataclasses.replace(experiment.budget, trials=8),
    )


def searched(experiment, name="run", **space):
    """The result over a space with these knobs, in a folder of its own."""
    return search(
        dataclasses.replace(
            experiment,
            space=dataclasses.replace(experiment.space, **space),
            output=experiment.output / name,
        )
    )


def exchanged(result):
    """The groups of all stages that exchange gradients."""
    return [group for stage in result.plan.stages if stage.replicas > 1 for group in stage.groups]


def elements(experiment, group):
    return sum(
        layer.gradient_elements for layer in experiment.workload.layers[slice(*group.layers)]
    )


def least_tried_s(experiment, name="run"):
    with sqlite3.connect(experiment.output / name / "study.db") as database:
        return database.execute("select min(value) from trial_values").fetchone()[0]


@pytest.mark.parametrize("knobs", [{}, ONE_STAGE, TWO_STAGES], ids=["any", "one", "two"])
def test_two_densities_are_at_least_as_fast_as_dense(sparse, knobs):
    dense = searched(sparse, "dense", densities=(1.0,), **knobs)
    both = searched(sparse, "both", densities=BOTH, **knobs)
    assert both.prediction.step_s <= dense.prediction.step_s
    assert {group.density for group in exchanged(both)} == set(BOTH)
    assert {group.density for group in exchanged(dense)} == {1.0}
    # Sparse groups may beat what no dense plan can; each bound is one for its own space.
    for name, result in (("dense", dense), ("both", both)):
        assert result.prediction.lower_bound_s <= least_tried_s(sparse, name) * (1 + 1e-9)
        assert result.prediction.lower_bound_s <= result.prediction.step_s * (1 + 1e-9)
    assert both.prediction.lower_bound_s <= dense.prediction.lower_bound_s


def test_the_plan_file_states_densities_and_predicts_to_the_last_digit_the_same(sparse):
    result = searched(sparse, densities=BOTH)
    groups = [
        group
        for stage in json.loads(result.plan_path.read_text())["stages"]
        for group in stage["groups"]
    ]
    assert {group["density"] for group in groups} == set(BOTH)
    plan = load_plan(result.plan_path)
    assert plan == result.plan
    again = autoplan.predict(sparse.workload, sparse.cluster, sparse.job, plan)
    assert again.step_s == result.prediction.step_s
    assert again.stages == result.prediction.stages


@pytest.mark.parametrize("knobs", [{}, TWO_STAGES], ids=["any", "two"])
def test_only_sparse_groups_have_residuals_in_memory(sparse, knobs):
    result = searched(sparse, densities=(0.01,), **knobs)
    groups = exchanged(result)
    assert groups
    assert {group.density for group in groups} == {0.01}
    for stage, predicted in zip(result.plan.stages, result.prediction.stages, strict=True):
        kept = sum(4 * elements(sparse, group) for group in stage.groups)
        assert predicted.memory.residual_bytes == (kept if stage.replicas > 1 else 0)
    dense = searched(sparse, "dense", densities=(1.0,), **knobs)
    assert all(stage.memory.residual_bytes == 0 for stage in dense.prediction.stages)


def test_mixed_groups_have_residuals_for_the_sparse_ones_only(sparse):
    result = searched(sparse, densities=BOTH, **ONE_STAGE)
    thin = [group for group in exchanged(result) if group.density < 1]
    kept = sum(4 * elements(sparse, group) for group in thin)
    assert 0 < kept < 4 * sum(elements(sparse, group) for group in exchanged(result))
    assert result.prediction.stages[0].memory.residual_bytes == kept


def test_sparse_groups_need_what_top_k_takes(experiment):
    with pytest.raises(InputError, match=r"device\.top_k: found nothing"):
        searched(experiment, densities=BOTH)
    assert not (experiment.output / "run" / "best-plan.json").exists()


@pytest.mark.parametrize("densities", [(1.0,), BOTH], ids=["dense", "both"])
def test_with_all_policies_the_result_is_as_good_as_every_baseline(sparse, densities):
    result = searched(sparse, grouping=POLICIES, cap_bytes=(1e6, 5e6, 25e6), densities=densities)
    for name, prediction in result.baselines.items():
        assert prediction is None or result.prediction.step_s <= prediction.step_s, name
    assert result.prediction.lower_bound_s <= least_tried_s(sparse) * (1 + 1e-9)


def test_no_policy_leads_to_a_faster_plan_than_exact(sparse):
    few = dataclasses.replace(sparse, budget=dataclasses.replace(sparse.budget, trials=1))
    results = {
        policy: searched(few, policy, grouping=(policy,), cap_bytes=(5e6,), **ONE_STAGE)
        for policy in POLICIES
    }
    steps = {policy: result.prediction.step_s for policy, result in results.items()}
    assert steps["exact"] == min(steps.values())
    assert steps["single"] > steps["exact"]
    counts = {policy: len(exchanged(result)) for policy, result in results.items()}
    assert (counts["single"], counts["layerwise"]) == (1, len(sparse.workload.layers))


@pytest.mark.parametrize("policy", ["threshold", "horovod", "paddle"])
def test_a_cap_is_a_knob_of_the_policies_that_have_one(sparse, policy):
    few = dataclasses.replace(sparse, budget=dataclasses.replace(sparse.budget, trials=3))
    knobs = {"grouping": (policy,), **ONE_STAGE}
    small = searched(few, "small", cap_bytes=(1e6,), **knobs)
    large = searched(few, "large", cap_bytes=(1e9,), **knobs)
    assert len(exchanged(small)) == len(sparse.workload.layers)
    assert len(exchanged(large)) <= 2  # the first bucket of DDP and Paddle stays small
    assert small.prediction.step_s < large.prediction.step_s
    both = searched(sparse, "both", cap_bytes=(1e9, 1e6), **knobs)
    assert both.prediction.step_s == small.prediction.step_s


LIMITS = {
    "number": {"max_groups": 2},
    "bytes": {"group_max_bytes": 16e6},
    "elements": {"group_min_elements": 5e6},
    "memory": {"exchange_memory_bytes": 30e6},
    "several": {"max_groups": 6, "group_max_bytes": 24e6, "exchange_memory_bytes": 60e6},
}


@pytest.mark.parametrize("policy", ["exact", "single"])
@pytest.mark.parametrize("densities", [(1.0,), BOTH], ids=["dense", "both"])
@pytest.mark.parametrize("case", LIMITS)
def test_the_plan_keeps_the_limits_of_the_space(sparse, case, densities, policy):
    limits = LIMITS[case]
    few = dataclasses.replace(sparse, budget=dataclasses.replace(sparse.budget, trials=3))
    result = searched(few, densities=densities, grouping=(policy,), **ONE_STAGE, **limits)
    groups, predicted = exchanged(result), result.prediction.stages[0]
    sizes = [elements(sparse, group) for group in groups]
    assert len(groups) <= limits.get("max_groups", len(groups))
    if "group_max_bytes" in limits:
        alone = [group.layers[1] - group.layers[0] == 1 for group in groups]
        fits = [4 * size <= limits["group_max_bytes"] for size in sizes]
        assert all(one or fit for one, fit in zip(alone, fits, strict=True))
    # Only the last group in backward order may be small.
    assert all(size >= limits.get("group_min_elements", 0) for size in sizes[:-1])
    held = predicted.memory.buffer_bytes + predicted.memory.residual_bytes
    assert held <= limits.get("exchange_memory_bytes", held)
    assert [a.layers[0] for a, b in pairwise(groups)] == [b.layers[1] for a, b in pairwise(groups)]
    assert result.prediction.lower_bound_s <= result.prediction.step_s * (1 + 1e-9)


def test_limits_hold_in_every_stage(sparse):
    result = searched(sparse, densities=BOTH, max_groups=2, **TWO_STAGES)
    assert len(result.plan.stages) == 2
    assert all(len(stage.groups) <= 2 for stage in result.plan.stages)
    free = searched(sparse, "free", densities=BOTH, **TWO_STAGES)
    assert max(len(stage.groups) for stage in free.plan.stages) > 2
    assert free.prediction.step_s <= result.prediction.step_s


def test_limits_that_no_layout_keeps_are_told_in_one_line(sparse):
    with pytest.raises(NothingFeasibleError, match=r"none of \d+ layouts .* max_groups"):
        searched(sparse, max_groups=1, group_max_bytes=1e6, **ONE_STAGE)


def test_limits_that_only_some_plans_keep_leave_the_others(sparse):
    """Four stages keep what a single one cannot; the search ends with such a plan."""
    found = searched(sparse, max_groups=1, group_max_bytes=1e6)
    assert found.prediction.feasible
    assert all(stage.replicas == 1 or len(stage.groups) == 1 for stage in found.plan.stages)
