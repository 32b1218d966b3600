"""Small random problems, and every way to group them, for the tests of this package."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

from hypothesis import settings
from hypothesis import strategies as st

from autoplan.gradsync import GroupCost, GroupingProblem, GroupLimits

patient = settings(deadline=None)
"""The first call of a kernel compiles it, or loads it from its cache."""

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
def figures(draw, sparse):
    """Arguments of `group`."""
    layers = draw(st.integers(1, 8))
    return {
        "backward_s": draw(st.lists(seconds, min_size=layers, max_size=layers)),
        "elements": draw(st.lists(elements, min_size=layers, max_size=layers)),
        "communicate": draw(costs()),
        "sparsify": draw(costs()) if sparse else None,
    }


@st.composite
def limits(draw):
    """Limits on anything, often more than one."""
    most = draw(st.one_of(st.just(math.inf), st.integers(1, 120)))
    return GroupLimits(
        max_elements=most,
        min_elements=draw(st.one_of(st.just(0), st.integers(0, int(min(most, 60))))),
        max_groups=draw(st.one_of(st.none(), st.integers(1, 6))),
        max_memory_bytes=draw(st.one_of(st.just(math.inf), st.integers(0, 1500))),
    )


@st.composite
def problems(draw, limited=True):
    """Dense or sparse, with or without limits, of one kind."""
    drawn = draw(st.one_of(figures(False), figures(True)))
    sparse = drawn["sparsify"] is not None
    cost = GroupCost(
        communicate=drawn["communicate"],
        sparsify=drawn["sparsify"],
        density=0.01 if sparse else 1.0,
    )
    return GroupingProblem(
        backward_s=drawn["backward_s"],
        elements=drawn["elements"],
        costs=(cost,),
        limits=draw(limits()) if limited else GroupLimits(),
    )


def every_grouping(layers):
    """All 2^(L-1) ways to cut the layers, in backward order."""
    for count in range(layers):
        for cuts in combinations(range(1, layers), count):
            edges = [0, *cuts, layers]
            yield tuple(tuple(layers - 1 - i for i in range(*span)) for span in pairwise(edges))


def within_limits(problem, groups):
    """Whether groups keep every limit; the last may be small."""
    limits = problem.limits
    sizes = [problem.group_elements(group) for group in groups]
    memory = sum(
        min(problem.memory_bytes(group, choice) for choice in range(len(problem.costs)))
        for group in groups
    )
    return (
        all(
            size <= limits.max_elements or len(group) == 1
            for size, group in zip(sizes, groups, strict=True)
        )
        and all(size >= limits.min_elements for size in sizes[:-1])
        and (limits.max_groups is None or len(groups) <= limits.max_groups)
        and memory <= limits.max_memory_bytes
    )


def feasible_groupings(problem):
    """Every contiguous grouping within the limits."""
    return [each for each in every_grouping(problem.num_layers) if within_limits(problem, each)]
