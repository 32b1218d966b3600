"""What the experiment database is asked: experiments and their plans, best first."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoplan.errors import InputError
from autoplan.plan import Plan
from autoplan.prediction import ROUNDING
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.documents import stored_plan
from autoplan.search.recording import OUTSIDE

_SHOWN_NAMES = 8
_MOST_NAMED = 500
"""Plans that a query names one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSummary:
    """One experiment and the best of its plans."""

    name: str
    workload: str | None
    cluster: str | None
    objective: str
    seed: int | None
    num_plans: int
    num_feasible: int
    best_value_s: float | None
    """Of the objective."""
    best_predicted_step_s: float | None
    """The shortest, whatever the objective."""
    lower_bound_s: float | None
    """No plan of the space has a smaller value of the objective."""
    num_real_runs: int
    num_measured: int
    """Real runs that have a figure."""
    best_measured_step_s: float | None
    """The least of those of the most recent kind (clock, compute, link); kinds are not mixed."""
    stopped_by: str | None
    created_at_utc: datetime.datetime

    @property
    def gap(self) -> float | None:
        """How far the best plan's value can be from the best in the space."""
        if self.best_value_s is None or not self.lower_bound_s:
            return None
        gap = self.best_value_s / self.lower_bound_s - 1
        return 0.0 if gap < ROUNDING else gap


def list_experiments(database: Database) -> list[ExperimentSummary]:
    """All experiments, in the order in which they were started; raises StorageError."""
    return database.read(_summaries)


def _summaries(connection: Connection) -> list[ExperimentSummary]:
    scored, measured = _scores_by_experiment(), _runs_by_experiment()
    latest = sa.alias(schema.real_runs)
    experiments = schema.experiments
    query = (
        sa.select(
            experiments,
            schema.workloads.c.name.label("workload"),
            schema.clusters.c.name.label("cluster"),
            scored.c.num_plans,
            scored.c.num_feasible,
            scored.c.best_value_s,
            scored.c.best_predicted_step_s,
            scored.c.scored_lower_bound_s,
            measured.c.num_real_runs,
            measured.c.num_measured,
            _best_of_kind(latest).label("best_measured_step_s"),
        )
        .join_from(
            experiments,
            schema.workloads,
            schema.workloads.c.sha256 == experiments.c.workload_sha256,
        )
        .join(schema.clusters, schema.clusters.c.sha256 == experiments.c.cluster_sha256)
        .outerjoin(scored, scored.c.experiment_id == experiments.c.id)
        .outerjoin(measured, measured.c.experiment_id == experiments.c.id)
        .outerjoin(latest, latest.c.id == measured.c.latest_measured_id)
        .order_by(experiments.c.id)
    )
    return [_summary(row) for row in connection.execute(query)]


def _scores_by_experiment() -> sa.Subquery:
    scores = schema.scores.c
    return (
        sa.select(
            scores.experiment_id,
            sa.func.count().label("num_plans"),
            sa.func.sum(sa.case((scores.feasible, 1), else_=0)).label("num_feasible"),
            sa.func.min(_where_feasible(scores.objective_value_s)).label("best_value_s"),
            sa.func.min(_where_feasible(scores.predicted_step_s)).label("best_predicted_step_s"),
            sa.func.max(scores.objective_lower_bound_s).label("scored_lower_bound_s"),
        )
        .group_by(scores.experiment_id)
        .subquery("scored")
    )


def _where_feasible(column: sa.ColumnElement[Any]) -> sa.Case[Any]:
    """Of plans that fit and that the space does not exclude."""
    scores = schema.scores.c
    outside = sa.func.coalesce(scores.proposed_by, "").endswith(OUTSIDE, autoescape=True)
    return sa.case((sa.and_(scores.feasible, sa.not_(outside)), column))


def _runs_by_experiment() -> sa.Subquery:
    runs = schema.real_runs.c
    measured = runs.status == schema.MEASURED
    return (
        sa.select(
            runs.experiment_id,
            sa.func.count().label("num_real_runs"),
            sa.func.sum(sa.case((measured, 1), else_=0)).label("num_measured"),
            sa.func.max(sa.case((measured, runs.id))).label("latest_measured_id"),
        )
        .group_by(runs.experiment_id)
        .subquery("measured")
    )


def _best_of_kind(latest: Any) -> sa.ScalarSelect[Any]:
    """The least measurement of the same experiment and kind as `latest`."""
    runs = schema.real_runs.c
    same = [
        runs[name] == latest.c[name]
        for name in ("experiment_id", "clock", "compute_mode", "link_mode", "device_kind")
    ]
    return (
        sa.select(sa.func.min(runs.median_step_s))
        .where(runs.status == schema.MEASURED, *same)
        .correlate(latest)
        .scalar_subquery()
    )


def _summary(row: Any) -> ExperimentSummary:
    return ExperimentSummary(
        name=row.name,
        workload=row.workload,
        cluster=row.cluster,
        objective=row.objective,
        seed=row.seed,
        num_plans=row.num_plans or 0,
        num_feasible=int(row.num_feasible or 0),
        best_value_s=number(row.best_value_s),
        best_predicted_step_s=number(row.best_predicted_step_s),
        lower_bound_s=number(row.objective_lower_bound_s or row.scored_lower_bound_s),
        num_real_runs=row.num_real_runs or 0,
        num_measured=int(row.num_measured or 0),
        best_measured_step_s=number(row.best_measured_step_s),
        stopped_by=row.stopped_by,
        created_at_utc=row.created_at_utc,
    )


Leader = dict[str, Any]
"""A row of the view `leaderboard` by its columns' names."""

_COLUMNS = tuple(column.name for column in schema.leaderboard.c)
_FIGURES = tuple(
    column.name for column in schema.leaderboard.c if isinstance(column.type, sa.Double)
)


def leaders(database: Database, experiment: str, limit: int | None = None) -> list[Leader]:
    """An experiment's plans from the view, feasible ones first, by the objective's value.

    Raises:
        InputError: there is no such experiment.
        StorageError: the database cannot be read, or holds figures that cannot be.
    """

    def work(connection: Connection) -> list[Leader]:
        require_experiment(connection, experiment, database.storage.shown)
        board = schema.leaderboard
        query = _best_first(sa.select(board)).where(board.c.experiment == experiment)
        if limit is not None and limit <= _MOST_NAMED:
            # Without this the view would join and sort all that the experiment holds.
            query = query.where(board.c.plan_sha256.in_(_first(connection, experiment, limit)))
        return [_leader(row) for row in connection.execute(query.limit(limit))]

    return database.read(work)


def _first(connection: Connection, experiment: str, limit: int) -> list[str]:
    """sha256 of an experiment's best plans, in the order of `_best_first`."""
    scores = schema.scores.c
    query = (
        sa.select(scores.plan_sha256)
        .join(schema.experiments, schema.experiments.c.id == scores.experiment_id)
        .where(schema.experiments.c.name == experiment)
        .order_by(
            scores.feasible.desc(),
            scores.objective_value_s,
            scores.missing_bytes,
            scores.plan_sha256,
        )
    )
    return list(connection.scalars(query.limit(limit)))


def all_leaders(connection: Connection, experiment: str | None) -> Iterator[Leader]:
    """The view's rows of one experiment or of all, best first, without holding them all."""
    board = schema.leaderboard
    query = _best_first(sa.select(board).order_by(board.c.experiment))
    if experiment is not None:
        query = query.where(board.c.experiment == experiment)
    for row in connection.execution_options(yield_per=5000).execute(query):
        yield _leader(row)


def _best_first(query: sa.Select[Any]) -> sa.Select[Any]:
    board = schema.leaderboard.c
    return query.order_by(
        board.feasible.desc(), board.objective_value_s, board.missing_bytes, board.plan_sha256
    )


def _leader(row: Any) -> Leader:
    """A row of the view, its figures checked."""
    values = dict(zip(_COLUMNS, row, strict=True))
    for name in _FIGURES:
        values[name] = number(values[name])
    return values


def number(value: object) -> float | None:
    """A finite number or None, as stored; raises ValueError for anything else (a damaged row)."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{value!r} in place of a number")


def count_plans(database: Database, experiment: str) -> int:
    """How many plans an experiment has; raises StorageError."""
    query = (
        sa.select(sa.func.count())
        .select_from(schema.scores)
        .join(schema.experiments, schema.experiments.c.id == schema.scores.c.experiment_id)
        .where(schema.experiments.c.name == experiment)
    )
    return database.read(lambda connection: connection.scalar(query)) or 0


def find_plan(database: Database, prefix: str) -> Plan:
    """The plan whose sha256 starts with `prefix`.

    Raises:
        InputError: there is none, or more than one.
        StorageError: the database cannot be read, or the plan in it is damaged.
    """
    plans = schema.plans.c
    query = sa.select(plans.sha256, plans.plan_json).where(
        plans.sha256.startswith(prefix.lower(), autoescape=True)
    )
    found = database.read(lambda connection: connection.execute(query.limit(2)).all())
    shown = database.storage.shown
    if len(found) != 1:
        allowed = "the first characters of exactly one plan's sha256 (autoplan results show)"
        raise InputError("plan", prefix, allowed, source=shown)
    return stored_plan(found[0].plan_json, found[0].sha256, shown)


def require_experiment(connection: Connection, name: str, shown: str) -> None:
    """Refuses a name that is not in the database; the InputError names those that are."""
    names = connection.scalars(
        sa.select(schema.experiments.c.name).order_by(schema.experiments.c.id.desc())
    ).all()
    if name not in names:
        others = f"; it holds {', '.join(names[:_SHOWN_NAMES])}" if names else "; it holds none"
        more = ", ..." if len(names) > _SHOWN_NAMES else ""
        allowed = f"the name of an experiment in the database{others}{more}"
        raise InputError("study", name, allowed, source=shown)
