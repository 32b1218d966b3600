"""Nothing acknowledged is lost, nothing is doubled, and the incumbent is the least of the rows."""

import dataclasses
import math
import pickle

import pytest
import sqlalchemy as sa
from scored_plans import batch, plan, scored

from autoplan.errors import InputError, StorageError
from autoplan.predict import Predictor
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.queries import leaders
from autoplan.results.recorder import Outcome, SearchRecorder
from autoplan.results.rows import ScoredPlan


def rows(recorder, table):
    return recorder.database.read(lambda c: c.execute(sa.select(table)).all())


def test_plans_and_scores_come_back_as_they_were(storage, experiment):
    given = [scored(1, step_s=0.1 + 0.2, peak_memory_bytes=1e9, lower_bound_s=0.25, island=3,
                    trial_number=17, proposed_by="sampler", max_load_s=0.2)]  # fmt: skip
    with SearchRecorder.open(storage, experiment) as recorder:
        recorder.scores(given)
        found, value_s = recorder.best()
        (row,) = leaders(recorder.database, "small")
    assert (found, value_s) == (given[0].plan, 0.1 + 0.2)
    assert row["predicted_step_s"] == row["objective_value_s"] == 0.1 + 0.2
    assert row["plan_sha256"] == given[0].plan.sha256
    assert (row["feasible"], row["island"], row["trial_number"]) == (True, 3, 17)
    assert (row["predicted_peak_memory_bytes"], row["predicted_max_load_s"]) == (1e9, 0.2)
    assert (row["objective_lower_bound_s"], row["proposed_by"]) == (0.25, "sampler")


def test_a_batch_sent_again_adds_nothing_and_changes_nothing(storage, experiment):
    with SearchRecorder.open(storage, experiment) as recorder:
        recorder.scores(batch(0))
        recorder.scores(batch(0))
        recorder.scores([dataclasses.replace(each, step_s=0.001) for each in batch(0)])
        recorder.scores([*batch(0), *batch(1), *batch(1)])
        assert recorder.num_scored == 14
        assert len(rows(recorder, schema.plans)) == 14
        assert recorder.best()[1] == min(each.step_s for each in batch(0))


def test_the_same_experiment_is_carried_on(storage, experiment):
    for number in range(3):
        with SearchRecorder.open(storage, experiment) as recorder:
            assert recorder.num_scored == 7 * number
            recorder.scores(batch(number))
    with SearchRecorder.open(storage, experiment) as recorder:
        assert len(rows(recorder, schema.experiments)) == 1
        assert len(rows(recorder, schema.workloads)) == 1


def test_experiments_share_plans_and_not_scores(storage, experiment):
    with SearchRecorder.open(storage, experiment, name="a") as recorder:
        recorder.scores([scored(step_s=2.0)])
    with SearchRecorder.open(storage, experiment, name="b") as recorder:
        assert recorder.best() is None
        recorder.scores([scored(step_s=1.0)])
        assert recorder.best()[1] == 1.0
        assert len(rows(recorder, schema.plans)) == 1
        assert len(rows(recorder, schema.scores)) == 2


@pytest.mark.parametrize("part", ["workload", "cluster", "job", "space", "objective"])
def test_a_changed_experiment_of_the_same_name_is_refused_with_what_differs(
    tmp_path, experiment, part
):
    device = dataclasses.replace(experiment.cluster.device, memory_bytes=5e9)
    changed = {
        "workload": dataclasses.replace(experiment.workload, sample="another"),
        "cluster": dataclasses.replace(experiment.cluster, device=device),
        "job": dataclasses.replace(experiment.job, global_batch=32),
        "space": dataclasses.replace(experiment.space, stages=(2,)),
        "objective": "max_stage_load",
    }
    path = str(tmp_path / "results.db")
    SearchRecorder.open(path, experiment).close()
    other = dataclasses.replace(experiment, **{part: changed[part]})
    with pytest.raises(InputError, match=rf"study: found 'small'.*\({part} changed[,)]"):
        SearchRecorder.open(path, other)
    with SearchRecorder.open(path, experiment) as recorder:
        assert len(rows(recorder, schema.workloads)) == 1
        assert len(rows(recorder, schema.clusters)) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0, None])
def test_a_figure_that_cannot_be_never_wins_and_is_kept_with_its_reason(storage, experiment, value):
    bad = [
        ScoredPlan(plan=plan(1), step_s=value),
        ScoredPlan(plan=plan(2), step_s=1.0, missing_bytes=math.nan),
    ]
    if value is not None:
        bad.append(ScoredPlan(plan=plan(3), step_s=1.0, value_s=value))
    with SearchRecorder.open(storage, experiment) as recorder:
        recorder.scores(bad)
        assert recorder.best() is None
        recorder.scores([scored(4, step_s=9.0, lower_bound_s=value, peak_memory_bytes=value)])
        assert recorder.best()[1] == 9.0
        found = leaders(recorder.database, "small")
    assert [row["feasible"] for row in found] == [True] + [False] * len(bad)
    assert all(row["reason"] for row in found[1:])


def test_plans_that_lack_memory_or_break_limits_are_kept_as_not_feasible(tmp_path, experiment):
    with SearchRecorder.open(str(tmp_path / "r.db"), experiment) as recorder:
        recorder.scores([
            scored(1, step_s=1.0, missing_bytes=12.0),
            scored(2, step_s=1.0, keeps_limits=False),
            scored(3, step_s=1.0, reason="it hung"),
        ])  # fmt: skip
        assert recorder.best() is None
        reasons = {row["reason"] for row in leaders(recorder.database, "small")}
    assert reasons == {
        "it lacks 12 bytes on its fullest stage",
        "its gradient groups break the space's limits",
        "it hung",
    }


def test_the_objective_decides_what_is_best(tmp_path, experiment):
    changed = dataclasses.replace(experiment, objective="max_stage_load")
    with SearchRecorder.open(str(tmp_path / "r.db"), changed) as recorder:
        recorder.scores([scored(1, step_s=1.0, value_s=3.0), scored(2, step_s=2.0, value_s=0.5)])
        assert recorder.best() == (plan(2), 0.5)


def test_a_prediction_and_a_score_make_the_same_row(tmp_path, experiment):
    predictor = Predictor(experiment.workload, experiment.cluster, experiment.job)
    kept = []
    for make, figures in (
        (ScoredPlan.of_score, predictor.score(plan())),
        (ScoredPlan.of_prediction, predictor.predict(plan())),
    ):
        name = make.__name__
        with SearchRecorder.open(str(tmp_path / "r.db"), experiment, name=name) as recorder:
            recorder.scores([make(plan(), figures, proposed_by="test")])
            (row,) = leaders(recorder.database, name)
        kept.append((row["predicted_step_s"], row["predicted_peak_memory_bytes"], row["feasible"]))
    assert kept[0][0] == pytest.approx(kept[1][0], rel=1e-12)
    assert kept[0][1:] == kept[1][1:]


def test_how_a_search_ended_is_kept_and_its_bound_only_rises(storage, experiment):
    with SearchRecorder.open(storage, experiment, seed=5) as recorder:
        ends = [
            Outcome(stopped_by="time", num_trials=3, search_s=1.5, lower_bound_s=0.5),
            Outcome(stopped_by="interrupted", num_trials=4, lower_bound_s=math.nan),
            Outcome(stopped_by="trials", num_trials=9, num_candidates=100, lower_bound_s=0.4),
        ]
        for end in ends:
            recorder.finish(end)
        (row,) = rows(recorder, schema.experiments)
    assert (row.stopped_by, row.num_trials, row.num_candidates) == ("trials", 9, 100)
    assert (row.objective_lower_bound_s, row.seed) == (0.5, 5)
    assert "packages" in row.environment_json
    assert row.finished_at_utc >= row.created_at_utc


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_names_that_no_database_takes_are_refused(tmp_path, experiment, name):
    changed = dataclasses.replace(experiment, name=name)
    with pytest.raises(InputError, match="study"):
        SearchRecorder.open(str(tmp_path / "r.db"), changed)


def test_a_damaged_plan_is_not_handed_out(tmp_path, experiment):
    with SearchRecorder.open(str(tmp_path / "r.db"), experiment) as recorder:
        recorder.scores([scored(4)])
        other = sa.func.replace(schema.plans.c.plan_json, '"microbatches":4', '"microbatches":8')
        recorder.database.write(
            lambda c: c.execute(sa.update(schema.plans).values(plan_json=other))
        )
        with pytest.raises(StorageError, match="is damaged"):
            recorder.best()


def test_an_open_database_is_not_pickled(tmp_path):
    with (
        Database.open(str(tmp_path / "r.db")) as database,
        pytest.raises(TypeError, match="not sent to other processes"),
    ):
        pickle.dumps(database)


def test_a_few_plans_are_the_first_of_all(storage, experiment):
    with SearchRecorder.open(storage, experiment, name="other") as recorder:
        recorder.scores([scored(cut, step_s=1.0) for cut in range(1, 8)])
    with SearchRecorder.open(storage, experiment) as recorder:
        recorder.scores([*batch(0, 20), *(scored(c, 99, step_s=2.0) for c in range(1, 8))])
        recorder.scores([scored(c, 98, step_s=0.1, missing_bytes=1.0 + c) for c in range(1, 8)])
        everything = leaders(recorder.database, "small")
        assert len(everything) == 34
        for limit in (1, 5, 26, 30, 100):
            assert leaders(recorder.database, "small", limit) == everything[:limit]
