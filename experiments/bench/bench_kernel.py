"""How long one candidate's pipeline takes to simulate: Paddle's cost model against ours.

Each section is a function that returns its figures by name:

- equality: our step times of random candidates against Paddle's, to 1e-9.
- compile: seconds of the first calls in a fresh process, import and compilation apart.
- speed: seconds per candidate at S x M = 8x32 and 8x64. Paddle: the `CostModel`'s pipeline
  simulation, median and least of several. Ours, least of several: batches in lanes without and
  with transfers, and the compiled kernel one candidate at a time, called from Python.
- plans: whole plans per second, from cuts to step time and memory with exact gradient groups, for
  a chain of 100 layers on 8 stages of 2 replicas and 32 microbatches.
- scaling: seconds per candidate by stages and microbatches, and the slopes of its logarithm.

Ratios compare like with like: both sides deliver step times, updates included, without transfers.
All of it runs on one thread. Exits with 1 if any result differs from Paddle's.

Run from the repository's root:

    python experiments/bench/bench_kernel.py [--json] [--candidates 4096] [--repeats 30]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

SHAPES = ((8, 32), (8, 64))
TARGET_RATIO = {(8, 32): 10_000, (8, 64): 20_000}
PADDLE_REPEATS = 7
SCALING_STAGES = (2, 4, 8, 16)
SCALING_MICROBATCHES = (8, 32, 128)
PLAN_LAYERS = 100
LINKS = (("intra", 5e-6, 2e11), ("inter", 2e-5, 1e10))
TARGET_PLANS_PER_S = 300_000
TOLERANCE = 1e-9

Figures = dict[str, Any]


def batch(stages: int, candidates: int, seed: int) -> dict[str, np.ndarray]:
    """Random candidates: forwards, backwards and updates (S x K), transfers (S-1 x K)."""
    rng = np.random.default_rng(seed)
    return {
        "forward_s_SK": rng.uniform(1, 3, (stages, candidates)),
        "backward_s_SK": rng.uniform(2, 6, (stages, candidates)),
        "optimizer_s_SK": rng.uniform(0, 1, (stages, candidates)),
        "send_s_SK": rng.uniform(0, 1, (stages - 1, candidates)),
    }


def lanes_step_s(arrays: dict[str, np.ndarray], microbatches: int, *, send: bool) -> np.ndarray:
    """Step times of a batch."""
    from autoplan.pipeline.lanes import step_s

    return step_s(
        arrays["forward_s_SK"],
        arrays["backward_s_SK"],
        microbatches,
        "1f1b",
        send_s_SK=arrays["send_s_SK"] if send else None,
        optimizer_s_SK=arrays["optimizer_s_SK"],
    )


def paddle_models(stages: int, microbatches: int, count: int) -> list[Any]:
    """Paddle's cost models of the first candidates of a batch; none if Paddle is missing."""
    try:
        from paddle.distributed.auto_parallel.static.cost_model import CostModel
    except ImportError:
        return []
    arrays = batch(stages, count, stages)
    models = []
    for k in range(count):
        model = CostModel(pipeline_config=[[s] for s in range(stages)], microbatch_num=microbatches)
        model.fwd_time = arrays["forward_s_SK"][:, k].tolist()
        model.bwd_time = arrays["backward_s_SK"][:, k].tolist()
        model.optim_time = arrays["optimizer_s_SK"][:, k].tolist()
        models.append(model)
    return models


def taken_s(work: Callable[[], object], repeats: int) -> list[float]:
    """Wall time of each of `repeats` runs."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken


def equality() -> Figures:
    """Largest relative difference from Paddle's step times; `equal` is None without Paddle."""
    differences = []
    for stages, microbatches in (*SHAPES, (1, 5), (4, 2), (5, 17)):
        models = paddle_models(stages, microbatches, 5)
        ours = lanes_step_s(batch(stages, 5, stages), microbatches, send=False)
        for k, model in enumerate(models):
            paddle = model.get_pipeline_time()
            differences.append(float(abs(ours[k] - paddle) / paddle))
    if not differences:
        return {"compared": 0, "equal": None}
    return {
        "compared": len(differences),
        "worst_relative_difference": max(differences),
        "equal": all(difference <= TOLERANCE for difference in differences),
    }


def compile_once() -> Figures:
    """Seconds of imports and of the first calls, which compile unless the code is cached."""
    start = time.perf_counter()
    import autoplan.pipeline.lanes  # noqa: F401 - timed

    figures = {"import_s": time.perf_counter() - start}
    arrays = batch(2, 1, 0)
    for send, name in ((False, "without_transfers_s"), (True, "with_transfers_s")):
        figures[name] = taken_s(partial(lanes_step_s, arrays, 2, send=send), 1)[0]
    return figures


def compiling() -> Figures:
    """`compile_once` in a process without cached code, and in one that finds it."""
    figures = {}
    with tempfile.TemporaryDirectory() as cache:
        for prefix in ("fresh", "cached"):
            run = subprocess.run(
                [sys.executable, __file__, "--compile-only"],
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                timeout=300,
                check=True,
            )
            for name, value in json.loads(run.stdout).items():
                figures[f"{prefix}_{name}"] = value
    return figures


def speed(candidates: int, repeats: int) -> Figures:
    """Seconds per candidate, and how many times as long Paddle takes."""
    figures: Figures = {}
    for stages, microbatches in SHAPES:
        shape = f"{stages}x{microbatches}"
        arrays = batch(stages, candidates, stages)
        ours: dict[str, float] = {}
        for send, name in ((False, "lanes"), (True, "lanes_with_transfers")):
            lanes_step_s(arrays, microbatches, send=send)
            work = partial(lanes_step_s, arrays, microbatches, send=send)
            ours[name] = min(taken_s(work, repeats)) / candidates
        ours["one_at_a_time"] = one_at_a_time_s(arrays, microbatches, repeats)
        figures |= {f"{name}_s_{shape}": value for name, value in ours.items()}
        figures[f"lanes_candidates_per_s_{shape}"] = 1 / ours["lanes"]
        models = paddle_models(stages, microbatches, PADDLE_REPEATS)
        if models:
            paddle = [taken_s(model.get_pipeline_time, 1)[0] for model in models]
            figures[f"paddle_median_s_{shape}"] = statistics.median(paddle)
            figures[f"paddle_least_s_{shape}"] = min(paddle)
            for name, value in ours.items():
                figures[f"ratio_{name}_{shape}"] = statistics.median(paddle) / value
            figures[f"ratio_of_least_{shape}"] = min(paddle) / ours["lanes"]
            figures[f"target_ratio_{shape}"] = TARGET_RATIO[stages, microbatches]
    return figures


def one_at_a_time_s(arrays: dict[str, np.ndarray], microbatches: int, repeats: int) -> float:
    """Seconds per call of the kernel for one candidate, from lists, without transfers."""
    from autoplan.pipeline.kernels import last_backward_start_s

    calls = 100
    columns = [
        (arrays["forward_s_SK"][:, k].tolist(), arrays["backward_s_SK"][:, k].tolist())
        for k in np.arange(calls) % arrays["forward_s_SK"].shape[1]
    ]
    send = [0.0] * (len(arrays["forward_s_SK"]) - 1)

    def work() -> None:
        for forward, backward in columns:
            last_backward_start_s(forward, backward, send, microbatches, "1f1b")

    work()
    return min(taken_s(work, repeats)) / calls


def plans(candidates: int, repeats: int) -> Figures:
    """Whole plans per second, and the seconds of the tables that a batch looks up."""
    from autoplan import Cluster, CostCurve, Device, Job, Layer, Link, Workload
    from autoplan.batch_scores import BatchScorer, BatchShape
    from autoplan.predict import Predictor

    rng = np.random.default_rng(1)
    layers = tuple(
        Layer(
            name=f"layer {i}",
            forward=CostCurve(samples=(1.0, 8.0), seconds=(f, 6 * f), overhead_s=f / 4),
            backward=CostCurve(samples=(1.0, 8.0), seconds=(2 * f, 12 * f), overhead_s=f / 4),
            gradient_elements=int(elements),
            parameter_bytes=4.0 * int(elements),
            stash_bytes_per_sample=1e6,
        )
        for i, (f, elements) in enumerate(rng.uniform((1e-4, 1e5), (2e-3, 2e6), (PLAN_LAYERS, 2)))
    )
    cuts = (0.0, *[1e6] * (PLAN_LAYERS - 1), 0.0)
    workload = Workload(name="chain", layers=layers, cut_bytes_per_sample=cuts)
    links = [Link(name=n, alpha_s=a, bandwidth_bytes_per_s=b) for n, a, b in LINKS]
    cluster = Cluster(
        name="2 x 8",
        nodes=2,
        devices_per_node=8,
        device=Device(name="device", memory_bytes=8e10),
        intra_node=links[0],
        inter_node=links[1],
    )
    scorer = BatchScorer(Predictor(workload, cluster, Job(global_batch=256)))
    shape = BatchShape(
        replicas=(2,) * 8,
        microbatches=32,
        schedule="1f1b",
        rank_order="replica",
        recompute="where-needed",
    )
    inner = np.array(
        [rng.choice(np.arange(1, PLAN_LAYERS), 7, replace=False) for _ in range(candidates)]
    )
    ends = np.tile([0, PLAN_LAYERS], (candidates, 1))
    bounds = np.concatenate([ends[:, :1], np.sort(inner, axis=1), ends[:, 1:]], axis=1)
    begin = time.perf_counter()
    scorer.score(bounds, shape)
    first_s = time.perf_counter() - begin
    per_plan_s = min(taken_s(lambda: scorer.score(bounds, shape), repeats)) / candidates
    return {
        "plans_per_s": 1 / per_plan_s,
        "target_plans_per_s": TARGET_PLANS_PER_S,
        "first_batch_s": first_s,
    }


def scaling(candidates: int, repeats: int) -> Figures:
    """Seconds per candidate by shape; exponents a and b of S^a M^b, fitted to all shapes."""
    figures: Figures = {}
    for send, name in ((False, "lanes"), (True, "lanes_with_transfers")):
        logs, rows = [], []
        for stages in SCALING_STAGES:
            arrays = batch(stages, candidates, stages)
            for microbatches in SCALING_MICROBATCHES:
                work = partial(lanes_step_s, arrays, microbatches, send=send)
                per_candidate_s = min(taken_s(work, repeats)) / candidates
                figures[f"{name}_s_{stages}x{microbatches}"] = per_candidate_s
                logs.append(math.log(per_candidate_s))
                rows.append((1.0, math.log(stages), math.log(microbatches)))
        slopes = np.linalg.lstsq(np.array(rows), np.array(logs), rcond=None)[0]
        figures[f"{name}_exponent_of_stages"] = float(slopes[1])
        figures[f"{name}_exponent_of_microbatches"] = float(slopes[2])
    return figures


def print_section(name: str, figures: Figures) -> None:
    print(f"\n{name}")
    for key, value in figures.items():
        shown = f"{value}"
        if isinstance(value, float):
            shown = f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
        print(f"  {key:45s} {shown}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Times the pipeline's kernels against Paddle's.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--candidates", type=int, default=4096, help="of a batch (default 4096)")
    parser.add_argument("--repeats", type=int, default=30, help="runs of each (default 30)")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.candidates < 1 or arguments.repeats < 1:
        parser.error("--candidates and --repeats must be at least 1")
    if arguments.compile_only:
        print(json.dumps(compile_once()))
        return 0
    if not paddle_models(1, 1, 1):
        print("Paddle is not installed: only our own figures follow.", file=sys.stderr)
    size = (arguments.candidates, arguments.repeats)
    sections: dict[str, Callable[[], Figures]] = {
        "equality": equality,
        "compile": compiling,
        "speed": lambda: speed(*size),
        "plans": lambda: plans(*size),
        "scaling": lambda: scaling(*size),
    }
    document = {}
    for name, section in sections.items():
        document[name] = section()
        if not arguments.json:
            print_section(name, document[name])
    if arguments.json:
        print(json.dumps(document, indent=2, sort_keys=True, allow_nan=False))
    return 1 if document["equality"]["equal"] is False else 0


if __name__ == "__main__":
    sys.exit(main())
