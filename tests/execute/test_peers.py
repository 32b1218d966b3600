from __future__ import annotations

import numpy as np
import pytest
from builders import stage
from real_runs import pipeline, predictor

from autoplan.errors import InputError
from autoplan.execute.peers import Peer, part_of, peers_of
from autoplan.execute.step_costs import step_costs

MICROBATCH = 4


def costs_of(upstream, downstream):
    plan = pipeline(stage(0, 3, replicas=upstream), stage(3, 6, replicas=downstream))
    return step_costs(predictor(devices=8), plan)


@pytest.mark.parametrize(("upstream", "downstream"), [(1, 1), (2, 1), (1, 4), (4, 2), (2, 4)])
def test_every_sample_crosses_once_and_arrives_in_order(upstream, downstream):
    costs = costs_of(upstream, downstream)
    before, after = costs.stages
    samples = np.arange(MICROBATCH)
    sent = {}
    for replica, rank in enumerate(before.ranks):
        peers = peers_of(costs, 0, replica)
        own = samples[replica * before.samples : (replica + 1) * before.samples]
        for peer in peers.after:
            sent[rank, peer.rank] = part_of(own, peer, len(peers.after), peers.samples)
    for replica, rank in enumerate(after.ranks):
        peers = peers_of(costs, 1, replica)
        assert peers.after == ()
        joined = np.concatenate([sent.pop((peer.rank, rank)) for peer in peers.before])
        own = samples[replica * after.samples : (replica + 1) * after.samples]
        np.testing.assert_array_equal(joined, own)
    assert sent == {}


def test_a_tensor_whose_first_axis_is_not_samples_cannot_be_split():
    peer = Peer(rank=1, share=(0.0, 0.5))
    with pytest.raises(InputError, match=r"found a tensor of shape \[3, 2\] for 4 samples"):
        part_of(np.zeros((3, 2)), peer, 2, 4)
    whole = np.zeros(())
    assert part_of(whole, peer, 1, 4) is whole
