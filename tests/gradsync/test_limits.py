from __future__ import annotations

import pytest
from gradsync.random_problems import feasible_groupings, patient, problems, within_limits
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import InputError
from autoplan.gradsync import GroupCost, GroupingProblem, GroupLimits
from autoplan.gradsync.policies import keep_limits


def dense(elements, *, kinds=None, **limits):
    return GroupingProblem(
        backward_s=[1.0] * len(elements),
        elements=elements,
        costs=(GroupCost(communicate=lambda x: x),),
        limits=GroupLimits(**limits),
        kinds=kinds,
    )


def ends_of(groups):
    ends, done = [], 0
    for each in groups:
        done += len(each)
        ends.append(done)
    return ends


def changed_cuts(groups, others):
    return len(set(ends_of(groups)) ^ set(ends_of(others)))


@patient
@given(problems(), st.data())
def test_result_keeps_all_limits_or_none_can(problem, data):
    layers = problem.num_layers
    cuts = data.draw(st.sets(st.integers(1, layers - 1)) if layers > 1 else st.just(set()))
    groups = problem.groups([*sorted(cuts), layers])
    feasible = feasible_groupings(problem)
    if not feasible:
        with pytest.raises(InputError, match=r"^(min_elements|max_groups|max_memory_bytes): found"):
            keep_limits(problem, groups)
        return
    found = keep_limits(problem, groups)
    assert found in feasible
    assert keep_limits(problem, groups) == found
    full = [
        each for each in feasible if problem.group_elements(each[-1]) >= problem.limits.min_elements
    ]
    if problem.limits.max_memory_bytes > 1e9:
        assert not full or found in full
        nearest = min(changed_cuts(groups, each) for each in full or feasible)
        assert changed_cuts(groups, found) == nearest


def test_groups_within_the_limits_are_left_alone():
    problem = dense([1, 2, 3, 4], max_elements=4, min_elements=3, max_groups=3)
    groups = ((3,), (2,), (1, 0))
    assert keep_limits(problem, groups) is groups


@pytest.mark.parametrize(
    ("elements", "ends", "limits", "expected"),
    [
        # A group that is too large is cut evenly, and only as often as needed.
        ([1] * 8, [8], {"max_elements": 4}, [4, 8]),
        ([1] * 9, [9], {"max_elements": 4}, [3, 6, 9]),
        # A layer beyond the limit goes alone.
        ([1, 9, 1], [3], {"max_elements": 4}, [1, 2, 3]),
        # A small last group joins the one before, unless that is full.
        ([1, 4, 4], [1, 2, 3], {"min_elements": 3}, [1, 3]),
        ([1, 4, 4], [1, 2, 3], {"min_elements": 3, "max_elements": 4}, [1, 2, 3]),
        # Layers are merged evenly into few groups.
        ([1] * 8, [1, 2, 3, 4, 5, 6, 7, 8], {"max_groups": 2}, [4, 8]),
        # Fused buffers are given up for memory, the smallest number of cuts at a time.
        ([5, 1, 1, 5], [4], {"max_memory_bytes": 28}, [3, 4]),
        ([5, 1, 1, 5], [4], {"max_memory_bytes": 8}, [1, 3, 4]),
        ([5, 1, 1, 5], [4], {"max_memory_bytes": 0}, [1, 2, 3, 4]),
    ],
)
def test_limits_by_hand(elements, ends, limits, expected):
    problem = dense(elements, **limits)
    found = keep_limits(problem, problem.groups(ends))
    assert ends_of(found) == expected


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_groups": 2, "max_elements": 4}, "^max_groups: found 2; allowed: at least 3"),
        ({"min_elements": 4, "max_elements": 4}, r"^min_elements: found 4; allowed: .* at most 4"),
        (
            {"max_groups": 2, "max_memory_bytes": 20},
            "^max_memory_bytes: found 20; allowed: at least 24 bytes",
        ),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits, message):
    problem = dense([3, 3, 3], **limits)
    with pytest.raises(InputError, match=message):
        keep_limits(problem, problem.groups([3]))


def test_residuals_count_as_memory_unless_a_group_may_be_dense():
    sparse = GroupCost(communicate=lambda x: x, sparsify=lambda x: x, density=0.01)
    plain = GroupCost(communicate=lambda x: x)
    limits = GroupLimits(max_memory_bytes=15)
    figures = {"backward_s": [1.0] * 2, "elements": [2, 2], "limits": limits}
    with pytest.raises(InputError, match="at least 16 bytes"):
        keep_limits(problem := GroupingProblem(costs=(sparse,), **figures), problem.groups([2]))
    problem = GroupingProblem(costs=(sparse, plain), **figures)
    assert keep_limits(problem, problem.groups([2])) == ((1,), (0,))


def test_groups_of_several_kinds_stay_within_their_kind():
    problem = dense([2, 3, 2, 3, 2, 0], kinds=["a", "b", "a", "b", "a", "a"], max_elements=4)
    # Layer 5 has no gradients and goes with layer 4.
    found = keep_limits(problem, ((5, 4, 2, 0), (3, 1)), kinds_apart=True)
    assert all(len({problem.kinds[layer] for layer in group}) == 1 for group in found)
    assert within_limits(problem, found)
    assert [min(group) for group in found] == sorted((min(g) for g in found), reverse=True)
    assert sorted(layer for group in found for layer in group) == list(range(6))
    limited = dense([1] * 4, kinds=["a", "b"] * 2, max_groups=1)
    with pytest.raises(InputError, match=r"^max_groups: found 1; allowed: at least 2"):
        keep_limits(limited, ((3, 1), (2, 0)), kinds_apart=True)


@pytest.mark.parametrize("groups", [((3, 0), (2, 1)), ((3, 2), (1,)), ((3, 1), (), (2, 0))])
def test_groups_that_are_not_contiguous_are_refused_where_they_must_change(groups):
    with pytest.raises(InputError, match=r"^groups: found"):
        keep_limits(dense([1] * 4, kinds=["a", "b"] * 2, max_elements=1), groups, kinds_apart=True)
