"""The frameworks' splitters against their published results, and against Paddle's own code."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
from builders import cluster, layer, workload

from autoplan import Job
from autoplan.search.heuristics import baselines
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "validation" / "splitters.py"
NODE = re.compile(r"^(\w+) -- .* -- forward_compute_time=([\d.]+), backward_compute_time=([\d.]+)")
FOLDERS = {
    "pipedream": "pipedream/{}.graph.txt",
    "LayerGraphs": "dnn-partitioning/layer-graphs/{}.json",
    "OperatorGraphs": "dnn-partitioning/operator-graphs/{}.json",
    "piper": "piper/{}.json",
}
"""Where the published files lie in shared/data, by a part of the publisher's path."""


@pytest.fixture(scope="module")
def splitters():
    spec = importlib.util.spec_from_file_location("splitters", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def times_of(kind, path):
    """Forward and backward time of each node, in the unit of ref_heuristics.csv."""
    if kind == "pipedream":
        found = (NODE.match(line) for line in path.read_text().splitlines())
        return {m[1]: (float(m[2]) + float(m[3])) / 1e3 for m in found if m}
    nodes = json.loads(path.read_text())["nodes"]
    if kind == "piper":
        plain = {node["id"]: node["TMPCs"]["1"] for node in nodes}
        return {
            node: next(c["timePerSample"] for c in costs if c["id"] == "vanilla")
            for node, costs in plain.items()
        }
    return {node["id"]: node["fpgaLatency"] for node in nodes}


def loads_of(source, shared_data, orders):
    """Loads of the units of a published input in the reference's order, or None if not shared."""
    [kind] = [part for part in FOLDERS if part in source]
    path = Path(source)
    name = path.parent.name if path.name == "graph.txt" else path.stem
    file = shared_data / FOLDERS[kind].format(name)
    if not file.is_file():
        return None
    key = source.replace("/", "|", 1).replace("dnnp|", "dnn-partitioning|")
    units = [unit if isinstance(unit, list) else [unit] for unit in orders[key]["kahn"]]
    times = times_of(kind, file)
    return [sum(times[node] for node in unit) for unit in units]


def heaviest(loads, bounds):
    return max(sum(loads[i:j]) for i, j in pairwise(bounds))


def test_the_heaviest_stages_are_those_of_the_reference(splitters, shared_facts, shared_data):
    orders = json.loads((shared_facts / "reference/ref_contiguous_orders.json").read_text())
    columns = {
        "deepspeed_partition_balanced_time": splitters.deepspeed_partition_balanced,
        "paddle_uniform": splitters.paddle_uniform,
    }
    compared = dict.fromkeys(columns, 0)
    with (shared_facts / "reference/ref_heuristics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        loads = loads_of(row["input"], shared_data, orders)
        if loads is None:
            continue
        for column, split in columns.items():
            if row[column]:
                found = heaviest(loads, split(loads, int(row["S"])))
                # The reference has six to eight digits.
                assert found == pytest.approx(float(row[column]), rel=2e-5), (row["input"], column)
                compared[column] += 1
    # DeepSpeed's own code took too long for nasnetalarge, whose four cells are empty.
    assert compared == {"deepspeed_partition_balanced_time": 68, "paddle_uniform": 72}


def test_deepspeed_balances_the_spread_and_misses_the_least_maximum(splitters):
    loads = [2, 7, 2, 2, 1, 1, 2, 2, 3]
    assert splitters.deepspeed_partition_balanced(loads, 4) == (0, 2, 4, 7, 9)


def test_the_compiled_recurrence_is_the_readable_one(splitters):
    rng = random.Random(1)
    compiled, readable = splitters._last_cuts, splitters._last_cuts.py_func
    for _ in range(50):
        loads = [rng.choice([0, 1, rng.random()]) for _ in range(rng.randint(1, 12))]
        prefix = splitters.np.concatenate([[0.0], splitters.np.cumsum(loads)])
        stages = rng.randint(1, len(loads))
        assert (compiled(prefix, stages) == readable(prefix, stages)).all()
        bounds = splitters.deepspeed_partition_balanced(loads, stages)
        assert bounds[0] == 0
        assert all(i < j for i, j in pairwise(bounds))
        assert bounds[-1] == len(loads)


@pytest.mark.parametrize("num_layers", [1, 7, 8, 30, 61])
def test_paddle_itself_cuts_the_same(splitters, num_layers):
    pytest.importorskip("paddle")
    from paddle.distributed.fleet.meta_parallel.parallel_layers.pp_layers import SegmentLayers

    for stages in range(1, num_layers + 1):
        theirs = SegmentLayers.uniform(None, num_layers, stages)
        assert splitters.paddle_uniform([0.0] * num_layers, stages) == tuple(theirs)


def test_a_splitter_is_given_its_best_pipeline(splitters):
    model = workload([layer(1.0, 2.0, gradient_elements=5)] * 8, [1.0] * 9)
    where = cluster(4)
    proposer = Proposer(model, where, Job(global_batch=12), SearchSpace())
    uniform = baselines(proposer)["uniform-layers"]
    for name in splitters.SPLITTERS:
        found = splitters.best_with(name, proposer)
        assert found.score.step_s == pytest.approx(uniform.score.step_s)
        assert found.name == name


def test_nothing_is_made_up_where_no_pipeline_fits(splitters):
    model = workload([layer(1.0, 2.0, parameter_bytes=100.0)] * 4)
    proposer = Proposer(model, cluster(2, memory_bytes=10.0), Job(global_batch=4), SearchSpace())
    assert splitters.best_with("paddle-uniform", proposer) is None
