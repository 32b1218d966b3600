from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.cluster.collectives import CollectiveCost
from autoplan.errors import InputError
from autoplan.gradsync.costs import (
    Affine,
    AllReduce,
    Logarithmic,
    SparseAllGather,
    Sum,
    Table,
    kept,
)

LINK = CollectiveCost(pieces=((1e-3, 1e-9), (5e-3, 5e-10)))
P102_100 = Logarithmic(2.18896957e-10)
"""The constant of the MGS code for NVIDIA's P102-100 (facts/mgs.md section 2)."""

COSTS = [
    Affine(1e-3, 4e-9),
    P102_100,
    Table((10.0, 100.0, 1000.0), (3e-6, 2e-5, 1e-4)),
    Table((10.0,), (3e-6,)),
    AllReduce(LINK, 4.0),
    SparseAllGather(LINK, 8, 0.01, scatter_add_s_per_element=1e-9),
    Sum((Affine(1e-3, 4e-9), P102_100)),
]


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: type(cost).__name__)
class TestEveryCost:
    @given(st.lists(st.one_of(st.just(0), st.integers(1, 10**8)), min_size=1, max_size=20))
    def test_many_is_each(self, cost, elements):
        many = cost.many(np.array(elements, dtype=np.float64))
        assert many.tolist() == pytest.approx([cost(x) for x in elements], rel=1e-12, abs=0)

    def test_nothing_to_exchange_takes_no_time(self, cost):
        assert cost(0) == 0.0

    def test_more_elements_never_take_less_time(self, cost):
        seconds = [cost(x) for x in range(1, 3000, 7)]
        assert seconds == sorted(seconds)
        assert all(math.isfinite(each) and each >= 0 for each in seconds)

    def test_is_a_hashable_value(self, cost):
        assert len({cost, cost}) == 1


@given(st.integers(1, 10**9), st.floats(1e-5, 1))
def test_top_k_keeps_a_whole_number_of_elements_and_never_none(elements, density):
    (found,) = kept(np.array([float(elements)]), density)
    assert found == int(found) >= 1
    assert found == 1 or found <= density * elements * (1 + 1e-9)
    assert found > density * elements - 1 - 1e-6


def test_top_k_is_not_short_of_an_element_by_rounding():
    assert kept(np.array([300.0, 2900.0, 50.0]), 0.01).tolist() == [3.0, 29.0, 1.0]


def test_top_k_of_the_whole_of_resnet50_takes_what_mgs_publishes():
    # facts/mgs.md section 3.2: the sparsification bar of TopK-SGD is .1376 s.
    assert P102_100(25_557_032) == pytest.approx(0.1377, abs=5e-5)
    assert P102_100(1) == 0.0


def test_sparse_exchange_is_two_all_gathers_and_a_scatter_add():
    link = CollectiveCost(pieces=((1e-3, 1e-9),))
    cost = SparseAllGather(link, 4, 0.01, value_bytes=2.0, scatter_add_s_per_element=1e-8)
    # 10 of 1,000 elements from each of 4: 80 bytes of values, 160 of indices.
    assert cost(1000) == pytest.approx(2e-3 + 240e-9 + 40e-8, rel=1e-12)
    # One element at least, where the density asks for less.
    assert cost(5) == pytest.approx(2e-3 + 24e-9 + 4e-8, rel=1e-12)


def test_published_exchange_of_a_group_is_affine_in_its_elements():
    # OMGS allgather_perf_model: 2 * (a + b * rho * x * P * 4); ours rounds k down.
    a, b, density, replicas = 1.1e-2, 1.7e-8, 0.001, 16
    cost = SparseAllGather(CollectiveCost(pieces=((a, b),)), replicas, density)
    published = Affine(2 * a, 2 * b * density * replicas * 4)
    assert cost(1_000_000) == pytest.approx(published(1_000_000), rel=1e-12)
    assert cost(25_557_032) == pytest.approx(published(25_557_032), rel=1e-4)


def test_table_by_hand():
    cost = Table((10.0, 20.0), (1.0, 3.0))
    assert [cost(x) for x in (5, 10, 15, 20, 30)] == [1.0, 1.0, 2.0, 3.0, 5.0]
    # A slope that falls is noise: beyond the last point the table never falls.
    assert Table((10.0, 20.0), (3.0, 1.0))(30) == 1.0
    assert Table((10.0,), (2.0,))(20) == 4.0


@pytest.mark.parametrize(
    ("elements", "seconds", "field"),
    [
        ((), (), "elements"),
        ((0.0, 1.0), (1.0, 1.0), "elements"),
        ((2.0, 1.0), (1.0, 1.0), "elements"),
        ((1.0, 2.0), (1.0,), "seconds"),
        ((1.0, 2.0), (1.0, math.nan), "seconds"),
        ((1.0, 2.0), (-1.0, 1.0), "seconds"),
    ],
)
def test_tables_that_make_no_sense_are_refused(elements, seconds, field):
    with pytest.raises(InputError, match=f"^{field}: found"):
        Table(elements, seconds)
