"""Partitions over stages that differ, against all partitions."""

import itertools
import math
import random
from itertools import pairwise

import numpy as np
import pytest

from autoplan.errors import InputError
from autoplan.pipeline.minmax_stages import min_max_cuts, min_max_shared_out


def random_loads(rng, kinds, layers):
    """Any loads, some stages not allowed."""
    cells = [rng.choice([math.inf, rng.randint(0, 9), rng.random()]) for _ in range(kinds * layers)]
    shape = (kinds, layers + 1, layers + 1)
    return np.array([rng.choice(cells) for _ in range(math.prod(shape))]).reshape(shape)


def partitions(layers, stages):
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield (0, *cuts, layers)


@pytest.mark.parametrize("seed", range(60))
def test_layers_and_devices_are_shared_out_best(seed):
    rng = random.Random(seed)
    layers, devices = rng.randint(1, 6), rng.randint(1, 5)
    replicas = sorted(rng.sample(range(1, 6), rng.randint(1, 3)))
    loads = random_loads(rng, len(replicas), layers)
    least = [math.inf] * (devices + 1)
    for stages in range(1, min(layers, devices) + 1):
        for bounds in partitions(layers, stages):
            for rows in itertools.product(range(len(replicas)), repeat=stages):
                used = sum(replicas[row] for row in rows)
                if used <= devices:
                    ends = zip(rows, pairwise(bounds), strict=True)
                    least[used] = min(least[used], max(loads[r, i, j] for r, (i, j) in ends))
    found = min_max_shared_out(loads, replicas, devices)
    assert found.load_N.tolist() == least
    for used, load in enumerate(least):
        if math.isfinite(load):
            bounds, counts = found.partition(used)
            assert sum(counts) == used
            rows = [replicas.index(count) for count in counts]
            ends = zip(rows, pairwise(bounds), strict=True)
            assert max(loads[r, i, j] for r, (i, j) in ends) == load
            assert (bounds[0], bounds[-1]) == (0, layers)


@pytest.mark.parametrize("seed", range(60))
def test_a_row_of_stages_is_cut_best(seed):
    rng = random.Random(seed)
    layers = rng.randint(1, 7)
    stages = rng.randint(1, layers)
    loads = random_loads(rng, stages, layers)

    def worst(bounds):
        return max(loads[s, i, j] for s, (i, j) in enumerate(pairwise(bounds)))

    bounds, load = min_max_cuts(iter(loads))
    assert load == min(map(worst, partitions(layers, stages)))
    assert worst(bounds) == load
    assert bounds in set(partitions(layers, stages))


def test_loads_of_another_shape_are_refused():
    with pytest.raises(InputError, match="loads"):
        min_max_cuts([np.zeros((2, 3))])
    with pytest.raises(InputError, match="stages: found 2"):
        min_max_cuts([np.zeros((2, 2))] * 2)
    with pytest.raises(InputError, match="loads"):
        min_max_shared_out(np.zeros((2, 2)), [1, 2], 4)
    with pytest.raises(InputError, match="replicas"):
        min_max_shared_out(np.zeros((1, 2, 2)), [1, 2], 4)
