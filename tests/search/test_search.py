import dataclasses
import json
import math
import sqlite3

import optuna
import pytest

import autoplan
from autoplan.errors import InputError, NothingFeasibleError, StorageError
from autoplan.plan import load_plan
from autoplan.search.heuristics import baselines
from autoplan.search.proposal import Proposer
from autoplan.search.run import search


def budgeted(experiment, **changes):
    return dataclasses.replace(experiment, budget=dataclasses.replace(experiment.budget, **changes))


def moved(experiment, folder):
    return dataclasses.replace(experiment, output=folder)


@pytest.fixture
def unproven(experiment):
    """The bound holds for any groups: where a cap closes them, no plan reaches it."""
    space = dataclasses.replace(experiment.space, grouping=("threshold",))
    return dataclasses.replace(experiment, space=space)


def test_the_plan_found_is_at_least_as_good_as_every_heuristic(experiment):
    result = search(experiment)
    assert result.prediction.feasible
    for name, prediction in result.baselines.items():
        assert prediction is None or result.prediction.step_s <= prediction.step_s, name
    assert {name for name, found in result.baselines.items() if found} >= {
        "uniform-layers", "balanced-compute", "balanced-communication", "data-parallel",
    }  # fmt: skip


def test_the_saved_plan_predicts_the_same_step_to_the_last_digit(experiment):
    result = search(experiment)
    plan = load_plan(result.plan_path)
    assert plan == result.plan
    again = autoplan.predict(experiment.workload, experiment.cluster, experiment.job, plan)
    assert again.step_s == result.prediction.step_s
    assert again.stages == result.prediction.stages


def test_the_same_seed_gives_the_same_plan_and_history(experiment, tmp_path):
    histories = []
    for run in ("a", "b"):
        result = search(moved(experiment, tmp_path / run))
        study = optuna.load_study(
            study_name="small", storage=f"sqlite:///{tmp_path / run / 'study.db'}"
        )
        histories.append([(t.params, t.value) for t in study.get_trials()])
        histories[-1].append(result.plan.sha256)
    assert histories[0] == histories[1]


def test_another_seed_proposes_something_else(unproven, tmp_path):
    parameters = []
    for seed in (0, 1):
        changed = budgeted(moved(unproven, tmp_path / str(seed)), seed=seed)
        search(changed)
        storage = f"sqlite:///{tmp_path / str(seed) / 'study.db'}"
        trials = optuna.load_study(study_name="small", storage=storage).get_trials()
        parameters.append([t.params for t in trials])
    assert parameters[0] != parameters[1]


def test_a_study_goes_on_where_it_stopped(unproven):
    first = search(budgeted(unproven, trials=12))
    second = search(budgeted(unproven, trials=20))
    assert (first.trials, second.trials) == (12, 20)
    assert second.prediction.step_s <= first.prediction.step_s
    storage = f"sqlite:///{unproven.output / 'study.db'}"
    study = optuna.load_study(study_name="small", storage=storage)
    assert len(study.get_trials()) == 20


def test_a_finished_study_is_only_read(unproven):
    first = search(unproven)
    again = search(unproven)
    assert again.trials == first.trials
    assert again.prediction.step_s <= first.prediction.step_s
    assert again.stopped_by == "trials"


def test_a_changed_experiment_under_the_same_study_is_refused_with_what_differs(experiment):
    search(budgeted(experiment, trials=2))
    job = dataclasses.replace(experiment.job, global_batch=32)
    with pytest.raises(InputError, match="job changed"):
        search(dataclasses.replace(experiment, job=job))


def test_the_database_holds_feasible_minimum_and_constraints(experiment):
    result = search(experiment)
    study = optuna.load_study(
        study_name="small", storage=f"sqlite:///{experiment.output / 'study.db'}"
    )
    trials = study.get_trials()
    assert len(trials) == result.trials
    feasible = [t.value for t in trials if t.constraints["missing_bytes"] <= 0]
    assert result.prediction.step_s == min(feasible)
    assert all(math.isfinite(t.value) for t in trials)
    assert all(t.user_attrs["plan"]["schema"] == "autoplan-plan/1" for t in trials)


def test_the_bound_is_below_every_plan_that_was_tried(experiment):
    result = search(experiment)
    with sqlite3.connect(experiment.output / "study.db") as database:
        least = database.execute("select min(value) from trial_values").fetchone()[0]
    assert result.prediction.lower_bound_s <= least * (1 + 1e-9)


def test_plans_that_do_not_fit_are_never_the_result(experiment):
    device = dataclasses.replace(experiment.cluster.device, memory_bytes=1.2e8)
    cluster = dataclasses.replace(experiment.cluster, device=device)
    result = search(dataclasses.replace(experiment, cluster=cluster))
    assert result.prediction.feasible
    assert result.prediction.missing_bytes == 0
    assert None in result.baselines.values()


def test_nothing_that_fits_says_how_much_is_missing(experiment):
    device = dataclasses.replace(experiment.cluster.device, memory_bytes=1e6)
    cluster = dataclasses.replace(experiment.cluster, device=device)
    with pytest.raises(NothingFeasibleError, match=r"none of \d+ plans fits; the closest lacks"):
        search(budgeted(dataclasses.replace(experiment, cluster=cluster), trials=5))
    assert not (experiment.output / "best-plan.json").exists()


def test_a_single_layer_on_one_device_is_proven_optimal(experiment):
    workload = dataclasses.replace(
        experiment.workload,
        layers=experiment.workload.layers[:1],
        cut_bytes_per_sample=(0.0, 0.0),
    )
    cluster = dataclasses.replace(experiment.cluster, nodes=1, devices_per_node=1)
    result = search(dataclasses.replace(experiment, workload=workload, cluster=cluster))
    assert result.stopped_by == "optimal"
    assert result.gap == 0


def test_interrupting_keeps_the_best_plan_and_the_trials(unproven):
    def interrupt(progress):
        if progress.trials == 9:
            raise KeyboardInterrupt

    result = search(unproven, on_progress=interrupt)
    assert result.stopped_by == "interrupted"
    assert load_plan(result.plan_path) == result.plan
    storage = f"sqlite:///{unproven.output / 'study.db'}"
    assert len(optuna.load_study(study_name="small", storage=storage).get_trials()) == 9


def test_time_ends_a_search(unproven):
    result = search(budgeted(unproven, trials=100_000, seconds=1.0))
    assert result.stopped_by == "time"
    assert result.seconds < 10


def test_a_file_that_is_not_a_database_is_a_storage_error(experiment):
    experiment.output.mkdir()
    database = experiment.output / "study.db"
    database.write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match=r"study\.db"):
        search(experiment)
    assert database.read_bytes() == b"not a database" * 100


@pytest.mark.parametrize("url", ["nonsense", "nodb://user:secret@host/x", "://"])
def test_a_bad_storage_url_is_one_line_without_the_password(experiment, url):
    with pytest.raises(InputError) as error:
        search(experiment, storage=url)
    assert error.value.field == "storage"
    assert "secret" not in str(error.value)
    assert not experiment.output.exists()


def test_heuristics_stay_inside_the_space(experiment):
    space = dataclasses.replace(experiment.space, stages=(4,), microbatches=(8,))
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, space)
    found = baselines(proposer)
    assert found["data-parallel"] is None
    plan = found["uniform-layers"].plan
    assert len(plan.stages) == 4
    assert plan.microbatches == 8
    assert plan.cuts == (2, 4, 6)


def test_the_callable_package_and_its_json_document(experiment):
    result = autoplan.search(experiment)
    document = result.to_document()
    assert set(document) >= {
        "study", "storage", "trials", "candidates", "seconds", "best", "baselines",
    }  # fmt: skip
    prediction = document["best"]["prediction"]
    assert set(prediction) >= {"step_s", "lower_bound_s", "gap", "stages"}
    from autoplan.documents import plain

    assert json.loads(json.dumps(plain(document), allow_nan=False))


def test_heuristics_are_kept_however_short_the_time(unproven):
    """Even where time ends at once, the result is no worse than what people use."""
    result = search(budgeted(unproven, seconds=1e-6))
    assert result.stopped_by == "time"
    for name, prediction in result.baselines.items():
        assert prediction is None or result.prediction.step_s <= prediction.step_s, name


def test_the_incumbent_is_a_row_of_the_database(unproven):
    result = search(unproven)
    study = optuna.load_study(
        study_name="small", storage=f"sqlite:///{unproven.output / 'study.db'}"
    )
    feasible = [t.value for t in study.get_trials() if all(v <= 0 for v in t.constraints.values())]
    assert min(feasible) == result.prediction.step_s
    names = {t.user_attrs.get("proposed_by") for t in study.get_trials()}
    assert {"sweep", "polish"} <= names


def test_a_database_that_fails_later_leaves_the_best_plan_and_says_where(unproven):
    """The table is dropped under the running search, as by somebody else's mistake."""
    database = unproven.output / "study.db"

    def drop(progress):
        if progress.trials == 5:
            with sqlite3.connect(database) as connection:
                connection.execute("drop table trials")

    with pytest.raises(StorageError, match=r"the best plan so far takes .* saved as") as error:
        search(unproven, on_progress=drop)
    assert str(unproven.output / "best-plan.json") in str(error.value)
    assert load_plan(unproven.output / "best-plan.json").num_layers == 8
