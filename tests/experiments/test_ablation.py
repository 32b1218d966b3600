"""The plain samplers that the search is compared with, and how the comparison counts."""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
from pathlib import Path

import optuna
import pytest
from builders import random_cluster, random_job, random_workload

from autoplan.search.layout import assemble
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture(scope="module")
def ablation():
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        return importlib.import_module("ablation")
    finally:
        sys.path.remove(str(EXPERIMENTS))


def random_proposer(rng):
    parts = random_workload(rng), random_cluster(rng), random_job(rng)
    return Proposer(*parts, SearchSpace(recompute=("never", "where-needed")))


def trace(ablation, *improvements):
    return ablation.Trace(improvements=list(improvements))


def test_every_proposal_is_a_valid_plan(ablation):
    rng = random.Random(41)
    depths = set()
    for seed in range(30):
        proposer = random_proposer(rng)
        study = optuna.create_study(sampler=ablation.SAMPLERS["random"](seed))
        for _ in range(10):
            layout = ablation.proposed(study.ask(), proposer)
            plan = assemble(layout, proposer.predictor, proposer.space)
            assert math.isfinite(proposer.predictor.score(plan).step_s)
            depths.add(len(plan.stages))
    assert len(depths) > 3


def test_cuts_that_coincide_move_apart_and_leave_a_layer_to_every_stage(ablation):
    assert ablation.apart([2, 2, 5], 8) == [2, 3, 5]
    assert ablation.apart([7, 7, 7], 8) == [5, 6, 7]
    assert ablation.apart([1, 4], 8) == [1, 4]


def test_the_widest_stages_give_up_replicas_until_all_fit(ablation):
    assert ablation.narrowed([4, 4, 1], [1, 2, 4], 8) == (2, 4, 1)
    assert ablation.narrowed([3, 1], [1, 2], 8) == (2, 1)
    assert sum(ablation.narrowed([8] * 8, [1, 2, 4, 8], 8)) == 8


@pytest.mark.parametrize("name", ["tpe", "random", "cma-es", "nsga-ii"])
def test_a_sampler_finds_plans_and_proposes_the_same_ones_for_the_same_seed(
    ablation, name, experiment
):
    if name == "cma-es":
        pytest.importorskip("cmaes")
    parts = {part: getattr(experiment, part) for part in ("workload", "cluster", "job", "space")}
    runs = [ablation.run_sampler(name, parts, 0.5, seed=3) for _ in range(2)]
    steps = [[step_s for _, _, step_s in run.improvements] for run in runs]
    shortest = min(len(each) for each in steps)
    assert shortest > 0
    assert steps[0][:shortest] == steps[1][:shortest]
    assert steps[0] == sorted(steps[0], reverse=True)


def test_the_search_is_followed_until_its_best_plan(ablation, experiment):
    parts = {part: getattr(experiment, part) for part in ("workload", "cluster", "job", "space")}
    found = ablation.run_search(parts, 20.0, seed=0)
    seconds, plans = found.reached(found.best_s)
    assert 0 < seconds < 20
    assert plans > 100


def test_runs_that_never_get_near_count_as_infinite_in_the_medians(ablation):
    good = [trace(ablation, (0.1, 5, 3.0), (t, 9, 1.0)) for t in (0.4, 0.2, 0.3)]
    bad = [trace(ablation, (0.5, 7, 1.005)), trace(ablation, (0.6, 8, 2.0)), trace(ablation)]
    row = ablation.row_of("case", {"autoplan": good, "tpe": bad})
    assert row["best_step_s"] == 1.0
    ours, tpe = row["methods"]["autoplan"], row["methods"]["tpe"]
    assert (ours["reached"], ours["median_cpu_s"], ours["median_plans"]) == (3, 0.3, 9)
    assert (tpe["reached"], tpe["median_cpu_s"]) == (1, None)
    assert tpe["median_final_ratio"] == 2.0


def test_one_document_holds_every_method(ablation, capsys):
    options = ["--only", "gpt-1.5b/v100x8", "--seeds", "1", "--seconds", "0.5", "--json"]
    assert ablation.main(options) == 0
    [row] = json.loads(capsys.readouterr().out)["cases"]
    assert set(row["methods"]) == set(ablation.METHODS)
    assert row["best_step_s"] > 0


def test_an_unknown_case_is_bad_input(ablation, capsys):
    assert ablation.main(["--only", "no such case"]) == 2
    assert "ablation.py: --only" in capsys.readouterr().err


def test_the_default_cases_are_cases_of_the_corpus(ablation, shared_data):
    corpus = ablation.build(ablation.Corpus, ablation.toml_value(ablation.CORPUS), "corpus")
    names = {case.name for case in ablation.cases_of(corpus, "")}
    assert set(ablation.DEFAULT_CASES) <= names
