from __future__ import annotations

import numpy as np
import pytest

from autoplan.errors import InputError
from autoplan.pipeline.ideal_oracle import best_load_plain
from autoplan.pipeline.ideal_stages import StageRules, Units, best_grouped_stages, best_stages
from autoplan.pipeline.ideals import Precedence
from autoplan.pipeline.minmax import min_max_partition
from autoplan.workload.stage_loads import Transfer, loads_of


def random_precedence(rng, num_units):
    """Edges in a random order of the units, each with the same chance."""
    order = rng.permutation(num_units).tolist()
    pairs = [(order[i], order[j]) for i in range(num_units) for j in range(i + 1, num_units)]
    chosen = tuple(pair for pair in pairs if rng.random() < 0.4)
    return Precedence(num_units=num_units, edges=chosen)


def random_tensors(rng, precedence):
    """One for each unit that others wait for, and some backward."""
    tensors = []
    for unit in range(precedence.num_units):
        readers = tuple(target for source, target in precedence.edges if source == unit)
        seconds = float(rng.integers(0, 5))
        if readers:
            tensors.append(Transfer(producer=unit, consumers=readers, seconds=seconds))
            tensors.append(Transfer(producer=readers[0], consumers=(unit,), seconds=seconds / 2))
    return tuple(tensors)


def whole_numbers(rng, num_units, most):
    """Whole numbers, so that sums are exact."""
    return rng.integers(0, most + 1, num_units).astype(np.float64)


def crossing_by_size(ideals):
    """Any time will do that belongs to the ideal."""
    members = ideals.member_table(8).sum(axis=1)
    return np.where((members > 0) & (members < members.max()), 3.0 + members % 3, 0.0)


def random_units(rng, num_units):
    precedence = random_precedence(rng, num_units)
    return Units(
        precedence=precedence,
        compute_s_N=whole_numbers(rng, num_units, 9),
        tensors=random_tensors(rng, precedence),
        host_s_N=whole_numbers(rng, num_units, 30),
        parameter_bytes_N=whole_numbers(rng, num_units, 4),
        fixed_bytes_N=whole_numbers(rng, num_units, 6),
        held_bytes_N=whole_numbers(rng, num_units, 3),
        recompute_s_N=whole_numbers(rng, num_units, 5),
        saved_fixed_bytes_N=rng.integers(-2, 3, num_units).astype(np.float64),
        saved_held_bytes_N=whole_numbers(rng, num_units, 2),
    )


def random_rules(rng):
    devices = int(rng.integers(1, 5))
    several = bool(rng.integers(2))
    later = bool(rng.integers(2))
    return StageRules(
        devices=devices,
        hosts=int(rng.integers(2)),
        replicas=(1, 2, 3) if several else (1,),
        gradient_s_per_byte=(0.0, 0.25, 0.5) if several else (0.0,),
        first_gradient_s_per_byte=(0.0, 0.125, 0.25) if several else None,
        limit_bytes=float(rng.choice([12.0, 25.0, 1e9])),
        held=(lambda used, each: -(-(devices - used) // each))
        if later
        else (lambda used, each: -(-used // each)),
    )


@pytest.mark.parametrize("seed", range(120))
def test_load_is_the_least_of_all_chains_and_placements(seed):
    rng = np.random.default_rng(seed)
    units, rules = random_units(rng, int(rng.integers(2, 7))), random_rules(rng)
    crossing = crossing_by_size if seed % 2 else None
    found = best_stages(units, rules, crossing=crossing)
    assert found.load_s == pytest.approx(
        best_load_plain(units, rules, crossing=crossing), rel=1e-12
    )
    assert found.proven


@pytest.mark.parametrize("seed", range(30))
def test_stages_cover_the_units_follow_the_edges_and_keep_to_the_devices(seed):
    rng = np.random.default_rng(seed)
    units, rules = random_units(rng, 6), random_rules(rng)
    stages = best_stages(units, rules).stages
    stage_of = {unit: number for number, stage in enumerate(stages) for unit in stage.units}
    if not stages:
        assert best_load_plain(units, rules) == np.inf
        return
    assert sorted(unit for stage in stages for unit in stage.units) == list(range(6))
    assert all(stage_of[source] <= stage_of[target] for source, target in units.precedence.edges)
    assert sum(stage.replicas for stage in stages) <= rules.devices
    assert sum(stage.replicas == 0 for stage in stages) <= rules.hosts


@pytest.mark.parametrize("seed", range(20))
def test_in_a_line_it_is_the_partition_of_the_linear_order(seed):
    rng = np.random.default_rng(seed)
    line = Precedence(num_units=9, edges=tuple((i, i + 1) for i in range(8)))
    compute = whole_numbers(rng, 9, 9)
    tensors = random_tensors(rng, line)
    units = Units(precedence=line, compute_s_N=compute, tensors=tensors)
    loads = loads_of(compute.tolist(), tensors).under("sum")
    _, expected = min_max_partition(loads, 4, exactly=False)
    assert best_stages(units, StageRules(devices=4)).load_s == pytest.approx(expected, rel=1e-12)


def test_branches_are_ordered_freely():
    # Two branches of 3 + 1 beside each other: taken one after the other, 4 and 4; level by level
    # every cut parts a branch, and its tensor of 5 s is sent.
    fork = Precedence(num_units=4, edges=((0, 2), (1, 3)))
    units = Units(
        precedence=fork,
        compute_s_N=np.array([3.0, 3.0, 1.0, 1.0]),
        tensors=(
            Transfer(producer=0, consumers=(2,), seconds=5.0),
            Transfer(producer=1, consumers=(3,), seconds=5.0),
        ),
    )
    found = best_stages(units, StageRules(devices=2))
    assert found.load_s == 4.0
    assert {stage.units for stage in found.stages} == {(0, 2), (1, 3)}


def test_devices_are_left_idle_where_every_cut_costs_more():
    pair = Precedence(num_units=2, edges=((0, 1),))
    tensor = Transfer(producer=0, consumers=(1,), seconds=9.0)
    units = Units(precedence=pair, compute_s_N=np.array([2.0, 3.0]), tensors=(tensor,))
    found = best_stages(units, StageRules(devices=2))
    assert (found.load_s, len(found.stages)) == (5.0, 1)


def test_what_fits_nowhere_has_no_stages():
    units = Units(
        precedence=Precedence(num_units=1, edges=()),
        compute_s_N=np.array([1.0]),
        fixed_bytes_N=np.array([2.0]),
    )
    found = best_stages(units, StageRules(devices=3, limit_bytes=1.0))
    assert (found.load_s, found.stages) == (np.inf, ())


def test_too_many_ideals_leave_the_best_linear_order_unproven():
    units = Units(
        precedence=Precedence(num_units=12, edges=()), compute_s_N=np.arange(12, dtype=np.float64)
    )
    found = best_stages(units, StageRules(devices=4), most_ideals=100)
    assert not found.proven
    assert found.load_s >= best_stages(units, StageRules(devices=4)).load_s


@pytest.mark.parametrize("seed", range(10))
def test_groups_of_one_device_are_devices(seed):
    rng = np.random.default_rng(seed)
    precedence = random_precedence(rng, 6)
    units = Units(
        precedence=precedence,
        compute_s_N=whole_numbers(rng, 6, 9),
        parameter_bytes_N=whole_numbers(rng, 6, 4),
    )
    rules = StageRules(devices=4, replicas=(1, 2), gradient_s_per_byte=(0.0, 0.25))
    grouped = best_grouped_stages(units, StageRules(devices=1), rules)
    assert grouped.load_s == pytest.approx(best_stages(units, rules).load_s, rel=1e-12)


def test_groups_pipeline_inside():
    # Four units of 1 s on 2 groups of 2 devices: one each.
    line = Precedence(num_units=4, edges=((0, 1), (1, 2), (2, 3)))
    units = Units(precedence=line, compute_s_N=np.ones(4))
    assert best_grouped_stages(units, StageRules(devices=2), StageRules(devices=2)).load_s == 1.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"compute_s_N": np.ones(3)}, "compute_s_N"),
        ({"compute_s_N": np.array([1.0, -1.0])}, "compute_s_N"),
        ({"host_s_N": np.array([1.0, np.nan])}, "host_s_N"),
    ],
)
def test_wrong_arrays_are_refused(change, named):
    sound = {"precedence": Precedence(num_units=2, edges=()), "compute_s_N": np.ones(2)}
    with pytest.raises(InputError, match=named):
        Units(**(sound | change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"devices": 0}, "devices"),
        ({"hosts": -1}, "hosts"),
        ({"replicas": (2, 1)}, "replicas"),
        ({"replicas": (1, 2)}, "gradient times"),
    ],
)
def test_wrong_rules_are_refused(change, named):
    with pytest.raises(InputError, match=named):
        StageRules(**({"devices": 2} | change))
