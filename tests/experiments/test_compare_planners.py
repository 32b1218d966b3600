"""The comparison with other planners, run as a script."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "compare_planners.py"
ONLY = "alexnet 4 devices"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def shared_copy(shared_data, shared_facts, tmp_path):
    """What the script reads, with reference results that a test may change."""
    (tmp_path / "data").symlink_to(shared_data)
    reference = tmp_path / "facts" / "reference"
    reference.mkdir(parents=True)
    for name in ("ref_planners.csv", "ref_timing_clean.csv"):
        shutil.copyfile(shared_facts / "reference" / name, reference / name)
    return tmp_path


def test_rows_are_planned_again_and_summed_up(shared_copy):
    done = run("--shared", str(shared_copy), "--only", ONLY, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    summary = document["summary"]["pipedream full"]
    assert summary["rows"] == len(document["rows"]) > 1
    assert summary["worse"] == 0
    assert summary["equal"] + summary["better"] == summary["rows"]
    assert all(row["our_cpu_s"] > 0 for row in document["rows"])


def test_value_that_is_missed_is_worse(shared_copy):
    table = shared_copy / "facts" / "reference" / "ref_planners.csv"
    lines = table.read_text().splitlines(keepends=True)
    target = next(
        i
        for i, line in enumerate(lines)
        if "alexnet" in line and ",-n 4 --straight_pipeline," in line
    )
    lines[target] = lines[target].replace(",0.028721,", ",0.027721,")
    table.write_text("".join(lines))
    done = run("--shared", str(shared_copy), "--only", ONLY)
    assert done.returncode == 1, done.stderr
    [worse] = [line for line in done.stdout.splitlines() if line.startswith("worse ")]
    assert "-n 4 --straight_pipeline" in worse


@pytest.mark.parametrize("arguments", [["--shared", "/nowhere"], ["--only", "no such row"]])
def test_absent_input_is_refused_in_a_line(shared_facts, arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
