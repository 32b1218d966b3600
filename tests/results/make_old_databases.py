"""Wrote the databases of earlier versions under tests/data/results, as SQL text.

Run it once when a version is about to be left behind, with the code of that version, and keep what
it writes for good: that the current code opens these files is what tests show.

    python tests/results/make_old_databases.py VERSION OUT.sql

Version 0 is a search's Optuna study alone; version 1 knew no real runs; version 2 did not know who
searches.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import tempfile
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import scored_plans
import small_experiment

from autoplan.execute.real_run import Modes, RealRun
from autoplan.results import migrations, schema
from autoplan.results.recorder import Outcome, SearchRecorder
from autoplan.results.runs import MeasuredPlan, Sweep, record_sweep
from autoplan.search.experiment import load_experiment


def write_version_0(folder: Path) -> Path:
    """What `autoplan search` wrote before there was an experiment database."""
    from autoplan.search.run import search

    search(load_experiment(small_experiment.write(folder)))
    return folder / "out" / "study.db"


def write_version_1(folder: Path) -> Path:
    """Two scored plans, one of them feasible, and the end of their search."""
    path = folder / "old.db"
    experiment = load_experiment(small_experiment.write(folder))
    with SearchRecorder.open(f"sqlite:///{path}", experiment) as recorder:
        plans = [scored_plans.scored(3), scored_plans.scored(4, missing_bytes=1e6)]
        recorder.scores(plans)
        recorder.finish(Outcome(stopped_by="trials", num_trials=2, lower_bound_s=2.5))
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP VIEW {schema.LEADERBOARD}"))
        later = (schema.real_run_rounds, schema.real_runs, schema.search_leases)
        schema.METADATA.drop_all(connection, tables=later)
        connection.execute(sa.update(schema.schema_version).values(version=1))
        assert migrations.version_of(connection) == 1
    engine.dispose()
    return path


def write_version_2(folder: Path) -> Path:
    """A scored plan that was run for real, and the end of its search."""
    path = folder / "old.db"
    experiment = load_experiment(small_experiment.write(folder))
    best = scored_plans.scored(3)
    run = RealRun(
        plan_sha256=best.plan.sha256,
        status="ok",
        modes=Modes(compute="emulated", link="emulated"),
        wall_s=(3.1, 3.3),
        virtual_s=(3.0, 3.2),
        foreign_load=(0.01, 0.02),
    )
    with SearchRecorder.open(f"sqlite:///{path}", experiment) as recorder:
        recorder.scores([best])
        measured = MeasuredPlan(plan=best.plan, run=run)
        record_sweep(recorder.database, Sweep(experiment="small", measured=(measured,)))
        recorder.finish(Outcome(stopped_by="trials", num_trials=1, lower_bound_s=2.5))
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        schema.METADATA.drop_all(connection, tables=(schema.search_leases,))
        connection.execute(sa.update(schema.schema_version).values(version=2))
        assert migrations.version_of(connection) == 2
    engine.dispose()
    return path


def main() -> None:
    version, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        write = {"0": write_version_0, "1": write_version_1, "2": write_version_2}[version]
        with contextlib.closing(sqlite3.connect(write(Path(name)))) as database:
            Path(out).write_text("\n".join(database.iterdump()) + "\n")


if __name__ == "__main__":
    main()
