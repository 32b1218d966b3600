"""How fast the experiment database takes scored plans, and how fast it lists them again.

Fills a fresh SQLite file with random plans of one experiment through the recorder that searches
use, in batches, and times the commands that read it, each in a process of its own, imports
included. Run from the repository's root:

    python experiments/bench/bench_results.py [--plans 100000] [--batch 500] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from autoplan.plan import GradientGroup, Plan, Stage
from autoplan.results.recorder import SearchRecorder
from autoplan.results.rows import ScoredPlan
from autoplan.search.experiment import Experiment, load_experiment

EXPERIMENTS = Path(__file__).resolve().parents[1]


def random_plans(experiment: Experiment, count: int, rng: random.Random) -> Iterator[ScoredPlan]:
    """Distinct plans; their figures mean nothing."""
    num_layers, seen = len(experiment.workload.layers), set()
    while len(seen) < count:
        cuts = sorted(rng.sample(range(1, num_layers), rng.randint(2, 7)))
        bounds = list(zip([0, *cuts], [*cuts, num_layers], strict=True))
        stages = tuple(
            Stage(layers=layers, replicas=2, groups=(GradientGroup(layers=layers),))
            for layers in bounds
        )
        plan = Plan(stages=stages, microbatches=2 ** rng.randint(0, 6))
        if plan in seen:
            continue
        seen.add(plan)
        step_s = rng.uniform(1, 2)
        lacking = rng.choice([0.0, 0.0, 0.0, 1e9])
        yield ScoredPlan(
            plan=plan,
            step_s=step_s,
            lower_bound_s=0.9,
            peak_memory_bytes=rng.uniform(1e9, 7e10),
            missing_bytes=lacking,
            proposed_by="sampler",
            trial_number=len(seen),
        )


def fill(database: Path, count: int, batch: int) -> float:
    """Writes the plans; returns the core's seconds spent in the recorder."""
    experiment = load_experiment(EXPERIMENTS / "quickstart.toml")
    plans = list(random_plans(experiment, count, random.Random(0)))
    spool = database.parent
    with SearchRecorder.open(f"sqlite:///{database}", experiment, spool_folder=spool) as recorder:
        start_s = time.process_time()
        for first in range(0, count, batch):
            recorder.scores(plans[first : first + batch])
        return time.process_time() - start_s


def timed(database: Path, *arguments: str) -> dict[str, float]:
    """Seconds of one `autoplan results` command: by the wall, and of a core."""
    command = [sys.executable, "-m", "autoplan", "results", *arguments, "--storage", database]
    start_s, start_cpu_s = time.perf_counter(), _children_cpu_s()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - start_s
    return {"wall_s": wall_s, "cpu_s": _children_cpu_s() - start_cpu_s}


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "bench.db"
        written_s = fill(database, arguments.plans, arguments.batch)
        out = str(Path(folder) / "export")
        figures = {
            "plans": arguments.plans,
            "written_per_cpu_s": arguments.plans / written_s,
            "file_bytes_per_plan": database.stat().st_size / arguments.plans,
            "list": timed(database, "list"),
            "show best 20": timed(database, "show", "quickstart"),
            "show all as JSON": timed(database, "show", "quickstart", "--limit", "0", "--json"),
            "export as CSV": timed(database, "export", "--out", out),
        }
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{name:20} {value['wall_s']:.2f} s, {value['cpu_s']:.2f} s of a core")
        else:
            print(f"{name:20} {value:,.0f}")


if __name__ == "__main__":
    main()
