"""Small files in every dialect that a reader knows, made for the tests."""

from __future__ import annotations

import json

from autoplan import documents
from autoplan.workload import CostCurve, Layer, Workload
from autoplan.workload.readers import READERS

PARAMETERS = 4_000_000.0
"""Enough for the times below to be milliseconds and nothing else."""


def line(node, what, forward=0.0, backward=0.0, activation="0.0", parameters=0.0):
    """A node line of a graph.txt."""
    return (
        f"{node} -- {what} -- forward_compute_time={forward:.3f}, "
        f"backward_compute_time={backward:.3f}, activation_size={activation}, "
        f"parameter_size={parameters:.3f}"
    )


PIPEDREAM = "\n".join(
    [
        line("node10", "Linear(in_features=4, out_features=2)", 40, 80, "64.0"),
        line("node1", "Input0", 500, 0, "4096.0"),
        line("node2", "LSTM(8, 8)", 100, 200, "[512.0; 32.0; 32.0]", PARAMETERS),
        line("node3", "__getitem__(0)", 0, 0, "512.0"),
        line("node4", "__getitem__(1)", 0, 0, "32.0"),
        line("node5", "Dropout(p=0.2)", 10, 10, "512.0"),
        *(f"\t{edge}" for edge in ("node1 -- node2", "node2 -- node3", "node2 -- node4")),
        *(f"\t{edge}" for edge in ("node3 -- node5", "node4 -- node10", "node5 -- node10")),
    ]
)

DAPPLE = "\n".join(
    [
        "    node1 -- node2",
        "    node2 -- node3",
        line("node3", "Add", 5, 6, "128.0") + " -- stage_id=1",
        line("node1", "Embedding(10, 4)", 10, 20, "256.0", PARAMETERS) + " -- stage_id=0",
        line("node2", "layer, with [commas]", 30, 60, "128.0") + " -- stage_id=0",
    ]
)


def variant(name, time, parameters=0.0, stash=0.0):
    """A TMPC of a Piper node."""
    return {
        "id": name,
        "timePerSample": time,
        "parameterSize": parameters,
        "memoryUsageA": stash,
        "memoryUsageB": 2 * parameters,
        "syncTimeFw": {},
        "syncTimeBw": {},
    }


def piper(unit_s=1.0):
    """A Piper file whose times are in units of `unit_s`."""
    first = [
        variant("activation recomp", 0.04 / unit_s),
        variant("vanilla", 0.03 / unit_s, PARAMETERS, 16.0),
    ]
    nodes = [
        {"id": 0, "name": "a", "TMPCs": {"1": first, "2": [variant("vanilla", 9.0)]}},
        {"id": 2, "name": "b", "TMPCs": {"1": [variant("vanilla", 0.06 / unit_s, 0.0, 8.0)]}},
        {"id": 1, "name": "b", "TMPCs": {"1": [variant("vanilla", 0.0)]}},
    ]
    edges = [(0, 1, 64.0), (0, 2, 64.0), (1, 2, 32.0)]
    return {
        "maxDevices": 2,
        "maxMemoryPerDevice": 1e9,
        "bandwidth": 1e3,
        "mbsInBatch": 4,
        "nodes": nodes,
        "edges": [{"sourceId": s, "destId": d, "communicationCost": c} for s, d, c in edges],
    }


def node(number, latency, size, backward=False, colour=None):
    """A node of dnn-partitioning."""
    made = {
        "id": number,
        "name": f"n{number}",
        "supportedOnFpga": 1,
        "cpuLatency": 10 * latency,
        "fpgaLatency": latency,
        "isBackwardNode": backward,
        "size": size,
    }
    return made if colour is None else made | {"colorClass": colour}


def dnn(nodes, edges, bytes_per_cost=1e7):
    """A file of dnn-partitioning with edges (source, target, bytes)."""
    made = [
        {"sourceId": s, "destId": d, "cost": size / bytes_per_cost, "size": size}
        for s, d, size in edges
    ]
    return {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": made}


LAYER_GRAPH = dnn(
    [
        node(1, 10.0, PARAMETERS + 64.0, colour=1),
        node(2, 20.0, 32.0, 0, colour=2),
        node(3, 5.0, 16.0, colour=3),
        node(13, 10.0, 16.0, 1, colour=3),
        node(12, 40.0, 32.0, True, colour=2),
        node(11, 30.0, PARAMETERS + 64.0, True, colour=1),
    ],
    [(1, 2, 64.0), (1, 3, 64.0), (2, 3, 32.0), (13, 12, 32.0), (12, 11, 64.0), (3, 13, 16.0)],
)

OPERATOR_GRAPH = dnn(
    [
        node(0, 0, PARAMETERS, colour=7),
        node(1, 10.0, 64.0, colour=7),
        node(2, 20.0, 32.0, colour=8),
        node(3, 5.0, 16.0, colour=7),
        node(4, 1.0, 8.0),
        node(10, 2.0, 8.0, True, colour=9),
        node(11, 30.0, 16.0, True, colour=7),
    ],
    [(0, 1, PARAMETERS), (1, 2, 64.0), (2, 3, 32.0), (3, 4, 16.0), (4, 10, 8.0), (10, 11, 16.0)],
)


def native():
    """A workload of our own."""
    curve = CostCurve(samples=(1.0, 4.0), seconds=(0.1, 0.25), overhead_s=0.05)
    layers = tuple(
        Layer(name=name, forward=curve, backward=curve, gradient_elements=3) for name in "ab"
    )
    return Workload(name="own", layers=layers, cut_bytes_per_sample=(0.0, 2.0, 0.0))


GOOD = {
    "native": (READERS[0], documents.pretty_json(native())),
    "pipedream": (READERS[1], PIPEDREAM),
    "dapple": (READERS[1], DAPPLE),
    "piper": (READERS[2], json.dumps(piper())),
    "dnn layers": (READERS[3], json.dumps(LAYER_GRAPH)),
    "dnn operators": (READERS[3], json.dumps(OPERATOR_GRAPH)),
}
