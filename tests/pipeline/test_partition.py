from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import InputError
from autoplan.pipeline.bounds import prefix
from autoplan.pipeline.partition import _tried, balanced_bounds, uniform_bounds

loads = st.lists(st.floats(0, 9, allow_subnormal=False), min_size=1, max_size=8)


def worst_load(bounds, load_s, replicas, cut_s):
    """The largest stage load; the model's input and output cost nothing."""
    crossing = [0.0, *cut_s[1:-1], 0.0]
    return max(
        sum(load_s[first:end]) / count + crossing[first] + crossing[end]
        for (first, end), count in zip(pairwise(bounds), replicas, strict=True)
    )


@settings(deadline=None)  # the first example compiles
@given(loads, st.data())
def test_balanced_equals_brute_force_with_replicas_and_cut_costs(load_s, data):
    layers = len(load_s)
    stages = data.draw(st.integers(1, layers))
    replicas = data.draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
    cuts = st.lists(st.floats(0, 5), min_size=layers + 1, max_size=layers + 1)
    cut_s = data.draw(st.one_of(st.none(), cuts))
    bounds, load = balanced_bounds(
        np.array(load_s), replicas, None if cut_s is None else np.array(cut_s)
    )
    cut_s = cut_s or [0.0] * (layers + 1)
    every = [(0, *cuts, layers) for cuts in combinations(range(1, layers), stages - 1)]
    least = min(worst_load(each, load_s, replicas, cut_s) for each in every)
    assert bounds in every
    assert load == pytest.approx(least, rel=1e-12, abs=1e-12)
    assert worst_load(bounds, load_s, replicas, cut_s) == pytest.approx(load, abs=1e-12)


@settings(deadline=None)
@given(loads, st.data())
def test_partitions_of_long_chains_are_as_balanced(load_s, data):
    layers = len(load_s)
    stages = data.draw(st.integers(1, layers))
    replicas = data.draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
    cut_s = data.draw(st.lists(st.floats(0, 5), min_size=layers + 1, max_size=layers + 1))
    crossing = np.array([0.0, *cut_s[1:-1], 0.0])
    bounds, load = _tried(prefix(np.array(load_s)), crossing, np.array(replicas, dtype=float))
    _, least = balanced_bounds(np.array(load_s), replicas, np.array(cut_s))
    assert (bounds[0], bounds[-1], len(bounds)) == (0, layers, stages + 1)
    assert all(first < end for first, end in pairwise(bounds))
    assert least - 1e-9 <= load <= least * (1 + 1e-6) + 1e-9
    assert worst_load(bounds, load_s, replicas, cut_s) == pytest.approx(load, abs=1e-9)


def test_a_chain_of_ten_thousand_layers_is_cut_into_four_thousand_stages_at_once():
    load_s_L = np.random.default_rng(1).lognormal(0.0, 0.4, 10_000)
    bounds, load = balanced_bounds(load_s_L, [1] * 4096, np.full(10_001, 0.01))
    assert len(bounds) == 4097
    assert load_s_L.max() <= load <= 2 * load_s_L.max()


def test_balanced_leaves_its_arguments_alone():
    cut_s = np.array([9.0, 1.0, 9.0])
    balanced_bounds(np.array([1.0, 1.0]), [1, 1], cut_s)
    assert cut_s.tolist() == [9.0, 1.0, 9.0]


@given(st.integers(1, 60), st.data())
def test_uniform_covers_all_layers_in_sizes_that_differ_by_one_at_most(layers, data):
    stages = data.draw(st.integers(1, layers))
    bounds = uniform_bounds(layers, stages)
    sizes = [end - first for first, end in pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(sizes)) == (0, layers, stages)
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


@pytest.mark.parametrize("stages", [0, 4])
def test_no_stages_or_more_than_layers_are_refused(stages):
    with pytest.raises(InputError, match=f"^stages: found {stages}; allowed: 1 to 3"):
        uniform_bounds(3, stages)
    with pytest.raises(InputError, match=f"^stages: found {stages}; allowed: 1 to 3"):
        balanced_bounds(np.ones(3), [1] * stages)
