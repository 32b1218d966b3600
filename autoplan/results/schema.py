"""Tables of the experiment database, as they stand in the current version.

Documents are canonical JSON, found by their sha256. Times are seconds, sizes bytes, moments UTC
without a zone. What a search minimises is a number of seconds too (of device-seconds where devices
count), which is the predicted step unless the experiment asks for something else. A row of `scores`
is one plan of one experiment; a row of `real_runs` is one measurement of one plan on one clock; a
row of `search_leases` is a search that is going on, or that died. The Optuna study of a search has
its own tables beside these.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

METADATA = sa.MetaData()

_DOCUMENT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
"""MySQL's plain TEXT ends at 64 KiB, less than a workload of a few hundred layers."""
_NAME = sa.String(200)
_WORD = sa.String(40)
_SHA256 = sa.String(64)
_ROW = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""Only INTEGER keys count up by themselves in SQLite."""

schema_version = sa.Table(
    "autoplan_schema",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("written_by", _WORD, nullable=False),
)

workloads = sa.Table(
    "workloads",
    METADATA,
    sa.Column("sha256", _SHA256, primary_key=True),
    sa.Column("name", _NAME),
    sa.Column("num_layers", sa.Integer),
    sa.Column("workload_json", _DOCUMENT),
)

clusters = sa.Table(
    "clusters",
    METADATA,
    sa.Column("sha256", _SHA256, primary_key=True),
    sa.Column("name", _NAME),
    sa.Column("num_devices", sa.Integer),
    sa.Column("cluster_json", _DOCUMENT),
)

experiments = sa.Table(
    "experiments",
    METADATA,
    sa.Column("id", _ROW, primary_key=True),
    sa.Column("name", _NAME, nullable=False, unique=True),
    sa.Column("workload_sha256", sa.ForeignKey("workloads.sha256"), nullable=False),
    sa.Column("cluster_sha256", sa.ForeignKey("clusters.sha256"), nullable=False),
    sa.Column("objective", _WORD, nullable=False),
    sa.Column("identities_json", _DOCUMENT, nullable=False),
    sa.Column("seed", sa.BigInteger),
    sa.Column("spec_json", _DOCUMENT),
    sa.Column("environment_json", _DOCUMENT),
    sa.Column("created_at_utc", sa.DateTime, nullable=False),
    sa.Column("finished_at_utc", sa.DateTime),
    sa.Column("stopped_by", _WORD),
    sa.Column("num_trials", sa.BigInteger),
    sa.Column("num_candidates", sa.BigInteger),
    sa.Column("search_s", sa.Double),
    sa.Column("objective_lower_bound_s", sa.Double),
)

plans = sa.Table(
    "plans",
    METADATA,
    sa.Column("sha256", _SHA256, primary_key=True),
    sa.Column("num_stages", sa.Integer, nullable=False),
    sa.Column("num_devices", sa.Integer, nullable=False),
    sa.Column("microbatches", sa.Integer, nullable=False),
    sa.Column("schedule", _WORD, nullable=False),
    sa.Column("num_gradient_groups", sa.Integer, nullable=False),
    sa.Column("plan_json", _DOCUMENT, nullable=False),
)

scores = sa.Table(
    "scores",
    METADATA,
    sa.Column("id", _ROW, primary_key=True),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id"), nullable=False),
    sa.Column("plan_sha256", sa.ForeignKey("plans.sha256"), nullable=False),
    sa.Column("objective_value_s", sa.Double),
    sa.Column("objective_lower_bound_s", sa.Double),
    sa.Column("predicted_step_s", sa.Double),
    sa.Column("max_load_s", sa.Double),
    sa.Column("peak_memory_bytes", sa.Double),
    sa.Column("missing_bytes", sa.Double),
    sa.Column("feasible", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("proposed_by", _WORD),
    sa.Column("island", sa.Integer),
    sa.Column("trial_number", sa.BigInteger),
    sa.Column("scored_at_utc", sa.DateTime, nullable=False),
    sa.UniqueConstraint("experiment_id", "plan_sha256", name="uq_scores_experiment_plan"),
    sa.Index("ix_scores_best", "experiment_id", "feasible", "objective_value_s"),
)

search_leases = sa.Table(
    "search_leases",
    METADATA,
    sa.Column("experiment_id", sa.ForeignKey("experiments.id"), primary_key=True),
    sa.Column("token", _WORD, nullable=False),
    sa.Column("host_name", _NAME, nullable=False),
    sa.Column("host_identity", _NAME, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("process_start", sa.BigInteger),
    sa.Column("beats", sa.BigInteger, nullable=False),
    sa.Column("acquired_at_utc", sa.DateTime, nullable=False),
)

real_runs = sa.Table(
    "real_runs",
    METADATA,
    sa.Column("id", _ROW, primary_key=True),
    sa.Column("run_key", _SHA256, nullable=False, unique=True),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id"), nullable=False),
    sa.Column("plan_sha256", sa.ForeignKey("plans.sha256"), nullable=False),
    sa.Column("status", _WORD, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("clock", _WORD),
    sa.Column("compute_mode", _WORD),
    sa.Column("link_mode", _WORD),
    sa.Column("device_kind", _WORD),
    sa.Column("median_step_s", sa.Double),
    sa.Column("spread_share", sa.Double),
    sa.Column("foreign_load_share", sa.Double),
    sa.Column("predicted_step_s", sa.Double),
    sa.Column("replicas_agree", sa.Boolean),
    sa.Column("peak_memory_bytes", sa.Double),
    sa.Column("stage_peak_memory_bytes_json", _DOCUMENT),
    sa.Column("losses_json", _DOCUMENT),
    sa.Column("environment_json", _DOCUMENT),
    sa.Column("recorded_at_utc", sa.DateTime, nullable=False),
    sa.Index("ix_real_runs_plan", "experiment_id", "plan_sha256", "status"),
)

real_run_rounds = sa.Table(
    "real_run_rounds",
    METADATA,
    sa.Column("real_run_id", sa.ForeignKey("real_runs.id"), primary_key=True),
    sa.Column("round_number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("wall_s", sa.Double),
    sa.Column("virtual_s", sa.Double),
    sa.Column("foreign_load_share", sa.Double),
)

MEASURED = "ok"
"""Status of a real run that has a figure."""

LEADERBOARD = "leaderboard"
LEADERBOARD_SQL = f"""
CREATE VIEW {LEADERBOARD} AS
SELECT
    experiments.name AS experiment,
    scores.plan_sha256 AS plan_sha256,
    scores.feasible AS feasible,
    experiments.objective AS objective,
    scores.objective_value_s AS objective_value_s,
    COALESCE(experiments.objective_lower_bound_s, scores.objective_lower_bound_s)
        AS objective_lower_bound_s,
    scores.predicted_step_s AS predicted_step_s,
    real_runs.median_step_s AS measured_step_s,
    real_runs.spread_share AS measured_spread_share,
    real_runs.predicted_step_s AS predicted_step_at_run_s,
    COALESCE(real_runs.predicted_step_s, scores.predicted_step_s)
        / NULLIF(real_runs.median_step_s, 0) - 1 AS prediction_error_share,
    real_runs.clock AS clock,
    real_runs.compute_mode AS compute_mode,
    real_runs.link_mode AS link_mode,
    real_runs.device_kind AS device_kind,
    real_runs.foreign_load_share AS foreign_load_share,
    scores.max_load_s AS predicted_max_load_s,
    scores.peak_memory_bytes AS predicted_peak_memory_bytes,
    real_runs.peak_memory_bytes AS measured_peak_memory_bytes,
    scores.missing_bytes AS missing_bytes,
    scores.reason AS reason,
    plans.num_stages AS num_stages,
    plans.num_devices AS num_devices,
    plans.microbatches AS microbatches,
    plans.schedule AS schedule,
    plans.num_gradient_groups AS num_gradient_groups,
    scores.proposed_by AS proposed_by,
    scores.island AS island,
    scores.trial_number AS trial_number,
    scores.scored_at_utc AS scored_at_utc,
    real_runs.recorded_at_utc AS measured_at_utc
FROM scores
JOIN experiments ON experiments.id = scores.experiment_id
JOIN plans ON plans.sha256 = scores.plan_sha256
LEFT JOIN (
    SELECT experiment_id, plan_sha256, MAX(id) AS latest_id
    FROM real_runs WHERE status = '{MEASURED}' GROUP BY experiment_id, plan_sha256
) AS latest
    ON latest.experiment_id = scores.experiment_id AND latest.plan_sha256 = scores.plan_sha256
LEFT JOIN real_runs ON real_runs.id = latest.latest_id
"""
"""One row per experiment and plan: its prediction, and its latest measurement if there is one."""

leaderboard = sa.table(
    LEADERBOARD,
    sa.column("experiment", sa.String),
    sa.column("plan_sha256", sa.String),
    sa.column("feasible", sa.Boolean),
    sa.column("objective", sa.String),
    sa.column("objective_value_s", sa.Double),
    sa.column("objective_lower_bound_s", sa.Double),
    sa.column("predicted_step_s", sa.Double),
    sa.column("measured_step_s", sa.Double),
    sa.column("measured_spread_share", sa.Double),
    sa.column("predicted_step_at_run_s", sa.Double),
    sa.column("prediction_error_share", sa.Double),
    sa.column("clock", sa.String),
    sa.column("compute_mode", sa.String),
    sa.column("link_mode", sa.String),
    sa.column("device_kind", sa.String),
    sa.column("foreign_load_share", sa.Double),
    sa.column("predicted_max_load_s", sa.Double),
    sa.column("predicted_peak_memory_bytes", sa.Double),
    sa.column("measured_peak_memory_bytes", sa.Double),
    sa.column("missing_bytes", sa.Double),
    sa.column("reason", sa.Text),
    sa.column("num_stages", sa.Integer),
    sa.column("num_devices", sa.Integer),
    sa.column("microbatches", sa.Integer),
    sa.column("schedule", sa.String),
    sa.column("num_gradient_groups", sa.Integer),
    sa.column("proposed_by", sa.String),
    sa.column("island", sa.Integer),
    sa.column("trial_number", sa.BigInteger),
    sa.column("scored_at_utc", sa.DateTime),
    sa.column("measured_at_utc", sa.DateTime),
)
