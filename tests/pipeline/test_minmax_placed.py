"""Partitions of stages on the devices of nodes, against all partitions."""

import itertools
import math
import random
from itertools import pairwise

import numpy as np
import pytest

from autoplan.pipeline.minmax_placed import PlacedLoads, least_of_more_stages, min_max_placed


def partitions(layers, most):
    for stages in range(1, min(layers, most) + 1):
        for cuts in itertools.combinations(range(1, layers), stages - 1):
            yield (0, *cuts, layers)


def random_loads(rng, replicas, layers, devices):
    rows, cuts = len(replicas), layers + 1
    draw = np.random.default_rng(rng.randrange(2**32))
    alone_RCC = draw.uniform(0, 9, (rows, cuts, cuts))
    alone_RCC[draw.random((rows, cuts, cuts)) < 0.1] = math.inf
    size_C = draw.uniform(0, 3, cuts) * (draw.random(cuts) < 0.7)
    size_C[[0, -1]] = 0.0
    return PlacedLoads(
        replicas_R=tuple(replicas),
        alone_RCC=alone_RCC,
        link_2RCC=draw.uniform(0, 4, (2, rows, cuts, cuts)),
        size_C=size_C,
        messages=rng.choice([1.0, 8.0]),
        receive_2RD=draw.uniform(0, 1, (2, rows, devices)),
        send_2RD=draw.uniform(0, 1, (2, rows, devices)),
        spans_RD=draw.random((rows, devices)) < 0.5,
    )


def load_of(loads, row, first, start, end):
    """The load of one stage by its definition."""
    load = loads.alone_RCC[row, start, end]
    load += loads.link_2RCC[int(loads.spans_RD[row, first]), row, start, end]
    for rates_2RD, cut in ((loads.receive_2RD, start), (loads.send_2RD, end)):
        if loads.size_C[cut] > 0:
            message_s, s_per_byte = rates_2RD[:, row, first]
            load += loads.messages * message_s + s_per_byte * loads.size_C[cut]
    return load


@pytest.mark.parametrize("seed", range(40))
def test_stages_in_a_row_on_devices_are_placed_best(seed):
    rng = random.Random(seed)
    layers, devices = rng.randint(1, 5), rng.randint(1, 5)
    replicas = sorted(rng.sample(range(1, 5), rng.randint(1, 3)))
    loads = random_loads(rng, replicas, layers, devices)
    least = [math.inf] * (devices + 1)
    for bounds in partitions(layers, devices):
        for rows in itertools.product(range(len(replicas)), repeat=len(bounds) - 1):
            firsts = [0, *itertools.accumulate(replicas[row] for row in rows)]
            if firsts[-1] <= devices:
                stages = zip(rows, firsts, pairwise(bounds), strict=False)
                worst = max(load_of(loads, row, first, *cuts) for row, first, cuts in stages)
                least[firsts[-1]] = min(least[firsts[-1]], worst)
    found = min_max_placed(loads, devices)
    assert found.load_N.tolist() == pytest.approx(least, rel=1e-12)
    for used, load in enumerate(least):
        if math.isfinite(load):
            bounds, counts = found.partition(used)
            assert sum(counts) == used
            assert (bounds[0], bounds[-1]) == (0, layers)


@pytest.mark.parametrize("seed", range(40))
def test_more_stages_than_a_number_on_more_devices_than_stages(seed):
    rng = random.Random(seed)
    layers, devices, more_than = rng.randint(1, 6), rng.randint(1, 6), rng.randint(0, 3)
    replicas = tuple(sorted(rng.sample(range(1, 5), rng.randint(1, 3))))
    loads = random_loads(rng, replicas, layers, devices).alone_RCC
    least = math.inf
    for bounds in partitions(layers, devices):
        stages = len(bounds) - 1
        for rows in itertools.product(range(len(replicas)), repeat=stages):
            used = sum(replicas[row] for row in rows)
            if more_than < stages < used <= devices:
                ends = zip(rows, pairwise(bounds), strict=True)
                least = min(least, max(loads[row, i, j] for row, (i, j) in ends))
    assert least_of_more_stages(loads, replicas, devices, more_than) == least
