"""What is searched for beside the step: on small instances the same as looking at every plan."""

import dataclasses
import itertools
import json
import math
import random

import optuna
import pytest
from builders import cluster, layer, random_workload, workload
from small_instances import SPACE, every_front, every_score, random_experiment

import autoplan
from autoplan.errors import InputError, NothingFeasibleError
from autoplan.plan import load_plan
from autoplan.prediction import ROUNDING
from autoplan.search.experiment import Budget, Experiment, load_experiment
from autoplan.search.objective import objective_named, value_of
from autoplan.search.proposal import Proposer
from autoplan.search.run import search

ONE_FIGURE = ("max_stage_load", "throughput_per_device")


@pytest.mark.parametrize("objective", ONE_FIGURE)
@pytest.mark.parametrize("seed", range(8))
def test_one_figure_equals_the_best_of_all_plans(objective, seed, tmp_path):
    experiment = random_experiment(random.Random(seed), tmp_path, objective=objective)
    values = [value_of(objective, score) for _, score in every_score(experiment)]
    if not values:
        with pytest.raises(NothingFeasibleError):
            search(experiment)
        return
    result = search(experiment)
    assert result.value == pytest.approx(min(values), rel=1e-9)
    assert result.lower_bound <= min(values) * (1 + ROUNDING)
    assert result.value == value_of(objective, result.prediction)


@pytest.mark.parametrize("objective", ONE_FIGURE)
@pytest.mark.parametrize("seed", range(40, 54))
def test_no_plan_is_below_the_bounds(objective, seed, tmp_path):
    experiment = random_experiment(random.Random(seed), tmp_path)
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, experiment.space)
    figure = objective_named(objective, proposer.predictor)
    values = [figure.value(score) for _, score in every_score(experiment)]
    best = min(values, default=math.inf)
    quick = figure.quick_bound()
    if values:
        assert quick <= best * (1 + ROUNDING)
        certified = figure.certified_bound(best)
        assert quick * (1 - ROUNDING) <= certified <= best * (1 + ROUNDING)


def test_on_one_node_the_least_load_is_proven(tmp_path):
    """Links are the same everywhere and stages have one replica: the bound is exact."""
    rng = random.Random(3)
    for number in range(8):
        model = random_workload(rng, max_layers=6)
        experiment = Experiment(
            name="pipeline",
            workload=model,
            cluster=cluster(devices_per_node=4),
            job=autoplan.Job(global_batch=4, optimizer="sgd"),
            space=dataclasses.replace(SPACE, replicas=(1,)),
            output=tmp_path / str(number),
            objective="max_stage_load",
        )
        result = search(experiment)
        assert result.gap == 0
        assert result.stopped_by == "optimal"


def test_the_load_of_a_stage_adds_up_everything_it_does(experiment):
    """Two stages of two replicas by hand: compute, both directions of the cut, exchange, update."""
    result = search(
        dataclasses.replace(
            experiment,
            objective="max_stage_load",
            space=dataclasses.replace(experiment.space, stages=(2,), replicas=(2,)),
        )
    )
    stages, plan = result.prediction.stages, result.plan
    send_s = stages[0].send_forward_s
    assert send_s > 0
    elements = [
        sum(experiment.workload.layers[i].gradient_elements for i in range(*stage.layers))
        for stage in stages
    ]
    for stage, count in zip(stages, elements, strict=True):
        exchange_s = stage.load_s - stage.compute_s - stage.optimizer_s
        exchange_s -= 2 * plan.microbatches * send_s
        # A ring of two sends half of the gradients twice, over a link known by its name.
        bandwidth = experiment.cluster.intra_node.bandwidth_bytes_per_s
        assert exchange_s == pytest.approx(4 * count / bandwidth, rel=0.05)
    assert result.value == max(stage.load_s for stage in stages)


def test_fewer_devices_can_train_more_samples_on_each(tmp_path):
    """Four equal devices halve nothing but the bubble-free compute: one device is best."""
    experiment = Experiment(
        name="few",
        workload=workload([layer(gradient_elements=10)] * 4, [0.0, 1.0, 1.0, 1.0, 0.0]),
        cluster=cluster(devices_per_node=4),
        job=autoplan.Job(global_batch=4, optimizer="sgd"),
        space=SPACE,
        output=tmp_path,
    )
    fastest = search(experiment)
    cheapest = search(
        dataclasses.replace(
            experiment, objective="throughput_per_device", output=tmp_path / "cheapest"
        )
    )
    assert fastest.plan.num_devices > 1
    assert cheapest.plan.num_devices == 1
    assert cheapest.gap == 0


def test_memory_that_one_device_lacks_takes_the_fewest_that_suffice(tmp_path):
    """Three devices hold the model and two do not."""
    layers = [layer(parameter_bytes=40.0) for _ in range(3)]
    experiment = Experiment(
        name="few",
        workload=workload(layers),
        cluster=cluster(devices_per_node=4, memory_bytes=50.0),
        job=autoplan.Job(global_batch=6, optimizer="sgd", memory_headroom=0.0),
        space=SPACE,
        output=tmp_path,
        objective="throughput_per_device",
    )
    result = search(experiment)
    assert result.plan.num_devices == 3
    assert result.gap == 0


def dominated(one, other):
    """Whether `other` is at least as good in both."""
    return other[0] <= one[0] and other[1] <= one[1] and other != one


@pytest.mark.parametrize("recompute", [("never",), ("never", "always")])
@pytest.mark.parametrize("seed", range(3))
def test_a_small_front_equals_that_of_all_plans(seed, recompute, tmp_path):
    experiment = random_experiment(random.Random(seed), tmp_path, objective="step_time_and_memory")
    experiment = dataclasses.replace(
        experiment,
        budget=Budget(trials=100, seconds=120.0),
        space=dataclasses.replace(SPACE, recompute=recompute),
    )
    wanted = every_front(experiment)
    if not wanted:
        with pytest.raises(NothingFeasibleError):
            search(experiment)
        return
    result = search(experiment)
    found = [(p.prediction.step_s, p.prediction.peak_bytes) for p in result.front]
    assert found == [pytest.approx(point, rel=1e-8) for point in wanted]
    assert result.stopped_by == "closed"


@pytest.fixture
def two_objectives(experiment):
    budget = dataclasses.replace(experiment.budget, trials=40)
    return dataclasses.replace(experiment, objective="step_time_and_memory", budget=budget)


def test_no_point_of_a_front_beats_another_and_the_fastest_is_the_best_step(
    experiment, two_objectives, tmp_path
):
    result = search(two_objectives)
    points = [(p.prediction.step_s, p.prediction.peak_bytes) for p in result.front]
    assert len(points) >= 3
    assert not any(dominated(a, b) for a, b in itertools.product(points, points))
    assert points == sorted(points)
    best = search(dataclasses.replace(experiment, output=tmp_path / "step"))
    assert points[0][0] == pytest.approx(best.prediction.step_s, rel=1e-9)
    assert result.plan == result.front[0].plan
    for point in result.front:
        assert load_plan(point.plan_path) == point.plan
        assert point.lower_bound_s <= point.prediction.step_s * (1 + ROUNDING)
        assert point.prediction.feasible
    assert load_plan(result.plan_path) == result.plan


def test_the_same_seed_gives_the_same_front(two_objectives, tmp_path):
    fronts = []
    # Where the time does not end it, trials do.
    for run in ("a", "b"):
        result = search(dataclasses.replace(two_objectives, output=tmp_path / run))
        fronts.append([point.plan.sha256 for point in result.front])
    assert fronts[0] == fronts[1]


def test_interrupting_keeps_the_front_and_the_same_command_goes_on(two_objectives):
    def interrupt(progress):
        if progress.points >= 2:
            raise KeyboardInterrupt

    first = search(two_objectives, on_progress=interrupt)
    assert first.stopped_by == "interrupted"
    assert len(first.front) >= 2
    again = search(two_objectives)
    assert again.trials > first.trials
    for point in first.front:
        least = min(
            other.prediction.step_s
            for other in again.front
            if other.prediction.peak_bytes <= point.prediction.peak_bytes * (1 + ROUNDING)
        )
        assert least <= point.prediction.step_s * (1 + ROUNDING)
    saved = sorted((two_objectives.output / "front").iterdir())
    assert saved == [point.plan_path for point in again.front]


def test_the_database_holds_both_figures_of_a_front(two_objectives):
    search(two_objectives)
    storage = f"sqlite:///{two_objectives.output / 'study.db'}"
    study = optuna.load_study(study_name="small", storage=storage)
    assert len(study.directions) == 2
    for trial in study.get_trials():
        figures = trial.user_attrs["figures"]
        assert trial.values == [figures["step_s"], figures["peak_bytes"]]


@pytest.mark.parametrize("objective", ONE_FIGURE)
def test_the_database_holds_what_was_minimised(objective, experiment):
    result = search(dataclasses.replace(experiment, objective=objective))
    storage = f"sqlite:///{experiment.output / 'study.db'}"
    study = optuna.load_study(study_name="small", storage=storage)
    fitting = [
        trial.value
        for trial in study.get_trials()
        if all(violation <= 0 for violation in trial.constraints.values())
    ]
    assert min(fitting) == result.value
    assert study.user_attrs["autoplan:identity"]["objective"] == objective


@pytest.mark.parametrize("other", ["max_stage_load", "step_time_and_memory"])
def test_a_study_with_another_objective_is_refused_with_what_differs(other, experiment):
    few = dataclasses.replace(experiment.budget, trials=2)
    experiment = dataclasses.replace(experiment, budget=few)
    search(experiment)
    with pytest.raises(InputError, match=r"objective changed, the objective was step_time"):
        search(dataclasses.replace(experiment, objective=other))


def test_the_document_tells_the_objective_and_the_front(two_objectives):
    document = json.loads(
        json.dumps(autoplan.documents.plain(search(two_objectives).to_document()))
    )
    assert document["objective"]["name"] == "step_time_and_memory"
    assert {"step_s", "peak_bytes", "plan", "plan_path", "gap"} <= set(document["front"][0])
    assert document["front"][0]["step_s"] == document["objective"]["value"]


def test_the_objective_is_read_from_the_experiment(experiment_path):
    text = experiment_path.read_text()
    experiment_path.write_text(
        text.replace("[workload]", 'objective = "max_stage_load"\n[workload]')
    )
    assert load_experiment(experiment_path).objective == "max_stage_load"
