from __future__ import annotations

import math

import pytest
from gradsync.random_problems import every_grouping, patient, problems
from hypothesis import given

from autoplan.errors import InputError
from autoplan.gradsync import GroupCost, GroupingProblem, time_groups

SPARSE = GroupCost(communicate=lambda x: 1.0 + x, sparsify=lambda x: 0.5 * x, density=0.01)
DENSE = GroupCost(communicate=lambda x: 2.0 * x)


def three_layers(*costs):
    return GroupingProblem(backward_s=[4.0, 2.0, 1.0], elements=[3, 5, 2], costs=costs)


def test_sparse_groups_by_hand():
    # Backward 2 ends at 1, its top-k at 2; sent from 2 to 5.
    # Backward 1 and 0 end at 8, their top-k of 8 elements at 12; sent from 12 to 21.
    found = time_groups(three_layers(SPARSE), ((2,), (1, 0)))
    assert found.spans == ((2.0, 5.0), (12.0, 21.0))
    assert (found.finish_s, found.compute_s, found.exposed_s) == (21.0, 12.0, 9.0)
    assert (found.sparsify_s, found.communicate_s) == (5.0, 12.0)
    # Alone: 1 is ready at 2 + 2 + 2.5 = 6.5, sent to 12.5; 0 at 6.5 + 4 + 1.5 = 12, sent from
    # 12.5 to 16.5.
    assert time_groups(three_layers(SPARSE), ((2,), (1,), (0,))).finish_s == 16.5


def test_each_group_takes_the_cost_chosen_for_it():
    # Dense 2: ready at 1, sent to 5. Sparse {1, 0}: backward ends at 7, top-k at 11, sent to 20.
    found = time_groups(three_layers(SPARSE, DENSE), ((2,), (1, 0)), (1, 0))
    assert found.spans == ((1.0, 5.0), (11.0, 20.0))
    # The other way round: 2 as above; {1, 0} ready at 2 + 6 = 8, sent to 24.
    assert time_groups(three_layers(SPARSE, DENSE), ((2,), (1, 0)), (0, 1)).finish_s == 24.0


def test_what_an_exchange_takes_from_compute_delays_the_groups_after_it():
    handled = GroupCost(communicate=lambda x: 2.0 * x, handling=lambda x: 0.25 * x)
    # 2 is ready at 1 and sent to 5, and takes 0.5 of the backward of 1, which ends at 3.5 instead
    # of 3: sent from 5 to 15. It takes 1.25 of the backward of 0, which ends at 8.75: to 21.
    found = time_groups(three_layers(handled), ((2,), (1,), (0,)))
    assert found.spans == ((1.0, 5.0), (5.0, 15.0), (15.0, 21.0))
    assert (found.compute_s, found.handling_s, found.sparsify_s) == (8.75, 1.75, 0.0)
    assert time_groups(three_layers(handled), ((2, 1, 0),)).handling_s == 0


def test_groups_that_are_not_contiguous_wait_for_their_last_layer_and_their_turn():
    # {2, 0} is complete at 7 and sent to 17; {1} was ready at 3 but comes after it.
    found = time_groups(three_layers(DENSE), ((2, 0), (1,)))
    assert found.spans == ((7.0, 17.0), (17.0, 27.0))
    assert time_groups(three_layers(DENSE), ((1,), (2, 0))).spans == ((3.0, 13.0), (13.0, 23.0))


def test_compute_may_end_last():
    problem = GroupingProblem(backward_s=[9.0, 1.0], elements=[0, 1], costs=(DENSE,))
    found = time_groups(problem, ((1,), (0,)))
    # The group without elements takes no time on the link, however late it is complete.
    assert found.spans == ((1.0, 3.0), (3.0, 3.0))
    assert (found.finish_s, found.exposed_s) == (10.0, 0.0)


@patient
@given(problems(limited=False))
def test_nothing_ends_before_compute_and_link_have_done_their_work(problem):
    for groups in every_grouping(problem.num_layers):
        found = time_groups(problem, groups)
        assert found.compute_s == pytest.approx(sum(problem.backward_s) + found.sparsify_s)
        assert found.finish_s >= max(found.compute_s, found.communicate_s) * (1 - 1e-12)
        assert all(start <= end for start, end in found.spans)
        ends = [0.0, *(end for _, end in found.spans)]
        assert all(start >= end for (start, _), end in zip(found.spans, ends, strict=False))


@pytest.mark.parametrize("groups", [((0,), (1,)), ((2, 1),), ((2, 1), (1, 0)), ()])
def test_groups_that_do_not_hold_every_layer_once_are_refused(groups):
    with pytest.raises(InputError, match=r"^groups: found"):
        time_groups(three_layers(DENSE), groups)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_costs_that_are_no_seconds_are_refused(seconds):
    bad = GroupCost(communicate=lambda x: seconds)
    with pytest.raises(InputError, match=r"^communicate\(10\): found"):
        time_groups(three_layers(bad), ((2, 1, 0),))
    bad = GroupCost(communicate=lambda x: 1.0, sparsify=lambda x: seconds)
    with pytest.raises(InputError, match=r"^sparsify\(2\): found"):
        time_groups(three_layers(bad), ((2,), (1, 0)))
