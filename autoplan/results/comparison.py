"""How predictions held: every plan's latest run beside what was predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.queries import number, require_experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlan:
    """One plan's latest run of a kind beside its prediction."""

    plan_sha256: str
    proposed_by: str | None
    status: str
    reason: str | None
    predicted_step_s: float | None
    measured_step_s: float | None
    spread_share: float | None
    foreign_load_share: float | None
    predicted_peak_memory_bytes: float | None
    measured_peak_memory_bytes: float | None
    predicted_rank: int | None = None
    """From 1, among the plans of this kind that were measured and predicted."""
    measured_rank: int | None = None

    @property
    def error_share(self) -> float | None:
        """Predicted / measured - 1."""
        if self.predicted_step_s is None or not self.measured_step_s:
            return None
        return self.predicted_step_s / self.measured_step_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The runs of one kind: figures of different clocks or modes are never compared."""

    clock: str
    compute_mode: str
    link_mode: str
    device_kind: str
    plans: tuple[ComparedPlan, ...]
    """Measured ones first, from the fastest on."""

    @property
    def mean_error_share(self) -> float | None:
        """Mean of the absolute errors."""
        errors = [abs(e) for plan in self.plans if (e := plan.error_share) is not None]
        return sum(errors) / len(errors) if errors else None

    @property
    def best_is_best(self) -> bool | None:
        """Whether the plan with the best prediction was the fastest; None with fewer than two."""
        ranked = [plan for plan in self.plans if plan.predicted_rank is not None]
        if len(ranked) < 2:
            return None
        return any(plan.predicted_rank == plan.measured_rank == 1 for plan in ranked)


def compare(database: Database, experiment: str) -> list[Comparison]:
    """How predictions held, by kind of run, the most recent kind first.

    Raises:
        InputError: there is no such experiment.
        StorageError: the database cannot be read.
    """

    def work(connection: Connection) -> list[Comparison]:
        require_experiment(connection, experiment, database.storage.shown)
        kinds: dict[tuple[str, ...], list[ComparedPlan]] = {}
        for row in connection.execute(_latest_runs(experiment)):
            kind = (row.clock, row.compute_mode, row.link_mode, row.device_kind)
            kinds.setdefault(kind, []).append(_compared(row))
        return [_comparison(kind, plans) for kind, plans in kinds.items()]

    return database.read(work)


def _latest_runs(experiment: str) -> sa.Select[Any]:
    """The latest run of every plan and kind, the latest first."""
    runs, scores = schema.real_runs, schema.scores
    kind = [runs.c.clock, runs.c.compute_mode, runs.c.link_mode, runs.c.device_kind]
    latest = (
        sa.select(sa.func.max(runs.c.id).label("id"))
        .join(schema.experiments, schema.experiments.c.id == runs.c.experiment_id)
        .where(schema.experiments.c.name == experiment)
        .group_by(runs.c.plan_sha256, *kind)
        .subquery("latest")
    )
    both = sa.and_(
        scores.c.experiment_id == runs.c.experiment_id, scores.c.plan_sha256 == runs.c.plan_sha256
    )
    predicted_s = sa.func.coalesce(runs.c.predicted_step_s, scores.c.predicted_step_s)
    return (
        sa.select(
            runs,
            scores.c.proposed_by,
            predicted_s.label("compared_step_s"),
            scores.c.peak_memory_bytes.label("predicted_peak_memory_bytes"),
        )
        .join_from(runs, latest, latest.c.id == runs.c.id)
        .outerjoin(scores, both)
        .order_by(runs.c.id.desc())
    )


def _compared(row: Any) -> ComparedPlan:
    return ComparedPlan(
        plan_sha256=row.plan_sha256,
        proposed_by=row.proposed_by,
        status=row.status,
        reason=row.reason,
        predicted_step_s=number(row.compared_step_s),
        measured_step_s=number(row.median_step_s),
        spread_share=number(row.spread_share),
        foreign_load_share=number(row.foreign_load_share),
        predicted_peak_memory_bytes=number(row.predicted_peak_memory_bytes),
        measured_peak_memory_bytes=number(row.peak_memory_bytes),
    )


def _comparison(kind: tuple[str, ...], plans: Sequence[ComparedPlan]) -> Comparison:
    clock, compute_mode, link_mode, device_kind = kind
    both = [plan for plan in plans if plan.error_share is not None]
    predicted = _ranks([plan.predicted_step_s or 0.0 for plan in both])
    measured = _ranks([plan.measured_step_s or 0.0 for plan in both])
    places = {
        plan.plan_sha256: ranks for plan, *ranks in zip(both, predicted, measured, strict=True)
    }
    ranked = []
    for plan in plans:
        first, second = places.get(plan.plan_sha256, (None, None))
        ranked.append(dataclasses.replace(plan, predicted_rank=first, measured_rank=second))
    ranked.sort(key=lambda plan: (plan.measured_step_s is None, plan.measured_step_s or 0.0))
    return Comparison(
        clock=clock,
        compute_mode=compute_mode,
        link_mode=link_mode,
        device_kind=device_kind,
        plans=tuple(ranked),
    )


def _ranks(values: Sequence[float]) -> list[int]:
    """From 1; equal values share the better rank."""
    return [1 + sum(other < value for other in values) for value in values]
