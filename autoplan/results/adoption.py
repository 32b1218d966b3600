"""Takes over the plans of databases that hold nothing but Optuna studies of earlier searches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoplan.documents import build, canonical_json
from autoplan.errors import InputError
from autoplan.plan import Plan
from autoplan.results import schema
from autoplan.results.rows import ScoredPlan, insert_new, insert_scores, prepared, utc_now

_IDENTITY = "autoplan:identity"
_PARTS = ("workload", "cluster", "job", "space")
_FIRST_OBJECTIVE = "step_time"
"""What studies minimise that do not say so."""
_BATCH = 500

_studies = sa.table("studies", sa.column("study_id"), sa.column("study_name"))
_study_attributes = sa.table(
    "study_user_attributes", sa.column("study_id"), sa.column("key"), sa.column("value_json")
)
_trials = sa.table("trials", sa.column("trial_id"), sa.column("study_id"), sa.column("number"))
_values = sa.table(
    "trial_values", sa.column("trial_id"), sa.column("objective"), sa.column("value")
)
_attributes = sa.table(
    "trial_user_attributes", sa.column("trial_id"), sa.column("key"), sa.column("value_json")
)
_system_attributes = sa.table(
    "trial_system_attributes", sa.column("trial_id"), sa.column("key"), sa.column("value_json")
)


def adopt_studies(connection: Connection) -> None:
    """Adds the experiments, plans and scores of every study that a search of ours has written."""
    inspector = sa.inspect(connection)
    tables = (_studies, _study_attributes, _trials, _values, _attributes, _system_attributes)
    if not all(inspector.has_table(table.name) for table in tables):
        return
    found = connection.execute(
        sa.select(_studies.c.study_id, _studies.c.study_name, _study_attributes.c.value_json)
        .join_from(_studies, _study_attributes, _study_attributes.c.study_id == _studies.c.study_id)
        .where(_study_attributes.c.key == _IDENTITY)
    ).all()
    for study_id, name, identities in found:
        experiment_id = _add_experiment(connection, name, _object(identities))
        if experiment_id is not None:
            _add_scores(connection, study_id, experiment_id)


def _add_experiment(connection: Connection, name: str, identities: Mapping[str, Any]) -> int | None:
    """The row of an experiment of which only hashes are known, or None where those are not."""
    if not all(isinstance(identities.get(part), str) for part in _PARTS):
        return None
    insert_new(connection, schema.workloads, [{"sha256": identities["workload"]}])
    insert_new(connection, schema.clusters, [{"sha256": identities["cluster"]}])
    known = {"objective": _FIRST_OBJECTIVE, **identities}
    row = {
        "name": name,
        "workload_sha256": known["workload"],
        "cluster_sha256": known["cluster"],
        "objective": known["objective"],
        "identities_json": canonical_json(known),
        "created_at_utc": utc_now(),
    }
    insert_new(connection, schema.experiments, [row])
    wanted = schema.experiments.c.name == name
    return connection.scalar(sa.select(schema.experiments.c.id).where(wanted))


def _add_scores(connection: Connection, study_id: int, experiment_id: int) -> None:
    rows = connection.execute(
        sa.select(
            _trials.c.number,
            _values.c.value,
            _attributes.c.value_json,
            _attribute(_attributes, "figures").label("figures"),
            _attribute(_system_attributes, "constraints:missing_bytes").label("missing_bytes"),
            _attribute(_system_attributes, "constraints:breaks_limits").label("breaks_limits"),
        )
        .join_from(_trials, _values, _values.c.trial_id == _trials.c.trial_id)
        .join(_attributes, _attributes.c.trial_id == _trials.c.trial_id)
        .where(
            _trials.c.study_id == study_id,
            _attributes.c.key == "plan",
            _values.c.objective == 0,
        )
        .order_by(_trials.c.number)
    ).all()
    for start in range(0, len(rows), _BATCH):
        scored = [plan for row in rows[start : start + _BATCH] if (plan := _scored(row))]
        insert_scores(connection, experiment_id, prepared(scored))


def _attribute(table: sa.TableClause, key: str) -> sa.ScalarSelect[Any]:
    """A trial's attribute of that name, as JSON."""
    ours = sa.alias(table)
    return (
        sa.select(ours.c.value_json)
        .where(ours.c.trial_id == _trials.c.trial_id, ours.c.key == key)
        .correlate(_trials)
        .scalar_subquery()
    )


def _scored(row: Any) -> ScoredPlan | None:
    """A trial's plan; None where the trial holds none that this version can read."""
    try:
        plan = build(Plan, _object(row.value_json), "plan")
    except InputError:
        return None
    figures = _object(row.figures)
    return ScoredPlan(
        plan=plan,
        step_s=figures.get("step_s", row.value),
        value_s=row.value,
        max_load_s=figures.get("max_load_s"),
        peak_memory_bytes=figures.get("peak_bytes"),
        missing_bytes=float(row.missing_bytes or 0.0),
        keeps_limits=float(row.breaks_limits or 0.0) <= 0,
        trial_number=row.number,
    )


def _object(text: str) -> dict[str, Any]:
    """A JSON object, or an empty one where the text is none."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
