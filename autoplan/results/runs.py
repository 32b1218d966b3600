"""Real runs in the experiment database: one row per plan and launch, with every round."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoplan.documents import canonical_json, identity
from autoplan.errors import InputError, require
from autoplan.execute.real_run import RealRun
from autoplan.plan import Plan
from autoplan.prediction import Prediction
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.rows import ScoredPlan, insert_new, insert_scores, prepared, usable, utc_now

_LONGEST_REASON = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """A plan, what it was predicted to do, and what it did."""

    plan: Plan
    run: RealRun
    prediction: Prediction | None = None
    """What the measurement is compared with; None where it stands in `scores` already."""
    proposed_by: str = "verify"
    """Kept with the plan's score where the experiment has none yet."""

    def __post_init__(self) -> None:
        """Refuses the run of another plan."""
        allowed = f"{self.plan.sha256}, the plan's"
        require(self.run.plan_sha256 == self.plan.sha256, "run", self.run.plan_sha256, allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One launch of the plans of an experiment; sent again, it adds nothing."""

    experiment: str
    """Name of the experiment in the database."""
    measured: tuple[MeasuredPlan, ...]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells launches apart."""


def record_sweep(database: Database, sweep: Sweep) -> None:
    """Adds the runs of a sweep, all or none.

    Raises:
        InputError: the database has no experiment of that name.
        StorageError: it cannot be written.
    """
    database.write(lambda connection: _insert(connection, sweep, database.storage.shown))


def _insert(connection: Connection, sweep: Sweep, shown: str) -> None:
    table = schema.experiments
    experiment_id = connection.scalar(sa.select(table.c.id).where(table.c.name == sweep.experiment))
    if experiment_id is None:
        allowed = "the name of an experiment in the database (autoplan results list)"
        raise InputError("study", sweep.experiment, allowed, source=shown)
    scored = prepared(_scored(each) for each in sweep.measured)
    insert_scores(connection, experiment_id, scored)
    for number, each in enumerate(sweep.measured):
        _insert_run(connection, experiment_id, each, identity([sweep.key, number]))


def _scored(measured: MeasuredPlan) -> ScoredPlan:
    """The plan's score, for experiments in which no search has scored it."""
    if measured.prediction is None:
        return ScoredPlan(
            plan=measured.plan,
            step_s=None,
            reason="it was run without a prediction",
            proposed_by=measured.proposed_by,
        )
    return ScoredPlan.of_prediction(
        measured.plan, measured.prediction, proposed_by=measured.proposed_by
    )


def _insert_run(
    connection: Connection, experiment_id: int, measured: MeasuredPlan, run_key: str
) -> None:
    table = schema.real_runs
    known = sa.select(table.c.id).where(table.c.run_key == run_key)
    if connection.scalar(known) is not None:
        return
    row = {"run_key": run_key, "experiment_id": experiment_id, **_run_row(measured)}
    insert_new(connection, table, [row])
    run_id = connection.scalar(known)
    rounds = [{"real_run_id": run_id, **each} for each in _round_rows(measured.run)]
    insert_new(connection, schema.real_run_rounds, rounds)


def _run_row(measured: MeasuredPlan) -> dict[str, Any]:
    """What is known of a run as a whole."""
    run, prediction = measured.run, measured.prediction
    return {
        "plan_sha256": run.plan_sha256,
        "status": run.status,
        "reason": run.reason and run.reason[:_LONGEST_REASON],
        "clock": run.clock,
        "compute_mode": run.modes.compute,
        "link_mode": run.modes.link,
        "device_kind": run.modes.device,
        "median_step_s": usable(run.median_s),
        "spread_share": usable(run.spread),
        "foreign_load_share": max(run.foreign_load, default=None),
        "predicted_step_s": usable(prediction.step_s) if prediction else None,
        "replicas_agree": run.replicas_agree,
        "peak_memory_bytes": max(run.peak_memory_bytes, default=None),
        "stage_peak_memory_bytes_json": canonical_json(run.peak_memory_bytes),
        # A loss that is not finite is a finding; JSON has no word for it but null.
        "losses_json": canonical_json([_finite(loss) for loss in run.losses]),
        "environment_json": canonical_json(run.environment) if run.environment else None,
        "recorded_at_utc": utc_now(),
    }


def _round_rows(run: RealRun) -> list[dict[str, Any]]:
    """Every round on every clock."""
    rounds = zip_longest(run.wall_s, run.virtual_s, run.foreign_load)
    return [
        {"round_number": i, "wall_s": wall_s, "virtual_s": virtual_s, "foreign_load_share": load}
        for i, (wall_s, virtual_s, load) in enumerate(rounds)
    ]


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
