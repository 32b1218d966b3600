"""The best plans of a finished or interrupted study, read without carrying it on."""

from __future__ import annotations

import optuna

from autoplan.errors import InputError, words
from autoplan.plan import Plan
from autoplan.search.experiment import Experiment
from autoplan.search.study import SearchStudy
from autoplan.storage.studies import study_errors, study_storage
from autoplan.storage.url import Storage


def best_plans(
    experiment: Experiment,
    count: int,
    *,
    storage: Storage | str | None = None,
    study: str | None = None,
) -> dict[str, Plan]:
    """The best feasible plans of a study, no two of them alike, by names such as "gpt-1".

    Args:
        experiment: what the study was for.
        count: how many plans at most.
        storage: the database; by default the SQLite file in the experiment's output folder.
        study: name of the study; by default the experiment's.

    Raises:
        InputError: there is no such study, it is of another experiment, or holds no such plan.
        StorageError: the database cannot be read.
    """
    name = study or experiment.name
    chosen = Storage.of(storage or experiment.default_storage)
    _require_study(chosen, name)
    device = experiment.cluster.device
    opened = SearchStudy(
        chosen,
        name,
        experiment.identities,
        experiment.budget.seed,
        experiment.objective,
        device.memory_bytes * (1 - experiment.job.memory_headroom),
    )
    found: dict[str, Plan] = {}
    for _, plan in opened.earlier():
        found.setdefault(plan.sha256, plan)
        if len(found) == count:
            break
    if not found:
        nothing = words(f"study {name} without a plan that fits")
        raise InputError("study", nothing, "one with feasible plans", source=chosen.shown)
    return {f"{name}-{i}": plan for i, plan in enumerate(found.values(), start=1)}


def _require_study(storage: Storage, name: str) -> None:
    """Refuses a database or a study that is not there, since opening would make it."""
    allowed = "the name of a study that `autoplan search` has made"
    if storage.path is not None and not storage.path.is_file():
        allowed = f"{allowed} (there is no such database)"
        raise InputError("study", name, allowed, source=storage.shown)
    database = study_storage(storage)
    with study_errors(storage):
        names = optuna.study.get_all_study_names(database)
    if name not in names:
        raise InputError("study", name, allowed, source=storage.shown)
