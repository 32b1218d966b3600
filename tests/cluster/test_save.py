from __future__ import annotations

import dataclasses

from builders import cluster

from autoplan.cluster import load_cluster
from autoplan.cluster.model import FusedCopy, MeasuredCollective, MessageHandling, TopK, Update
from autoplan.cluster.save import save_cluster


def full_cluster():
    made = cluster(4, 2)
    device = dataclasses.replace(
        made.device,
        name='a "quoted" \\ name',
        top_k=TopK(elements=(1.0, 2.5), seconds=(1e-7, 2e-3)),
        fused_copy=FusedCopy(s_per_group=1e-5, s_per_element=2.5e-10),
        message_handling=MessageHandling(s_per_message=2e-4, s_per_byte=1e-10),
        exchange_handling=MessageHandling(s_per_message=5e-4, s_per_byte=1e-9),
        updates=(
            Update(optimizer="sgd", s_per_element=1e-9),
            Update(optimizer="adam", s_per_element=2e-9),
        ),
    )
    tables = tuple(
        MeasuredCollective(
            collective=collective, devices=2, nodes=1, size_bytes=(1.0, 1e6), seconds=(1e-4, 1e-3)
        )
        for collective in ("all_reduce", "all_gather")
    )
    link = dataclasses.replace(made.intra_node, measured_bytes=(1e3, 1e7), source="measured")
    return dataclasses.replace(made, device=device, intra_node=link, measured=tables)


def test_a_saved_cluster_is_read_back(tmp_path):
    path = tmp_path / "c.toml"
    save_cluster(full_cluster(), path, ["first", "two\nlines"])
    assert load_cluster(path) == full_cluster()
    assert path.read_text().startswith("# first\n# two lines\nschema = ")


def test_a_cluster_without_measurements_is_read_back(tmp_path):
    save_cluster(cluster(2), tmp_path / "c.toml")
    assert load_cluster(tmp_path / "c.toml") == cluster(2)
