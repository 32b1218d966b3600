"""Every kind of file and every flag, given wrongly: one line, exit code 2, nothing written."""

import json
import os

import pytest
from command_line import one_line
from small_experiment import WORKLOAD

from autoplan.cli.main import main

BINARY = bytes(range(256)) * 8


def files_below(folder):
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def edited(text, old, new):
    assert old in text, old
    return text.replace(old, new)


EXPERIMENT_EDITS = {
    "unknown field": ("[job]", "speed = 3\n[job]", "workload.speed: found an unknown field"),
    "unknown top field": (
        'name = "small"',
        'name = "small"\nfoo = 1',
        "foo: found an unknown field",
    ),
    "missing name": ('name = "small"\n', "", "name: found nothing"),
    "missing schema": ('schema = "autoplan-experiment/1"\n', "", "schema: found nothing"),
    "other schema": ("autoplan-experiment/1", "autoplan-experiment/7", "schema: found"),
    "name of a path": ('name = "small"', 'name = "../small"', "name: found '../small'"),
    "missing cluster": ('cluster = "cluster.toml"\n', "", "cluster: found nothing"),
    "absent cluster": ("cluster.toml", "nowhere.toml", "cluster: found 'nowhere.toml'"),
    "cluster of a number": ('"cluster.toml"', "4", "cluster: found 4"),
    "absent workload": ("workload.json", "nowhere.json", "workload.path: found 'nowhere.json'"),
    "absent space": ('"default"', '"nowhere"', "space: found 'nowhere'"),
    "space of a number": ('"default"', "1.5", "space: found 1.5"),
    "zero batch": ("global_batch = 16", "global_batch = 0", "job.global_batch: found 0"),
    "huge batch": ("global_batch = 16", f"global_batch = {10**30}", "job.global_batch: found"),
    "text batch": ("global_batch = 16", 'global_batch = "16"', "job.global_batch: found '16'"),
    "true batch": ("global_batch = 16", "global_batch = true", "job.global_batch: found True"),
    "date batch": ("global_batch = 16", "global_batch = 2026-01-01", "job.global_batch: found"),
    "bad optimizer": ('"momentum"', '"lion"', "job.optimizer: found 'lion'"),
    "bad headroom": (
        "[budget]",
        "memory_headroom = 1.0\n[budget]",
        "job.memory_headroom: found 1.0",
    ),
    "nan rate": (
        "[budget]",
        "optimizer_s_per_element = nan\n[budget]",
        "job.optimizer_s_per_element: found nan",
    ),
    "unknown objective": (
        'name = "small"',
        'name = "small"\nobjective = "speed"',
        "objective: found 'speed'",
    ),
    "no trials": ("trials = 30", "trials = 0", "budget.trials: found 0"),
    "infinite seconds": ("seconds = 60", "seconds = inf", "budget.seconds: found inf"),
    "negative seed": ("trials = 30", "seed = -1", "budget.seed: found -1"),
    "unknown time unit": (
        '"workload.json"',
        '"workload.json"\ntime_unit = "h"',
        "workload.time_unit",
    ),
    "no duplicate": ('name = "small"', 'name = "small"\nname = "b"', "found broken TOML"),
    "stages beyond layers": (
        'space = "default"',
        "space = {stages = [9]}",
        "space.stages: found (9,)",
    ),
    "stages beyond devices": (
        'space = "default"',
        "space = {stages = [5]}",
        "space.stages: found (5,)",
    ),
    "batch that cannot be split": (
        'space = "default"',
        "space = {microbatches = [5]}",
        "space.microbatches: found (5,)",
    ),
    "unknown knob": (
        'space = "default"',
        "space = {knob = 1}",
        "space.knob: found an unknown field",
    ),
}


@pytest.mark.parametrize("case", EXPERIMENT_EDITS)
def test_experiment_files(case, experiment_path, capsys):
    old, new, expected = EXPERIMENT_EDITS[case]
    experiment_path.write_text(edited(experiment_path.read_text(), old, new))
    before = files_below(experiment_path.parent)
    line = one_line(capsys, "search", experiment_path)
    assert line.startswith(f"autoplan: {experiment_path}: ")
    assert expected in line
    assert "allowed: " in line
    assert files_below(experiment_path.parent) == before


CLUSTER_EDITS = {
    "zero nodes": ("nodes = 2\n", "nodes = 0\n", "nodes: found 0"),
    "too many devices": ("nodes = 2\n", "nodes = 99999999\n", "nodes: found 99999999"),
    "no devices": ("devices_per_node = 2", "devices_per_node = -2", "devices_per_node: found -2"),
    "unknown link": ('"pcie3-x16"', '"pci3"', "intra_node: found 'pci3'"),
    "missing link": ('inter_node = "10gbe"', "", "inter_node: found None"),
    "unknown field": ("nodes = 2\n", "nodes = 2\nracks = 1\n", "racks: found an unknown field"),
    "negative memory": ("memory_bytes = 1e9", "memory_bytes = -1e9", "device.memory_bytes: found"),
    "infinite memory": (
        "memory_bytes = 1e9",
        "memory_bytes = inf",
        "device.memory_bytes: found inf",
    ),
    "unknown in device": ("memory_bytes = 1e9", "memory_gb = 1", "device.memory"),
    "link of a table": (
        '"10gbe"',
        '{name = "x", alpha_s = -1.0, bandwidth_bytes_per_s = 1e9}',
        "inter_node.alpha_s: found -1.0",
    ),
    "broken": ("nodes = 2\n", "nodes = \n", "found broken TOML"),
}


@pytest.mark.parametrize("case", CLUSTER_EDITS)
def test_cluster_files(case, experiment_path, capsys):
    old, new, expected = CLUSTER_EDITS[case]
    cluster = experiment_path.parent / "cluster.toml"
    cluster.write_text(edited(cluster.read_text(), old, new))
    line = one_line(capsys, "search", experiment_path)
    assert line.startswith(f"autoplan: {cluster}: ")
    assert expected in line
    assert not (experiment_path.parent / "out").exists()


def changed_workload(change):
    document = json.loads(json.dumps(WORKLOAD))
    change(document)
    return document


WORKLOAD_EDITS = {
    "no layers": (lambda w: w.update(layers=[]), "layers: found ()"),
    "missing name": (lambda w: w.pop("name"), "name: found nothing"),
    "cuts do not match": (
        lambda w: w.update(cut_bytes_per_sample=[0.0]),
        "cut_bytes_per_sample: found 1",
    ),
    "negative cut": (
        lambda w: w["cut_bytes_per_sample"].__setitem__(2, -1.0),
        "cut_bytes_per_sample[2]: found -1.0",
    ),
    "unknown in a layer": (
        lambda w: w["layers"][3].update(flops=1),
        "layers[3].flops: found an unknown field",
    ),
    "negative time": (
        lambda w: w["layers"][1]["forward"].update(seconds=[-1, 2]),
        "layers[1].forward.seconds: found",
    ),
    "text time": (
        lambda w: w["layers"][1]["forward"].update(seconds=["fast", 2]),
        "layers[1].forward.seconds[0]: found 'fast'",
    ),
    "huge integer": (
        lambda w: w["layers"][0].update(gradient_elements=10**400),
        "layers[0].gradient_elements: found",
    ),
    "other version": (lambda w: w.update(schema="autoplan-workload/9"), "schema: found"),
}


@pytest.mark.parametrize("case", WORKLOAD_EDITS)
def test_workload_files(case, tmp_path, capsys):
    change, expected = WORKLOAD_EDITS[case]
    path = tmp_path / "w.json"
    path.write_text(json.dumps(changed_workload(change)))
    line = one_line(capsys, "workload", "show", path)
    assert line.startswith(f"autoplan: {path}: ")
    assert expected in line
    out = tmp_path / "out.json"
    one_line(capsys, "workload", "convert", path, "--out", out)
    assert not out.exists()


PLAN = {
    "schema": "autoplan-plan/1",
    "stages": [
        {"layers": [0, 4], "replicas": 2, "groups": [{"layers": [0, 4]}]},
        {"layers": [4, 8], "replicas": 2, "groups": [{"layers": [6, 8]}, {"layers": [4, 6]}]},
    ],
    "microbatches": 4,
}


def replaced(path, value):
    document = json.loads(json.dumps(PLAN))
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return document


PLAN_EDITS = {
    "no stages": (replaced(["stages"], []), "stages: found ()"),
    "gap": (replaced(["stages", 1, "layers"], [5, 8]), "stages[1]"),
    "empty stage": (replaced(["stages", 0, "layers"], [0, 0]), "stages[0].layers: found [0, 0]"),
    "reversed groups": (
        replaced(["stages", 1, "groups"], [{"layers": [4, 6]}, {"layers": [6, 8]}]),
        "stages[1].groups[0].layers: found [4, 6]",
    ),
    "no groups": (
        replaced(["stages", 0, "groups"], []),
        "stages[0].groups: found layers down to 4",
    ),
    "no microbatches": (replaced(["microbatches"], 0), "microbatches: found 0"),
    "microbatches do not divide": (replaced(["microbatches"], 3), "microbatches: found 3"),
    "replicas do not divide": (replaced(["stages", 0, "replicas"], 3), "stages: devices: found 5"),
    "too many devices": (replaced(["stages", 0, "replicas"], 4), "stages: devices: found 6"),
    "sparse": (
        replaced(["stages", 0, "groups"], [{"layers": [0, 4], "density": 0.01}]),
        "device.top_k: found nothing",
    ),
    "bad density": (
        replaced(["stages", 0, "groups"], [{"layers": [0, 4], "density": 0}]),
        "stages[0].groups[0].density: found 0",
    ),
    "bad schedule": (replaced(["schedule"], "zb"), "schedule: found 'zb'"),
    "bad rank order": (replaced(["rank_order"], "x"), "rank_order: found 'x'"),
    "too few layers": (replaced(["stages"], PLAN["stages"][:1]), "stages: layers covered: found 4"),
    "unknown field": (replaced(["speed"], 1), "speed: found an unknown field"),
    "huge microbatches": (replaced(["microbatches"], 10**12), "microbatches: found 1000000000000"),
}


@pytest.mark.parametrize("case", PLAN_EDITS)
def test_plan_files(case, experiment_path, tmp_path, capsys):
    document, expected = PLAN_EDITS[case]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    trace = tmp_path / "trace.json"
    line = one_line(capsys, "predict", experiment_path, "--plan", path, "--trace", trace)
    # What a sparse plan lacks is a figure of the cluster's device.
    assert line.startswith("autoplan: two by two: " if case == "sparse" else f"autoplan: {path}: ")
    assert expected in line
    assert not trace.exists()


def unusable_files(folder):
    """One path of each kind that no reader can use."""
    huge = folder / "huge"
    with huge.open("wb") as stream:
        os.truncate(stream.fileno(), 2**31)
    (folder / "empty").write_bytes(b"")
    (folder / "binary").write_bytes(BINARY)
    (folder / "truncated").write_text('{"schema": "autoplan-workl')
    (folder / "folder").mkdir()
    return ["huge", "empty", "binary", "truncated", "folder", "absent"]


@pytest.mark.parametrize("verb", ["search", "predict", "plan", "workload"])
@pytest.mark.parametrize("kind", ["huge", "empty", "binary", "truncated", "folder", "absent"])
def test_files_that_no_reader_can_use(verb, kind, experiment_path, tmp_path, capsys):
    folder = tmp_path / "bad"
    folder.mkdir()
    assert kind in unusable_files(folder)
    path = folder / kind
    arguments = {
        "search": ["search", path],
        "predict": ["predict", path, "--plan", path],
        "plan": ["predict", experiment_path, "--plan", path],
        "workload": ["workload", "show", path],
    }[verb]
    line = one_line(capsys, *arguments)
    assert str(path) in line
    assert not (experiment_path.parent / "out").exists()


@pytest.mark.parametrize(
    ("name", "last"),
    [("experiment.toml", b"global_batch"), ("cluster.toml", b"10gbe"), ("workload.json", b"}")],
)
def test_truncated_anywhere_before_its_last_needed_word(name, last, experiment_path, capsys):
    path = experiment_path.parent / name
    whole = path.read_bytes()
    end = whole.rindex(last)
    for offset in range(0, end, max(1, end // 20)):
        path.write_bytes(whole[:offset])
        one_line(capsys, "search", experiment_path)
    assert not (experiment_path.parent / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--trials", "0"], "--trials: found '0'"),
        (["--trials", "many"], "--trials: found 'many'"),
        (["--trials", "1.5"], "--trials: found '1.5'"),
        (["--objective", "speed"], "--objective: invalid choice: 'speed'"),
        (["--seconds", "-1"], "--seconds: found '-1'"),
        (["--seconds", "nan"], "--seconds: found 'nan'"),
        (["--seconds", "inf"], "--seconds: found 'inf'"),
        (["--seed", "x"], "--seed: found 'x'"),
        (["--seed", "99999999999"], "seed: found 99999999999"),
        (["--storage", "nonsense"], "storage: found 'nonsense'"),
        (["--stranger"], "--stranger"),
    ],
)
def test_flags_of_search(arguments, expected, experiment_path, capsys):
    line = one_line(capsys, "search", experiment_path, *arguments)
    assert expected in line
    assert not (experiment_path.parent / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["search"], ["predict", "x.toml"], ["workload"], ["workload", "melt", "x"]],
)
def test_missing_and_unknown_words(arguments, capsys):
    assert "--help" in one_line(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments", [["--batch-size", "0"], ["--time-unit", "h"], ["--bytes-per-element", "x"]]
)
def test_flags_of_workload(arguments, experiment_path, capsys):
    path = experiment_path.parent / "workload.json"
    assert arguments[0] in one_line(capsys, "workload", "show", path, *arguments)


def test_an_output_that_cannot_be_written(experiment_path, tmp_path, capsys):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    path = experiment_path.parent / "workload.json"
    line = one_line(capsys, "workload", "convert", path, "--out", blocker / "w.json")
    assert str(blocker) in line
    assert blocker.read_text() == "in the way"


def test_debug_shows_the_traceback(experiment_path):
    from autoplan.errors import InputError

    experiment_path.write_text("nonsense")
    with pytest.raises(InputError):
        main(["--debug", "search", str(experiment_path)])


@pytest.mark.parametrize("flag", ["--output", "--study", "--storage"])
def test_an_empty_text_is_not_taken_for_the_default(flag, experiment_path, capsys):
    line = one_line(capsys, "search", experiment_path, flag, "")
    assert f"{flag}: found ''" in line
    assert not (experiment_path.parent / "out").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
def test_an_output_folder_that_cannot_be_made(place, experiment_path, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    line = one_line(capsys, "search", experiment_path, "--output", tmp_path / place)
    assert str(tmp_path / place) in line
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_database_in_a_folder_that_cannot_be_made(experiment_path, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    url = f"sqlite:///{tmp_path}/file/study.db"
    assert "storage: found" in one_line(capsys, "search", experiment_path, "--storage", url)
    assert not (experiment_path.parent / "out").exists()


@pytest.mark.parametrize("path", ["", "two\nlines.toml"])
def test_odd_paths_are_told_in_one_line(path, capsys):
    assert one_line(capsys, "search", path).startswith("autoplan: ")


def test_profile_checks_its_place_first_and_makes_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "w.json"
    assert str(out) in one_line(capsys, "profile", "nowhere:build", "--out", out)
    one_line(capsys, "profile", "nowhere:build", "--out", tmp_path / "new" / "w.json")
    assert not (tmp_path / "new").exists()
