"""One driver at a time searches a study; who lost it writes nothing more."""

import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from processes import wait_until
from scored_plans import batch

from autoplan.errors import StorageError
from autoplan.results import lease, schema
from autoplan.results.database import Database
from autoplan.results.queries import leaders
from autoplan.results.recorder import Outcome, SearchRecorder
from autoplan.search.recording import StudyBusyError, TakenOverError
from autoplan.storage.failures import OutageError
from autoplan.storage.retry import RetryPolicy
from autoplan.storage.studies import study_storage
from autoplan.storage.url import Storage

TESTS = Path(__file__).resolve().parents[1]

HOLDER = """
import sys
sys.path.insert(0, sys.argv[3])
import scored_plans
from autoplan.errors import AutoplanError
from autoplan.results.recorder import SearchRecorder
from autoplan.search.experiment import load_experiment
with SearchRecorder.open(sys.argv[1], load_experiment(sys.argv[2]), merge=False) as recorder:
    recorder.begin()
    print("held", flush=True)
    for line in sys.stdin:
        try:
            recorder.scores(scored_plans.batch(int(line)))
            print("written", flush=True)
        except AutoplanError as error:
            print(type(error).__name__, error, flush=True)
"""
"""Takes the lease, then writes the batches whose numbers it is told."""


class Holder:
    """A process that has the lease of the small experiment."""

    def __init__(self, storage, experiment_path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, storage, str(experiment_path), str(TESTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "held\n"

    def write(self, number):
        """What comes of a batch."""
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def suspend(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(storage, experiment_path):
    found = Holder(storage, experiment_path)
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture
def recorder(storage, experiment):
    """One that has not begun."""
    with SearchRecorder.open(storage, experiment, merge=False) as opened:
        yield opened


@pytest.fixture
def briefly(monkeypatch):
    """Watches others for two seconds only."""
    monkeypatch.setattr(lease, "LOOK_S", 0.25)
    monkeypatch.setattr(lease, "LOOKS", 8)


def rows(recorder):
    return recorder.database.read(lambda c: c.execute(sa.select(schema.search_leases)).all())


def change(recorder, **values):
    """Alters what the row says of whoever has the lease."""
    recorder.database.write(lambda c: c.execute(sa.update(schema.search_leases).values(values)))


def begin_in(recorder):
    """Seconds that it took to get the lease."""
    started_s = time.monotonic()
    recorder.begin()
    return time.monotonic() - started_s


def test_a_driver_that_runs_is_named_at_once_and_keeps_the_study(holder, recorder):
    before = rows(recorder)
    with pytest.raises(StudyBusyError) as busy:
        recorder.begin()
    line = str(busy.value)
    assert re.search(rf"study: found 'small'.*process {holder.process.pid} on \S+ \(since", line)
    assert "--study" in line
    assert busy.value.exit_code == 2
    assert len(line.splitlines()) == 1
    assert rows(recorder)[0].token == before[0].token
    assert holder.write(0) == "written"


def test_the_lease_is_given_back_at_the_end_and_given_again(storage, experiment, recorder):
    for number in range(2):
        with SearchRecorder.open(storage, experiment) as other:
            other.begin()
            other.begin()  # harmless
            other.scores(batch(number))
            (row,) = rows(recorder)
            assert (row.pid, row.token) == (os.getpid(), other.lease.driver.token)
            assert row.beats >= 1
        assert rows(recorder) == []
    assert begin_in(recorder) < 5


def test_a_driver_that_was_killed_is_followed_at_once(holder, recorder):
    holder.write(0)
    holder.kill()
    assert len(rows(recorder)) == 1
    assert begin_in(recorder) < lease.LOOKS * lease.LOOK_S / 4
    recorder.scores(batch(1))
    assert recorder.num_scored == 14


def test_a_process_that_got_the_number_of_a_dead_driver_is_not_taken_for_it(holder, recorder):
    change(recorder, process_start=1)
    assert begin_in(recorder) < lease.LOOKS * lease.LOOK_S / 4


def test_a_driver_of_another_host_that_counts_on_keeps_the_study(holder, recorder):
    change(recorder, host_identity="another", host_name="far-away")
    started_s = time.monotonic()
    with pytest.raises(StudyBusyError, match="far-away"):
        recorder.begin()
    assert time.monotonic() - started_s < lease.LOOKS * lease.LOOK_S
    assert holder.write(0) == "written"


def test_a_driver_of_another_host_that_does_not_count_is_followed_after_a_while(
    holder, recorder, briefly, caplog
):
    holder.kill()
    change(recorder, host_identity="another", host_name="far-away")
    with caplog.at_level(logging.WARNING):
        took_s = begin_in(recorder)
    assert lease.LOOKS * lease.LOOK_S <= took_s < 4 * lease.LOOKS * lease.LOOK_S
    assert "far-away" in caplog.text
    assert "taken over" in caplog.text
    recorder.scores(batch(0))


def test_a_suspended_driver_that_was_followed_writes_nothing_more(holder, recorder, briefly):
    assert holder.write(0) == "written"
    holder.suspend()
    recorder.begin()
    recorder.scores(batch(1))
    before = recorder.num_scored
    holder.resume()
    for number in (2, 3):
        told = holder.write(number)
        assert re.match(rf"TakenOverError .*'small'.*process {os.getpid()} on", told)
    assert recorder.num_scored == before == 14
    recorder.finish(Outcome(stopped_by="trials"))
    holder.kill()
    assert len(rows(recorder)) == 1, "the lease of who followed was given back"


def test_a_suspended_driver_that_goes_on_in_time_keeps_the_study(holder, recorder):
    holder.suspend()
    timer = threading.Timer(1, holder.resume)
    timer.start()
    try:
        with pytest.raises(StudyBusyError):
            recorder.begin()
    finally:
        timer.join()
    assert holder.write(0) == "written"


def test_who_followed_and_ended_leaves_nothing_to_go_back_to(holder, recorder, briefly):
    holder.suspend()
    recorder.begin()
    recorder.lease.release()
    holder.resume()
    assert holder.write(0).startswith("TakenOverError")
    assert recorder.num_scored == 0


def test_a_transaction_of_optuna_is_committed_only_while_the_study_is_held(storage, recorder):
    recorder.begin()
    database = study_storage(Storage.parse(storage))
    assert database.engine.url == recorder.database.storage.url
    sa.event.listen(database.engine, "commit", recorder.lease.guard)
    study = optuna.create_study(storage=database, study_name="small")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    change(recorder, token="another's")
    with pytest.raises(TakenOverError) as taken:
        study.add_trial(optuna.trial.create_trial(value=2.0))
    assert taken.value.exit_code == 6
    with pytest.raises(TakenOverError):
        study.set_user_attr("end", 1)
    unguarded = optuna.load_study(study_name="small", storage=study_storage(Storage.of(storage)))
    assert [trial.value for trial in unguarded.get_trials()] == [1.0]
    assert unguarded.user_attrs == {}


def test_nobody_follows_in_the_middle_of_a_write(storage, recorder, monkeypatch):
    monkeypatch.setattr("autoplan.storage.engine._LOCK_WAIT_S", 0.3)
    if storage.startswith("mysql"):
        pytest.skip("MySQL waits longer than this test")
    recorder.begin()
    table = schema.search_leases
    with Database.open(storage, retry=RetryPolicy(budget_s=0.0)) as other:

        def write(connection):
            recorder.lease.beat(connection)
            recorder.lease.guard(connection)
            with pytest.raises(OutageError):
                other.write(lambda c: c.execute(sa.update(table).values(token="another's")))

        recorder.database.write(write)
        other.write(lambda c: c.execute(sa.update(table).values(token="another's")))
    with pytest.raises(TakenOverError):
        recorder.scores(batch(0))


def test_a_server_gives_back_the_locks_of_who_was_suspended_in_mid_write(
    postgres_url, experiment, monkeypatch
):
    monkeypatch.setattr("autoplan.storage.engine._IDLE_S", 0.2)
    table, tries = schema.search_leases, []
    with (
        SearchRecorder.open(postgres_url, experiment) as recorder,
        Database.open(postgres_url) as other,
    ):
        recorder.begin()

        def write(connection):
            recorder.lease.beat(connection)
            tries.append(1)
            time.sleep(1)
            other.write(lambda c: c.execute(sa.update(table).values(token="another's")))

        with pytest.raises(TakenOverError):
            recorder.database.write(write)
    assert len(tries) == 1


def test_a_lease_in_a_database_of_one_process_guards_nothing(experiment, tmp_path):
    with SearchRecorder.open("sqlite://", experiment, spool_folder=tmp_path) as recorder:
        recorder.begin()
        recorder.scores(batch(0))
        assert rows(recorder) == []


def test_a_study_in_another_database_than_its_rows_is_guarded_too(recorder, tmp_path):
    recorder.begin()
    database = study_storage(Storage.parse(f"sqlite:///{tmp_path / 'elsewhere.db'}"))
    sa.event.listen(database.engine, "commit", recorder.lease.guard)
    study = optuna.create_study(storage=database)
    change(recorder, token="another's")
    with pytest.raises(TakenOverError):
        study.add_trial(optuna.trial.create_trial(value=2.0))
    with database.engine.connect() as connection:  # which commits nothing
        assert connection.scalar(sa.text("SELECT COUNT(*) FROM trials")) == 0


def test_an_idle_driver_counts_on_and_asks_whether_the_study_is_still_its_own(recorder):
    recorder.begin()
    wait_until(lambda: rows(recorder)[0].beats >= 2, 4 * lease.BEAT_S, "it counts on")
    recorder.lease.check()
    change(recorder, token="another's")
    with pytest.raises(TakenOverError):
        recorder.lease.check(age_s=0.0)


def test_who_does_not_search_needs_no_lease(holder, recorder):
    assert holder.write(0) == "written"
    assert len(leaders(recorder.database, "small")) == 7
    recorder.finish(Outcome(stopped_by="trials"))  # as tools that have the file to themselves


def test_a_server_that_restarts_and_is_away_costs_no_lease(postgres, postgres_url, experiment):
    with SearchRecorder.open(postgres_url, experiment) as recorder:
        recorder.begin()
        postgres.restart_at_once()
        recorder.scores(batch(0))
        postgres.stop()
        time.sleep(1.5 * lease.BEAT_S)
        recorder.lease.check(age_s=0.0)  # says nothing
        postgres.start()
        before = rows(recorder)[0].beats
        wait_until(lambda: rows(recorder)[0].beats > before, 4 * lease.BEAT_S, "it counts on")
        recorder.scores(batch(1))
        assert recorder.num_scored == 14


def test_an_end_without_the_database_leaves_the_lease_behind_quickly(
    postgres, postgres_url, experiment
):
    with SearchRecorder.open(postgres_url, experiment) as recorder:
        recorder.begin()
        postgres.stop()
        started_s = time.monotonic()
        recorder.close()
        took_s = time.monotonic() - started_s
        postgres.start()
    assert took_s < 10
    with SearchRecorder.open(postgres_url, experiment) as recorder, pytest.raises(StudyBusyError):
        recorder.begin()  # this process still runs


def test_time_in_which_a_file_is_locked_is_not_held_against_a_driver(
    tmp_path, experiment, experiment_path, briefly
):
    path = tmp_path / "results.db"
    holder = Holder(f"sqlite:///{path}", experiment_path)
    locker = sqlite3.connect(path, isolation_level=None)
    try:
        with SearchRecorder.open(str(path), experiment, merge=False) as recorder:
            change(recorder, host_identity="another")
            locker.execute("BEGIN IMMEDIATE")
            timer = threading.Timer(2.5 * lease.LOOKS * lease.LOOK_S, holder.kill)
            failed = []

            def begin():
                try:
                    recorder.begin()
                except (StorageError, StudyBusyError) as error:
                    failed.append(error)

            waiting = threading.Thread(target=begin)
            waiting.start()
            time.sleep(2 * lease.LOOKS * lease.LOOK_S)
            assert waiting.is_alive(), "it was taken over while nobody could write"
            locker.execute("ROLLBACK")
            waiting.join(timeout=20)
            timer.cancel()
        assert [type(error) for error in failed] == [StudyBusyError]
        assert holder.write(0) == "written"
    finally:
        locker.close()
        holder.kill()
