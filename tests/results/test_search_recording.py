"""What a search tells the experiment database."""

import dataclasses
import logging
import math

import pytest
import sqlalchemy as sa
from search_invariants import check, stored_trials

from autoplan.errors import InputError
from autoplan.predict import Predictor
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.queries import leaders
from autoplan.results.recorder import SearchRecorder
from autoplan.results.search_recording import SearchRecording, open_recording
from autoplan.search.experiment import Budget
from autoplan.search.heuristics import baselines
from autoplan.search.proposal import Proposer
from autoplan.search.recording import Found, RunEnd
from autoplan.search.run import search
from autoplan.storage.failures import OutageError
from autoplan.storage.url import Storage


@pytest.fixture
def found(experiment):
    """Two plans as a search scores them."""
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, experiment.space)
    some = list({each.plan: each for each in baselines(proposer).values() if each}.values())
    return [
        Found(plan=each.plan, score=each.score, value=each.score.step_s, proposed_by=each.name)
        for each in some[:2]
    ]


def test_every_plan_of_a_search_and_its_end_are_in_the_database(experiment):
    storage = Storage.parse(experiment.default_storage)
    with open_recording(storage, experiment, None, 0) as recording:
        result = search(experiment, recording=recording)
    check(storage, experiment)
    with Database.open(storage) as database:
        rows = {row["plan_sha256"]: row for row in leaders(database, "small")}
        end = database.read(lambda c: c.execute(sa.select(schema.experiments)).one())
    trials = stored_trials(storage).get_trials()
    predictor = Predictor(
        experiment.workload, experiment.cluster, experiment.job, experiment.domain()
    )
    assert len(trials) == result.trials
    assert len({str(trial.user_attrs["plan"]) for trial in trials}) <= len(rows)
    best = rows[result.plan.sha256]
    assert best["objective_value_s"] == result.value == predictor.score(result.plan).step_s
    assert {"data-parallel", "uniform-layers"} & {row["proposed_by"] for row in rows.values()}
    assert (end.stopped_by, end.num_trials) == (result.stopped_by, result.trials)
    assert end.num_candidates == result.candidates
    assert end.objective_lower_bound_s == result.lower_bound


def test_a_figure_of_another_objective_is_its_own(experiment):
    other = dataclasses.replace(experiment, objective="max_stage_load")
    storage = Storage.parse(other.default_storage)
    with open_recording(storage, other, None, 0) as recording:
        result = search(other, budget=Budget(trials=6), recording=recording)
    with Database.open(storage) as database:
        best = leaders(database, "small")[0]
    assert best["objective_value_s"] == result.value != best["predicted_step_s"]


def test_while_the_database_is_away_plans_wait_and_the_search_is_not_disturbed(
    experiment, found, caplog, monkeypatch
):
    storage = Storage.parse(experiment.default_storage)
    recorder = SearchRecorder.open(storage, experiment)
    with SearchRecording(recorder) as recording:
        recording.add(found[:1])

        def away(work):
            raise OutageError("the database is away")

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(recorder.database, "write", away)
            recording.add(found[1:])
        assert "scored plans are kept in" in caplog.text
        assert recorder.num_scored == 1
        end = RunEnd(
            stopped_by="time", num_trials=2, num_candidates=9, search_s=1.0, lower_bound=math.inf
        )
        recording.finish(end)
        recording.finish(end)
        assert recorder.num_scored == 2


def test_there_is_at_least_one_worker():
    with pytest.raises(InputError, match="workers: found 0; allowed: at least 1"):
        Budget(workers=0)
