"""Which encoding of cuts finds better pipelines in the same number of trials.

Both encodings get the same sampler (Optuna's TPE), trials and seeds, on a pipeline with fixed
stages and microbatches and without local refinement, so that only the encoding differs:

- shifts: what autoplan uses, each cut moved by up to 3 layers from a partition that is balanced by
  compute, balanced with communication, or uniform, as the trial chooses;
- sorted: each cut an integer in 1..L-1, sorted, duplicates moved apart.

Prints, per workload, the geometric mean over seeds of sorted / shifts best step time: above 1,
shifts are better. Run from the repository's root:

    python experiments/bench/bench_encoding.py [--trials 60] [--seeds 5] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
from pathlib import Path

import optuna

from autoplan.search.experiment import Experiment, load_experiment
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import COMMUNICATION, COMPUTE, UNIFORM, Proposer
from autoplan.search.space import SearchSpace

EXPERIMENTS = Path(__file__).resolve().parents[1]
CASES = {
    "uneven-gpt-cpu": (4, 8),
    "quickstart": (8, 16),
    "pipedream-resnet50": (8, 16),
    "piper-bert32": (8, 16),
}
"""Stages and microbatches by experiment; published inputs are left out where they are absent."""


Bases = dict[str, tuple[int, ...]]
"""Bounds of the balanced partitions by name."""


def shifts(trial: optuna.Trial, num_layers: int, bases: Bases) -> tuple[int, ...]:
    """Autoplan's own encoding, as search/proposal.py has it."""
    balanced = bases[trial.suggest_categorical("base", list(bases))]
    moved = list(balanced)
    num_stages = len(balanced) - 1
    for k in range(1, num_stages):
        wanted = balanced[k] + trial.suggest_int(f"cut_shift_{k}", -3, 3)
        moved[k] = min(max(wanted, moved[k - 1] + 1), num_layers - (num_stages - k))
    return tuple(moved)


def sorted_integers(trial: optuna.Trial, num_layers: int, bases: Bases) -> tuple[int, ...]:
    """The common encoding: cuts anywhere, sorted, duplicates moved apart."""
    num_stages = len(next(iter(bases.values()))) - 1
    cuts = sorted(trial.suggest_int(f"cut_{k}", 1, num_layers - 1) for k in range(1, num_stages))
    bounds = [0]
    for k, cut in enumerate(cuts, start=1):
        bounds.append(min(max(cut, bounds[-1] + 1), num_layers - (num_stages - k)))
    return (*bounds, num_layers)


def best_step_s(experiment: Experiment, shape: tuple[int, int], encode, trials: int, seed: int):
    """Least step time over the trials; plans that do not fit count with their step time too."""
    num_stages, microbatches = shape
    job = dataclasses.replace(experiment.job, global_batch=microbatches * 4)
    cluster = experiment.cluster
    num_stages = min(num_stages, cluster.num_devices)
    space = SearchSpace(stages=(num_stages,))
    proposer = Proposer(experiment.workload, cluster, job, space)
    predictor = proposer.predictor
    replicas = (1,) * num_stages
    names = (COMPUTE, COMMUNICATION, UNIFORM)
    bases = {name: proposer.partition(name, microbatches, replicas) for name in names}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: optuna.Trial) -> float:
        layout = Layout(
            bounds=encode(trial, len(experiment.workload.layers), bases),
            replicas=replicas,
            microbatches=microbatches,
            schedule="1f1b",
            rank_order="replica",
            recompute="never",
            policy="single",
            cap_bytes=1.0,
        )
        return predictor.score(assemble(layout, predictor, proposer.space)).step_s

    study.optimize(objective, n_trials=trials)
    return study.best_value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the figures as one document")
    arguments = parser.parse_args()
    logging.getLogger("optuna").setLevel(logging.ERROR)
    figures = {}
    for name, shape in CASES.items():
        path = EXPERIMENTS / f"{name}.toml"
        try:
            experiment = load_experiment(path)
        except ValueError as absent:
            if not arguments.json:
                print(f"{name}: left out ({absent})")
            continue
        ratios = [
            best_step_s(experiment, shape, sorted_integers, arguments.trials, seed)
            / best_step_s(experiment, shape, shifts, arguments.trials, seed)
            for seed in range(arguments.seeds)
        ]
        figures[name] = math.exp(sum(map(math.log, ratios)) / len(ratios))
        if not arguments.json:
            print(f"{name}: sorted integers / shifts = {figures[name]:.3f}")
    if arguments.json:
        print(json.dumps({"trials": arguments.trials, "sorted_over_shifts": figures}))


if __name__ == "__main__":
    main()
