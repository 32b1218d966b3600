from __future__ import annotations

import json

import pytest
from command_line import one_line
from real_runs import MODEL

from autoplan.calibration import load_calibration
from autoplan.cli.main import main

pytest.importorskip("paddle")

EXPERIMENT = """
schema = "autoplan-experiment/1"
name = "tiny"
{more}
[workload]
path = "tiny.json"
[job]
global_batch = 16
optimizer = "sgd"
[cluster]
name = "two"
devices_per_node = 2
[cluster.device]
name = "one CPU core"
memory_bytes = 1e9
memory_bandwidth_bytes_per_s = 1e10
[cluster.intra_node]
name = "link"
alpha_s = 1e-4
bandwidth_bytes_per_s = 1e9
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A profiled model, an experiment, a plan, and a calibration by running it."""
    made = tmp_path_factory.mktemp("tiny")
    assert main(["profile", f"{MODEL}:build", "--out", str(made / "tiny.json")]) == 0
    (made / "e.toml").write_text(EXPERIMENT.format(more=""))
    (made / "named.toml").write_text(EXPERIMENT.format(more='calibration = "c.json"'))
    stages = [{"layers": each, "groups": [{"layers": each}]} for each in ([0, 3], [3, 6])]
    (made / "p.json").write_text(json.dumps({"stages": stages, "microbatches": 4}))
    return made


@pytest.fixture(scope="module")
def verified(folder):
    options = ["--model", f"{MODEL}:build", "--calibrate", str(folder / "c.json"), "--json"]
    code = main(["verify", str(folder / "e.toml"), "--plan", str(folder / "p.json"), *options])
    assert code == 0
    return load_calibration(folder / "c.json")


def predicted(capsys, folder, experiment, *options):
    command = ["predict", str(folder / experiment), "--plan", str(folder / "p.json"), "--json"]
    assert main([*command, *options]) == 0
    return json.loads(capsys.readouterr().out)["prediction"]


def test_real_runs_give_a_factor_that_predictions_take_from_then_on(verified, folder, capsys):
    assert 0.2 < verified.device_factor < 20
    assert len(verified.plans_sha256) == len(verified.errors_after) >= 1
    capsys.readouterr()
    before = predicted(capsys, folder, "e.toml")
    after = predicted(capsys, folder, "e.toml", "--calibration", str(folder / "c.json"))
    named = predicted(capsys, folder, "named.toml")
    assert after["step_s"] == named["step_s"] != before["step_s"]
    ratio = after["stages"][0]["compute_s"] / before["stages"][0]["compute_s"]
    assert ratio == pytest.approx(verified.device_factor, rel=1e-6)
    assert [note for note in after["notes"] if note.startswith("calibrated: device seconds times")]
    assert not any("calibrated" in note for note in before["notes"])


def test_a_search_takes_the_factor_too(verified, folder, capsys):
    command = ["search", str(folder / "named.toml"), "--trials", "4", "--json"]
    assert main([*command, "--output", str(folder / "out")]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert any(note.startswith("calibrated: ") for note in best["prediction"]["notes"])


def test_emulated_runs_say_nothing_of_the_device(folder, capsys):
    capsys.readouterr()
    found = one_line(
        capsys,
        *("verify", folder / "e.toml", "--plan", folder / "p.json", "--calibrate", folder / "x"),
        *("--compute", "emulated", "--link", "emulated"),
    )
    assert "--calibrate: found emulated compute, which says nothing of the device" in found
    assert not (folder / "x").exists()


def test_a_calibration_that_is_none_is_told_in_one_line(folder, capsys):
    capsys.readouterr()
    (folder / "bad.json").write_text('{"device_factor": -1}')
    options = ("--plan", folder / "p.json", "--calibration", folder / "bad.json")
    assert "bad.json" in one_line(capsys, "predict", folder / "e.toml", *options)
