"""Keeps what a verification measured, beside the scores of the search that proposed the plans."""

from __future__ import annotations

from autoplan.execute.verification import Verification
from autoplan.results.recorder import SearchRecorder
from autoplan.results.runs import MeasuredPlan, Sweep, record_sweep
from autoplan.search.experiment import Experiment
from autoplan.storage.url import Storage


def record_verification(
    verification: Verification,
    experiment: Experiment,
    *,
    storage: Storage | str | None = None,
    study: str | None = None,
) -> Storage:
    """Adds one row per plan that was run, whatever came of it, all or none.

    Args:
        verification: what was measured.
        experiment: what the plans are for.
        storage: the database; by default the SQLite file in the experiment's output folder.
        study: the experiment's name in the database; by default its own.

    Returns:
        Where the rows are.

    Raises:
        InputError: the name belongs to another experiment.
        StorageError: the database cannot be written.
    """
    chosen = Storage.of(storage or experiment.default_storage)
    name = study or experiment.name
    measured = tuple(
        MeasuredPlan(
            plan=each.plan, run=each.run, prediction=each.prediction, proposed_by=each.name
        )
        for each in verification.plans
    )
    with SearchRecorder.open(chosen, experiment, name=name, merge=False) as recorder:
        record_sweep(recorder.database, Sweep(experiment=name, measured=measured))
    return chosen
