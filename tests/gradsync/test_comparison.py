from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from gradsync.random_problems import patient, problems
from hypothesis import assume, given
from hypothesis import strategies as st

from autoplan.errors import InputError
from autoplan.gradsync import POLICIES, GroupCost, GroupingProblem, GroupLimits
from autoplan.gradsync.comparison import compare
from autoplan.gradsync.costs import Affine
from autoplan.gradsync.oracle import brute_force

ROUNDING = 1e-12
LINE = Affine(0.75, 1.0)


def two_layers(line, **changes):
    """Each layer takes 1 s and has 1 element."""
    cost = GroupCost(communicate=line)
    return GroupingProblem(backward_s=[1.0, 1.0], elements=[1, 1], costs=(cost,), **changes)


def many_layers(line, seed=0, layers=12, **changes):
    rng = np.random.default_rng(seed)
    return GroupingProblem(
        backward_s=rng.random(layers).tolist(),
        elements=rng.integers(1, 9, layers).tolist(),
        costs=(GroupCost(communicate=line),),
        **changes,
    )


def scaled(problem, alpha_factor, beta_factor):
    """The same gradients with the affine link off by factors."""
    nominal = problem.costs[0].communicate
    line = Affine(nominal.alpha_s * alpha_factor, nominal.s_per_element * beta_factor)
    return dataclasses.replace(problem, costs=(GroupCost(communicate=line),))


def test_every_policy_is_there_in_order_and_only_the_optimum_is_sure_of_no_gap():
    found = compare(many_layers(Affine(0.2, 0.1)), {})
    assert tuple(found.groupings) == POLICIES
    assert found.gap("exact") == 0
    assert found.best_s == found.groupings["exact"].finish_s
    assert found.gap("single") > 0
    assert found.sensitivities == {}
    assert found.compute_s == pytest.approx(found.groupings["single"].timing.compute_s)


@patient
@given(problems())
def test_no_policy_ends_before_exact_nor_exact_before_the_bound(problem):
    try:
        found = compare(problem, {})
    except InputError:
        assert brute_force(problem) is None
        return
    assert tuple(found.groupings) == POLICIES
    assert found.gap("exact") == 0
    for policy, grouping in found.groupings.items():
        assert found.gap(policy) >= -ROUNDING, policy
        layers = [layer for group in grouping.groups for layer in group]
        assert sorted(layers) == list(range(problem.num_layers))
    assert found.lower_bound_s <= found.best_s * (1 + ROUNDING)
    assert found.compute_s <= found.best_s * (1 + ROUNDING)


@patient
@given(problems(), st.floats(0.25, 4), st.floats(0.25, 4))
def test_regret_is_never_negative(problem, latency, slope):
    cost = problem.costs[0]

    def other_link(elements):
        return latency * cost.communicate(elements) + slope * elements

    changed = (dataclasses.replace(cost, communicate=other_link),)
    variant = dataclasses.replace(problem, costs=changed)
    assume(brute_force(problem) is not None)
    found = compare(problem, {"same": problem, "other": variant}).sensitivities
    assert found["same"].regret == 0
    assert found["other"].regret >= -ROUNDING
    best_s, _ = brute_force(variant)
    assert found["other"].finish_s == pytest.approx(best_s, rel=1e-9)


def test_twice_the_latency_makes_two_groups_one():
    # Apart: {1} from 1 to 2.75, {0} from there to 4.5. Together: from 2 to 2 + 0.75 + 2 = 4.75.
    # With 1.5 s of latency: apart 1 + 2 * 2.5 = 6, together 2 + 1.5 + 2 = 5.5.
    # With 0.375 s: apart 1 + 2 * 1.375 = 3.75, together 4.375.
    problem = two_layers(LINE)
    variants = {"x 2": scaled(problem, 2.0, 1.0), "/ 2": scaled(problem, 0.5, 1.0)}
    found = compare(problem, variants)
    assert found.groupings["exact"].groups == ((1,), (0,))
    assert found.best_s == 4.5
    assert found.gap("single") == pytest.approx(4.75 / 4.5 - 1)
    doubled, halved = found.sensitivities["x 2"], found.sensitivities["/ 2"]
    assert (doubled.num_groups, doubled.finish_s) == (1, 5.5)
    assert doubled.regret == pytest.approx(6 / 5.5 - 1)
    assert (halved.num_groups, halved.finish_s, halved.regret) == (2, 3.75, 0.0)


def test_there_is_something_to_gain_just_where_a_gap_passes_the_noise():
    found = compare(two_layers(LINE), {})
    worst = max(found.gap(policy) for policy in POLICIES)
    assert worst == pytest.approx(4.75 / 4.5 - 1)
    assert found.nothing_to_gain(worst)
    assert not found.nothing_to_gain(worst * 0.999)
    assert not found.nothing_to_gain(0.0)


@pytest.mark.parametrize(
    ("backward_s", "elements"),
    [([1.0], [5]), ([1.0, 2.0, 3.0], [0, 0, 0]), ([0.0, 0.0], [0, 0])],
)
def test_there_is_nothing_to_gain_from_one_layer_or_without_gradients(backward_s, elements):
    cost = GroupCost(communicate=LINE)
    problem = GroupingProblem(backward_s=backward_s, elements=elements, costs=(cost,))
    found = compare(problem, {"x 2": scaled(problem, 2.0, 1.0)})
    assert found.nothing_to_gain(0.0)
    assert found.sensitivities["x 2"].regret == 0


def test_a_link_that_takes_no_time_leaves_nothing_to_gain():
    found = compare(many_layers(Affine(0.0, 0.0)), {})
    assert found.nothing_to_gain(0.0)
    assert found.best_s == found.compute_s == found.lower_bound_s


def test_the_cap_is_that_of_the_threshold_policies_only():
    problem = many_layers(Affine(0.2, 0.1))
    free, capped = compare(problem, {}), compare(problem, {}, cap_bytes=1.0)
    for policy in POLICIES:
        layers = capped.groupings[policy].groups
        if policy in ("threshold", "horovod", "paddle"):
            assert len(free.groupings[policy].groups) < len(layers) == problem.num_layers
        else:
            assert layers == free.groupings[policy].groups


def test_every_policy_keeps_the_limits_and_so_does_every_other_link():
    problem = many_layers(Affine(0.01, 0.1), limits=GroupLimits(max_groups=2))
    found = compare(problem, {"x 2": scaled(problem, 2.0, 1.0)})
    assert all(len(grouping.groups) <= 2 for grouping in found.groupings.values())
    assert found.sensitivities["x 2"].num_groups <= 2


def test_limits_that_nothing_can_keep_are_refused():
    limits = GroupLimits(max_elements=1, max_groups=1)
    with pytest.raises(InputError, match=r"^max_groups: found 1; allowed: at least 2"):
        compare(two_layers(LINE, limits=limits), {})


def test_a_number_of_groups_too_large_for_a_float_limits_nothing():
    limited = compare(two_layers(LINE, limits=GroupLimits(max_groups=10**400)), {})
    assert limited.groupings["exact"].groups == ((1,), (0,))
