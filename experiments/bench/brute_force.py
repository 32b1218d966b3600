"""Searches small random problems and compares with the best of all plans, and that with the bound.

    python experiments/bench/brute_force.py [--instances 400] [--trials 20] [--seed 0]
                                            [--seconds T] [--moves-only] [--json]

Instances have up to 10 layers of random costs on five small clusters of random links and memories,
at most 4 stages and 8 microbatches. All partitions, replicas, microbatches, schedules, rank orders
and ways to recompute are enumerated with exact gradient groups. Partitions are scored in batches
without recomputing; no memory limit makes a plan faster than that, so that walking the plans by
rising step time and scoring one by one those that may not fit ends at the exact optimum.

The search looks at every plan of so small a space too. With --moves-only it does not, which tells
how near the optimum its proposals and moves lead.

Exit codes: 0; 1 if the bound ever exceeds the optimum, a search is better than "all plans", or one
that may look at every plan misses the optimum.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan import Cluster, CostCurve, Device, Job, Layer, Link, Workload, search
from autoplan.batch_scores import BatchScorer, BatchShape
from autoplan.cli.arguments import positive_number, whole_number
from autoplan.errors import NothingFeasibleError
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace

MOST_LAYERS, MOST_STAGES = 10, 4
SPLITS = tuple(range(1, 9))
SHAPES = ((1, 4), (2, 2), (4, 1), (2, 3), (3, 2))
"""Nodes and devices of a node; with more than MOST_STAGES devices the space names the stages."""
BATCHES = (4, 6, 8, 12, 24)
EXACT = 1e-9
"""Relative difference below which two step times are the same."""
SEARCH_S = 30.0
"""Wall-clock limit of one search; the trials end it long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One random instance."""

    workload: Workload
    cluster: Cluster
    job: Job
    space: SearchSpace


def random_problem(rng: np.random.Generator) -> Problem:
    """Layers whose costs differ by up to 1000x, on links and memories from ample to tight."""
    num_layers = int(rng.integers(2, MOST_LAYERS + 1))
    spread = rng.choice([0.1, 1.0, 2.5])
    layers = tuple(random_layer(rng, spread, n) for n in range(num_layers))
    cut_bytes = np.concatenate([[0.0], rng.lognormal(15, spread, num_layers - 1), [0.0]])
    nodes, per_node = SHAPES[rng.integers(len(SHAPES))]
    one_sample = sum(
        16 * layer.gradient_elements + layer.stash_bytes_per_sample for layer in layers
    )
    memory = rng.choice([1e12, rng.uniform(0.2, 2.0) * one_sample])
    cluster = Cluster(
        name="random",
        nodes=nodes,
        devices_per_node=per_node,
        device=Device(name="random", memory_bytes=memory, memory_bandwidth_bytes_per_s=1e12),
        intra_node=random_link(rng, 10.5),
        inter_node=random_link(rng, 9.0),
    )
    few = nodes * per_node <= MOST_STAGES
    return Problem(
        workload=Workload(name="random", layers=layers, cut_bytes_per_sample=tuple(cut_bytes)),
        cluster=cluster,
        job=Job(global_batch=int(rng.choice(BATCHES)), optimizer="adam", memory_headroom=0.0),
        space=SearchSpace(
            stages=() if few else tuple(range(1, MOST_STAGES + 1)),
            microbatches=SPLITS,
            recompute=("never", "where-needed"),
        ),
    )


def random_layer(rng: np.random.Generator, spread: float, n: int) -> Layer:
    """Seconds with a fixed and a proportional part; every third layer has no parameters."""
    forward_s = rng.lognormal(-6, spread)
    return Layer(
        name=f"layer {n}",
        forward=random_curve(rng, forward_s),
        backward=random_curve(rng, forward_s * rng.uniform(1, 3)),
        gradient_elements=int(rng.lognormal(14, spread)) if rng.random() < 2 / 3 else 0,
        stash_bytes_per_sample=rng.lognormal(16, spread),
        workspace_bytes_per_sample=rng.choice([0.0, rng.lognormal(14, spread)]),
    )


def random_curve(rng: np.random.Generator, per_sample_s: float) -> CostCurve:
    """Proportional to the samples, or measured at three sizes with an overhead."""
    if rng.random() < 0.5:
        return CostCurve.proportional(per_sample_s)
    seconds = tuple(per_sample_s * (0.5 + size) for size in (1, 2, 4))
    return CostCurve(samples=(1, 2, 4), seconds=seconds, overhead_s=0.5 * per_sample_s)


def random_link(rng: np.random.Generator, exponent: float) -> Link:
    bandwidth = 10 ** (exponent + rng.uniform(-1, 0.5))
    return Link(name="random", alpha_s=10 ** rng.uniform(-6, -4), bandwidth_bytes_per_s=bandwidth)


def partitions(num_layers: int, num_stages: int) -> NDArray[np.int64]:
    """All bounds of so many stages, K x (S + 1)."""
    inner = itertools.combinations(range(1, num_layers), num_stages - 1)
    return np.array([(0, *cuts, num_layers) for cuts in inner], dtype=np.int64)


def shapes_of(proposer: Proposer) -> Iterator[BatchShape]:
    """Everything but the cuts, in all combinations, without recomputing."""
    domain, space = proposer.domain, proposer.space
    for m, num_stages in itertools.product(domain.microbatches, domain.stages):
        choices = domain.replicas_for(proposer.predictor.job.global_batch // m)
        for replicas in itertools.product(choices, repeat=num_stages):
            if sum(replicas) > proposer.num_devices:
                continue
            for schedule, order in itertools.product(space.schedules, space.rank_orders):
                yield BatchShape(
                    replicas=replicas,
                    microbatches=m,
                    schedule=schedule,
                    rank_order=order,
                    recompute="never",
                )


def layout_of(shape: BatchShape, bounds: Sequence[int], recompute: Any) -> Layout:
    return Layout(
        bounds=tuple(int(bound) for bound in bounds),
        replicas=shape.replicas,
        microbatches=shape.microbatches,
        schedule=shape.schedule,
        rank_order=shape.rank_order,
        recompute=recompute,
        policy="exact",
        cap_bytes=1.0,
    )


def optimum(proposer: Proposer) -> tuple[float, Layout | None, int]:
    """The least step of all plans that fit, infinite for none; its layout; how many there are."""
    batch, predictor, space = BatchScorer(proposer.predictor), proposer.predictor, proposer.space
    assert batch.exact
    shapes = list(shapes_of(proposer))
    bounds = {s: partitions(proposer.num_layers, s) for s in proposer.domain.stages}
    of_shape = [bounds[len(shape.replicas)] for shape in shapes]
    scores = [batch.score(each, shape) for each, shape in zip(of_shape, shapes, strict=True)]
    step_N = np.concatenate([step for step, _ in scores])
    missing_N = np.concatenate([missing for _, missing in scores])
    first_N = np.cumsum([0, *(len(each) for each in of_shape)])
    best_s, best = math.inf, None
    for index in np.argsort(step_N, kind="stable"):
        if step_N[index] >= best_s:
            break
        n = int(np.searchsorted(first_N, index, side="right")) - 1
        cuts = of_shape[n][index - first_N[n]]
        for recompute in space.recompute if missing_N[index] > 0 else ("never",):
            layout = layout_of(shapes[n], cuts, recompute)
            score = predictor.score(assemble(layout, predictor, space))
            if score.feasible and score.step_s < best_s:
                best_s, best = score.step_s, layout
    return best_s, best, len(step_N) * len(space.recompute)


def compare(problem: Problem, budget: Budget) -> dict[str, Any]:
    """Searches one instance and all of its plans."""
    parts = (problem.workload, problem.cluster, problem.job, problem.space)
    best_s, layout, num_plans = optimum(Proposer(*parts))
    row: dict[str, Any] = {
        "layers": len(problem.workload.layers),
        "nodes": problem.cluster.nodes,
        "devices": problem.cluster.num_devices,
        "global_batch": problem.job.global_batch,
        "plans": num_plans,
        "optimum_s": best_s if layout else None,
        "optimum": layout,
    }
    with tempfile.TemporaryDirectory(prefix="autoplan-brute-") as folder:
        experiment = Experiment(
            name="brute-force",
            workload=problem.workload,
            cluster=problem.cluster,
            job=problem.job,
            space=problem.space,
            output=Path(folder),
        )
        try:
            found = search(experiment, budget=budget)
        except NothingFeasibleError:
            return row | {"found_s": None, "bound_s": None, "gap": None}
    prediction = found.prediction
    return row | {
        "found_s": prediction.step_s,
        "bound_s": prediction.lower_bound_s,
        "gap": prediction.gap,
        "trials": found.trials,
        "stopped_by": found.stopped_by,
        "exhaustive": found.exhaustive,
    }


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How often searches end at the optimum, and how far below it bounds lie."""
    feasible = [n for n, row in enumerate(rows) if row["optimum_s"] is not None]
    missed = [n for n in feasible if rows[n]["found_s"] is None]
    both = [n for n in feasible if n not in missed]
    ratios = {n: rows[n]["found_s"] / rows[n]["optimum_s"] for n in both}
    loose = {n: rows[n]["optimum_s"] / rows[n]["bound_s"] - 1 for n in both}
    beyond = [n for n, row in enumerate(rows) if row["found_s"] and row["optimum_s"] is None]
    return {
        "instances": len(rows),
        "feasible": len(feasible),
        "search_found_nothing": missed,
        "search_at_optimum": sum(ratio <= 1 + EXACT for ratio in ratios.values()),
        "worst_ratio": max(ratios.values(), default=None),
        "worst_instance": max(ratios, key=ratios.__getitem__, default=None),
        "not_at_optimum": [n for n, ratio in ratios.items() if ratio > 1 + EXACT],
        "every_plan_looked_at": sum(rows[n]["exhaustive"] for n in both),
        "proven_optimal": sum(rows[n]["gap"] == 0 for n in both),
        "median_bound_gap": statistics.median(loose.values()) if loose else None,
        "worst_bound_gap": max(loose.values(), default=None),
        "worst_bound_instance": max(loose, key=loose.__getitem__, default=None),
        "bound_above_optimum": [n for n, gap in loose.items() if gap < -EXACT],
        "better_than_all_plans": beyond + [n for n, ratio in ratios.items() if ratio < 1 - EXACT],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=whole_number(1), default=400)
    parser.add_argument("--trials", type=whole_number(1), default=20, help="of each search")
    parser.add_argument("--seed", type=whole_number(0), default=0)
    parser.add_argument("--seconds", type=positive_number, help="start no instance after so long")
    parser.add_argument("--moves-only", action="store_true", help="never look at every plan")
    parser.add_argument("--json", action="store_true", help="print one document with all instances")
    chosen = parser.parse_args(arguments)
    budget = Budget(trials=chosen.trials, seconds=SEARCH_S)
    if chosen.moves_only:
        budget = dataclasses.replace(budget, exhaustive_plans=0)
    started_s = time.monotonic()
    rows: list[dict[str, Any]] = []
    for child in np.random.SeedSequence(chosen.seed).spawn(chosen.instances):
        if chosen.seconds and time.monotonic() - started_s > chosen.seconds:
            break
        problem = random_problem(np.random.default_rng(child))
        rows.append(compare(problem, budget))
    summary = summary_of(rows)
    if chosen.json:
        from autoplan.documents import pretty_json

        print(pretty_json({"summary": summary, "rows": rows}), end="")
    else:
        for name, value in summary.items():
            print(f"{name:22} {json.dumps(value)}")
    missed = summary["not_at_optimum"] or summary["search_found_nothing"]
    wrong = summary["bound_above_optimum"] or summary["better_than_all_plans"]
    return 1 if wrong or (missed and not chosen.moves_only) else 0


if __name__ == "__main__":
    sys.exit(main())
