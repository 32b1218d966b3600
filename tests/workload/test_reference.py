"""The published inputs, where they are at hand, against what is known of them."""

from __future__ import annotations

import csv
import json
import time

import numpy as np
import pytest

from autoplan.workload import ReadOptions, load_workload

PIPEDREAM = "pipedream/{}.graph.txt"
LAYERS = "dnn-partitioning/layer-graphs/{}.json"
OPERATORS = "dnn-partitioning/operator-graphs/{}.json"

# Milliseconds forward (with Input nodes) and backward, megabytes of parameters: facts/planners.md,
# section 3.5; then the time of the Input nodes, from the files.
TOTALS = {
    "alexnet": (680.7, 40.5, 244.4, 635.902),
    "vgg16": (251.9, 438.6, 553.4, 17.972),
    "resnet18": (581.1, 152.3, 46.8, 473.625),
    "squeezenet1_0": (587.9, 172.1, 5.0, 474.637),
    "resnet50": (201.5, 260.9, 102.2, 18.962),
    "resnext50": (239.0, 369.0, 100.1, 17.158),
    "resnet101": (207.7, 213.8, 178.2, 10.417),
    "inception_v3": (311.0, 399.8, 108.6, 21.700),
    "nasnetalarge": (416.1, 249.2, 369.0, 7.046),
    "gnmt": (33.5, 55.9, 775.1, 0.0),
}

# Publisher's path, our path, seconds per unit of the reference.
REFERENCES = [
    ("profiler/image_classification/profiles/vgg16/graph.txt", PIPEDREAM.format("vgg16"), 1),
    ("profiler/image_classification/profiles/alexnet/graph.txt", PIPEDREAM.format("alexnet"), 1),
    ("profiler/image_classification/profiles/resnet50/graph.txt", PIPEDREAM.format("resnet50"), 1),
    (
        "profiler/image_classification/profiles/nasnetalarge/graph.txt",
        PIPEDREAM.format("nasnetalarge"),
        1,
    ),
    ("profiler/translation/profiles/gnmt/graph.txt", PIPEDREAM.format("gnmt"), 1),
    ("inputs/bert32a100.json", "piper/bert32a100.json", 1),
    ("throughput-inputs/LayerGraphs/bert24_training.json", LAYERS.format("bert24_training"), 1e-3),
    (
        "throughput-inputs/LayerGraphs/resnet50_training.json",
        LAYERS.format("resnet50_training"),
        1e-3,
    ),
    (
        "throughput-inputs/OperatorGraphs/bert_l-3_training.json",
        OPERATORS.format("bert_l-3_training"),
        1e-3,
    ),
    (
        "throughput-inputs/OperatorGraphs/bert_L-12_training.json",
        OPERATORS.format("bert_L-12_training"),
        1e-3,
    ),
]


def seconds(workload):
    """Forward and backward of the whole model at the profiled size."""
    sides = [(layer.forward.seconds[0], layer.backward.seconds[0]) for layer in workload.layers]
    return tuple(map(sum, zip(*sides, strict=True)))


def bottleneck_s(times_s, num_stages):
    """The least possible time of the slowest of `num_stages` contiguous stages."""
    prefix = np.concatenate(([0.0], np.cumsum(times_s)))
    best = prefix.copy()
    for _ in range(num_stages - 1):
        best = np.array(
            [np.maximum(best[: j + 1], prefix[j] - prefix[: j + 1]).min() for j in range(len(best))]
        )
    return best[-1]


def published(shared_data):
    return sorted(
        path
        for path in shared_data.glob("*/**/*")
        if path.suffix in {".txt", ".json"}
        and "LICENSE" not in path.name
        and "galvatron" not in str(path)
    )


def test_every_published_file_loads_quickly(shared_data):
    files = published(shared_data)
    assert len(files) == 19
    for path in files:
        start_s = time.perf_counter()
        workload = load_workload(path)
        assert time.perf_counter() - start_s < 2, path
        assert workload.cut_bytes_per_sample[0] == workload.cut_bytes_per_sample[-1] == 0
        assert sum(workload.cut_bytes_per_sample) > 0
        assert len({layer.name for layer in workload.layers}) == len(workload.layers)
        assert workload.provenance.source == path.name
        assert str(shared_data) not in str(workload)


@pytest.mark.parametrize("name", TOTALS)
def test_pipedream_totals(shared_data, name):
    forward_ms, backward_ms, parameters_mb, input_ms = TOTALS[name]
    workload = load_workload(shared_data / PIPEDREAM.format(name))
    forward_s, backward_s = seconds(workload)
    assert forward_s * 1e3 == pytest.approx(forward_ms - input_ms, abs=0.051)
    assert backward_s * 1e3 == pytest.approx(backward_ms, abs=0.051)
    parameters = sum(layer.parameter_bytes for layer in workload.layers)
    assert parameters / 1e6 == pytest.approx(parameters_mb, abs=0.051)


def test_vgg16_per_sample_when_its_batch_size_is_declared(shared_data):
    path = shared_data / PIPEDREAM.format("vgg16")
    whole, single = load_workload(path), load_workload(path, ReadOptions(batch_size=128))
    assert single.layers[0].forward.samples == (128,)
    assert seconds(single) == seconds(whole)
    assert single.cut_bytes_per_sample == pytest.approx(np.array(whole.cut_bytes_per_sample) / 128)
    assert single.cut_bytes_per_sample[1] == 64 * 224 * 224 * 4


@pytest.mark.parametrize(
    ("name", "total_ms"),
    [
        (LAYERS.format("bert24_inference"), 92.4),
        (LAYERS.format("bert24_training"), 217.8),
        (LAYERS.format("gnmt_training"), 520.5),
        (LAYERS.format("resnet50_training"), 462.4),
        (OPERATORS.format("bert_l-3_training"), 123.0),
        (OPERATORS.format("bert_l-12_inference"), 642.8),
        (OPERATORS.format("bert_L-12_training"), 1891.7),
    ],
)
def test_dnn_partitioning_totals(shared_data, name, total_ms):
    workload = load_workload(shared_data / name)
    assert sum(seconds(workload)) * 1e3 == pytest.approx(total_ms, abs=0.051)
    assert (seconds(workload)[1] == 0) == ("inference" in name)


def test_the_units_of_pipers_files_are_told_apart(shared_data):
    gnmt = load_workload(shared_data / "piper/gnmt.json")
    assert sum(seconds(gnmt)) == pytest.approx(0.520453)
    assert any(note.startswith("warning:") and " ms" in note for note in gnmt.provenance.notes)
    bert = load_workload(shared_data / "piper/bert32a100.json")
    assert sum(seconds(bert)) == pytest.approx(0.972864)
    assert not any(note.startswith("warning:") for note in bert.provenance.notes)


def test_a_wrong_unit_that_is_declared_is_taken_and_doubted(shared_data):
    gnmt = load_workload(shared_data / "piper/gnmt.json", ReadOptions(time_unit="s"))
    assert sum(seconds(gnmt)) == pytest.approx(520.453)
    warnings = [note for note in gnmt.provenance.notes if note.startswith("warning:")]
    assert len(warnings) == 2
    assert "sending every tensor" in warnings[1]


def test_two_publications_of_gnmt_agree(shared_data):
    piper = load_workload(shared_data / "piper/gnmt.json")
    other = load_workload(shared_data / LAYERS.format("gnmt_training"))
    assert seconds(piper) == pytest.approx(seconds(other))
    of_piper = {layer.name: layer for layer in piper.layers}
    shared = [layer for layer in other.layers if layer.name in of_piper]
    assert len(shared) == 78
    for layer in shared[:-1]:
        same = of_piper[layer.name]
        assert layer.parameter_bytes == same.parameter_bytes, layer.name


def test_two_publications_of_resnet50_agree(shared_data):
    profile = load_workload(shared_data / PIPEDREAM.format("resnet50"))
    graph = load_workload(shared_data / LAYERS.format("resnet50_training"))
    of_profile = {layer.name.split()[0]: layer for layer in profile.layers}
    matched = [layer for layer in graph.layers if layer.name in of_profile]
    assert len(matched) == len(profile.layers) == 176
    for layer in matched:
        same = of_profile[layer.name]
        assert layer.forward.seconds == pytest.approx(same.forward.seconds)
        if layer.name != "node177":
            assert layer.parameter_bytes == same.parameter_bytes
            assert layer.stash_bytes_per_sample == same.stash_bytes_per_sample


def reference_rows(folder, source):
    with (folder / "reference/ref_contiguous.csv").open() as stream:
        return {
            int(row["S"]): float(row["optimum_at_most_S"])
            for row in csv.DictReader(stream)
            if row["input"] == source
            and (row["order"], row["model"]) == ("kahn", "compute")
            and row["cuts"]
        }


def reference_times_s(folder, source, path, workload):
    """Times of the layers in the reference's order; its units are found by a node they hold."""
    orders = json.loads((folder / "reference/ref_contiguous_orders.json").read_text())
    [order] = [value["kahn"] for key, value in orders.items() if key.split("|", 1)[1] == source]
    name_of = {}
    if path.suffix == ".json":
        name_of = {node["id"]: node["name"] for node in json.loads(path.read_text())["nodes"]}
    layers = {}
    for layer in workload.layers:
        called = layer.name.split(" ")[0] if path.suffix == ".txt" else layer.name.split(" +")[0]
        layers[called] = layer.forward.seconds[0] + layer.backward.seconds[0]
    times_s = []
    for unit in order:
        ids = unit if isinstance(unit, list) else [unit]
        names = [name for i in ids for name in (name_of.get(i, i), f"{name_of.get(i, i)}#{i}")]
        times_s += [layers.pop(name) for name in names if name in layers]
    assert not layers, "layers that the reference does not have"
    return times_s


@pytest.mark.parametrize(("source", "name", "unit_s"), REFERENCES, ids=[r[1] for r in REFERENCES])
def test_the_contiguous_optimum(shared_data, shared_facts, source, name, unit_s):
    path = shared_data / name
    workload = load_workload(path)
    kahn_s = reference_times_s(shared_facts, source, path, workload)
    own_s = [layer.forward.seconds[0] + layer.backward.seconds[0] for layer in workload.layers]
    rows = reference_rows(shared_facts, source)
    assert set(rows) == {2, 4, 8, 16}
    for num_stages, expected in rows.items():
        # The tables hold six digits.
        assert bottleneck_s(kahn_s, num_stages) == pytest.approx(expected * unit_s, rel=2e-5)
        assert bottleneck_s(own_s, num_stages) <= expected * unit_s * 1.05
