from __future__ import annotations

import json

import pytest
from command_line import one_line

from autoplan.cli.main import main
from autoplan.costmodel import load_measurements
from autoplan.workload import load_workload

pytest.importorskip("paddle")

SOURCE = """
import paddle
from paddle import nn

def build(batch=-1, strange=False):
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [batch, 64], "float32")
        label = paddle.static.data("label", [batch, 1], "int64")
        hidden = nn.Linear(64, 128)(x)
        hidden = nn.Linear(128, 96)(paddle.nn.functional.relu(hidden))
        hidden = nn.Linear(96, 4)(paddle.nn.functional.relu(hidden))
        if strange:
            hidden = paddle.erfinv(paddle.tanh(hidden))
        loss = paddle.nn.functional.cross_entropy(hidden, label)
        paddle.optimizer.Adam(1e-3).minimize(loss)
    return program, startup

def strange():
    return build(strange=True)

def alone():
    return build()[0]

def nothing():
    print("built nothing")
"""

EXPERIMENT = """
schema = "autoplan-experiment/1"
name = "from-a-program"
space = "default"

[workload]
path = "w.json"

[cluster]
name = "box"
devices_per_node = 2
device = "a100-80gb"
intra_node = {name = "bus", alpha_s = 1e-6, bandwidth_bytes_per_s = 1e11}

[job]
global_batch = 16
optimizer = "adam"

[budget]
trials = 3
seconds = 20
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "program_file.py"
    path.write_text(SOURCE, encoding="utf-8")
    return f"{path}:build"


def run(source, out, *options):
    arguments = ["workload", "from-program", source, "--out", str(out), "--batch-size", "8"]
    return main([*arguments, *options])


def test_a_program_becomes_a_workload_with_three_batch_sizes(source, tmp_path, capsys):
    out = tmp_path / "w.json"
    assert run(source, out, "--device", "a100-80gb", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    workload = load_workload(out)
    assert summary["layers"] == len(workload.layers) >= 2
    assert workload.layers[0].forward.samples == (2.0, 4.0, 8.0)
    trained = 64 * 128 + 128 + 128 * 96 + 96 + 96 * 4 + 4
    assert sum(layer.gradient_elements for layer in workload.layers) == trained
    assert workload.provenance.source == "program_file.py:build"
    assert workload.provenance.device == "by the peaks of A100 SXM 80 GB"


def test_its_plans_can_be_searched_and_predicted(source, tmp_path, capsys):
    assert run(source, tmp_path / "w.json", "--device", "a100-80gb") == 0
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(EXPERIMENT, encoding="utf-8")
    assert main(["search", str(experiment), "--output", str(tmp_path / "run")]) == 0
    plan = tmp_path / "run" / "best-plan.json"
    capsys.readouterr()
    assert main(["predict", str(experiment), "--plan", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"]["step_s"] > 0


def test_measured_operators_are_kept_and_used_again(source, tmp_path, capsys):
    costs = tmp_path / "ops.json"
    assert run(source, tmp_path / "w.json", "--measure", "--costs", str(costs)) == 0
    kept = load_measurements(costs)
    assert len(kept.ops) > 10
    assert run(source, tmp_path / "v.json", "--costs", str(costs), "--strict") == 0
    first, second = (load_workload(tmp_path / name) for name in ("w.json", "v.json"))
    assert first.layers == second.layers
    assert first.layers[0].forward.samples == (2.0, 4.0, 8.0)
    assert first.provenance.device == kept.device
    assert "operators measured on" in capsys.readouterr().out


def test_operators_without_a_cost_are_named_and_refused_when_strict(source, tmp_path, capsys):
    out = tmp_path / "w.json"
    strange = source.replace(":build", ":strange")
    assert run(strange, out, "--device", "a100-80gb") == 0
    assert "warning: no cost of" in capsys.readouterr().err
    assert any("erfinv x1" in note for note in load_workload(out).provenance.notes)
    arguments = ["workload", "from-program", strange, "--out", out, "--batch-size", 8]
    line = one_line(capsys, *arguments, "--device", "a100-80gb", "--strict")
    assert "no cost of" in line
    assert "erfinv x1" in line


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        ("build", [], "nothing that says what operators cost"),
        ("build", ["--device", "abacus"], "--device: found 'abacus'"),
        ("build", ["--costs", "absent.json"], "absent.json: found no such file"),
        ("alone", ["--measure"], "found no startup program"),
        ("nothing", ["--device", "a100-80gb"], "a training program, (program, startup)"),
        ("missing", ["--device", "a100-80gb"], "no function 'missing'"),
        ("build", ["--device", "a100-80gb", "--crossing", "0"], "--crossing"),
    ],
)
def test_wrong_options_and_sources_end_in_one_line(
    source, tmp_path, capsys, function, options, said
):
    chosen = source.replace(":build", f":{function}")
    arguments = ["workload", "from-program", chosen, "--out", tmp_path / "w.json"]
    capsys.readouterr()
    lines = one_line_of_output(capsys, [*arguments, "--batch-size", 8, *options])
    assert said in lines


def one_line_of_output(capsys, arguments):
    """What a failing command says last; a user's own prints may come before it."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]
