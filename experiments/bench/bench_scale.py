"""How searches grow with layers, stages, microbatches and devices.

Three cases are searched with a budget: a synthetic chain of 10,000 uneven layers on 4,096 devices,
and two published graphs of 1,251 and 2,012 nodes on 64 (left out where they are absent); each in a
process of its own, so that its peak of memory is its own. Then each part of a search is timed with
one factor varied and the others fixed, and the exponent of a power law is fitted to the times by
least squares of their logarithms: 1 is linear. Every time is the least of several, after a run
that compiles. Run from the repository's root:

    python experiments/bench/bench_scale.py [--seconds 60] [--only NAME] [--parts-only] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from synthetic_chain import chain, nodes_of_eight, training

from autoplan import search
from autoplan.batch_scores import BatchScorer, BatchShape
from autoplan.bounds.plans import PlanBounds
from autoplan.cluster import load_cluster
from autoplan.job import Job
from autoplan.pipeline.partition import balanced_bounds, uniform_bounds
from autoplan.predict import Predictor
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.space import SearchSpace
from autoplan.workload import ReadOptions, load_workload

EXPERIMENTS = Path(__file__).resolve().parents[1]
DATA = EXPERIMENTS.parents[1] / "shared" / "data"
CHAIN = "chain"
CASES = {
    CHAIN: None,
    "nasnetalarge": ("pipedream/nasnetalarge.graph.txt", 16, "momentum", 768),
    "bert_L-12": ("dnn-partitioning/operator-graphs/bert_L-12_training.json", None, "adamw", 192),
}
"""Published graphs: file, samples in a profiled minibatch, optimizer, global batch."""
CHAIN_LAYERS, CHAIN_DEVICES, CHAIN_BATCH = 10_000, 4096, 65_536
REPEATS = 2
GRACE_S = 600.0
FIXED = {"layers": 600, "stages": 16, "microbatches": 64, "devices": 64}
"""The factors that are not varied."""
VARIED = {
    "layers": (600, 1200, 2400, 4800),
    "stages": (8, 16, 32, 64),
    "microbatches": (16, 32, 64, 128),
    "devices": (64, 128, 256, 512),
}
SAMPLES_PER_DEVICE = 16


def experiment_of(name: str, seconds: float, output: Path) -> Experiment:
    """One of the cases."""
    case, budget = CASES[name], Budget(trials=10_000, seconds=seconds)
    if case is None:
        parts = {
            "workload": chain(CHAIN_LAYERS),
            "cluster": nodes_of_eight(CHAIN_DEVICES),
            "job": training(CHAIN_BATCH),
        }
    else:
        path, batch_size, optimizer, global_batch = case
        parts = {
            "workload": load_workload(DATA / path, ReadOptions(batch_size=batch_size)),
            "cluster": load_cluster(EXPERIMENTS / "clusters" / "8x8-dgx-h100.toml"),
            "job": Job(global_batch=global_batch, optimizer=optimizer),
        }
    return Experiment(name=name, space=SearchSpace(), budget=budget, output=output, **parts)


def search_here(name: str, seconds: float) -> dict[str, object]:
    """Searches one case in this process."""
    with tempfile.TemporaryDirectory(prefix="autoplan-scale-") as folder:
        experiment = experiment_of(name, seconds, Path(folder))
        started_s = time.monotonic()
        found = search(experiment)
        took_s = time.monotonic() - started_s
    prediction = found.prediction
    return {
        "layers": len(experiment.workload.layers),
        "devices": experiment.cluster.num_devices,
        "budget_s": seconds,
        "search_s": took_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "step_s": prediction.step_s,
        "bound_s": prediction.lower_bound_s,
        "gap": prediction.gap,
        "stages": len(found.plan.stages),
        "microbatches": found.plan.microbatches,
        "trials": found.trials,
        "stopped_by": found.stopped_by,
    }


def search_apart(name: str, seconds: float) -> dict[str, object]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--here", name, "--seconds", str(seconds)]
    limit_s = seconds + GRACE_S
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True)
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


def least_s(run: Callable[[], object]) -> float:
    """Seconds of the quickest of several runs, after one that compiles."""
    run()
    times = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - started_s)
    return min(times)


def parts_of(factors: dict[str, int]) -> dict[str, Callable[[], Callable[[], object]]]:
    """What is timed, by name; the outer call prepares what is not part of it."""
    layers, stages, m, devices = (
        factors[name] for name in ("layers", "stages", "microbatches", "devices")
    )
    workload, cluster = chain(layers), nodes_of_eight(devices)
    job = training(SAMPLES_PER_DEVICE * devices)
    domain = SearchSpace(microbatches=(m,)).domain(layers, devices, job.global_batch)
    load_s_L = np.array([layer.forward.at(1.0) for layer in workload.layers])

    def fresh() -> PlanBounds:
        return Predictor(workload, cluster, job, domain).bounds

    def quick() -> Callable[[], object]:
        return lambda: fresh()._large_bound(m).quick

    def closer() -> Callable[[], object]:
        large = fresh()._large_bound(m)
        large.quick  # noqa: B018 - the closer bound starts from it

        def run() -> object:
            large.__dict__.pop("closer_s", None)
            return large.closer_s

        return run

    def scores() -> Callable[[], object]:
        batch = BatchScorer(Predictor(workload, cluster, job, domain))
        shape = BatchShape(
            replicas=(1,) * stages,
            microbatches=m,
            schedule="1f1b",
            rank_order="replica",
            recompute="never",
        )
        bounds_KB = np.array([uniform_bounds(layers, stages)] * 64)
        return lambda: batch.score(bounds_KB, shape)

    return {
        "predictor": lambda: (
            lambda: Predictor(workload, cluster, job, domain).costs.layer_seconds(1.0)
        ),
        "quick bound": quick,
        "certificate": closer,
        "balanced partition": lambda: lambda: balanced_bounds(load_s_L, [1] * stages),
        "64 plans in a batch": scores,
    }


def first_plan(factors: dict[str, int]) -> float:
    """Seconds until a search has its first plan."""
    layers, devices = factors["layers"], factors["devices"]
    with tempfile.TemporaryDirectory(prefix="autoplan-scale-") as folder:
        experiment = Experiment(
            name="first",
            workload=chain(layers),
            cluster=nodes_of_eight(devices),
            job=training(SAMPLES_PER_DEVICE * devices),
            space=SearchSpace(microbatches=(factors["microbatches"],), recompute=("where-needed",)),
            budget=Budget(trials=1, seconds=GRACE_S),
            output=Path(folder),
        )
        started_s = time.perf_counter()
        search(experiment)
        return time.perf_counter() - started_s


MATTERS = {
    "predictor": ("layers",),
    "quick bound": ("layers", "microbatches", "devices"),
    "certificate": ("layers", "microbatches", "devices"),
    "balanced partition": ("layers", "stages"),
    "64 plans in a batch": ("layers", "stages", "microbatches"),
    "first plan": ("layers", "devices"),
}
"""The factors that each part is timed against."""


def exponent(sizes: Iterable[int], times_s: Iterable[float]) -> float:
    """The slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(list(sizes)), np.log(list(times_s)), 1)[0])


def timed() -> dict[str, dict[str, dict[str, object]]]:
    """Times and exponents of every part against every factor that matters to it."""
    figures: dict[str, dict[str, dict[str, object]]] = {part: {} for part in MATTERS}
    for factor, sizes in VARIED.items():
        times: dict[str, list[float]] = {part: [] for part in MATTERS if factor in MATTERS[part]}
        for size in sizes:
            factors = FIXED | {factor: size}
            prepared = parts_of(factors)
            for part in times:
                seconds = first_plan(factors) if part == "first plan" else least_s(prepared[part]())
                times[part].append(seconds)
                print(f"{part} with {size} {factor}: {seconds * 1e3:.3g} ms", file=sys.stderr)
        for part, seconds in times.items():
            fitted = exponent(sizes, seconds)
            figures[part][factor] = {"sizes": sizes, "seconds": seconds, "exponent": fitted}
    return figures


def shown(document: dict[str, dict[str, dict[str, object]]]) -> None:
    """Prints the figures as tables."""
    for name, case in document["cases"].items():
        if "left_out" in case:
            print(f"{name}: left out ({case['left_out']})")
            continue
        print(
            f"{name}: {case['layers']} layers, {case['devices']} devices: {case['search_s']:.1f} s "
            f"of {case['budget_s']:g}, {case['peak_bytes'] / 2**30:.2f} GiB, step "
            f"{case['step_s']:.6g} s, gap {case['gap']:.2%}, {case['stages']} stages"
        )
    for part, factors in document["parts"].items():
        for factor, row in factors.items():
            pairs = zip(row["sizes"], row["seconds"], strict=True)
            times = "  ".join(f"{size}: {seconds * 1e3:.3g} ms" for size, seconds in pairs)
            print(f"{part} against {factor}: exponent {row['exponent']:.2f}   ({times})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="budget of each search")
    parser.add_argument("--only", choices=CASES, help="search one case only")
    parser.add_argument("--parts-only", action="store_true", help="search none of the cases")
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    parser.add_argument("--here", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here is not None:
        print(json.dumps(search_here(arguments.here, arguments.seconds)))
        return
    document: dict[str, dict[str, dict[str, object]]] = {"cases": {}, "parts": {}}
    wanted = () if arguments.parts_only else (arguments.only,) if arguments.only else CASES
    for name in wanted:
        case = CASES[name]
        if case is not None and not (DATA / case[0]).is_file():
            document["cases"][name] = {"left_out": f"{case[0]} is not on this machine"}
            continue
        document["cases"][name] = search_apart(name, arguments.seconds)
    if arguments.only is None:
        document["parts"] = timed()
    if arguments.json:
        print(json.dumps(document))
    else:
        shown(document)


if __name__ == "__main__":
    main()
