from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from builders import cluster
from real_runs import MODEL

from autoplan.cli.main import main
from autoplan.cluster import load_cluster
from autoplan.errors import InputError
from autoplan.execute import launch
from autoplan.execute.links import profile_links

pytest.importorskip("paddle")

SIZES = (1024, 65_536, 4_194_304)


@pytest.fixture(scope="module")
def three_ranks():
    return profile_links(3, sizes=SIZES, repeats=4)


def test_every_operation_is_measured_at_every_group_size(three_ranks):
    found = [(line.operation, line.ranks) for line in three_ranks.lines]
    assert found == [
        ("transfer", 2),
        ("all_reduce", 2),
        ("all_reduce", 3),
        ("all_gather", 2),
        ("all_gather", 3),
    ]
    for line in three_ranks.lines:
        assert line.size_bytes == SIZES
        assert 0 < line.seconds[0] <= line.seconds[1] <= line.seconds[2] < 2
        assert line.alpha_s >= 0
        assert 1e-12 < line.s_per_byte < 1e-6
        residuals = np.array(line.fit.coefficients[0] + line.s_per_byte * np.array(SIZES))
        expected = residuals / np.array(line.seconds) - 1
        assert line.fit.residuals == pytest.approx(expected, abs=1e-9)


def test_what_was_measured_replaces_that_part_of_a_cluster(three_ranks):
    found = three_ranks.on(cluster(3))
    assert found.intra_node.measured_bytes == (1024.0, 4_194_304.0)
    assert "residuals" in found.intra_node.source
    assert {(t.collective, t.devices) for t in found.measured} == {
        (operation, n) for operation in ("all_reduce", "all_gather") for n in (2, 3)
    }
    assert three_ranks.on(found) == found


def test_the_command_writes_a_cluster_file_with_the_device_of_a_model(tmp_path, capsys):
    path = tmp_path / "cluster.toml"
    model = ["--model", f"{MODEL}:build", "--optimizer", "sgd"]
    arguments = ["--ranks", "2", "--repeats", "2", "--out", str(path), *model]
    assert main(["profile-links", *arguments]) == 0
    made = load_cluster(path)
    assert made.devices_per_node == 2
    assert "CPU" in made.device.name
    assert made.device.update_s_per_element("sgd") > 0
    assert made.device.update_s_per_element("adam") is None
    assert made.device.top_k.elements[-1] > 1000
    assert made.device.fused_copy.s_per_group > 0
    for found in (made.device.message_handling, made.device.exchange_handling):
        assert 1e-6 < found.s_per_message < 1e-2
    assert "transfer of 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "field"),
    [({"ranks": 1}, "ranks"), ({"sizes": (64, 128)}, "sizes"), ({"repeats": 0}, "repeats")],
)
def test_arguments_without_sense_are_refused(given, field):
    with pytest.raises(InputError, match=f"^{field}: found"):
        profile_links(**{"ranks": 2, **given})


def test_links_of_gpus_are_measured_by_the_calls_of_nccl(monkeypatch):
    script = str(Path(__file__).with_name("host_as_gpu.py"))
    monkeypatch.setattr(launch, "rank_command", lambda _, *words: (sys.executable, script, *words))
    found = profile_links(2, device="gpu", sizes=SIZES, repeats=2)
    assert found.collectives == "nccl"
    assert [line.operation for line in found.lines] == ["transfer", "all_reduce", "all_gather"]
    assert all(min(line.seconds) > 0 for line in found.lines)
