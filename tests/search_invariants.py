"""What must hold of a database after a search, whatever happened to the search."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import optuna
from optuna.trial import TrialState

from autoplan.documents import build
from autoplan.errors import InputError, StorageError
from autoplan.plan import Plan
from autoplan.predict import Predictor
from autoplan.results.database import Database
from autoplan.results.queries import leaders
from autoplan.search.study import ENDING, ROW, WITHOUT_ROW
from autoplan.storage.studies import study_storage
from autoplan.storage.url import Storage

CAPPED = 'space = {grouping = ["threshold"]}'
"""In place of an experiment's space: no plan reaches the bound, so trials or time end a search."""


def stored_trials(storage, study="small"):
    """The trials of a study, read as any other program would."""
    database = study_storage(Storage.of(storage))
    return optuna.load_study(study_name=study, storage=database)


def num_acknowledged(storage, study="small"):
    """Trials that a study says it has, rows and counts together."""
    found = stored_trials(storage, study)
    counts = [n for name, n in found.user_attrs.items() if name.startswith(WITHOUT_ROW)]
    rows = [t for t in found.get_trials() if "beside_the_trials" not in t.user_attrs]
    return len(rows) + sum(counts)


def acknowledged(storage):
    """Trials in a database that may not be there yet."""
    path = Path(str(storage).removeprefix("sqlite:///"))
    if not (path.exists() and path.stat().st_size):
        return 0
    try:
        return num_acknowledged(storage)
    except (InputError, StorageError, KeyError):  # being made
        return 0


def check(storage, experiment, study="small"):
    """Nothing doubled, nothing unfinished, and the best row is what the model says of its plan."""
    found = stored_trials(storage, study)
    trials = found.get_trials()
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE}
    rows = Counter(trial.user_attrs[ROW] for trial in trials)
    assert max(rows.values(), default=1) == 1, "a trial was written twice"
    predictor = Predictor(
        experiment.workload, experiment.cluster, experiment.job, experiment.domain()
    )
    with Database.open(storage) as database:
        leaderboard = leaders(database, study)
    hashes = [row["plan_sha256"] for row in leaderboard]
    assert len(hashes) == len(set(hashes)), "a plan was scored twice"
    feasible = [t for t in trials if all(v <= 0 for v in t.constraints.values())]
    for trial in feasible:
        plan = build(Plan, trial.user_attrs["plan"], "the study")
        assert predictor.score(plan).step_s == trial.value
    if feasible:
        assert leaderboard[0]["feasible"]
        least = min(trial.value for trial in feasible)
        assert leaderboard[0]["objective_value_s"] <= least
    return found.user_attrs.get(ENDING)


def processes_with(text):
    """Processes whose command line holds a text, ours excepted."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in command and int(folder.name) != os.getpid():
            found[int(folder.name)] = command
    return found


def files_with(folder, secret):
    """Files below a folder that hold a secret."""
    return [
        path
        for path in Path(folder).rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]
