"""The plans that other planners made are told on our order of the layers, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from builders import cluster, layer, link, workload

from autoplan import Job
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace
from autoplan.workload import ReadOptions, load_workload

REFERENCE = (
    "peer,program,input,devices,memory_limit_bytes,bandwidth,args,objective_value,split,"
    "planner_cpu_s,status"
)


@pytest.fixture(scope="module")
def rows(import_experiment):
    return import_experiment("validation.peer_rows")


@pytest.fixture(scope="module")
def plans(import_experiment):
    return import_experiment("validation.peer_plans")


def write_reference(folder, *lines):
    (folder / "reference").mkdir(parents=True)
    (folder / "reference" / "ref_planners.csv").write_text("\n".join((REFERENCE, *lines)) + "\n")
    clean = 'peer,case,cpu_s\ndnn-partitioning,"LayerGraphs/x defaults, full DP",0.5\n'
    (folder / "reference" / "ref_timing_clean.csv").write_text(clean)


def test_rows_are_read_in_all_their_spellings(rows, tmp_path):
    write_reference(
        tmp_path,
        "piper,runDP,inputs/a.json,8,1024,25 GiB/s,N=4,0.25,,0.125,ok",
        "piper,runDP,inputs/a.json,8,1024,25 GiB/s,N=4,,,0.125,infeasible",
        "alpa,dp,x,8,none,none,,1,,1,ok",
        'pipedream,opt,p/g/graph.txt,4x2,not enforced,"12e9,1.25e9 B/s",-n 4 2,3,,1,ok',
        "dnn-partitioning,dp.cpp (full),i/LayerGraphs/x.json,6 accel + 1 CPU,9,costs,,17.5,,2,ok",
    )
    piper, pipedream, dnn = rows.read_peer_rows(tmp_path)
    assert (piper.devices, piper.limit_bytes) == ((8,), 1024)
    assert piper.bandwidths == (25 * 2**30,)
    assert (piper.value, piper.resolution, piper.cpu_s) == (0.25, 0.005, 0.125)
    assert (pipedream.name, pipedream.devices, pipedream.limit_bytes) == ("g", (4, 2), None)
    assert pipedream.bandwidths == (12e9, 1.25e9)
    assert (dnn.name, dnn.devices, dnn.hosts) == ("x", (6,), 1)
    assert dnn.cpu_s == 0.5  # of the idle machine


def make_row(rows, peer, split, **change):
    sound = {
        "peer": peer,
        "program": "algo.cpp runDP",
        "input": "x.json",
        "devices": (4,),
        "hosts": 0,
        "limit_bytes": None,
        "bandwidths": (1e9,),
        "args": "",
        "value": 1.0,
        "resolution": 1e-6,
        "split": split,
        "cpu_s": 1.0,
    }
    return rows.PeerRow(**(sound | change))


def piper_chain(tmp_path, edges):
    """A Piper file of four nodes in our reader's order."""
    choice = {"id": "vanilla", "timePerSample": 1.0, "parameterSize": 8.0}
    choice |= {"memoryUsageA": 1.0, "memoryUsageB": 1.0, "syncTimeFw": {}, "syncTimeBw": {}}
    nodes = [{"id": n, "name": "layer", "TMPCs": {"1": [choice]}} for n in range(4)]
    document = {
        "maxMemoryPerDevice": 1e9,
        "maxDevices": 4,
        "bandwidth": 1e9,
        "mbsInBatch": 4,
        "nodes": nodes,
        "edges": [{"sourceId": s, "destId": t, "communicationCost": 8.0} for s, t in edges],
    }
    path = tmp_path / "piper" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("split", "bounds", "replicas"),
    [
        ("n1 d1 t1 ar0 [0] | n3 d2 t1 ar3 [1-3]", (0, 1, 4), (1, 2)),
        ("n4 d4 t1 ar0 [0-3]", (0, 4), (4,)),
        ("n2 d1 t1 ar0 [2+3] | n2 d3 t1 ar0 [0-1]", (0, 2, 4), (3, 1)),
    ],
)
def test_piper_stages_are_found_by_their_nodes(plans, rows, tmp_path, split, bounds, replicas):
    path = piper_chain(tmp_path, [(0, 1), (1, 2), (2, 3)])
    row = make_row(rows, "piper", split)
    found = plans.split_of(row, load_workload(path), path, tmp_path)
    assert (found.bounds, found.replicas) == (bounds, replicas)


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        ("n2 d1 t1 ar0 [0+2] | n2 d1 t1 ar0 [1+3]", "contiguous"),
        ("n4 d1 t2 ar0 [0-3]", "tensor parallel"),
        ("", "not listed"),
    ],
)
def test_plans_without_a_counterpart_say_why(plans, rows, tmp_path, split, reason):
    path = piper_chain(tmp_path, [(0, 1), (1, 2), (2, 3)])
    row = make_row(rows, "piper", split)
    with pytest.raises(plans.NoCounterpartError, match=reason):
        plans.split_of(row, load_workload(path), path, tmp_path)


def test_pipedream_cuts_where_the_layers_take_as_long(plans, rows, shared_data, shared_facts):
    [row] = [
        row
        for row in rows.read_peer_rows(shared_facts)
        if row.peer == "pipedream"
        and row.name == "vgg16"
        and row.args == "-n 4 --activation_compression_ratio 1"
    ]
    path = row.data_path(shared_data)
    model = load_workload(path)
    split = plans.split_of(row, model, path, shared_data)
    calls_s = [layer.forward.seconds[0] + layer.backward.seconds[0] for layer in model.layers]
    found = [sum(calls_s[first:end]) for first, end in pairwise(split.bounds)]
    assert found == pytest.approx([0.514238, 0.158297])
    assert split.replicas == (3, 1)


def test_pipedream_levels_multiply_their_replicas(plans, rows, shared_data, shared_facts):
    [row] = [
        row
        for row in rows.read_peer_rows(shared_facts)
        if row.peer == "pipedream" and row.name == "vgg16" and row.devices == (4, 4)
    ]
    path = row.data_path(shared_data)
    split = plans.split_of(row, load_workload(path), path, shared_data)
    # Three groups of four replicas of the first stage; one group that is a pipeline of four.
    assert split.replicas == (12, 1, 1, 1, 1)


def test_dnn_partitioning_cuts_where_nodes_and_loads_agree(plans, rows, shared_data, shared_facts):
    chosen = [
        row
        for row in rows.read_peer_rows(shared_facts)
        if row.name == "bert24_inference" and row.devices == (8,) and "full" in row.args
    ]
    [row] = chosen
    path = row.data_path(shared_data)
    model = load_workload(path)
    split = plans.split_of(row, model, path, shared_data)
    assert len(split.replicas) == 8
    assert split.bounds[-1] == len(model.layers)
    shifted = replace(row, split=row.split.replace("load 11.488", "load 11.6"))
    with pytest.raises(plans.NoCounterpartError, match="contiguous"):
        plans.split_of(shifted, model, path, shared_data)


def test_cpus_beside_accelerators_are_refused(plans, rows, shared_data, shared_facts):
    found = [
        row
        for row in rows.read_peer_rows(shared_facts)
        if row.name == "resnet50_training" and "-pipeDream" in row.args and row.hosts == 1
    ]
    path = found[0].data_path(shared_data)
    row = replace(found[0], split=found[0].split.split("||")[0] + "|| cpu: load 1 n5")
    with pytest.raises(plans.NoCounterpartError, match="CPU"):
        plans.split_of(row, load_workload(path), path, shared_data)


def test_every_split_gets_the_best_of_what_is_open(plans, rows, tmp_path):
    path = piper_chain(tmp_path / "data", [(0, 1), (1, 2), (2, 3)])
    even = "n2 d1 t1 ar0 [0-1] | n2 d1 t1 ar0 [2-3]"
    uneven = "n1 d1 t1 ar0 [0] | n3 d1 t1 ar0 [1-3]"
    write_reference(
        tmp_path / "facts",
        f"piper,algo.cpp runDP,inputs/x.json,2,1,1 GiB/s,a,1,{even},1,ok",
        f"piper,algo.cpp runDP,inputs/x.json,2,1,1 GiB/s,b,1,{uneven},1,ok",
        "piper,algo.cpp runDP,inputs/x.json,8,1,1 GiB/s,c,1,n4 d8 t1 ar0 [0-3],1,ok",
    )
    model = load_workload(path, ReadOptions(time_unit="s"))
    proposer = Proposer(
        model,
        cluster(devices_per_node=2, intra_node=link(bandwidth_bytes_per_s=1e12)),
        Job(global_batch=8),
        SearchSpace(),
    )
    best = plans.rescored(proposer, model, path, tmp_path)
    assert best.compared == 2
    assert best.skipped == {"it uses more devices than the cluster has": 1}
    assert best.row.endswith("a")
    # Four layers of 1 s a sample on two devices, eight samples: 16 s and a microbatch of fill.
    assert best.step_s == pytest.approx(18.0, rel=1e-3)


def test_workloads_that_no_planner_had_have_none(plans, tmp_path):
    write_reference(tmp_path / "facts")
    model = workload([layer(), layer()])
    proposer = Proposer(
        model,
        cluster(devices_per_node=2, intra_node=link(bandwidth_bytes_per_s=1e12)),
        Job(global_batch=8),
        SearchSpace(),
    )
    assert plans.rescored(proposer, model, tmp_path / "x.json", tmp_path) is None
