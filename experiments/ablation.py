"""Compares the search with Optuna's samplers alone, given the same seconds and the same scores.

    python experiments/ablation.py [--seeds 5] [--seconds 3] [--only SUBSTRING | --all] [--json]

A sampler alone proposes whole plans: the number of stages, every cut, the replicas of every stage,
microbatches, schedule, rank order and recomputation are parameters of its trials. Proposals are
repaired where they are no plan (cuts that coincide move apart, the widest stage gives up replicas),
their gradients are grouped exactly, and plans that do not fit are told as violated constraints and
long steps. None of the search's own means is used: no heuristics first, no partitions behind the
bound, no moves, no batches. CMA-ES needs the package cmaes (pip install 'autoplan[test]').

Told are the CPU seconds and the plans scored until a run is within 1 % of the best plan of any run
of the case, as medians over the seeds; a run that does not get there counts as infinite. Runs go
one after another, in one process, with compiled code loaded before the first. Trials are the same
for the same seed; where the time ends them is not.

Exit codes: 0; 2 for bad input, published files that are absent included (--only gpt needs none).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from corpus import CORPUS, Case, Corpus, cases_of, parts_of

from autoplan import search
from autoplan.cli.arguments import positive_number, whole_number
from autoplan.documents import build, toml_value
from autoplan.errors import InputError, NothingFeasibleError, require, words
from autoplan.search.experiment import Budget, Experiment
from autoplan.search.layout import Layout
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Scorer

DEFAULT_CASES = (
    "gpt-1.5b/v100x8/192",
    "gpt-1.5b/h100x64/768",
    "uneven-gpt-cpu/a100x16/96",
    "pipedream-vgg16/v100x8/840",
    "pipedream-resnet101/v100x8/384",
    "pipedream-gnmt/a100x16/48",
    "piper-bert32/a100x16/480",
    "dnn-bert24/v100x8/48",
)
"""Models from a few layers to hundreds, on all three clusters."""
OURS = "autoplan"
SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "cma-es": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "nsga-ii": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}
METHODS = (OURS, *SAMPLERS)
NEAR = 1.01
"""A step that is at most so many times the best known one counts as reached."""
MISFIT = 10.0
"""A plan that does not fit counts as taking so many times its step, and more for what it lacks."""
UNLIMITED_TRIALS = 10**9


@dataclass(slots=True)
class Trace:
    """When a run's best plan improved."""

    started_s: float = field(default_factory=time.process_time)
    improvements: list[tuple[float, int, float]] = field(default_factory=list)
    """(CPU seconds, plans scored, step seconds) of each."""

    def add(self, num_plans: int, step_s: float | None) -> None:
        """Notes the best step so far."""
        known = self.improvements[-1][2] if self.improvements else math.inf
        if step_s is not None and step_s < known:
            self.improvements.append((time.process_time() - self.started_s, num_plans, step_s))

    @property
    def best_s(self) -> float:
        """The best step; infinite where no plan was found."""
        return self.improvements[-1][2] if self.improvements else math.inf

    def reached(self, step_s: float) -> tuple[float, float]:
        """CPU seconds and plans scored until the step was at most so long; infinite if never."""
        return next(((t, n) for t, n, s in self.improvements if s <= step_s), (math.inf, math.inf))


def run_search(parts: dict[str, Any], seconds: float, seed: int) -> Trace:
    """Our whole search."""
    trace = Trace()
    with tempfile.TemporaryDirectory(prefix="autoplan-ablation-") as folder:
        try:
            result = search(
                Experiment(name="ablation", output=Path(folder), **parts),
                budget=Budget(trials=UNLIMITED_TRIALS, seconds=seconds, seed=seed),
                on_progress=lambda progress: trace.add(progress.candidates, progress.best_s),
            )
        except NothingFeasibleError:
            return trace
    trace.add(result.candidates, result.prediction.step_s)
    return trace


def run_sampler(name: str, parts: dict[str, Any], seconds: float, seed: int) -> Trace:
    """One of Optuna's samplers, alone."""
    deadline_s = time.monotonic() + seconds
    trace = Trace()
    proposer = Proposer(**parts)
    scorer = Scorer(proposer.predictor, proposer.space, deadline_s)
    study = optuna.create_study(direction="minimize", sampler=SAMPLERS[name](seed))
    num_trials = 0
    while not scorer.expired:
        trial = study.ask()
        score = scorer.candidate(proposed(trial, proposer)).score
        num_trials += 1
        if name != "cma-es":  # knows no constraints
            trial.set_constraint("missing_bytes", score.missing_bytes)
        value = score.step_s
        if score.feasible:
            trace.add(num_trials, score.step_s)
        else:
            lacking = score.missing_bytes / proposer.predictor.costs.available_bytes
            value *= MISFIT * (1 + lacking)
        study.tell(trial, value)
    return trace


def proposed(trial: optuna.Trial, proposer: Proposer) -> Layout:
    """The plan that a trial's parameters stand for; every trial has the same parameters."""
    domain, space = proposer.domain, proposer.space
    layers, most = proposer.num_layers, max(domain.stages)

    def chosen(name: str, values: Sequence[Any]) -> Any:
        return values[trial.suggest_int(name, 0, len(values) - 1)]

    m = chosen("microbatches", domain.microbatches)
    stages = chosen("stages", domain.stages)
    cuts = [trial.suggest_int(f"cut_{k}", 1, max(layers - 1, 1)) for k in range(1, most)]
    wanted = [chosen(f"replicas_{s}", domain.replicas) for s in range(most)]
    choices = domain.replicas_for(proposer.predictor.job.global_batch // m)
    stages = min(stages, proposer.num_devices // choices[0])
    return Layout(
        bounds=(0, *apart(sorted(cuts[: stages - 1]), layers), layers),
        replicas=narrowed(wanted[:stages], choices, proposer.num_devices),
        microbatches=m,
        schedule=chosen("schedule", space.schedules),
        rank_order=chosen("rank_order", space.rank_orders),
        recompute=chosen("recompute", space.recompute),
        policy="exact",
        cap_bytes=space.cap_bytes[0],
    )


def apart(cuts: Sequence[int], num_layers: int) -> list[int]:
    """Rising cuts moved as little as leaves a layer to every stage."""
    moved, last = [], 0
    for k, cut in enumerate(cuts):
        last = min(max(cut, last + 1), num_layers - (len(cuts) - k))
        moved.append(last)
    return moved


def narrowed(wanted: Sequence[int], choices: Sequence[int], num_devices: int) -> tuple[int, ...]:
    """The next fewer replicas that divide the microbatch, the widest fewer until all fit."""
    at = [max(sum(r <= want for r in choices) - 1, 0) for want in wanted]
    while sum(choices[i] for i in at) > num_devices:
        at[at.index(max(at))] -= 1
    return tuple(choices[i] for i in at)


def row_of(case: str, traces: dict[str, list[Trace]]) -> dict[str, Any]:
    """What the runs of a case show."""
    best_s = min(trace.best_s for runs in traces.values() for trace in runs)
    methods = {}
    for method, runs in traces.items():
        reached = [trace.reached(best_s * NEAR) for trace in runs]
        seconds, plans = (statistics.median(column) for column in zip(*reached, strict=True))
        ratio = statistics.median(trace.best_s / best_s for trace in runs)
        methods[method] = {
            "reached": sum(math.isfinite(each) for each, _ in reached),
            "runs": len(runs),
            "median_cpu_s": seconds if math.isfinite(seconds) else None,
            "median_plans": plans if math.isfinite(plans) else None,
            "median_final_ratio": ratio if math.isfinite(ratio) else None,
        }
    return {"case": case, "best_step_s": best_s, "methods": methods}


def show_head() -> None:
    """Prints the names of the columns."""
    print(
        "CPU seconds / plans scored until within 1 % of the best known plan (runs that got there)"
    )
    print(f"{'case':32} {'best':>9}" + "".join(f" {method:>24}" for method in METHODS))


def show(row: dict[str, Any]) -> None:
    """Prints a row of the table: medians, or how far off the median run ended."""
    cells = []
    for found in row["methods"].values():
        count = f"({found['reached']}/{found['runs']})"
        if found["median_cpu_s"] is not None:
            cells.append(f"{found['median_cpu_s']:.2f} / {found['median_plans']:.0f} {count}")
        elif found["median_final_ratio"] is not None:
            cells.append(f"at {found['median_final_ratio']:.2f}x {count}")
        else:
            cells.append(f"nothing fits {count}")
    print(
        f"{row['case']:32} {row['best_step_s']:8.4g}s" + "".join(f" {cell:>24}" for cell in cells),
        flush=True,
    )


def run_case(corpus: Corpus, case: Case, seconds: float, seeds: int) -> dict[str, Any] | None:
    """All runs of one case; None where no run finds a plan that fits."""
    parts = parts_of(corpus, case)
    traces: dict[str, list[Trace]] = {method: [] for method in METHODS}
    for seed in range(seeds):
        for method in METHODS:
            if method == OURS:
                trace = run_search(parts, seconds, seed)
            else:
                trace = run_sampler(method, parts, seconds, seed)
            traces[method].append(trace)
            print(f"{case.name} seed {seed} {method}: {trace.best_s:.6g} s", file=sys.stderr)
    row = row_of(case.name, traces)
    return row if math.isfinite(row["best_step_s"]) else None


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all cases together: runs that got there, and how much longer the samplers took."""
    summary = {}
    for method in METHODS:
        found = [(row["methods"][method], row["methods"][OURS]) for row in rows]
        ratios = [row["median_final_ratio"] for row, _ in found if row["median_final_ratio"]]
        summary[method] = {
            "runs": sum(row["runs"] for row, _ in found),
            "not_reached": sum(row["runs"] - row["reached"] for row, _ in found),
            "median_final_ratio": statistics.median(ratios) if ratios else None,
            "worst_final_ratio": max(ratios, default=None),
        }
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=whole_number(1), default=5, help="runs of each method")
    parser.add_argument("--seconds", type=positive_number, default=3.0, help="of each run")
    parser.add_argument("--only", metavar="SUBSTRING", help="cases with it in the name")
    parser.add_argument("--all", action="store_true", help="every case of corpus.toml")
    parser.add_argument("--json", action="store_true", help="print one document")
    chosen = parser.parse_args(arguments)
    try:
        corpus = build(Corpus, toml_value(CORPUS), str(CORPUS))
        cases = cases_of(corpus, chosen.only or "")
        if not (chosen.only or chosen.all):
            cases = [case for case in cases if case.name in DEFAULT_CASES]
        installed = importlib.util.find_spec("cmaes") is not None
        require(installed, "cmaes", words("nothing"), "the package: pip install 'autoplan[test]'")
    except InputError as error:
        print(f"ablation.py: {error}", file=sys.stderr)
        return 2
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    run_search(parts_of(corpus, cases[0]), chosen.seconds, seed=0)  # loads the compiled code
    rows = []
    if not chosen.json:
        show_head()
    for case in cases:
        row = run_case(corpus, case, chosen.seconds, chosen.seeds)
        if row is None:
            print(f"{case.name}: nothing fits", file=sys.stderr)
            continue
        rows.append(row)
        if not chosen.json:
            show(row)
    report(rows, chosen)
    return 0


def report(rows: Sequence[dict[str, Any]], chosen: argparse.Namespace) -> None:
    """Prints the figures of all cases together, or everything as one document."""
    summary = summary_of(rows)
    if chosen.json:
        head = {"seconds": chosen.seconds, "seeds": chosen.seeds, "summary": summary}
        print(json.dumps(head | {"cases": rows}, indent=2, allow_nan=False))
        return
    print()
    for method, found in summary.items():
        print(f"{method:10} {json.dumps(found)}")


if __name__ == "__main__":
    sys.exit(main())
