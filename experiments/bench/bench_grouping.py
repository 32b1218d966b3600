"""How long exact grouping takes, and how much later than it every policy ends.

Times, the best of three after compilation, which is timed apart in a fresh process: sparse groups
(published top-k and all-gather on 1 Gb/s Ethernet, 16 workers) of a DenseNet-121 and of 1,000
layers, and affine dense groups of 10,000 layers. Gaps: on measured gradients (facts/mgs.md
section 3) and on PipeDream's profiles, with every network that the publications have constants
for, all-gathers for top-k at densities 0.001 and 0.01 with both published top-k constants,
all-reduces for dense groups. Exits with 1 if any policy ever ends before exact.

Run from the repository's root:

    python experiments/bench/bench_grouping.py [--json] [--skip-gaps]
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoplan.gradsync import POLICIES, GroupCost, GroupingProblem, policy_named, time_groups
from autoplan.gradsync.costs import Affine, Logarithmic
from autoplan.gradsync.exact import exact_grouping, lower_bound_s
from autoplan.workload import ReadOptions, load_workload

SHARED = Path(__file__).resolve().parents[3] / "shared"
MEASURED = SHARED / "facts" / "measured"
TOP_K_S = {"V100": 4.99671953e-10, "P102-100": 2.18896957e-10}
"""Seconds per element and bit (facts/mgs.md section 2)."""
DENSITIES = (0.001, 0.01)
GBE = Affine(0.011, 1.7e-8)
"""One all-gather on 1 Gb/s Ethernet with 16 workers, by the bytes gathered."""
NAMED = ("resnet50", "bert_base_squad")
"""Models whose rows are printed one by one for published MGS at 16 workers."""
SLACK = 1e-12
PROFILE_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """A model's backward pass, in forward order."""

    backward_s: list[float]
    elements: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A collective's published line."""

    name: str
    workers: int
    line: Affine
    sparse: bool


def densenet(layers: int) -> Gradients:
    """DenseNet-121's 242 convolutions, norms and classifier, over and over up to `layers`.

    Backward follows multiply-adds, and for norms the values they touch; 0.1 s for each 242 layers.
    """
    elements, work = [9408.0, 128.0], [9408.0 * 112**2, 64.0 * 20 * 112**2]
    channels, side = 64, 56

    def add(inputs: int, weights: int) -> None:
        elements.extend((2.0 * inputs, float(weights)))
        work.extend((20.0 * inputs * side**2, float(weights) * side**2))

    for block, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            add(channels, channels * 128)
            add(128, 128 * 32 * 9)
            channels += 32
        if block < 3:
            add(channels, channels * channels // 2)
            channels, side = channels // 2, side // 2
    add(channels, channels * 1000 + 1000)
    work[-1] /= side**2
    scale = 0.1 / sum(work)
    rounds = math.ceil(layers / len(elements))
    backward_s = [value * scale for value in work] * rounds
    return Gradients(backward_s=backward_s[:layers], elements=(elements * rounds)[:layers])


def sparse_problem(model: Gradients, network: Affine, workers: int, density: float, top_k_s: float):
    """Published MGS: two all-gathers of 4 bytes for each kept element and worker."""
    slope = 2 * network.s_per_element * workers * 4 * density
    cost = GroupCost(
        communicate=Affine(2 * network.alpha_s, slope),
        sparsify=Logarithmic(top_k_s),
        density=density,
    )
    return GroupingProblem(backward_s=model.backward_s, elements=model.elements, costs=(cost,))


def dense_problem(model: Gradients, network: Affine) -> GroupingProblem:
    """An all-reduce of 4 bytes for each element."""
    cost = GroupCost(communicate=Affine(network.alpha_s, 4 * network.s_per_element))
    return GroupingProblem(backward_s=model.backward_s, elements=model.elements, costs=(cost,))


def speed_problems() -> dict[str, GroupingProblem]:
    """The problems whose times are figures of the project."""
    problems = {}
    for layers in (242, 1000):
        for density in DENSITIES:
            problem = sparse_problem(densenet(layers), GBE, 16, density, TOP_K_S["V100"])
            problems[f"sparse_{layers}_density_{density}_s"] = problem
    problems["dense_affine_10000_s"] = dense_problem(densenet(10_000), Affine(9.08e-4, 7.4e-10))
    return problems


def best_of_three_s(problem: GroupingProblem) -> float:
    """Least wall time of three."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        exact_grouping(problem)
        taken.append(time.perf_counter() - start)
    return min(taken)


def compile_once() -> float:
    """Seconds of the first calls on small problems, less those of the second."""
    line = Affine(1e-3, 1e-9)
    model = densenet(8)
    small = (sparse_problem(model, GBE, 16, 0.01, 1e-10), dense_problem(model, line))
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        for problem in small:
            exact_grouping(problem)
        taken.append(time.perf_counter() - start)
    return taken[0] - taken[1]


def compile_afresh_s() -> float:
    """`compile_once` in a process without cached code."""
    with tempfile.TemporaryDirectory() as cache:
        run = subprocess.run(
            [sys.executable, __file__, "--compile-only"],
            env={**os.environ, "NUMBA_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    return float(run.stdout)


def rows(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def models() -> tuple[dict[str, Gradients], list[str]]:
    """Measured gradients by model, and what was left out and why."""
    found: dict[str, Gradients] = {}
    absent = []
    table = MEASURED / "mgs_espresso_tensor_ready.csv"
    if table.is_file():
        backward: dict[str, list[tuple[float, float]]] = {}
        for row in rows(table.name):
            tensor = float(row["ready_gap_us"]) * 1e-6, float(row["numel"])
            backward.setdefault(row["model"], []).append(tensor)
        for name, tensors in backward.items():
            gaps, elements = zip(*tensors[::-1], strict=True)
            found[name] = Gradients(backward_s=list(gaps), elements=list(elements))
    else:
        absent.append(f"measured gradients: no {table}")
    profiles = sorted((SHARED / "data" / "pipedream").glob("*.graph.txt"))
    if not profiles:
        absent.append(f"PipeDream's profiles: none in {SHARED / 'data' / 'pipedream'}")
    for path in profiles:
        try:
            workload = load_workload(path, ReadOptions(batch_size=PROFILE_SAMPLES))
        except ValueError as error:
            absent.append(f"{path.name}: {error}")
            continue
        found[f"pipedream {path.name.removesuffix('.graph.txt')}"] = Gradients(
            backward_s=[layer.backward.at(PROFILE_SAMPLES) for layer in workload.layers],
            elements=[float(layer.gradient_elements) for layer in workload.layers],
        )
    return found, absent


def networks() -> Iterator[Network]:
    """Every all-gather and all-reduce with published constants."""
    for row in rows("mgs_perf_constants.csv"):
        primitive, workers = row["primitive"], row["P"]
        if primitive.startswith(("allgather", "allreduce")) and "contention" not in primitive:
            yield Network(
                name=f"{primitive}, {row['network_or_gpu']}, {workers} workers",
                workers=int(workers),
                line=Affine(float(row["a"]), float(row["b"])),
                sparse=primitive.startswith("allgather"),
            )


def cases() -> Iterator[tuple[str, str, GroupingProblem]]:
    """Name of the model, of the case, and the problem."""
    for model_name, model in models()[0].items():
        for network in networks():
            if not network.sparse:
                yield model_name, network.name, dense_problem(model, network.line)
                continue
            for density in DENSITIES:
                for gpu, top_k_s in TOP_K_S.items():
                    name = f"{network.name}, density {density}, top-k of {gpu}"
                    problem = sparse_problem(model, network.line, network.workers, density, top_k_s)
                    yield model_name, name, problem


def measure_gaps() -> dict[str, object]:
    """Gap of each policy to exact, apart for sparse and dense groups."""
    logs: dict[str, dict[str, list[float]]] = {"sparse": {}, "dense": {}}
    worst: dict[str, dict[str, tuple[float, str]]] = {"sparse": {}, "dense": {}}
    named: dict[str, float] = {}
    wrong, count, bound = [], 0, 0.0
    for model, case, problem in cases():
        count += 1
        kind = "dense" if problem.costs[0].sparsify is None else "sparse"
        groups, choices = exact_grouping(problem)
        exact_s = time_groups(problem, groups, choices).finish_s
        bound = max(bound, exact_s / lower_bound_s(problem) - 1)
        for policy in POLICIES:
            finish_s = time_groups(problem, policy_named(policy).groups(problem)).finish_s
            if finish_s < exact_s * (1 - SLACK):
                wrong.append(f"{policy} on {model}, {case}: {finish_s} < {exact_s}")
            gap = finish_s / exact_s - 1
            logs[kind].setdefault(policy, []).append(math.log1p(gap))
            where = (gap, f"{model}, {case}")
            worst[kind][policy] = max(worst[kind].get(policy, where), where)
            published = policy == "mgs" and kind == "sparse" and ", 16 workers" in case
            if published and model in NAMED:
                named[f"{model}, {case}"] = gap
    return {
        "cases": count,
        "gaps": {
            kind: {
                policy: {
                    "worst": worst[kind][policy][0],
                    "worst_case": worst[kind][policy][1],
                    "geometric_mean": math.expm1(sum(each) / len(each)),
                }
                for policy, each in of_kind.items()
            }
            for kind, of_kind in logs.items()
        },
        "mgs_at_16_workers": named,
        "worst_exact_over_lower_bound": bound,
        "exact_was_worse": wrong,
    }


def show(figures: dict) -> None:
    for name, seconds in figures["seconds"].items():
        print(f"{name:36} {seconds:.4f}")
    for line in figures["left_out"]:
        print(f"left out: {line}")
    if "gaps" not in figures:
        return
    print(
        f"\n{figures['cases']} cases; exact at most "
        f"{figures['worst_exact_over_lower_bound']:.1%} above its lower bound"
    )
    for kind, policies in figures["gaps"].items():
        for policy, gap in policies.items():
            print(
                f"{kind:7}{policy:15} worst {gap['worst']:8.1%}  "
                f"geometric mean {gap['geometric_mean']:7.2%}  ({gap['worst_case']})"
            )
    print("\npublished MGS at 16 workers, later than exact by:")
    for name, gap in figures["mgs_at_16_workers"].items():
        print(f"{gap:8.1%}  {name}")
    for line in figures["exact_was_worse"]:
        print(f"WRONG: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    parser.add_argument("--skip-gaps", action="store_true", help="only the times")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compile_only:
        print(compile_once())
        return
    compile_once()
    seconds = {name: best_of_three_s(problem) for name, problem in speed_problems().items()}
    seconds["compile_s"] = compile_afresh_s()
    figures: dict[str, object] = {"seconds": seconds, "left_out": []}
    if not arguments.skip_gaps:
        figures["left_out"] = models()[1]
        if (MEASURED / "mgs_perf_constants.csv").is_file():
            figures |= measure_gaps()
        else:
            figures["left_out"] = ["all gaps: no ../shared/facts/measured/mgs_perf_constants.csv"]
    if arguments.json:
        print(json.dumps(figures))
    else:
        show(figures)
    if figures.get("exact_was_worse"):
        sys.exit(1)


if __name__ == "__main__":
    main()
