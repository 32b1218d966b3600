"""Searches every published workload on three clusters, and says how near the optimum the plans are.

    python experiments/corpus.py [--seconds 10] [--only SUBSTRING] [--jobs 2] [--json OUT.json]

corpus.toml lists the cases. Each is searched in a process of its own, so that a crash or a peak of
memory belongs to one case. A row has the step of the plan, the certified bound, and how many times
as long as the plan the defaults and the splitters of frameworks take at their best ("-" where none
of their plans fits; validation/splitters.py), and so does the best plan that other planners made
for the same file (validation/peer_plans.py; the summary counts the plans that have a counterpart,
and the others by reason). A case is infeasible where nothing that was tried fits; one whose search
found nothing although one of these plans fits counts as worse.

Exit codes: 0; 1 if a plan is worse than what it is compared with, or a case failed; 2 for bad
input, published files that are absent included (--only gpt needs none).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from validation.peer_plans import Rescored, rescored
from validation.splitters import best_steps

from autoplan import search
from autoplan.cli.arguments import positive_number, whole_number
from autoplan.cluster import load_cluster
from autoplan.documents import STRICT, build, pretty_json, toml_value, write_atomic
from autoplan.errors import InputError, NothingFeasibleError, require
from autoplan.job import Job
from autoplan.report import quantities
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.proposal import Proposer
from autoplan.search.space import load_space
from autoplan.workload import ReadOptions, Workload, load_workload

EXPERIMENTS = Path(__file__).resolve().parent
CORPUS = EXPERIMENTS / "corpus.toml"
SHARED = EXPERIMENTS.parents[1] / "shared"
COLUMNS = {
    "uniform-layers": "uniform",
    "balanced-compute": "compute",
    "balanced-communication": "communic.",
    "data-parallel": "data-par.",
    "deepspeed-balanced": "deepspeed",
    "paddle-uniform": "paddle",
    "other-planners": "planners",
}
"""What a plan is compared with, and its column's head."""
ROUNDING = 1e-9
LARGE_GAP = 0.05
OVERRUN_S, OVERRUN_BYTES = 3.0, 2 * 2**30
"""Searches that take so much longer than their budget, or more memory, are listed."""
GRACE_S = 300.0
"""Seconds beyond the search that a case has for its start and the splitters."""
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "NUMBA_CACHE_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadEntry:
    """A workload file, what it does not say, its job, and its batches by cluster."""

    __pydantic_config__ = STRICT

    name: str
    path: str
    batch_size: int | None = None
    optimizer: Literal["sgd", "momentum", "adam", "adamw"]
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    global_batches: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The document; paths are relative to its folder."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-corpus/1"]
    space: str
    seconds: float
    trials: int
    clusters: dict[str, str]
    workloads: tuple[WorkloadEntry, ...]

    def __post_init__(self) -> None:
        """Refuses names that mean two things or nothing."""
        names = [workload.name for workload in self.workloads]
        require(len(set(names)) == len(names), "workloads", names, "names that differ")
        for n, workload in enumerate(self.workloads):
            for name, batches in workload.global_batches.items():
                field = f"workloads[{n}].global_batches"
                require(name in self.clusters, field, name, ", ".join(self.clusters))
                require(len(set(batches)) == len(batches), field, batches, "batches that differ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One search."""

    name: str
    workload: WorkloadEntry
    cluster_path: str
    global_batch: int


def cases_of(corpus: Corpus, only: str) -> list[Case]:
    """The cases with `only` in their names; raises InputError for none, and for absent files."""
    found = [
        Case(name=name, workload=workload, cluster_path=path, global_batch=batch)
        for workload in corpus.workloads
        for cluster, path in corpus.clusters.items()
        for batch in workload.global_batches.get(cluster, ())
        if only in (name := f"{workload.name}/{cluster}/{batch}")
    ]
    require(bool(found), "--only", only, f"a part of the name of a case in {CORPUS}")
    for case in found:
        for path in (case.workload.path, case.cluster_path):
            allowed = f"a file (looked for {(EXPERIMENTS / path).resolve()}); --only gpt needs none"
            if not (EXPERIMENTS / path).is_file():
                raise InputError(case.name, path, allowed, source=str(CORPUS))
    return found


def parts_of(corpus: Corpus, case: Case) -> dict[str, Any]:
    """What a case consists of, by the names of an experiment's parts."""
    entry = case.workload
    batch, optimizer = case.global_batch, entry.optimizer
    return {
        "workload": load_workload(
            EXPERIMENTS / entry.path, ReadOptions(batch_size=entry.batch_size)
        ),
        "cluster": load_cluster(EXPERIMENTS / case.cluster_path),
        "job": Job(global_batch=batch, optimizer=optimizer, precision=entry.precision),
        "space": load_space(corpus.space, EXPERIMENTS, str(CORPUS), "space"),
    }


def search_here(corpus: Corpus, case: Case, seconds: float) -> dict[str, Any]:
    """Searches one case in this process; the rest of its row."""
    parts = parts_of(corpus, case)
    budget = Budget(trials=corpus.trials, seconds=seconds)
    row: dict[str, Any] = {
        "layers": len(parts["workload"].layers),
        "devices": parts["cluster"].num_devices,
    }
    with tempfile.TemporaryDirectory(prefix="autoplan-corpus-") as folder:
        experiment = Experiment(name="corpus", budget=budget, output=Path(folder), **parts)
        started_s = time.monotonic()
        try:
            row |= outcome(search(experiment))
        except NothingFeasibleError as error:
            row |= {"status": "infeasible", "error": str(error), "steps_s": {}}
        row["search_s"] = time.monotonic() - started_s
    row["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    proposer = Proposer(**parts)
    row["steps_s"] |= best_steps(proposer)
    planners = rescored_planners(case, proposer, parts["workload"])
    row["planners"] = None if planners is None else asdict(planners)
    row["steps_s"]["other-planners"] = None if planners is None else planners.step_s
    limit_s = row.get("step_s", float("inf")) * (1 - ROUNDING)
    known = {name: step_s for name, step_s in row["steps_s"].items() if step_s is not None}
    row["worse_than"] = [name for name, step_s in known.items() if step_s < limit_s]
    if row["status"] == "infeasible" and row["worse_than"]:
        row["status"] = "found nothing"
    return row


def rescored_planners(case: Case, proposer: Proposer, workload: Workload) -> Rescored | None:
    """The best of what other planners made for the case's file, None where nothing is known."""
    if not (SHARED / "facts" / "reference").is_dir():
        return None
    return rescored(proposer, workload, EXPERIMENTS / case.workload.path, SHARED)


def outcome(result: Any) -> dict[str, Any]:
    """What a search found."""
    plan, prediction = result.plan, result.prediction
    return {
        "status": "planned",
        "step_s": prediction.step_s,
        "bound_s": prediction.lower_bound_s,
        "gap": prediction.gap,
        "stopped_by": result.stopped_by,
        "trials": result.trials,
        "candidates": result.candidates,
        "plan": plan,
        "steps_s": {
            name: None if found is None else found.step_s
            for name, found in result.baselines.items()
        },
    }


def search_apart(case: Case, seconds: float) -> dict[str, Any]:
    """Searches one case in a process of its own; its row."""
    command = [sys.executable, __file__, "--one", case.name, "--seconds", repr(seconds)]
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, complaints = process.communicate(timeout=seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        printed, complaints = "", f"stopped {GRACE_S:.0f} s after its budget"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return {"case": case.name} | json.loads(printed)
    error = complaints.strip() or f"exit code {process.returncode}"
    return {"case": case.name, "status": "failed", "error": error, "worse_than": []}


def show(row: dict[str, Any]) -> None:
    """Prints a row of the table."""
    if row["status"] != "planned":
        took = f" in {row['search_s']:.1f} s" if "search_s" in row else ""
        but = f", but {', '.join(row['worse_than'])} fits" if row["worse_than"] else ""
        reason = row["error"].splitlines()[-1].split("; allow")[0]
        print(f"{row['case']:39} {row['status']}{took}{but}: {reason}", flush=True)
        return
    ratios = (row["steps_s"][name] for name in COLUMNS)
    ratios = ("-" if step is None else f"{step / row['step_s']:.3f}" for step in ratios)
    step, bound = (quantities.seconds(row[name]) for name in ("step_s", "bound_s"))
    print(
        f"{row['case']:39} {row['layers']:6} {row['devices']:4} {step:>8} {bound:>8}"
        f" {row['gap']:7.2%} {' '.join(f'{ratio:>9}' for ratio in ratios)}"
        f" {row['stopped_by']:>7} {row['trials']:6} {row['candidates']:8} {row['search_s']:7.1f}"
        f" {row['peak_bytes'] / 2**20:5.0f}",
        flush=True,
    )


def summary_of(rows: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The figures that a change of the search or of the bound is judged by."""
    planned = [row for row in rows if row["status"] == "planned"]
    gaps = sorted(row["gap"] for row in planned)
    tenths = statistics.quantiles(gaps, n=10, method="inclusive") if len(gaps) > 1 else gaps

    planners = [row["planners"] for row in rows if row.get("planners")]
    skipped: Counter[str] = Counter()
    for found in planners:
        skipped.update(found["skipped"])

    def names(found: Iterable[dict[str, Any]]) -> list[str]:
        return [row["case"] for row in found]

    return {
        "cases": len(rows),
        "planned": len(planned),
        "median_gap": statistics.median(gaps) if gaps else None,
        "p90_gap": tenths[-1] if gaps else None,
        "max_gap": gaps[-1] if gaps else None,
        "proven_optima": gaps.count(0),
        "worse_than_others": names(row for row in rows if row["worse_than"]),
        **{
            status.replace(" ", "_"): names(row for row in rows if row["status"] == status)
            for status in ("infeasible", "found nothing", "failed")
        },
        "other_plans_compared": sum(found["compared"] for found in planners),
        "other_plans_left_out": [f"{reason}: {count};" for reason, count in skipped.most_common()],
        "gap_above_5_percent": names(row for row in planned if row["gap"] > LARGE_GAP),
        "over_time": names(row for row in rows if row.get("search_s", 0) > seconds + OVERRUN_S),
        "over_memory": names(row for row in rows if row.get("peak_bytes", 0) > OVERRUN_BYTES),
    }


def run_all(cases: Sequence[Case], seconds: float, jobs: int, out: Path | None) -> int:
    """Searches, prints the table and the summary, writes the document; the exit code."""
    heads = " ".join(f"{head:>9}" for head in COLUMNS.values())
    print(
        f"{'case':39} layers devs     step    bound     gap {heads}    stop trials    plans seconds"
        "   MiB"
    )
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda case: search_apart(case, seconds), cases):
            rows.append(row)
            show(row)
    summary = summary_of(rows, seconds)
    print()
    for name, value in summary.items():
        shown = value if not isinstance(value, list) else f"{len(value)} {' '.join(value)}"
        print(f"{name:22} {f'{value:.2%}' if isinstance(value, float) else shown}")
    if out is not None:
        write_atomic(out, pretty_json({"summary": summary, "rows": rows}))
    return 1 if summary["worse_than_others"] or summary["failed"] else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=positive_number, help="wall-clock seconds of each search")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases with it in the name")
    parser.add_argument("--jobs", type=whole_number(1), default=1, help="searches at a time")
    parser.add_argument("--json", type=Path, metavar="OUT", help="file for all rows and figures")
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    try:
        corpus = build(Corpus, toml_value(CORPUS), str(CORPUS))
        cases = cases_of(corpus, chosen.one or chosen.only)
        seconds = chosen.seconds or corpus.seconds
        if chosen.one is None:
            return run_all(cases, seconds, chosen.jobs, chosen.json)
        [case] = (case for case in cases if case.name == chosen.one)
        print(pretty_json(search_here(corpus, case, seconds)))
    except InputError as error:
        print(f"corpus.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
