from __future__ import annotations

import math

import pytest
from gradsync.random_problems import every_grouping, figures, patient
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import InputError
from autoplan.gradsync import (
    POLICIES,
    GroupCost,
    GroupingProblem,
    GroupLimits,
    group,
    group_problem,
    time_groups,
)
from autoplan.gradsync.policies import Layerwise, Single


def problem_of(arguments):
    cost = GroupCost(communicate=arguments["communicate"], sparsify=arguments["sparsify"])
    return GroupingProblem(
        backward_s=arguments["backward_s"], elements=arguments["elements"], costs=(cost,)
    )


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_default_equals_brute_force(sparse):
    @patient
    @given(figures(sparse))
    def check(arguments):
        found = group(**arguments)
        problem = problem_of(arguments)
        groupings = list(every_grouping(problem.num_layers))
        least = min(time_groups(problem, each).finish_s for each in groupings)
        assert found.groups in groupings
        assert found.finish_s == time_groups(problem, found.groups).finish_s
        assert found.finish_s == pytest.approx(least, rel=1e-12, abs=1e-12)
        assert set(found.densities) == ({0.0} if sparse else {1.0})

    check()


def test_default_beats_the_greedy_on_its_counter_example():
    # facts/mgs.md 1.6: gradients ready at 0, .9 and 1.8 in backward order; greedy merges all.
    arguments = {"backward_s": [0.9, 0.9, 0.0], "elements": [0.5] * 3}
    found = group(**arguments, communicate=lambda x: 1 + x)
    assert found.groups == ((2,), (1, 0))
    assert found.finish_s == pytest.approx(3.8, rel=1e-12)
    assert found.timing.spans[-1][1] == found.finish_s
    greedy = group(**arguments, communicate=lambda x: 1 + x, policy="mg-wfbp")
    assert greedy.groups == ((2, 1, 0),)
    assert greedy.finish_s == pytest.approx(4.3, rel=1e-12)


@patient
@given(figures(sparse=True), st.sampled_from(POLICIES))
def test_every_name_covers_all_layers_in_backward_order(arguments, policy):
    found = group(**arguments, policy=policy)
    order = [layer for each in found.groups for layer in each]
    assert order == list(range(len(arguments["elements"])))[::-1]
    assert group(**arguments).finish_s <= found.finish_s * (1 + 1e-12)


def test_layerwise_and_single():
    arguments = {"backward_s": [1.0] * 3, "elements": [1] * 3, "communicate": lambda x: x}
    assert group(**arguments, policy="layerwise").groups == ((2,), (1,), (0,))
    assert group(**arguments, policy=Single()).groups == ((2, 1, 0),)


@pytest.mark.parametrize("policy", POLICIES)
def test_limits_reach_the_policy(policy):
    arguments = {"backward_s": [1.0] * 6, "elements": [4] * 6, "communicate": lambda x: 1 + x}
    limits = GroupLimits(max_elements=8, min_elements=5)
    found = group(**arguments, policy=policy, limits=limits)
    assert [len(each) for each in found.groups] == [2, 2, 2]


def test_groups_take_the_cost_that_ends_earliest():
    slow = GroupCost(communicate=lambda x: 10.0 * x)
    quick = GroupCost(communicate=lambda x: x, sparsify=lambda x: 2.0 * x, density=0.25)
    problem = GroupingProblem(backward_s=[1.0, 1.0], elements=[2, 2], costs=(slow, quick))
    found = group_problem(problem, Layerwise())
    assert found.densities == (0.25, 0.25)
    # Backward 1 ends at 1, top-k at 5, sent to 7; backward 0 at 6, top-k at 10, sent to 12.
    assert found.finish_s == 12.0
    dear = GroupCost(communicate=lambda x: x, sparsify=lambda x: 50.0 * x, density=0.25)
    problem = GroupingProblem(backward_s=[1.0, 1.0], elements=[2, 2], costs=(slow, dear))
    assert group_problem(problem, Layerwise()).densities == (1.0, 1.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_without_elements_cost_no_exchange(policy):
    arguments = {"communicate": lambda x: 100.0 + x, "sparsify": lambda x: 50.0}
    found = group([1.0, 2.0, 3.0], [0, 0, 0], **arguments, policy=policy)
    assert found.finish_s == 6.0
    found = group([1.0, 2.0, 3.0], [0, 5, 0], **arguments, policy=policy)
    # 3 + 2 of backward, top-k, the exchange of 5 elements; the last backward lies beside it.
    late = 1.0 if policy == "single" else 0.0
    assert found.finish_s == 3.0 + 2.0 + late + 50.0 + 105.0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"backward_s": [], "elements": []}, "backward_s"),
        ({"elements": [1]}, "elements"),
        ({"backward_s": [1.0, -1.0]}, r"backward_s\[1\]"),
        ({"backward_s": [math.nan, 1.0]}, r"backward_s\[0\]"),
        ({"elements": [1, math.inf]}, r"elements\[1\]"),
        ({"elements": [-1, 1]}, r"elements\[0\]"),
        ({"policy": "greedy"}, "policy"),
        ({"limits": GroupLimits(max_groups=1, max_elements=1)}, "max_groups"),
    ],
)
@pytest.mark.parametrize("policy", ["exact", "layerwise"])
def test_arguments_that_make_no_sense_are_refused(arguments, field, policy):
    sound = {"backward_s": [1.0, 1.0], "elements": [1, 1], "communicate": lambda x: x}
    with pytest.raises(InputError, match=f"^{field}: found"):
        group(**(sound | {"policy": policy} | arguments))
