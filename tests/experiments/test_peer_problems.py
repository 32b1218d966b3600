"""Other planners' problems on small inputs in their dialects, and their results on real ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

GRAPH = """\
node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=4.0, \
parameter_size=0.000
node2 -- Conv -- forward_compute_time=1000.0, backward_compute_time=2000.0, \
activation_size=500000000.0, parameter_size=100000000.000
node3 -- Tuple -- forward_compute_time=500.0, backward_compute_time=500.0, \
activation_size=[200000000.0; 300000000.0], parameter_size=0.000
node4 -- Linear -- forward_compute_time=1000.0, backward_compute_time=1000.0, \
activation_size=8.0, parameter_size=300000000.000
node5 -- __getitem__(1) -- forward_compute_time=0.0, backward_compute_time=0.0, \
activation_size=7.0, parameter_size=0.000
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
\tnode3 -- node5
"""
"""A line of 3, 1 and 2 s whose cuts carry 0.5e9 bytes each, that is 1 s there and back at 1e9."""


@pytest.fixture(scope="module")
def rows(import_experiment):
    return import_experiment("validation.peer_rows")


@pytest.fixture(scope="module")
def problems(import_experiment):
    return import_experiment("validation.peer_problems")


@pytest.fixture
def pipedream_row(rows, tmp_path):
    """A run on GRAPH, which lies where its row looks for it."""
    (tmp_path / "pipedream").mkdir()
    (tmp_path / "pipedream" / "line.graph.txt").write_text(GRAPH)
    return rows.PeerRow(
        peer="pipedream",
        program="optimizer_graph_hierarchical.py",
        input="profiles/line/graph.txt",
        devices=(2,),
        hosts=0,
        limit_bytes=None,
        bandwidths=(1e9,),
        args="-n 2 --straight_pipeline",
        value=3.0,
        resolution=1e-6,
        split="",
        cpu_s=1.0,
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 3.0),
        ({"args": "-n 2 --straight_pipeline --activation_compression_ratio 1"}, 3.0),
        # At a sixth of the bandwidth a cut takes 6 s, as long as everything on one device.
        (
            {
                "args": "--straight_pipeline --activation_compression_ratio 1",
                "bandwidths": (1e9 / 6,),
            },
            6.0,
        ),
        # Replicas: (6 + 4 * 1 * 0.4 / 2) / 2 = 3.4 for all on both, 3 for one each.
        ({"args": "-n 2"}, 3.0),
        # On three, the first two layers on two: (4 + 4 * 0.1 / 2) / 2, and 2 for the rest.
        ({"args": "-n 3", "devices": (3,)}, 2.1),
    ],
)
def test_pipedream_counts_gradients_and_what_crosses(
    problems, pipedream_row, tmp_path, change, expected
):
    row = replace(pipedream_row, **change)
    assert problems.solve(row, tmp_path).chain.load_s == pytest.approx(expected)


def test_pipedream_names_the_nodes_of_its_stages(problems, pipedream_row, tmp_path):
    solved = problems.solve(pipedream_row, tmp_path)
    assert solved.stage_ids == (("node2",), ("node3", "node4"))


def test_pipedream_groups_of_devices_are_pipelines_inside(problems, pipedream_row, tmp_path):
    row = replace(pipedream_row, devices=(1, 2), bandwidths=(1e9, 1e9))
    assert problems.solve(row, tmp_path).chain.load_s == pytest.approx(3.0)


def dnn_file():
    """Forward 1 and 2, backward 12 and 11 in their classes; what 1 makes takes 4 to send."""
    nodes = [
        {"id": 1, "fpgaLatency": 5, "cpuLatency": 50, "isBackwardNode": 0, "colorClass": 1},
        {"id": 2, "fpgaLatency": 6, "cpuLatency": 60, "isBackwardNode": 0, "colorClass": 2},
        {"id": 12, "fpgaLatency": 7, "cpuLatency": 70, "isBackwardNode": 1, "colorClass": 2},
        {"id": 11, "fpgaLatency": 8, "cpuLatency": 9, "isBackwardNode": 1, "colorClass": 1},
    ]
    for node in nodes:
        node |= {"name": f"node{node['id']}", "supportedOnFpga": 1, "size": 10}
    ends = [(1, 2, 4), (1, 11, 4), (2, 12, 3), (12, 11, 2)]
    edges = [{"sourceId": s, "destId": t, "cost": cost, "size": 1} for s, t, cost in ends]
    return {"maxSizePerFPGA": 20, "maxFPGAs": 2, "maxCPUs": 0, "nodes": nodes, "edges": edges}


@pytest.fixture
def dnn_row(rows, tmp_path):
    folder = tmp_path / "dnn-partitioning" / "layer-graphs"
    folder.mkdir(parents=True)
    (folder / "pair.json").write_text(json.dumps(dnn_file()))
    return rows.PeerRow(
        peer="dnn-partitioning",
        program="dp.cpp",
        input="inputs/LayerGraphs/pair.json",
        devices=(2,),
        hosts=0,
        limit_bytes=20.0,
        bandwidths=(),
        args="maxFPGAs=2 maxCPUs=0 (full ideal DP)",
        value=19.0,
        resolution=1e-6,
        split="",
        cpu_s=1.0,
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # 5 + 8 and 6 + 7, each with the 4 of what 1 makes and the 2 of what 12 makes.
        ({}, 19.0),
        # Without a limit, all on one device takes 26, which is more.
        ({"limit_bytes": None}, 19.0),
        # One device has no room for all.
        ({"devices": (1,)}, float("inf")),
        ({"devices": (1,), "args": "-oneFpga"}, 26.0),
        # A host takes 59 for the first or 130 for the second.
        ({"devices": (1,), "hosts": 1}, 59.0),
    ],
)
def test_dnn_partitioning_adds_what_each_stage_shares(
    problems, dnn_row, tmp_path, change, expected
):
    row = replace(dnn_row, **change)
    assert problems.solve(row, tmp_path).chain.load_s == pytest.approx(expected)


def piper_file():
    """Two nodes of 2 s; recomputing saves 3 of 4 bytes held and takes 1 s more."""
    plain = {"timePerSample": 2.0, "parameterSize": 1e9, "memoryUsageA": 4, "memoryUsageB": 1}
    again = plain | {"timePerSample": 3.0, "memoryUsageA": 1}
    choices = {"1": [plain | {"id": "vanilla"}, again | {"id": "activation recomp"}]}
    nodes = [{"id": number, "name": f"node{number}", "TMPCs": choices} for number in (0, 1)]
    edges = [{"sourceId": 0, "destId": 1, "communicationCost": 25e8}]
    return {"nodes": nodes, "edges": edges}


@pytest.fixture
def piper_row(rows, tmp_path):
    (tmp_path / "piper").mkdir()
    (tmp_path / "piper" / "pair.json").write_text(json.dumps(piper_file()))
    return rows.PeerRow(
        peer="piper",
        program="algo.cpp runDP",
        input="inputs/pair.json",
        devices=(2,),
        hosts=0,
        limit_bytes=100.0,
        bandwidths=(25e9,),
        args="microbatches N=4 data_par=0 tensor_par=0 recompute=1",
        value=2.2,
        resolution=1e-6,
        split="",
        cpu_s=1.0,
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # 2 s and 2 * 2.5e9 / 25e9 s of sending.
        ({}, 2.2),
        # The first holds 2 of 4 bytes beside its 1: it recomputes.
        ({"limit_bytes": 8.0}, 3.2),
        (
            {"limit_bytes": 8.0, "args": "microbatches N=4 data_par=0 tensor_par=0 recompute=0"},
            float("inf"),
        ),
        # Both on both: 4 / 2 s, and 4 / 2 * 2e9 bytes of gradients over 4 microbatches.
        ({"args": "microbatches N=4 data_par=1 tensor_par=0 recompute=1"}, 2.04),
        # With 3 microbatches, two replicas are none of its choices.
        ({"args": "microbatches N=3 data_par=1 tensor_par=0 recompute=1"}, 2.2),
    ],
)
def test_piper_holds_more_before_later_replicas_and_may_recompute(
    problems, piper_row, tmp_path, change, expected
):
    row = replace(piper_row, **change)
    assert problems.solve(row, tmp_path).chain.load_s == pytest.approx(expected)


def test_piper_stages_are_named_from_the_first_to_the_last(problems, piper_row, tmp_path):
    assert problems.solve(piper_row, tmp_path).stage_ids == (("0",), ("1",))


@pytest.mark.parametrize(
    "title",
    [
        "pipedream alexnet 16 devices [optimizer",
        "pipedream gnmt 8 devices [optimizer",
        "dnn-partitioning bert24_training 6 devices",
        "dnn-partitioning resnet50_training 8 devices 16 GiB",
        "piper bert32a100 64 devices 80 GiB [algo.cpp runDP]",
    ],
)
def test_published_inputs_are_planned_no_worse(rows, problems, shared_data, shared_facts, title):
    chosen = [row for row in rows.read_peer_rows(shared_facts) if row.title.startswith(title)]
    chosen = [row for row in chosen if problems.why_not(row, shared_data) is None]
    assert chosen
    for row in chosen:
        load = problems.solve(row, shared_data).chain.load_s
        assert load <= row.value + row.resolution + 1e-9 * row.value, row.title


def test_rows_without_a_counterpart_say_why(rows, problems, shared_data, shared_facts):
    found = {problems.why_not(row, shared_data) for row in rows.read_peer_rows(shared_facts)}
    assert {None, "its plan has tensor parallel stages"} <= found
