from __future__ import annotations

import json

import pytest
from command_line import one_line

from autoplan.cli.main import main

EMULATED = ("--compute", "emulated", "--link", "emulated")


@pytest.fixture(autouse=True)
def quick_layers(experiment_path):
    """A tenth of the small experiment's seconds and gradients."""
    path = experiment_path.parent / "workload.json"
    workload = json.loads(path.read_text())
    for layer in workload["layers"]:
        layer["gradient_elements"] //= 10
        for way in ("forward", "backward"):
            layer[way]["seconds"] = [s / 10 for s in layer[way]["seconds"]]
    path.write_text(json.dumps(workload))


@pytest.fixture
def plan_path(experiment_path):
    groups = [{"layers": [0, 4]}], [{"layers": [4, 8]}]
    stages = [{"layers": g[0]["layers"], "groups": g} for g in groups]
    path = experiment_path.parent / "halves.json"
    path.write_text(json.dumps({"stages": stages, "microbatches": 2}))
    return path


def test_prints_predicted_and_measured_side_by_side(experiment_path, plan_path, capsys):
    assert main(["verify", str(experiment_path), "--plan", str(plan_path), *EMULATED]) == 0
    out, err = capsys.readouterr()
    assert "halves" in out
    assert "default" in out
    assert "clock: wall; emulated compute, emulated links" in out
    assert out.splitlines()[-1].startswith("use plan ")
    assert "round 5 of 5" in err


def test_prints_one_document(experiment_path, plan_path, capsys):
    command = ["verify", str(experiment_path), "--plan", str(plan_path), *EMULATED, "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["default"] == "default"
    assert [row["name"] for row in document["plans"]] == ["halves", "default"]
    for row in document["plans"]:
        assert len(row["run"]["wall_s"]) == 5
        assert row["run"]["median_s"] > 0


def test_plans_that_do_not_run_are_told_with_exit_code_1(experiment_path, plan_path, capsys):
    command = ["verify", str(experiment_path), "--plan", str(plan_path), *EMULATED]
    assert main([*command, "--step-limit", "0.001"]) == 1
    out = capsys.readouterr().out
    assert "halves: timeout: no answer of rank" in out
    assert out.splitlines()[-1].startswith("no plan ran: ")


def test_a_search_can_end_with_real_runs(experiment_path, capsys):
    command = ["search", str(experiment_path), "--trials", "8", "--verify", "2", *EMULATED]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = document["verification"]["plans"]
    assert rows[0]["name"] == "small-1"
    assert rows[0]["plan"] == document["best"]["plan"]
    assert document["verification"]["summary"].startswith("use plan ")
    assert main(["verify", str(experiment_path), "--study", "small", "--top", "1", *EMULATED]) == 0
    out, err = capsys.readouterr()
    assert "small-1" in out
    assert "autoplan results compare small" in err
    database = str(experiment_path.parent / "out" / "study.db")
    assert main(["results", "compare", "small", "--storage", database, "--json"]) == 0
    (kind,) = json.loads(capsys.readouterr().out)["kinds"]
    assert (kind["clock"], kind["compute_mode"], kind["link_mode"]) == ("wall", *["emulated"] * 2)
    assert {row["status"] for row in kind["plans"]} == {"ok"}
    assert len(kind["plans"]) == len(rows)


def test_gpus_that_are_not_there_are_told_in_one_line(experiment_path, plan_path, capsys):
    pytest.importorskip("paddle")
    assert main(["verify", str(experiment_path), "--plan", str(plan_path), "--model", "m:f"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "is made of GPUs" in err


def test_a_search_does_not_start_if_its_plans_could_not_be_run(experiment_path, capsys):
    pytest.importorskip("paddle")
    assert main(["search", str(experiment_path), "--verify", "1"]) == 1
    assert "is made of GPUs" in capsys.readouterr().err
    assert not (experiment_path.parent / "out").exists()


@pytest.mark.parametrize("arguments", [("--rounds", "4"), ("--top", "0"), ("--clock", "sun")])
def test_options_out_of_range_are_refused(experiment_path, plan_path, capsys, arguments):
    line = one_line(capsys, "verify", experiment_path, "--plan", plan_path, *arguments)
    assert arguments[0] in line


def test_a_study_that_does_not_exist_is_refused_and_not_made(experiment_path, capsys):
    line = one_line(capsys, "verify", experiment_path, "--study", "none", *EMULATED)
    assert "found 'none'; allowed: the name of a study" in line
    assert not (experiment_path.parent / "out").exists()
    assert main(["search", str(experiment_path), "--trials", "3"]) == 0
    capsys.readouterr()
    line = one_line(capsys, "verify", experiment_path, "--study", "none", *EMULATED)
    assert "found 'none'; allowed: the name of a study" in line
