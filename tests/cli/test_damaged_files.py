"""Files cut short or with one byte changed: one line that names the file, or a valid result."""

import json
import random
import sqlite3
import time
from pathlib import Path

import pytest
import small_experiment

from autoplan.cli.main import main

SEED = 31
NUM_CUTS, NUM_FLIPS = 20, 200
SPACE = Path(__file__).resolve().parents[2] / "search_spaces" / "default.toml"
LONGEST_S = 60
"""Of one command; a hang would be longer on any machine."""

PLAN = {
    "schema": "autoplan-plan/1",
    "stages": [
        {"layers": [0, 4], "replicas": 2, "groups": [{"layers": [0, 4]}]},
        {"layers": [4, 8], "replicas": 2, "groups": [{"layers": [6, 8]}, {"layers": [4, 6]}]},
    ],
    "microbatches": 4,
}
CALIBRATION = {
    "schema": "autoplan-calibration/1",
    "device_factor": 1.25,
    "clock": "wall",
    "plans_sha256": ["0" * 64],
    "errors_before": [-0.2],
    "errors_after": [0.01],
    "workload": "small",
    "device": "device",
}
EXPERIMENT = "experiment.toml"
COMMANDS = {
    "predict": f"predict {EXPERIMENT} --plan plan.json --calibration calibration.json",
    "groups": "groups workload.json --cluster cluster.toml",
    "workload show": "workload show workload.json",
    "workload convert": "workload convert workload.json --out out/w.json",
    "search": f"search {EXPERIMENT} --trials 1 --seconds 0.1 --calibration calibration.json",
    "results": "results list --storage-file url",
    "verify": f"verify {EXPERIMENT} --plan plan.json --calibration calibration.json",
}
OTHER_NAMES = {"url": ("autoplan: storage: ",), "plan.json": ("autoplan: plan: ",)}
"""A URL with another path in it is valid, and `verify` names a plan by its file's stem."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One file of every kind, in the folder in which commands run."""
    small_experiment.write(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "space.toml").write_text(SPACE.read_text())
    (tmp_path / "url").write_text("sqlite:///made/study.db\n")
    experiment = tmp_path / EXPERIMENT
    experiment.write_text(experiment.read_text().replace('"default"', '"space.toml"'))
    (tmp_path / "calibration.json").write_text(json.dumps(CALIBRATION))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def damages(data, num_flips=NUM_FLIPS):
    """The data cut at 20 offsets, then with each of many bytes changed."""
    for i in range(NUM_CUTS):
        yield f"cut at {i * len(data) // NUM_CUTS}", data[: i * len(data) // NUM_CUTS]
    rng = random.Random(SEED)
    for _ in range(num_flips):
        offset, mask = rng.randrange(len(data)), rng.randrange(1, 256)
        changed = bytearray(data)
        changed[offset] ^= mask
        yield f"byte {offset} xor {mask}", bytes(changed)


def outcome(capsys, command):
    """Exit code and standard error of a command, which must not take long."""
    started_s = time.monotonic()
    code = main(command.split())
    assert time.monotonic() - started_s < LONGEST_S
    return code, capsys.readouterr().err.strip()


def require_told(code, err, names, what):
    """One line that names one of the files."""
    assert code == 2, (what, code, err)
    assert len(err.splitlines()) == 1, (what, err)
    assert err.startswith("autoplan: "), (what, err)
    assert any(name in err for name in names), (what, err)


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("predict", EXPERIMENT),
        ("predict", "cluster.toml"),
        ("predict", "workload.json"),
        ("predict", "space.toml"),
        ("predict", "plan.json"),
        ("predict", "calibration.json"),
        ("groups", "workload.json"),
        ("groups", "cluster.toml"),
        ("workload show", "workload.json"),
        ("workload convert", "workload.json"),
        ("search", EXPERIMENT),
        ("search", "cluster.toml"),
        ("search", "workload.json"),
        ("search", "calibration.json"),
        ("results", "url"),
    ],
)
def test_every_verb_tells_a_damaged_file_or_uses_a_valid_one(verb, name, folder, capsys):
    path, command = folder / name, COMMANDS[verb]
    whole = path.read_bytes()
    told = 0
    for number, (what, data) in enumerate(damages(whole)):
        path.write_bytes(data)
        own = f" --output {folder / f'o{number}'}" if verb == "search" else ""
        code, err = outcome(capsys, command + own)
        if code in (0, 1):
            continue
        # A valid file may not fit the others; the experiment brings them together.
        require_told(code, err, (name, EXPERIMENT, *OTHER_NAMES.get(name, ())), what)
        told += 1
    assert told >= 50


@pytest.mark.parametrize("name", [EXPERIMENT, "plan.json", "calibration.json"])
def test_verify_tells_a_damaged_file_before_it_runs_anything(name, folder, capsys):
    """The experiment is for GPUs and names no model, so that valid files end in an error too."""
    path, told = folder / name, 0
    for what, data in damages(path.read_bytes()):
        path.write_bytes(data)
        code, err = outcome(capsys, COMMANDS["verify"])
        if code == 1 or "model" in err:
            continue
        require_told(code, err, (name, EXPERIMENT, *OTHER_NAMES.get(name, ())), what)
        told += 1
    assert told >= 50


@pytest.fixture
def study(folder, capsys):
    """A database with a study that is not finished, and a folder beside it for copies."""
    assert outcome(capsys, f"search {EXPERIMENT} --trials 6 --output made")[0] == 0
    (path,) = (folder / "made").glob("*.db")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


DATABASE_COMMANDS = {
    "list": "results list --storage",
    "show": "results show small --storage",
    "compare": "results compare small --storage",
    "export": "results export --out out.csv --storage",
    "search": f"search {EXPERIMENT} --trials 7 --seconds 0.1 --storage",
    "verify": f"verify {EXPERIMENT} --study small --storage",
}


@pytest.mark.parametrize(
    ("verb", "num_flips"),
    [
        *((verb, NUM_FLIPS) for verb in ("list", "show", "compare", "export")),
        *((verb, NUM_FLIPS // 5) for verb in ("search", "verify")),
        *(pytest.param(v, NUM_FLIPS, marks=pytest.mark.slow) for v in ("search", "verify")),
    ],
)
def test_every_verb_tells_a_damaged_database_or_uses_it(verb, num_flips, study, folder, capsys):
    """Exit code 5; 2 where names or documents in it are no longer what they were."""
    told = 0
    for number, (what, data) in enumerate(damages(study.read_bytes(), num_flips)):
        # SQLite takes a file by its name for the one that Optuna has not closed yet.
        path = folder / f"damaged-{number}.db"
        path.write_bytes(data)
        code, err = outcome(capsys, f"{DATABASE_COMMANDS[verb]} {path.name}")
        if code in (0, 1):
            continue
        assert code in (2, 5), (what, code, err)
        lines = [line for line in err.splitlines() if line.startswith("autoplan: ")]
        assert len(lines) == 1, (what, err)
        assert "Traceback" not in err, (what, err)
        told += 1
    assert told >= NUM_CUTS
