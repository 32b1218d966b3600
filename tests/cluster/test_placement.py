from __future__ import annotations

import pytest
from builders import cluster, link, random_cluster
from hypothesis import given
from hypothesis import strategies as st

from autoplan.cluster.placement import place, shared_samples


def transfer(where, replicas, rank_order="replica"):
    return place(where, replicas, rank_order).transfers[0]


def test_rank_orders_pack_replicas_or_stages():
    where = cluster(4, nodes=2)
    assert place(where, (4, 2, 2), "replica").devices == ((0, 1, 2, 3), (4, 5), (6, 7))
    # The stages of the first half of the batch lie before those of the second.
    assert place(where, (4, 2, 2), "stage").devices == ((0, 3, 4, 7), (1, 5), (2, 6))
    assert place(where, (2, 2, 2), "stage").devices == ((0, 3), (1, 4), (2, 5))


@given(st.randoms(use_true_random=False), st.sampled_from(["replica", "stage"]))
def test_every_stage_gets_its_devices_and_every_device_one_stage(rng, rank_order):
    where = random_cluster(rng)
    replicas = []
    while sum(replicas) < where.num_devices and rng.random() < 0.9:
        replicas.append(rng.randint(1, where.num_devices - sum(replicas)))
    placed = place(where, tuple(replicas), rank_order)
    assert [len(devices) for devices in placed.devices] == replicas
    used = [device for devices in placed.devices for device in devices]
    assert sorted(used) == list(range(sum(replicas)))
    assert len(placed.transfers) == max(0, len(replicas) - 1)
    for devices, shape in zip(placed.devices, placed.groups, strict=True):
        nodes = {device // where.devices_per_node for device in devices}
        assert (shape.devices, shape.nodes) == (len(devices), len(nodes))


@given(st.integers(1, 12), st.integers(1, 12))
def test_shares_of_samples_sum_to_one_and_are_equal_on_each_side(senders, receivers):
    shares = list(shared_samples(senders, receivers))
    assert sum(share for _, _, share in shares) == pytest.approx(1, rel=1e-12)
    for i in range(senders):
        assert sum(x for s, _, x in shares if s == i) == pytest.approx(1 / senders, rel=1e-12)
    for j in range(receivers):
        assert sum(x for _, r, x in shares if r == j) == pytest.approx(1 / receivers, rel=1e-12)


@pytest.mark.parametrize(
    ("replicas", "seconds"),
    [
        # 40 bytes at 8 bytes/s, 3 s latency per message of the busiest device.
        ((1, 1), 3 + 40 / 8),
        # The receiver takes in all, in two messages.
        ((2, 1), 2 * 3 + 40 / 8),
        ((1, 2), 2 * 3 + 40 / 8),
        ((2, 2), 3 + 20 / 8),
        # Thirds to halves: 1/3, 1/6 to the first, 1/6, 1/3 to the second; two messages each.
        ((3, 2), 2 * 3 + 20 / 8),
        ((2, 3), 2 * 3 + 20 / 8),
    ],
)
def test_transfers_within_a_node_by_hand(replicas, seconds):
    where = cluster(6, intra_node=link(3.0, 8.0))
    cost = transfer(where, replicas)
    assert cost.at(40.0) == pytest.approx(seconds)
    assert cost.at(0.0) == 0.0


@pytest.mark.parametrize(("nics", "seconds"), [(1, 5 + 40 / 2), (2, 5 + 20 / 2), (4, 5 + 20 / 2)])
def test_transfers_between_nodes_share_the_ports(nics, seconds):
    fields = {"intra_node": link(0.0, 1e30), "inter_node": link(5.0, 2.0)}
    where = cluster(2, nodes=2, nics_per_node=nics, **fields)
    # Both replicas of the first stage on one node, both of the second on the other; one replica
    # uses one port at most.
    assert transfer(where, (2, 2)).at(40.0) == pytest.approx(seconds)
    # With the stages of a replica on one node, nothing crosses.
    assert transfer(where, (2, 2), "stage").at(40.0) == pytest.approx(0.0)
