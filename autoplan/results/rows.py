"""Rows as they are written: new ones only, so that what is sent twice is there once."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection

from autoplan.documents import STRICT, canonical_json
from autoplan.errors import require
from autoplan.plan import Plan
from autoplan.predict import Score
from autoplan.prediction import Prediction
from autoplan.results import schema

_LONGEST_REASON = 2000
_LONGEST_WORD = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPlan:
    """A plan with its score, and how it was found."""

    __pydantic_config__ = STRICT

    plan: Plan
    step_s: float | None
    """Predicted; None, or any figure that is not a positive finite number, is not feasible."""
    value_s: float | None = None
    """What the experiment's objective makes of the plan; None where that is the step."""
    lower_bound_s: float | None = None
    """No plan of the space has a smaller value."""
    max_load_s: float | None = None
    """Seconds per step that the busiest stage works."""
    peak_memory_bytes: float | None = None
    """Of the fullest stage."""
    missing_bytes: float = 0.0
    """What the fullest stage lacks; more than 0 is not feasible."""
    keeps_limits: bool = True
    """Whether its gradient groups keep the space's limits."""
    reason: str | None = None
    """Why it is not feasible, where that is known better than from the fields above."""
    proposed_by: str | None = None
    """Such as "sweep", "polish", the name of a heuristic, or "sampler"."""
    island: int | None = None
    trial_number: int | None = None

    def __post_init__(self) -> None:
        """Refuses negative counts."""
        for name in ("island", "trial_number"):
            value = getattr(self, name)
            require(value is None or value >= 0, name, value, "at least 0")

    @classmethod
    def of_score(cls, plan: Plan, score: Score, **found: Any) -> ScoredPlan:
        """The plan with what a search knows of it; `found` are the other fields."""
        return cls(
            plan=plan,
            step_s=score.step_s,
            max_load_s=score.max_load_s,
            peak_memory_bytes=score.peak_bytes,
            missing_bytes=score.missing_bytes,
            keeps_limits=score.keeps_limits,
            **found,
        )

    @classmethod
    def of_prediction(cls, plan: Plan, prediction: Prediction, **found: Any) -> ScoredPlan:
        """The plan with what its prediction says; `found` are the other fields."""
        return cls(
            plan=plan,
            step_s=prediction.step_s,
            peak_memory_bytes=max(stage.memory.total_bytes for stage in prediction.stages),
            missing_bytes=prediction.missing_bytes,
            **found,
        )

    @property
    def why_not(self) -> str | None:
        """Why the plan is not feasible; None where it is."""
        if self.reason is not None:
            return self.reason
        if self.step_s is None or not (math.isfinite(self.step_s) and self.step_s > 0):
            return f"its step time is {self.step_s} s"
        if self.value_s is not None and not (math.isfinite(self.value_s) and self.value_s > 0):
            return f"its value is {self.value_s} s"
        if not self.missing_bytes <= 0:
            return f"it lacks {self.missing_bytes:g} bytes on its fullest stage"
        return None if self.keeps_limits else "its gradient groups break the space's limits"

    def storable(self) -> ScoredPlan:
        """The same with finite figures only, and with the reason where it is not feasible."""
        why_not = self.why_not
        return dataclasses.replace(
            self,
            step_s=usable(self.step_s),
            value_s=usable(self.step_s if self.value_s is None else self.value_s),
            max_load_s=usable(self.max_load_s),
            lower_bound_s=usable(self.lower_bound_s),
            peak_memory_bytes=usable(self.peak_memory_bytes),
            missing_bytes=usable(self.missing_bytes) or 0.0,
            reason=why_not and why_not[:_LONGEST_REASON],
            proposed_by=self.proposed_by and self.proposed_by[:_LONGEST_WORD],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedScores:
    """Rows of plans and of their scores, made before the transaction that inserts them."""

    plans: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    """Without the experiment, which the transaction knows."""


def prepared(scored: Iterable[ScoredPlan]) -> PreparedScores:
    """The rows of scored plans."""
    now = utc_now()
    plans, scores = [], []
    for each in scored:
        storable = each.storable()
        plans.append(plan_row(storable.plan))
        scores.append(_score_row(storable, plans[-1]["sha256"], now))
    return PreparedScores(plans=plans, scores=scores)


def plan_row(plan: Plan) -> dict[str, Any]:
    """The row of `plans`."""
    text = canonical_json(plan)
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "num_stages": len(plan.stages),
        "num_devices": plan.num_devices,
        "microbatches": plan.microbatches,
        "schedule": plan.schedule,
        "num_gradient_groups": sum(len(s.groups) for s in plan.stages if s.replicas > 1),
        "plan_json": text,
    }


def _score_row(scored: ScoredPlan, plan_sha256: str, now: datetime.datetime) -> dict[str, Any]:
    """The row of `scores` for a plan that is `storable`."""
    return {
        "plan_sha256": plan_sha256,
        "objective_value_s": scored.value_s,
        "objective_lower_bound_s": scored.lower_bound_s,
        "predicted_step_s": scored.step_s,
        "max_load_s": scored.max_load_s,
        "peak_memory_bytes": scored.peak_memory_bytes,
        "missing_bytes": scored.missing_bytes,
        "feasible": scored.why_not is None,
        "reason": scored.reason,
        "proposed_by": scored.proposed_by,
        "island": scored.island,
        "trial_number": scored.trial_number,
        "scored_at_utc": now,
    }


def insert_scores(connection: Connection, experiment_id: int, rows: PreparedScores) -> None:
    """Adds plans and their scores; a plan that the experiment has already keeps its first score."""
    insert_new(connection, schema.plans, rows.plans)
    scores = [{"experiment_id": experiment_id, **row} for row in rows.scores]
    insert_new(connection, schema.scores, scores)


def usable(value: float | None) -> float | None:
    """A finite number of at least 0, or None."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def utc_now() -> datetime.datetime:
    """The moment as the database keeps it; only shown, never ordered by."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def insert_new(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts the rows whose unique keys are not there yet; leaves the others as they are."""
    if not rows:
        return
    dialect = connection.dialect.name
    statement: sa.Insert
    if dialect == "sqlite":
        statement = sqlite.insert(table).on_conflict_do_nothing()
    elif dialect == "postgresql":
        statement = postgresql.insert(table).on_conflict_do_nothing()
    else:
        # MySQL's own INSERT IGNORE would hide values that do not fit, too.
        key = next(iter(table.primary_key.columns))
        statement = mysql.insert(table).on_duplicate_key_update({key.name: key})
    connection.execute(statement, [dict(row) for row in rows])
