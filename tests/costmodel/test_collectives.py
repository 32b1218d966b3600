from __future__ import annotations

import pytest
from builders import cluster, link

from autoplan.costmodel.collectives import buffer_bytes, communicators
from autoplan.costmodel.graph import Collective, Op, OpGraph, TensorInfo
from autoplan.errors import InputError

SIZE = 1024


def graph(kind, *, ring=0, peer=None, num_ranks=None, whole="both"):
    """One exchange of SIZE bytes; `whole` is the side that has all of it."""
    sizes = {"in": (SIZE, SIZE // 4), "out": (SIZE // 4, SIZE), "both": (SIZE, SIZE)}[whole]
    tensors = tuple(
        TensorInfo(name=str(i), shape=(size,), dtype="int8") for i, size in enumerate(sizes)
    )
    exchange = Collective(kind=kind, ring=ring, peer=peer, num_ranks=num_ranks)
    op = Op(type=kind, inputs=(0,), outputs=(1,), collective=exchange)
    return OpGraph(tensors=tensors, ops=(op,))


def seconds(one, ranks=4, **where):
    links = communicators(where.pop("cluster"), [one] * ranks, **where)
    return links.seconds(one.ops[0], one.tensors, 0)


@pytest.mark.parametrize(
    ("kind", "whole", "bus_factor"),
    [
        ("all_reduce", "both", 2 * 3 / 4),
        ("all_gather", "out", 3 / 4),
        ("reduce_scatter", "in", 3 / 4),
        ("all_to_all", "both", 3 / 4),
        ("broadcast", "both", 1),
        ("reduce", "both", 1),
    ],
)
def test_bus_bytes_are_those_of_nccl_tests(kind, whole, bus_factor):
    where = cluster(devices_per_node=4, intra_node=link(0.0, 100.0), all_reduce="ring")
    assert seconds(graph(kind, whole=whole), cluster=where) == pytest.approx(
        SIZE * bus_factor / 100
    )


def test_a_send_takes_latency_and_bytes_of_the_link_between_the_two():
    where = cluster(
        devices_per_node=2, nodes=2, intra_node=link(1.0, 1024.0), inter_node=link(3.0, 512.0)
    )
    assert seconds(graph("send", peer=1), cluster=where) == 2.0
    assert seconds(graph("send", peer=2), cluster=where) == 5.0
    assert seconds(graph("recv", peer=3), cluster=where) == 5.0


def test_a_ring_of_one_rank_takes_no_time():
    assert seconds(graph("all_reduce"), ranks=1, cluster=cluster(devices_per_node=4)) == 0.0


def test_groups_tell_rings_of_the_same_number_apart():
    where = cluster(devices_per_node=4, intra_node=link(0.0, 1.0), all_reduce="ring")
    one = graph("all_reduce", num_ranks=2)
    with pytest.raises(InputError, match="over 2 ranks, 4 have the ring"):
        seconds(one, cluster=where)
    assert seconds(one, cluster=where, groups={0: [[0, 1], [2, 3]]}) == SIZE


def test_a_peer_or_group_outside_the_cluster_is_refused():
    where = cluster(devices_per_node=2)
    with pytest.raises(InputError, match="peer"):
        seconds(graph("send", peer=7), ranks=2, cluster=where)
    with pytest.raises(InputError, match="a peer"):
        seconds(graph("send"), ranks=2, cluster=where)
    with pytest.raises(InputError, match="ring 0"):
        seconds(graph("all_reduce"), ranks=4, cluster=where)


def test_the_buffer_is_counted_in_bytes_of_its_format():
    one = OpGraph(
        tensors=(TensorInfo(name="x", shape=(2**20,), dtype="float16"),),
        ops=(Op(type="send_v2", inputs=(0,), collective=Collective(kind="send", peer=1)),),
    )
    assert buffer_bytes(one.ops[0], one.tensors) == 2**21
