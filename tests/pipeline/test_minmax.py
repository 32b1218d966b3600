from __future__ import annotations

import time
from itertools import combinations, pairwise

import numpy as np
import pytest

from autoplan.errors import InputError
from autoplan.pipeline.minmax import min_max_partition, min_max_partition_plain
from autoplan.pipeline.partition import balanced_bounds

SOLVERS = [min_max_partition, min_max_partition_plain]


def partitions(layers, stages):
    return [(0, *cuts, layers) for cuts in combinations(range(1, layers), stages - 1)]


def worst(load_CC, bounds):
    return max(load_CC[i, j] for i, j in pairwise(bounds))


def random_loads(rng, layers):
    """Loads without any order among them; what must not be read is not a number."""
    cuts = layers + 1
    load_CC = rng.choice(
        [
            rng.random((cuts, cuts)),
            rng.integers(0, 4, (cuts, cuts)).astype(float),
            rng.normal(size=(cuts, cuts)),
            np.where(rng.random((cuts, cuts)) < 0.4, np.inf, rng.random((cuts, cuts))),
        ]
    )
    load_CC[np.tril_indices(cuts)] = np.nan
    return load_CC


@pytest.mark.parametrize("seed", range(400))
def test_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(1, 9))
    load_CC = random_loads(rng, layers)
    stages = int(rng.integers(1, layers + 1))
    every = [
        min(worst(load_CC, bounds) for bounds in partitions(layers, count))
        for count in range(1, stages + 1)
    ]
    for exactly, least in ((True, every[-1]), (False, min(every))):
        bounds, load = min_max_partition(load_CC, stages, exactly=exactly)
        used = stages if exactly else 1 + every.index(least)
        assert load == least
        assert bounds in partitions(layers, used)
        assert worst(load_CC, bounds) == least
        assert (bounds, load) == min_max_partition_plain(load_CC, stages, exactly=exactly)


@pytest.mark.parametrize("seed", range(10))
def test_equals_the_partition_of_sums_and_cuts(seed):
    rng = np.random.default_rng(seed)
    load_s_L, cut_s_C = rng.random(40), rng.random(41)
    cut_s_C[[0, -1]] = 0
    prefix = np.concatenate(([0.0], np.cumsum(load_s_L)))
    load_CC = prefix - prefix[:, None] + cut_s_C + cut_s_C[:, None]
    _, load = min_max_partition(load_CC, 5, exactly=True)
    assert load == pytest.approx(balanced_bounds(load_s_L, [1] * 5, cut_s_C)[1])


@pytest.mark.parametrize("solve", SOLVERS)
def test_leaves_devices_idle_where_another_cut_costs_more_than_it_saves(solve):
    load_CC = np.array([[0, 5, 3, 4], [0, 0, 5, 5], [0, 0, 0, 3], [0, 0, 0, 0]], dtype=float)
    assert solve(load_CC, 3, exactly=True) == ((0, 1, 2, 3), 5)
    assert solve(load_CC, 3, exactly=False) == ((0, 2, 3), 3)
    assert solve(load_CC, 99, exactly=False) == ((0, 2, 3), 3)
    assert solve(load_CC, 1, exactly=False) == ((0, 3), 4)


@pytest.mark.parametrize("solve", SOLVERS)
def test_a_load_is_infinite_where_no_partition_is_allowed(solve):
    bounds, load = solve(np.full((5, 5), np.inf), 3, exactly=True)
    assert load == np.inf
    assert bounds in partitions(4, 3)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(
    ("loads", "stages", "exactly", "message"),
    [
        (np.zeros((4, 4)), 0, True, "stages: found 0; allowed: 1 to 3, the number of layers"),
        (np.zeros((4, 4)), 4, True, "stages: found 4; allowed: 1 to 3, the number of layers"),
        (np.zeros((4, 4)), 0, False, "stages: found 0; allowed: at least 1"),
        (np.zeros((4, 3)), 1, True, r"loads: found an array of shape \(4, 3\); allowed: a square"),
        (np.zeros(4), 1, True, r"loads: found an array of shape \(4,\); allowed: a square"),
        (np.zeros((1, 1)), 1, False, r"loads: found an array of shape \(1, 1\); allowed: a square"),
        (np.full((3, 3), np.nan), 1, True, r"load of stage \[0, 1\): found nan; allowed: a number"),
        (np.full((3, 3), -np.inf), 1, True, r"load of stage \[0, 1\): found -inf; allowed: a num"),
    ],
)
def test_bad_input_is_refused(solve, loads, stages, exactly, message):
    with pytest.raises(InputError, match=f"^{message}"):
        solve(loads, stages, exactly=exactly)


def test_two_thousand_layers_take_less_than_a_second():
    load_CC = np.random.default_rng(0).random((2013, 2013))
    min_max_partition(load_CC[:3, :3], 2, exactly=True)
    start_s = time.process_time()
    bounds, load = min_max_partition(load_CC, 16, exactly=True)
    assert time.process_time() - start_s < 1
    assert len(bounds) == 17
    assert worst(load_CC, bounds) == load
