"""autoplan groups: the comparison of policies as a table and as JSON, its limits and its errors."""

import json
import subprocess
import sys

import pytest
from command_line import one_line
from small_experiment import CLUSTER, WORKLOAD

from autoplan.cli.main import main
from autoplan.gradsync import POLICIES

ELEMENTS = [layer["gradient_elements"] for layer in WORKLOAD["layers"]]
DEVICE = "memory_bandwidth_bytes_per_s = 1e11"
TOP_K = "top_k = {elements = [1e6, 1e7], seconds = [1e-4, 1e-3]}"
"""Cheap enough for large groups, too dear where the link hides a dense exchange."""


@pytest.fixture
def files(experiment_path):
    """The workload, the cluster, and the cluster with what top-k takes."""
    folder = experiment_path.parent
    assert DEVICE in CLUSTER
    sparse = folder / "sparse.toml"
    sparse.write_text(CLUSTER.replace(DEVICE, f"{DEVICE}, {TOP_K}"))
    return folder / "workload.json", folder / "cluster.toml", sparse


@pytest.fixture
def document(files, capsys):
    """Runs the command in this process and returns its JSON; `sparse` is the cluster with top-k."""

    def run(*flags, sparse=False):
        workload, dense, with_top_k = files
        cluster = with_top_k if sparse else dense
        arguments = ["groups", workload, "--cluster", cluster, "--json", *flags]
        assert main([str(argument) for argument in arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(files, capsys):
    """Runs the command, which must fail with 2 and one line; returns that line."""

    def run(*flags):
        workload, dense, _ = files
        return one_line(capsys, "groups", workload, "--cluster", dense, *flags)

    return run


def in_own_process(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "autoplan", "groups", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def group_elements(row):
    return [sum(ELEMENTS[layer] for layer in group) for group in row["groups"]]


def memory_bytes(row):
    """Fused buffers of several layers and residuals of sparse groups, at 4 bytes per element."""
    return sum(
        4 * size * ((len(group) > 1) + (density < 1))
        for size, group, density in zip(
            group_elements(row), row["groups"], row["densities"], strict=True
        )
    )


def finish_s(found):
    return {name: row["finish_s"] for name, row in found["policies"].items()}


def test_the_table_has_every_policy_the_verdict_and_other_links(files):
    done = in_own_process(files[0], "--cluster", files[1])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["policy", "end"]
    assert {line.split()[0] for line in lines[1 : 1 + len(POLICIES)]} == set(POLICIES)
    assert lines[1].startswith("exact ")
    text = " ".join(done.stdout.split())
    assert "no contiguous grouping ends before" in text
    assert "to gain: PyTorch's default ends" in text
    for what in ("latency x 2", "latency / 2", "seconds per byte x 2", "seconds per byte / 2"):
        assert f"if {what}: best with" in text


def test_json_is_one_document_with_every_policy(files):
    done = in_own_process(files[0], "--cluster", files[1], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["policies"]) == list(POLICIES)
    for name, row in found["policies"].items():
        assert {"finish_s", "groups", "densities", "num_groups", "gap"} <= set(row), name
        layers = [layer for group in row["groups"] for layer in group]
        assert layers == list(range(len(ELEMENTS)))[::-1], name
        assert row["num_groups"] == len(row["groups"]) == len(row["densities"])
        assert set(row["densities"]) == {1.0}
        assert row["gap"] >= -1e-12
        assert row["finish_s"] >= found["lower_bound_s"] * (1 - 1e-12)
    exact = found["policies"]["exact"]
    assert exact["gap"] == 0
    assert found["policies"]["single"]["gap"] > 0.1
    assert found["backward_s"] < found["lower_bound_s"] <= exact["finish_s"]
    assert len(found["sensitivity"]) == 4
    for other in found["sensitivity"].values():
        assert set(other) == {"num_groups", "finish_s", "regret"}
        assert other["regret"] >= 0


def test_the_backward_is_that_of_the_largest_batch_measured(document):
    seconds = sum(layer["backward"]["seconds"][-1] for layer in WORKLOAD["layers"])
    assert document()["backward_s"] == pytest.approx(seconds, rel=1e-12)
    assert document("--batch", 4) == document()
    first = sum(layer["backward"]["seconds"][0] for layer in WORKLOAD["layers"])
    assert document("--batch", 1)["backward_s"] == pytest.approx(first, rel=1e-12)
    assert document("--batch", 1)["policies"] != document()["policies"]


def test_a_density_needs_what_top_k_takes(refused, document):
    assert "device.top_k: found nothing" in refused("--density", "0.01")
    for row in document("--density", "0.01", sparse=True)["policies"].values():
        assert set(row["densities"]) == {0.01}
        assert row["sparsification_s"] > 0
    assert document("--density", "1", sparse=True) == document()


def test_of_two_densities_each_group_takes_the_better(document):
    mixed = document("--density", "0.01", "--density", "1", sparse=True)
    assert set(mixed["policies"]["exact"]["densities"]) == {0.01, 1.0}
    for alone in (document(), document("--density", "0.01", sparse=True)):
        for name, seconds in finish_s(alone).items():
            assert mixed["policies"][name]["finish_s"] <= seconds * (1 + 1e-12), name
        assert mixed["lower_bound_s"] <= alone["lower_bound_s"] * (1 + 1e-12)
    best = mixed["policies"]["exact"]["finish_s"]
    assert best < document()["policies"]["exact"]["finish_s"] * 0.95
    assert best < document("--density", "0.01", sparse=True)["policies"]["exact"]["finish_s"]
    # The same density twice is one.
    once = document("--density", "0.01", sparse=True)
    assert document("--density", "0.01", "--density", "0.01", sparse=True) == once


def test_the_number_of_groups_is_kept(document):
    free = document()["policies"]
    for name, row in document("--max-groups", 2)["policies"].items():
        assert row["num_groups"] <= 2, name
        assert row["finish_s"] >= free["exact"]["finish_s"]
    assert {row["num_groups"] for row in document("--max-groups", 1)["policies"].values()} == {1}
    assert document("--max-groups", 8) == document()


def test_the_bytes_of_a_group_are_kept(document):
    for name, row in document("--max-group-bytes", 20e6)["policies"].items():
        sizes = zip(group_elements(row), row["groups"], strict=True)
        assert all(4 * size <= 20e6 or len(group) == 1 for size, group in sizes), name
    # At 2 bytes per element twice as many elements fit.
    rows = document("--max-group-bytes", 20e6, "--precision", "float16")["policies"]
    assert 5e6 < max(group_elements(rows["single"])) <= 10e6


def test_the_elements_of_a_group_are_kept(document):
    for name, row in document("--min-elements", 5_000_000)["policies"].items():
        assert min(group_elements(row)[:-1], default=5e6) >= 5e6, name
        assert row["num_groups"] <= 4
    whole = document("--min-elements", sum(ELEMENTS))["policies"]
    assert all(row["num_groups"] == 1 for row in whole.values())
    assert document("--min-elements", 0) == document()


@pytest.mark.parametrize("sparse", [False, True])
def test_the_memory_is_kept(document, sparse):
    flags = ("--density", "0.01", "--density", "1") if sparse else ()
    free = document(*flags, sparse=sparse)
    assert max(map(memory_bytes, free["policies"].values())) > 30e6
    found = document(*flags, "--max-memory", 30e6, sparse=sparse)
    assert all(memory_bytes(row) <= 30e6 for row in found["policies"].values())
    none = document(*flags, "--max-memory", 1, sparse=sparse)
    for row in none["policies"].values():
        assert row["num_groups"] == len(ELEMENTS)
        assert set(row["densities"]) == {1.0}


def test_two_replicas_in_a_node_exchange_faster_than_four_across(document):
    two, four = document("--replicas", 2), document("--replicas", 4)
    assert four == document()
    assert two["backward_s"] == four["backward_s"]
    assert all(finish_s(two)[name] < seconds for name, seconds in finish_s(four).items())


def test_the_cap_is_that_of_the_threshold_policies_only(document):
    free, capped = document(), document("--cap-bytes", 1)
    for name, row in capped["policies"].items():
        if name in ("threshold", "horovod", "paddle"):
            assert row["num_groups"] == len(ELEMENTS)
            assert free["policies"][name]["num_groups"] < len(ELEMENTS)
        else:
            assert row == free["policies"][name]


def test_half_the_bytes_per_element_end_earlier(document):
    full, half = document(), document("--precision", "float16")
    # Policies with a cap in bytes merge more elements, and may end later.
    for name in ("layerwise", "single", "mg-wfbp", "exact"):
        assert finish_s(half)[name] < finish_s(full)[name], name
    assert half["backward_s"] == full["backward_s"]
    assert document("--precision", "bfloat16") == half
    assert document("--precision", "float32") == full


def test_the_noise_decides_on_the_verdict(files, capsys):
    for noise, words in (
        ("0.02", "to gain: PyTorch's default ends 10.0 % later than exact"),
        ("0.11", "nothing to gain over PyTorch's default"),
        ("0.5", "nothing to gain: all policies end within 50.0 % of each other"),
    ):
        assert main(["groups", *map(str, (files[0], "--cluster", files[1], "--noise", noise))]) == 0
        assert words in " ".join(capsys.readouterr().out.split())


WRONG = ["0", "-1", "nan", "inf", "many", ""]
FLAGS = {
    "--replicas": [*WRONG, "1", "2.5"],
    "--batch": WRONG,
    "--density": [*WRONG, "1.5"],
    "--cap-bytes": WRONG,
    "--max-group-bytes": WRONG,
    "--min-elements": [*WRONG[1:], "2.5"],
    "--max-groups": [*WRONG, "2.5"],
    "--max-memory": WRONG,
    "--noise": WRONG,
    "--precision": [*WRONG, "int8"],
}


@pytest.mark.parametrize(("flag", "value"), [(f, v) for f, values in FLAGS.items() for v in values])
def test_a_flag_given_wrongly_is_one_line(flag, value, refused):
    line = refused(f"{flag}={value}")
    assert flag in line
    assert repr(value) in line


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--replicas", "5"], "replicas: found 5; allowed: 2 to 4"),
        (["--replicas", f"1{'0' * 400}"], "allowed: 2 to 4"),
        (["--max-groups", "1", "--max-group-bytes", "1e6"], "max_groups: found 1; allowed: at le"),
        (["--max-groups", "1", "--max-memory", "1e6"], "max_memory_bytes: found 1000000.0; allow"),
        (["--min-elements", "9000000", "--max-group-bytes", "1e6"], "min_elements: found 9000000"),
        # Layers of 5 and 7 million elements go alone and so do those around them.
        (["--min-elements", "3000000", "--max-group-bytes", "12e6"], "min_elements: found 3000000"),
        (["--density", "0.01", "--max-groups", "2"], "device.top_k: found nothing"),
        (["--stranger"], "--stranger"),
    ],
)
def test_what_cannot_be_kept_is_one_line(flags, expected, refused):
    assert expected in refused(*flags)


def test_a_number_of_groups_too_large_for_a_float_limits_nothing(document):
    assert document("--max-groups", f"1{'0' * 400}") == document()


def test_wrong_use_in_a_process_of_its_own_has_no_traceback(files):
    for flags in (["--replicas", "9"], ["--max-groups", "1", "--max-group-bytes", "1e6"]):
        done = in_own_process(files[0], "--cluster", files[1], *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
    assert in_own_process(files[0]).returncode == 2


@pytest.mark.parametrize("absent", [0, 1])
def test_an_absent_workload_or_cluster_is_one_line(absent, files, capsys):
    files[absent].unlink()
    assert main(["groups", str(files[0]), "--cluster", str(files[1])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert str(files[absent]) in err
