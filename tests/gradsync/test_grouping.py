from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import InputError
from autoplan.gradsync import POLICIES, GroupingProblem, finish_s, group
from autoplan.gradsync.grouping import Threshold, policy_named

seconds = st.floats(0, 5, allow_subnormal=False)
elements = st.one_of(st.just(0), st.integers(1, 40))


@st.composite
def costs(draw):
    """Affine, concave, or of no order at all."""
    alpha, beta = draw(st.floats(0, 3)), draw(st.floats(0, 0.2))
    table = draw(st.lists(st.floats(0, 6), min_size=7, max_size=7))
    return draw(
        st.sampled_from(
            [
                lambda x: alpha + beta * x,
                lambda x: alpha + beta * math.sqrt(x),
                lambda x: table[int(x) % 7],
            ]
        )
    )


@st.composite
def problems(draw, sparse):
    layers = draw(st.integers(1, 8))
    return {
        "backward_s": draw(st.lists(seconds, min_size=layers, max_size=layers)),
        "elements": draw(st.lists(elements, min_size=layers, max_size=layers)),
        "communicate": draw(costs()),
        "sparsify": draw(costs()) if sparse else None,
    }


def every_grouping(layers):
    """All 2^(L-1) ways to cut the layers, in backward order."""
    for count in range(layers):
        for cuts in combinations(range(1, layers), count):
            edges = [0, *cuts, layers]
            yield tuple(tuple(layers - 1 - i for i in range(*span)) for span in pairwise(edges))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_exact_equals_brute_force(sparse):
    @given(problems(sparse))
    def check(problem):
        found = group(**problem)
        whole = GroupingProblem(**problem)
        least = min(finish_s(whole, each) for each in every_grouping(whole.num_layers))
        assert found.groups in set(every_grouping(whole.num_layers))
        assert found.finish_s == finish_s(whole, found.groups)
        assert found.finish_s == pytest.approx(least, rel=1e-12, abs=1e-12)

    check()


def test_exact_beats_the_greedy_on_its_counter_example():
    # facts/mgs.md 1.6: gradients ready at 0, .9 and 1.8 in backward order; greedy merges all.
    found = group([0.9, 0.9, 0.0], [0.5] * 3, communicate=lambda x: 1 + x)
    assert found.groups == ((2,), (1, 0))
    assert found.finish_s == pytest.approx(3.8, rel=1e-12)
    merged = group([0.9, 0.9, 0.0], [0.5] * 3, communicate=lambda x: 1 + x, policy="single")
    assert merged.finish_s == pytest.approx(4.3, rel=1e-12)


def test_timing_of_sparse_groups_by_hand():
    problem = GroupingProblem(
        backward_s=[4.0, 2.0, 1.0],
        elements=[3, 5, 2],
        communicate=lambda x: 1.0 + x,
        sparsify=lambda x: 0.5 * x,
    )
    # Backward 2 ends at 1, its top-k at 2; sent from 2 to 5.
    # Backward 1 and 0 end at 8, their top-k of 8 elements at 12; sent from 12 to 21.
    assert finish_s(problem, ((2,), (1, 0))) == 21.0
    # Alone: 1 is ready at 2 + 2 + 2.5 = 6.5, sent to 12.5; 0 at 6.5 + 4 + 1.5 = 12, sent from
    # 12.5 to 16.5.
    assert finish_s(problem, ((2,), (1,), (0,))) == 16.5


def resnet18_tensors():
    """Elements of the parameters of torchvision's resnet18, in the order of its modules."""
    tensors = [64 * 3 * 49, 64, 64]
    width = 64
    for planes in (64, 128, 256, 512):
        for _ in range(2):
            tensors += [planes * width * 9, planes, planes, planes * planes * 9, planes, planes]
            if width != planes:
                tensors += [planes * width, planes, planes]
            width = planes
    return [*tensors, 512 * 1000, 1000]


def test_threshold_makes_the_buckets_that_pytorch_ddp_makes_of_resnet18():
    tensors = resnet18_tensors()
    assert sum(tensors) == 11_689_512
    found = group([1.0] * len(tensors), tensors, communicate=lambda x: x, policy="threshold").groups
    # pytorch issue 48880, facts/mgs.md section 5.
    sizes = [4 * sum(tensors[i] for i in bucket) for bucket in found]
    assert sizes == [2_052_000, 28_852_224, 15_853_824]


def test_threshold_closes_once_full_and_starts_with_a_smaller_cap():
    policy = Threshold(cap_elements=10, first_cap_elements=4)
    elements = [1, 9, 2, 7, 3, 3, 1]
    found = group([0.0] * 7, elements, communicate=lambda x: x, policy=policy).groups
    # Backwards 1 + 3 = 4 closes the first; 3 + 7 = 10 the second; 2 + 9 = 11 the third.
    assert found == ((6, 5), (4, 3), (2, 1), (0,))
    capped = policy_named("threshold", cap_bytes=40, bytes_per_element=4)
    assert capped == Threshold(10, 10)
    assert policy_named("threshold", bytes_per_element=2) == Threshold(25 * 2**19, 2**19)


@given(problems(sparse=False), st.sampled_from(POLICIES))
def test_policies_cover_all_layers_in_backward_order_and_exact_is_never_slower(problem, policy):
    found = group(**problem, policy=policy)
    order = [layer for each in found.groups for layer in each]
    assert order == list(range(len(problem["elements"])))[::-1]
    assert all(found.groups)
    assert group(**problem, policy="exact").finish_s <= found.finish_s * (1 + 1e-12)


@given(problems(sparse=True), st.sampled_from(POLICIES))
def test_exact_is_never_slower_than_a_policy_where_groups_are_sparsified(problem, policy):
    found = group(**problem, policy=policy)
    assert group(**problem, policy="exact").finish_s <= found.finish_s * (1 + 1e-12)


def test_layerwise_and_single():
    arguments = {"backward_s": [1.0] * 3, "elements": [1] * 3, "communicate": lambda x: x}
    assert group(**arguments, policy="layerwise").groups == ((2,), (1,), (0,))
    assert group(**arguments, policy="single").groups == ((2, 1, 0),)


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_without_elements_cost_no_exchange(policy):
    arguments = {"communicate": lambda x: 100.0 + x, "sparsify": lambda x: 50.0}
    found = group([1.0, 2.0, 3.0], [0, 0, 0], **arguments, policy=policy)
    assert found.finish_s == 6.0
    found = group([1.0, 2.0, 3.0], [0, 5, 0], **arguments, policy="layerwise")
    # 3 + 2 of backward, top-k, the exchange of 5 elements; the last backward lies beside it.
    assert found.finish_s == 3.0 + 2.0 + 50.0 + 105.0


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
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, field):
    sound = {"backward_s": [1.0, 1.0], "elements": [1, 1], "communicate": lambda x: x}
    with pytest.raises(InputError, match=f"^{field}: found"):
        group(**(sound | arguments))


def test_cap_that_is_not_positive_is_refused():
    with pytest.raises(InputError, match=r"^cap_bytes: found 0"):
        policy_named("threshold", cap_bytes=0)


@pytest.mark.parametrize("groups", [((0,), (1,)), ((1,),), ((1, 0), (0,)), ()])
def test_groups_that_are_not_all_layers_in_backward_order_are_refused(groups):
    problem = GroupingProblem(backward_s=[1.0, 1.0], elements=[1, 1], communicate=lambda x: x)
    with pytest.raises(InputError, match=r"^groups: found"):
        finish_s(problem, groups)
