"""A node of the cluster is taken away while it works and has work waiting, and comes back later."""

import json
import time

import pytest
from processes import searching, wait_until
from search_invariants import acknowledged, check, num_acknowledged

from autoplan.search.experiment import load_experiment

pytestmark = pytest.mark.slow
_STORE_BYTES = 80 * 2**20


@pytest.fixture
def two_nodes():
    """A cluster whose head has no CPU, so that all islands are on the other nodes."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    small = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, **small}, connect=False
    )
    try:
        nodes = [add_node(cluster) for _ in range(2)]
        yield cluster, nodes
    finally:
        cluster.shutdown()


def add_node(cluster):
    return cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES, wait=True)


@pytest.mark.timeout(400)
def test_a_search_outlives_a_node_and_uses_its_replacement(unproven_path, two_nodes):
    cluster, (first, _) = two_nodes
    experiment = load_experiment(unproven_path)
    storage = experiment.default_storage
    # Three islands on two CPUs: one of them waits for a place from the start.
    options = ("--workers", 3, "--trials", 100_000, "--seconds", 120)
    with searching(unproven_path, *options, "--ray-address", cluster.address) as process:
        wait_until(lambda: acknowledged(storage) > 20, 100, "trials are acknowledged")
        cluster.remove_node(first, allow_graceful=False)
        time.sleep(8)
        alone = acknowledged(storage)
        wait_until(lambda: acknowledged(storage) > alone + 10, 60, "the other node works on")
        add_node(cluster)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["workers_lost"] >= 1
    assert document["stopped_by"] == "time"
    assert document["trials"] == num_acknowledged(storage)
    check(storage, experiment)
