"""The commands as a user runs them: in a process of their own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest


def autoplan(*arguments, cwd=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "autoplan", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        **options,
    )


def test_search_prints_plan_baselines_stages_and_where_everything_is(experiment_path):
    done = autoplan("search", experiment_path, "--trials", 20)
    assert done.returncode == 0, done.stderr
    for words in ("best plan", "uniform-layers", "data-parallel", "stage", "plan:", "database:"):
        assert words in done.stdout
    assert (experiment_path.parent / "out" / "best-plan.json").exists()


def test_json_is_one_document_and_predict_agrees_to_the_last_digit(experiment_path):
    done = autoplan("search", experiment_path, "--trials", 20, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plan_path = found["best"]["plan_path"]
    predicted = autoplan("predict", experiment_path, "--plan", plan_path, "--json")
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout)["prediction"] == found["best"]["prediction"]
    assert json.loads(predicted.stdout)["plan"] == found["best"]["plan"]
    assert set(found["baselines"]) == {
        "uniform-layers", "balanced-compute", "balanced-communication", "data-parallel",
    }  # fmt: skip


def test_predict_writes_a_trace_that_covers_the_step(experiment_path, tmp_path):
    autoplan("search", experiment_path, "--trials", 5)
    plan = experiment_path.parent / "out" / "best-plan.json"
    trace = tmp_path / "trace.json"
    done = autoplan("predict", experiment_path, "--plan", plan, "--trace", trace, "--json")
    assert done.returncode == 0, done.stderr
    step_us = json.loads(done.stdout)["prediction"]["step_s"] * 1e6
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    end_us = max(e["ts"] + e["dur"] for e in spans)
    assert min(e["ts"] for e in spans) == 0
    assert 0.9 * step_us <= end_us <= step_us * (1 + 1e-9)
    microbatches = json.loads(plan.read_text())["microbatches"]
    stages = len(json.loads(plan.read_text())["stages"])
    assert sum(e["tid"] == 0 for e in spans) == 2 * microbatches * stages


def test_a_plan_that_does_not_fit_exits_with_1_and_says_so(experiment_path):
    autoplan("search", experiment_path, "--trials", 5)
    cluster = experiment_path.parent / "cluster.toml"
    cluster.write_text(cluster.read_text().replace("1e9", "1e7"))
    plan = experiment_path.parent / "out" / "best-plan.json"
    done = autoplan("predict", experiment_path, "--plan", plan)
    assert done.returncode == 1
    assert "does not fit" in done.stdout


def test_nothing_feasible_exits_with_1_in_one_line(experiment_path):
    cluster = experiment_path.parent / "cluster.toml"
    cluster.write_text(cluster.read_text().replace("1e9", "1e6"))
    done = autoplan("search", experiment_path, "--trials", 3)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("autoplan: small: none of")


def test_workload_show_and_convert(experiment_path, tmp_path):
    shown = autoplan("workload", "show", experiment_path.parent / "workload.json")
    assert shown.returncode == 0, shown.stderr
    assert "layer7" in shown.stdout
    assert "total" in shown.stdout
    out = tmp_path / "converted.json"
    done = autoplan("workload", "convert", experiment_path.parent / "workload.json", "--out", out)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["schema"] == "autoplan-workload/1"
    again = autoplan("workload", "show", out, "--json")
    assert json.loads(again.stdout) == json.loads(out.read_text())


def test_output_study_and_seed_can_be_given(experiment_path, tmp_path):
    done = autoplan(
        "search", experiment_path, "--trials", 3, "--output", tmp_path / "elsewhere",
        "--study", "mine", "--seed", 5, "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["study"] == "mine"
    assert found["storage"].endswith("elsewhere/study.db")
    assert (tmp_path / "elsewhere" / "best-plan.json").exists()
    assert not (experiment_path.parent / "out").exists()


def test_a_password_in_the_storage_url_is_never_shown(experiment_path):
    url = "postgresql+psycopg://user:s3cret@127.0.0.1:1/none"
    done = autoplan("search", experiment_path, env={**os.environ, "AUTOPLAN_STORAGE": url})
    assert done.returncode in (2, 5)
    assert "s3cret" not in done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_ctrl_c_prints_the_best_plan_and_exits_with_130(experiment_path):
    # No plan whose groups a cap closes reaches the bound, which would end the search.
    text = experiment_path.read_text()
    experiment_path.write_text(text.replace('"default"', '{grouping = ["threshold"]}'))
    process = subprocess.Popen(
        [sys.executable, "-m", "autoplan", "search", experiment_path, "--trials=100000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while "trial" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    found = json.loads(out)
    assert found["stopped_by"] == "interrupted"
    assert found["trials"] > 0
    resumed = autoplan("search", experiment_path, "--trials", found["trials"] + 1, "--json")
    assert json.loads(resumed.stdout)["trials"] == found["trials"] + 1


def test_an_objective_can_be_chosen_and_is_told(experiment_path):
    done = autoplan("search", experiment_path, "--objective", "max_stage_load", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    stages = found["best"]["prediction"]["stages"]
    assert found["objective"]["name"] == "max_stage_load"
    assert found["objective"]["value"] == max(stage["load_s"] for stage in stages)
    shown = autoplan("search", experiment_path, "--objective", "max_stage_load")
    assert "busiest stage" in shown.stdout
    refused = autoplan("search", experiment_path)
    assert refused.returncode == 2
    assert "objective changed, the objective was max_stage_load" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_front_is_printed_and_its_plans_predict_what_it_says(experiment_path):
    two = ("--objective", "step_time_and_memory", "--trials", 30)
    done = autoplan("search", experiment_path, *two, "--json")
    assert done.returncode == 0, done.stderr
    front = json.loads(done.stdout)["front"]
    assert len(front) >= 3
    for point in (front[0], front[-1]):
        predicted = autoplan("predict", experiment_path, "--plan", point["plan_path"], "--json")
        prediction = json.loads(predicted.stdout)["prediction"]
        assert prediction["step_s"] == point["step_s"]
        peak_bytes = max(stage["memory"]["total_bytes"] for stage in prediction["stages"])
        assert peak_bytes == point["peak_bytes"]
    shown = autoplan("search", experiment_path, *two)
    for words in ("fastest plan", "memory", "front:"):
        assert words in shown.stdout


def test_help_names_every_verb():
    done = autoplan("--help")
    assert done.returncode == 0
    for verb in ("search", "predict", "profile", "workload"):
        assert verb in done.stdout


def test_output_into_a_closed_pipe_is_no_error(experiment_path):
    command = f"{sys.executable} -m autoplan workload show {experiment_path.parent}/workload.json"
    done = subprocess.run(
        f"{command} | head -1", shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""


@pytest.mark.parametrize("verb", ["search", "predict", "profile", "workload"])
def test_each_verb_has_help(verb):
    done = autoplan(verb, "--help")
    assert done.returncode == 0
    assert "usage" in done.stdout
