from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from autoplan.pipeline.unit_floor import UnitFloor
from autoplan.workload.stage_loads import Transfer


def least_of_all_sets(compute_s, tensors, unit):
    """The least load over all sets with the unit, one by one."""
    others = [other for other in range(len(compute_s)) if other != unit]
    loads = []
    for size in range(len(others) + 1):
        for more in combinations(others, size):
            members = {unit, *more}
            ends = [({t.producer, *t.consumers}, t.seconds) for t in tensors]
            sent = sum(seconds for e, seconds in ends if e & members and e - members)
            loads.append(sum(compute_s[list(members)]) + sent)
    return min(loads)


@pytest.mark.parametrize("seed", range(60))
def test_floor_is_the_least_load_of_all_sets_with_the_unit(seed):
    rng = np.random.default_rng(seed)
    num_units = int(rng.integers(1, 8))
    compute_s = rng.integers(0, 6, num_units).astype(np.float64)
    tensors = [
        Transfer(
            producer=int(rng.integers(num_units)),
            consumers=tuple(rng.integers(0, num_units, int(rng.integers(1, 4))).tolist()),
            seconds=float(rng.integers(0, 7)),
        )
        for _ in range(int(rng.integers(0, 10)))
    ]
    floors = UnitFloor(compute_s, tensors)
    for unit in range(num_units):
        expected = least_of_all_sets(compute_s, tensors, unit)
        assert floors.least_s(unit) == pytest.approx(expected, rel=1e-9)


def test_unit_pays_for_its_tensor_or_for_the_unit_at_its_other_end():
    tensor = Transfer(producer=0, consumers=(1,), seconds=5.0)
    assert UnitFloor(np.array([2.0, 3.0]), [tensor]).least_s(0) == pytest.approx(5.0)
    assert UnitFloor(np.array([2.0, 9.0]), [tensor]).least_s(0) == pytest.approx(7.0)
