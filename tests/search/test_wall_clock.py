"""The wall clock is set back and forward in mid-search: nothing is ordered or timed by it."""

import datetime
import itertools
import json
import signal
import time

import pytest
import wall_clock
from processes import searching, wait_until
from search_invariants import acknowledged, check, stored_trials

from autoplan.cli.main import main
from autoplan.results.database import Database
from autoplan.results.queries import leaders, list_experiments
from autoplan.search.experiment import load_experiment
from autoplan.search.study import ROW

DAY_S = 86_400


@pytest.fixture
def clock(tmp_path):
    if wall_clock.library() is None:
        pytest.skip("libfaketime is neither installed nor to be had (apt-get download libfaketime)")
    return wall_clock.WallClock(tmp_path)


def moments(storage):
    """When trials began, as the wall clock said it, in the order of their numbers."""
    return [trial.datetime_start for trial in stored_trials(storage).get_trials()]


def jumps(storage):
    """Days between trials that follow each other, where it is at least one."""
    found = moments(storage)
    days = [(b - a).total_seconds() / DAY_S for a, b in itertools.pairwise(found)]
    return [round(each) for each in days if abs(each) > 0.5]


def check_order(storage, experiment):
    """Rows are numbered as they were written, and no figure depends on the wall clock."""
    check(storage, experiment)
    trials = stored_trials(storage).get_trials()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    runs = {}
    for trial in trials:
        run, _, number = trial.user_attrs[ROW].partition("-")
        runs.setdefault(run, []).append(int(number))
        assert datetime.timedelta(0) <= trial.duration < datetime.timedelta(minutes=10)
    assert all(numbers == sorted(numbers) for numbers in runs.values())
    with Database.open(storage) as database:
        values = [r["objective_value_s"] for r in leaders(database, "small") if r["feasible"]]
        (summary,) = list_experiments(database)
    assert values == sorted(values)
    assert summary.best_value_s == values[0]


def test_a_clock_set_back_and_forward_in_mid_search_changes_nothing(clock, unproven_path):
    experiment = load_experiment(unproven_path)
    storage = experiment.default_storage
    command = (unproven_path, "--trials", 100_000, "--seconds")
    started_s = time.monotonic()
    with searching(*command, 120, environment=clock.environment) as process:
        wait_until(lambda: acknowledged(storage), 60, "trials are written")
        for shift_s, seen in ((-2 * DAY_S, [-2]), (3 * DAY_S, [-2, 5])):
            clock.shift(shift_s)
            wait_until(lambda wanted=seen: jumps(storage) == wanted, 60, f"jumps of {seen} days")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert document["stopped_by"] == "interrupted", "three days are no part of 120 s"
    assert 0 < document["seconds"] <= time.monotonic() - started_s
    check_order(storage, experiment)

    with searching(*command, 5, environment=clock.environment) as process:
        wait_until(lambda: acknowledged(storage) > document["trials"], 60, "more are written")
        clock.shift(-DAY_S)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    resumed = json.loads(out)
    assert resumed["stopped_by"] == "time"
    assert resumed["trials"] > document["trials"]
    assert resumed["best"]["prediction"]["step_s"] <= document["best"]["prediction"]["step_s"]
    assert 5 <= resumed["seconds"] < 60
    check_order(storage, experiment)


class _Backwards(datetime.datetime):
    """Every look at the clock finds it an hour earlier than the last."""

    looks = 0

    @classmethod
    def now(cls, tz=None):
        _Backwards.looks += 1
        return super().now(tz) - datetime.timedelta(hours=_Backwards.looks)


def test_what_reads_the_wall_clock_may_see_it_run_backwards(unproven_path, monkeypatch, capsys):
    """The same pieces without libfaketime: our rows, Optuna's trials, and time.time."""
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real - 3600 * (1 + _Backwards.looks))
    monkeypatch.setattr(datetime, "datetime", _Backwards)
    monkeypatch.setattr("optuna.storages._in_memory.datetime", _Backwards)
    experiment = load_experiment(unproven_path)
    for trials in (20, 30):
        assert main(["search", str(unproven_path), "--trials", str(trials), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["trials"] == trials
        assert 0 < document["seconds"] < 60
    assert _Backwards.looks > 30
    found = moments(experiment.default_storage)
    assert found[0] > found[-1]
    check_order(experiment.default_storage, experiment)
