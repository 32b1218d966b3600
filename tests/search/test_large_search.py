"""A long chain on many devices, searched in a process of its own so that its memory is its own."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "experiments" / "bench"
SECONDS = 10
SEARCH = """
import json, re, sys, time
from pathlib import Path
from synthetic_chain import chain, nodes_of_eight, training
from autoplan import search
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.space import SearchSpace

experiment = Experiment(
    name="chain",
    workload=chain(3000),
    cluster=nodes_of_eight(512),
    job=training(16384),
    space=SearchSpace(),
    budget=Budget(trials=int(sys.argv[2]), seconds=float(sys.argv[3])),
    output=Path(sys.argv[1]),
)
started_s = time.process_time()  # other work on the machine does not count
found = search(experiment)
status = Path("/proc/self/status").read_text()
print(json.dumps({
    "seconds": time.process_time() - started_s,
    # ru_maxrss of a started process begins at what the process that started it takes.
    "peak_bytes": 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]),
    "step_s": found.prediction.step_s,
    "bound_s": found.prediction.lower_bound_s,
    "feasible": found.prediction.feasible,
    "notes": found.prediction.notes,
    "stages": [stage.layers for stage in found.plan.stages],
}))
"""


def searched(folder, trials, seconds):
    command = [sys.executable, "-c", SEARCH, str(folder), str(trials), str(seconds)]
    done = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return searched(tmp_path_factory.mktemp("search"), 200, SECONDS)


def test_it_ends_about_when_it_should_within_its_memory(found):
    assert found["seconds"] < 6 * SECONDS  # the first search also compiles
    assert found["peak_bytes"] < 2**30


def test_the_plan_fits_and_its_bound_is_near(found):
    assert found["feasible"]
    assert found["bound_s"] <= found["step_s"] <= 1.2 * found["bound_s"]
    stages = found["stages"]
    assert (stages[0][0], stages[-1][1]) == (0, 3000)
    assert all(before[1] == after[0] for before, after in pairwise(stages))


def test_what_is_left_out_is_noted(found):
    notes = " ".join(found["notes"])
    assert "long chains on many devices" in notes
    assert "numbers of stages" in notes
    assert "busiest" in notes
