"""The optima of facts/reference/ref_contiguous.csv, from the published files, row by row."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest

from autoplan.documents import build_json
from autoplan.pipeline.minmax import min_max_partition
from autoplan.workload.readers import dnn_partitioning, pipedream, piper
from autoplan.workload.stage_loads import Transfer, loads_of

PIPEDREAM_BYTES_PER_S = 1e9
PIPER_BYTES_PER_S = 25 * 2**30


@dataclass(frozen=True)
class RawGraph:
    """Nodes as the file has them; `sent` holds (producer, readers, cost) in the unit of `time`."""

    time: dict
    sent: list


def read_pipedream(data, variant):
    file = pipedream._parse(data.decode())
    time = {name: (node.forward_ms + node.backward_ms) / 1e3 for name, node in file.nodes.items()}
    sent = [
        (name, file.targets[name], 2 * node.activation_bytes / PIPEDREAM_BYTES_PER_S)
        for name, node in file.nodes.items()
    ]
    return RawGraph(time=time, sent=sent)


def read_dnn_partitioning(data, variant):
    file = build_json(dnn_partitioning._File, data, "file")
    readers, costs = {}, {}
    for edge in file.edges:
        readers.setdefault(edge.sourceId, []).append(edge.destId)
        costs.setdefault(edge.sourceId, set()).add(edge.cost)
    factor = 1e3 if "x1000" in variant else 1.0
    sent = []
    for source, targets in readers.items():
        [cost] = costs[source]
        sent.append((source, targets, cost * factor))
    return RawGraph(time={node.id: node.fpgaLatency for node in file.nodes}, sent=sent)


def read_piper(data, variant):
    file = build_json(piper._File, data, "file")
    factor = 1e-3 if "x1e-3" in variant else 1.0
    time = {}
    for node in file.nodes:
        costs = node.costs(node.name)
        time[node.id] = (costs.forward + costs.backward) * factor
    # Every edge counts on its own, even where several carry one tensor.
    sent = [
        (edge.sourceId, [edge.destId], 2 * edge.communicationCost / PIPER_BYTES_PER_S)
        for edge in file.edges
    ]
    return RawGraph(time=time, sent=sent)


READ = {"pipedream": read_pipedream, "dnn-partitioning": read_dnn_partitioning, "piper": read_piper}

PIPEDREAM_NAMES = [
    *("alexnet", "inception_v3", "nasnetalarge", "resnet101", "resnet18", "resnet50"),
    *("resnext50", "squeezenet1_0", "vgg16"),
]
IN_FILE, X1000 = "edge cost as in file", "edge cost x1000"
LAYERS, OPERATORS = "throughput-inputs/LayerGraphs", "throughput-inputs/OperatorGraphs"
# Peer, publisher's path, our path below shared/data, a part of the cost variant's description.
CASES = [
    *(
        (
            "pipedream",
            f"profiler/image_classification/profiles/{name}/graph.txt",
            f"pipedream/{name}.graph.txt",
            "",
        )
        for name in PIPEDREAM_NAMES
    ),
    (
        "pipedream",
        "profiler/translation/profiles/gnmt/graph.txt",
        "pipedream/gnmt.graph.txt",
        "",
    ),
    *(
        (
            "dnn-partitioning",
            f"{LAYERS}/{name}.json",
            f"dnn-partitioning/layer-graphs/{name}.json",
            variant,
        )
        for name in ("bert24_inference", "bert24_training", "gnmt_training", "resnet50_training")
        for variant in (IN_FILE, X1000)
    ),
    *(
        (
            "dnn-partitioning",
            f"{OPERATORS}/{name}.json",
            f"dnn-partitioning/operator-graphs/{name}.json",
            IN_FILE,
        )
        for name in ("bert_L-12_training", "bert_l-12_inference", "bert_l-3_training")
    ),
    ("piper", "inputs/bert32a100.json", "piper/bert32a100.json", "time as in file"),
    ("piper", "inputs/gnmt.json", "piper/gnmt.json", "time as in file"),
    ("piper", "inputs/gnmt.json", "piper/gnmt.json", "file value x1e-3"),
]
NOT_SHARED = "profiler/image_classification/profiles/resnet18/graph_copy.txt"


@pytest.fixture(scope="module")
def rows(shared_facts):
    """The rows of a fixed linear order; peers' own runs over all convex partitions have none."""
    with (shared_facts / "reference/ref_contiguous.csv").open() as stream:
        return [row for row in csv.DictReader(stream) if row["order"] in ("kahn", "dfs")]


@pytest.fixture(scope="module")
def orders(shared_facts):
    return json.loads((shared_facts / "reference/ref_contiguous_orders.json").read_text())


def rows_of(rows, case):
    peer, source, _, variant = case
    return [
        row
        for row in rows
        if (row["peer"], row["input"]) == (peer, source) and variant in row["cost_variant"]
    ]


def loads_in(raw, units):
    """The loads of all stages when the nodes are taken unit by unit; nodes in none are left out."""
    place = {}
    for number, unit in enumerate(units):
        for node in unit if isinstance(unit, list) else [unit]:
            place[node] = number
    compute = [0.0] * len(units)
    for node, number in place.items():
        compute[number] += raw.time[node]
    transfers = [
        Transfer(
            producer=place[source],
            consumers=tuple(place[target] for target in targets if target in place),
            seconds=cost,
        )
        for source, targets, cost in raw.sent
        if source in place
    ]
    return loads_of(compute, transfers)


def test_every_row_of_a_fixed_order_belongs_to_a_case(rows):
    covered = Counter(
        (row["input"], row["cost_variant"]) for case in CASES for row in rows_of(rows, case)
    )
    every = Counter((row["input"], row["cost_variant"]) for row in rows)
    [(left, count)] = (every - covered).items()
    assert (left[0], count) == (NOT_SHARED, 24)
    assert covered <= every
    assert sum(covered.values()) == 576


@pytest.mark.parametrize("case", CASES, ids=[f"{case[2]} {case[3]}".strip() for case in CASES])
def test_optimum_equals_the_reference(shared_data, rows, orders, case):
    peer, source, path, variant = case
    raw = READ[peer]((shared_data / path).read_bytes(), variant)
    loads = {order: loads_in(raw, units) for order, units in orders[f"{peer}|{source}"].items()}
    found = rows_of(rows, case)
    assert len(found) == 24
    for row in found:
        load_CC = loads[row["order"]].under(row["model"])
        assert len(load_CC) == int(row["units_n"]) + 1
        stages = int(row["S"])
        what = f"{row['order']} {row['model']} S={stages}"
        bounds, exact = min_max_partition(load_CC, stages, exactly=True)
        assert exact == pytest.approx(float(row["optimum_exactly_S"]), rel=1e-6), what
        _, at_most = min_max_partition(load_CC, stages, exactly=False)
        assert at_most == pytest.approx(float(row["optimum_at_most_S"]), rel=1e-6), what
        assert max(load_CC[i, j] for i, j in pairwise(bounds)) == exact
        # The reference's own partition, whose loads it gives to six digits.
        cuts = [int(cut) for cut in row["cuts"].split()]
        theirs = [float(load) for load in row["stage_loads"].split()]
        assert [load_CC[i, j] for i, j in pairwise(cuts)] == pytest.approx(theirs, rel=6e-6), what
