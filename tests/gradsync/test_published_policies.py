"""The policies against figures computed from published profiles (facts/mgs.md section 1.6)."""

from __future__ import annotations

import csv

import pytest

from autoplan.gradsync import GroupCost, GroupingProblem, time_groups
from autoplan.gradsync.costs import Affine, Logarithmic
from autoplan.gradsync.policies import (
    DistributedDataParallel,
    Exact,
    Layerwise,
    Mgs,
    MgsCorrected,
    MgWfbp,
    Single,
)

DENSITY = 0.001
SECOND_COLUMN = "ddp_1MB_25MB_s | MGS with index fix_s"
CORRECTED_COLUMN = "ddp_gap_pct | MGS idx fix + E-prime test gap pct"


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def measured(shared_facts):
    return shared_facts / "measured"


@pytest.fixture(scope="module")
def profiles(measured):
    """Backward seconds and elements of each tensor of each model, in backward order."""
    found = {}
    for row in rows(measured / "mgs_espresso_tensor_ready.csv"):
        gap_s = float(row["ready_gap_us"]) * 1e-6
        found.setdefault(row["model"], []).append((gap_s, float(row["numel"])))
    for name, gradients in found.items():
        # Times count from the first gradient.
        found[name] = [(0.0, gradients[0][1]), *gradients[1:]]
    # GoogLeNet's weights and biases have one time between them; its first one counts.
    layers = rows(measured / "mgs_bcaffe_googlenet_layers.csv")[::-1]
    found["googlenet_bcaffe_k80"] = [
        (
            float(weight["backward_us_n8"]) * 1e-6,
            float(weight["numel_aligned"]) + float(bias["numel_aligned"]),
        )
        for bias, weight in zip(layers[::2], layers[1::2], strict=True)
    ]
    return found


@pytest.fixture(scope="module")
def constants(measured):
    """(a, b) by primitive, hardware and number of workers."""
    found = {}
    for row in rows(measured / "mgs_perf_constants.csv"):
        if row["units"] is not None and row["b"]:
            found[row["primitive"], row["network_or_gpu"], row["P"]] = (row["a"], row["b"])
    return found


def cost_of(row, constants):
    if row["mode"] == "dense":
        alpha, beta = map(float, constants["allreduce", row["net"], row["P"]])
        return GroupCost(communicate=Affine(alpha, 4 * beta))
    alpha, beta = map(float, constants["allgather", "1GbE", row["P"]])
    gathered = DENSITY * int(row["P"])
    return GroupCost(
        communicate=Affine(2 * alpha, 2 * beta * gathered * 4),
        sparsify=Logarithmic(float(constants["topk h(x)=s*x*log2(x)", "Tesla V100", ""][1])),
        density=DENSITY,
    )


@pytest.fixture(scope="module")
def cases(measured, profiles, constants):
    """Each row that has its profile beside it, with its problem; BERT-large has none."""
    found = []
    for row in rows(measured / "mgs_gap_greedy_vs_exact.csv"):
        if row["model"] not in profiles:
            continue
        gradients = profiles[row["model"]][::-1]
        problem = GroupingProblem(
            backward_s=[gap_s for gap_s, _ in gradients],
            elements=[elements for _, elements in gradients],
            costs=(cost_of(row, constants),),
        )
        found.append((row, problem))
    assert len(found) == 46
    return found


def seconds(problem, policy):
    return time_groups(problem, policy.groups(problem)).finish_s


def test_layerwise_single_and_pytorch(cases):
    for row, problem in cases:
        assert problem.num_layers == int(row["L"])
        total_s = float(row["sum_backward_s(from first ready)"])
        assert sum(problem.backward_s) == pytest.approx(total_s, rel=1e-5)
        expected = float(row["no_merge_s"])
        assert seconds(problem, Layerwise()) == pytest.approx(expected, rel=1e-5)
        expected = float(row["single_group_s"])
        assert seconds(problem, Single()) == pytest.approx(expected, rel=1e-5)
        if row["mode"] == "dense":
            found = seconds(problem, DistributedDataParallel())
            assert found == pytest.approx(float(row[SECOND_COLUMN]), rel=1e-5)


def test_greedies_as_published(cases):
    for row, problem in cases:
        policy = MgWfbp() if row["mode"] == "dense" else Mgs()
        groups = policy.groups(problem)
        assert len(groups) == int(row["greedy_groups"])
        expected = float(row["published_greedy_s"])
        assert time_groups(problem, groups).finish_s == pytest.approx(expected, rel=1e-5)


def test_mgs_corrected(cases):
    sparse = [case for case in cases if case[0]["mode"] != "dense"]
    assert len(sparse) == 18
    for row, problem in sparse:
        expected = float(row["exact_s"]) * (1 + float(row[CORRECTED_COLUMN]) / 100)
        assert seconds(problem, MgsCorrected()) == pytest.approx(expected, rel=1e-5)


def test_exact(cases):
    for row, problem in cases:
        expected = float(row["exact_s"])
        assert seconds(problem, Exact()) == pytest.approx(expected, rel=1e-5)
