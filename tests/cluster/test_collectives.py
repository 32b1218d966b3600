from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from builders import cluster, link
from builders import random_cluster as a_cluster
from hypothesis import given
from hypothesis import strategies as st

from autoplan import Link
from autoplan.cluster import MeasuredCollective
from autoplan.cluster.collectives import GroupShape, collective_cost
from autoplan.cluster.load import catalog
from autoplan.cluster.placement import place

MIB = 2**20


def catalogued(intra, inter=None, **fields):
    """A cluster of links of the catalog."""
    links = catalog("links")
    if inter:
        fields["inter_node"] = Link(**links[inter])
    return cluster(intra_node=Link(**links[intra]), **fields)


def shape_of(where, replicas, rank_order="replica"):
    """The collective of the first of some stages."""
    return place(where, replicas, rank_order).groups[0]


@pytest.mark.parametrize("devices", [2, 3, 8, 16])
def test_ring_moves_data_at_the_bus_bandwidth_of_nccl_tests(devices):
    where = cluster(devices, intra_node=link(0.0, 5e9), all_reduce="ring")
    shape = GroupShape(devices=devices)
    size = 3e6
    # nccl-tests: bus bandwidth is size/time times 2(n-1)/n for all-reduce, (n-1)/n for all-gather.
    share = (devices - 1) / devices
    reduce_s = collective_cost(where, shape, "all_reduce").at(size)
    assert size / reduce_s * 2 * share == pytest.approx(5e9, rel=1e-12)
    gather_s = collective_cost(where, shape, "all_gather").at(size)
    assert size / gather_s * share == pytest.approx(5e9, rel=1e-12)


def test_ring_takes_2_steps_per_device_but_one_and_crosses_nodes_in_as_many_as_there_are():
    fields = {"intra_node": link(1.0, 1e30), "inter_node": link(100.0, 1e30)}
    where = cluster(4, nodes=3, all_reduce="ring", **fields)
    # 2(12-1) = 22 steps, of them 2(3-1) = 4 between nodes.
    cost = collective_cost(where, shape_of(where, (12,)), "all_reduce")
    assert cost.at(1e-9) == pytest.approx(18 * 1.0 + 4 * 100.0)


def test_tree_and_hierarchical_by_hand():
    fields = {"intra_node": link(1.0, 10.0), "inter_node": link(7.0, 2.0), "nics_per_node": 2}
    where = cluster(4, nodes=4, **fields)
    shape = shape_of(where, (16,))
    assert shape == GroupShape(devices=16, nodes=4, inter_node_bytes_per_s=4.0)
    tree = collective_cost(dataclasses.replace(where, all_reduce="tree"), shape, "all_reduce")
    # Latency: 3 hops in a node and log2(4) between, up and down; the slowest link carries all
    # twice.
    assert tree.at(80.0) == pytest.approx(2 * (3 * 1.0 + 2 * 7.0) + 2 * 80 / 4)
    levels = dataclasses.replace(where, all_reduce="hierarchical")
    cost = collective_cost(levels, shape, "all_reduce")
    # 2*3/4 of the buffer in the node at 10, then 2*3/4 of it through the node's ports at 4.
    expected = 2 * 3 * 1.0 + 2 * 3 * 7.0 + 1.5 * 80 / 10 + 1.5 * 80 / 4
    assert cost.at(80.0) == pytest.approx(expected)


def test_auto_takes_the_fastest_algorithm_at_every_size():
    fields = {"intra_node": link(1.0, 9.0), "inter_node": link(5.0, 2.0)}
    where = cluster(4, nodes=8, **fields)
    shape = shape_of(where, (32,))
    costs = {
        name: collective_cost(dataclasses.replace(where, all_reduce=name), shape, "all_reduce")
        for name in ("auto", "ring", "tree", "hierarchical")
    }
    winners = set()
    for size in np.geomspace(0.1, 1e6, 60):
        seconds = {name: cost.at(size) for name, cost in costs.items() if name != "auto"}
        assert costs["auto"].at(size) == min(seconds.values())
        winners.add(min(seconds, key=seconds.__getitem__))
    assert winners >= {"ring", "tree"}


@pytest.mark.parametrize(("mib", "measured_us"), [(1, 93), (16, 232), (128, 1162), (1024, 8193)])
def test_nvlink3_of_the_catalog_is_within_12_percent_of_8_measured_a100(mib, measured_us):
    where = catalogued("nvlink3", devices_per_node=8)
    cost = collective_cost(where, shape_of(where, (8,)), "all_reduce")
    assert cost.at(mib * MIB) * 1e6 == pytest.approx(measured_us, rel=0.12)


def test_two_dgx_a100_reach_the_measured_bus_bandwidth():
    where = catalogued("nvlink3", "hdr", devices_per_node=8, nodes=2, nics_per_node=8)
    seconds = collective_cost(where, shape_of(where, (16,)), "all_reduce").at(1024 * MIB)
    assert 1024 * MIB / seconds * 2 * 15 / 16 == pytest.approx(192e9, rel=0.03)


def test_groups_that_cross_nodes_share_the_ports_of_a_node():
    fields = {"intra_node": link(0.0, 1e30), "inter_node": link(0.0, 8.0), "all_reduce": "ring"}
    where = cluster(8, nodes=2, **fields)
    # 8 stages of 2 replicas, one on each node: each gets an eighth of the port of 8 bytes/s.
    for shape in place(where, (2,) * 8, "stage").groups:
        assert shape == GroupShape(devices=2, nodes=2, inter_node_bytes_per_s=1.0)
        assert collective_cost(where, shape, "all_reduce").at(10.0) == pytest.approx(10.0)
    # Groups that stay within a node leave the port alone.
    alone = shape_of(where, (2, 1, 1, 1, 1, 1, 1, 1), "stage")
    assert alone == GroupShape(devices=2, nodes=2, inter_node_bytes_per_s=8.0)
    assert shape_of(where, (8, 2)).inter_node_bytes_per_s == math.inf


def test_group_with_one_member_in_a_node_gets_one_of_its_ports():
    where = cluster(8, nodes=2, nics_per_node=8, inter_node=link(0.0, 3.0))
    assert shape_of(where, (2,) * 8, "stage").inter_node_bytes_per_s == 3.0
    assert shape_of(where, (16,)).inter_node_bytes_per_s == 24.0


def test_one_device_or_no_bytes_cost_nothing():
    where = cluster(4, intra_node=link(9.0, 1.0))
    assert collective_cost(where, GroupShape(devices=1), "all_reduce").at(100.0) == 0.0
    assert collective_cost(where, GroupShape(devices=4), "all_reduce").at(0.0) == 0.0


def table(**fields):
    shown = {"collective": "all_reduce", "devices": 4, "nodes": 2}
    points = {"size_bytes": (10.0, 20.0, 40.0), "seconds": (5.0, 6.0, 10.0)}
    return MeasuredCollective(**(shown | points | fields))


def test_measured_table_replaces_the_formula_and_is_interpolated():
    where = cluster(2, nodes=2, measured=(table(),))
    cost = collective_cost(where, shape_of(where, (4,)), "all_reduce")
    sizes = [1, 10, 15, 20, 30, 40, 60]
    # Below the first point its latency holds; beyond the last its slope of 0.2 s/byte.
    expected = [5, 5, 5.5, 6, 8, 10, 14]
    assert [cost.at(size) for size in sizes] == pytest.approx(expected)
    assert cost.at(0) == 0
    one_point = cluster(2, nodes=2, measured=(table(size_bytes=(10.0,), seconds=(5.0,)),))
    cost = collective_cost(one_point, shape_of(one_point, (4,)), "all_reduce")
    assert cost.at(30) == pytest.approx(15.0)


def test_measured_table_serves_only_its_own_collective_and_shape():
    bare = cluster(4, nodes=2)
    where = dataclasses.replace(bare, measured=(table(),))
    for devices, nodes, kind in [(4, 1, "all_reduce"), (3, 2, "all_reduce"), (4, 2, "all_gather")]:
        shape = GroupShape(devices=devices, nodes=nodes, inter_node_bytes_per_s=1.0)
        assert collective_cost(where, shape, kind) == collective_cost(bare, shape, kind)


def test_neighbours_on_the_network_slow_a_measured_collective():
    # Two stages of 2 replicas, each across both nodes, share the port that the table had alone.
    measured = (table(devices=2, nodes=2),)
    where = cluster(2, nodes=2, inter_node=link(0.0, 1.0), measured=measured, all_reduce="ring")
    shared = collective_cost(where, shape_of(where, (2, 2), "stage"), "all_reduce")
    # A ring of 2 moves the buffer once: 1 s/byte alone, 2 s/byte with half of the port.
    assert shared.at(20.0) == pytest.approx(6.0 + 20.0)


def test_the_floor_of_a_table_is_a_line_below_it_and_a_formula_is_its_own():
    measured = (table(devices=2, nodes=2),)
    where = cluster(2, nodes=2, inter_node=link(0.0, 1.0), measured=measured, all_reduce="ring")
    shared = collective_cost(where, shape_of(where, (2, 2), "stage"), "all_reduce")
    assert shared.floor.table is None
    # Of the table, the line through its last two points, and 1 s/byte for the neighbours.
    assert shared.floor.pieces == (pytest.approx((2.0, 1.2)),)
    for size in [0.5, 10.0, 15.0, 30.0, 1e3]:
        assert 0 < shared.floor.at(size) <= shared.at(size) * (1 + 1e-12)
    four = collective_cost(where, shape_of(where, (4,)), "all_reduce")
    assert four.floor is four


@given(st.randoms(use_true_random=False), st.sampled_from(["all_reduce", "all_gather"]))
def test_many_is_at_for_each_element(rng, kind):
    where = a_cluster(rng)
    shape = shape_of(where, (rng.randint(1, where.num_devices),))
    if shape.devices > 1 and rng.random() < 0.5:
        measured = (table(devices=shape.devices, nodes=shape.nodes),)
        where = dataclasses.replace(where, measured=measured)
    cost = collective_cost(where, shape, kind)
    sizes = np.array([[0.0, rng.uniform(0, 1)], [rng.uniform(0, 30), rng.uniform(30, 1e9)]])
    assert cost.many(sizes).tolist() == [[cost.at(size) for size in row] for row in sizes]


@given(st.randoms(use_true_random=False))
def test_larger_buffers_never_take_less_time(rng):
    where = a_cluster(rng)
    cost = collective_cost(where, shape_of(where, (where.num_devices,)), "all_reduce")
    small = rng.uniform(0, 1e3)
    assert cost.at(small) <= cost.at(small + rng.uniform(0, 1e3))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"devices": 1}, "devices"),
        ({"nodes": 5}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"size_bytes": ()}, "size_bytes"),
        ({"size_bytes": (10.0, 10.0, 40.0)}, "size_bytes"),
        ({"size_bytes": (0.0, 10.0, 40.0)}, "size_bytes"),
        ({"seconds": (5.0, 6.0)}, "seconds"),
        ({"seconds": (5.0, 6.0, math.nan)}, "seconds"),
        ({"seconds": (5.0, 6.0, 0.0)}, "seconds"),
    ],
)
def test_table_that_makes_no_sense_cannot_be_built(fields, field):
    with pytest.raises(ValueError, match=f"^{field}: found"):
        table(**fields)
