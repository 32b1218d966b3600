"""The answer to a commit is lost with its connection: what was written is there once, all of it."""

import json

import optuna
import pytest
import sqlalchemy as sa
from answer_dropper import AnswerDropper
from processes import searched
from scored_plans import batch
from search_invariants import check, num_acknowledged, stored_trials

from autoplan.results.database import Database
from autoplan.results.queries import leaders
from autoplan.results.recorder import Outcome, SearchRecorder
from autoplan.search.experiment import load_experiment
from autoplan.search.study import ROW
from autoplan.storage.failures import ConnectionLostError, passes, storage_error
from autoplan.storage.studies import study_storage, wait_for_writers
from autoplan.storage.url import Storage

SEED = 20


@pytest.fixture
def dropper(postgres, postgres_url):
    """A proxy that drops every fifth answer to a commit, and the database's URL through it."""
    with AnswerDropper(postgres.port, SEED, share=0.2) as proxy:
        proxy.url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
        yield proxy
    print(f"seed {SEED}: {proxy.num_dropped} of {proxy.num_commits} answers dropped")


def test_optuna_does_not_write_a_trial_again_by_itself(dropper, postgres_url):
    dropper.share = 0.0
    study = optuna.create_study(storage=study_storage(Storage.parse(dropper.url)))
    dropper.share = 1.0
    with pytest.raises(ConnectionLostError) as lost:
        study.add_trial(optuna.trial.create_trial(value=1.0))
    assert dropper.num_dropped == 1
    assert passes(lost.value)
    assert "\n" not in str(storage_error(Storage.parse(postgres_url), lost.value))


def test_whoever_looks_for_a_trial_waits_for_those_that_are_being_added(postgres_url, monkeypatch):
    monkeypatch.setattr("autoplan.storage.engine._LOCK_WAIT_S", 0.3)
    database = study_storage(Storage.parse(postgres_url))
    optuna.create_study(storage=database, study_name="ours")
    engine = sa.create_engine(postgres_url)
    with engine.begin() as other:
        other.execute(sa.text("SELECT 1 FROM studies WHERE study_name = 'ours' FOR UPDATE"))
        with pytest.raises(sa.exc.OperationalError, match="lock timeout") as waited:
            wait_for_writers(database, "ours")
        assert passes(waited.value)
        wait_for_writers(database, "another")
    wait_for_writers(database, "ours")
    engine.dispose()


def test_batches_of_scores_are_there_once(dropper, postgres_url, experiment):
    dropper.share = 0.4
    with SearchRecorder.open(dropper.url, experiment) as recorder:
        for number in range(20):
            recorder.scores(batch(number))
        recorder.finish(Outcome(stopped_by="trials", num_trials=140))
    assert dropper.num_dropped >= 3
    with Database.open(postgres_url) as database:
        hashes = [row["plan_sha256"] for row in leaders(database, "small")]
    expected = {each.plan.sha256 for number in range(20) for each in batch(number)}
    assert len(hashes) == len(expected) == 140
    assert set(hashes) == expected


def test_a_search_loses_no_trial_and_doubles_none(dropper, postgres_url, unproven_path):
    environment = {"AUTOPLAN_STORAGE": dropper.url}
    for trials in (10, 20):  # begun, then carried on
        code, out, err = searched(unproven_path, "--trials", trials, environment=environment)
        assert code == 0, err
        document = json.loads(out)
        assert document["trials"] == num_acknowledged(postgres_url) == trials
    assert dropper.num_dropped >= 5
    check(postgres_url, load_experiment(unproven_path))
    rows = [trial.user_attrs[ROW] for trial in stored_trials(postgres_url).get_trials()]
    runs = {}
    for row in rows:
        run, _, number = row.partition("-")
        runs.setdefault(run, []).append(int(number))
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in runs.values())
    assert len(runs) == 2
