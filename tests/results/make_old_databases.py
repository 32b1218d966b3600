"""Wrote the databases of earlier versions under tests/data/results, as SQL text.

Run it once when a version is about to be left behind, with the code of that version, and keep what
it writes for good: that the current code opens these files is what tests show.

    python tests/results/make_old_databases.py VERSION OUT.sql

Version 0 is a search's Optuna study alone; version 1 knew no real runs.
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

from autoplan.results import migrations, schema
from autoplan.results.recorder import Outcome, SearchRecorder
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
        later = (schema.real_run_rounds, schema.real_runs)
        schema.METADATA.drop_all(connection, tables=later)
        connection.execute(sa.update(schema.schema_version).values(version=1))
        assert migrations.version_of(connection) == 1
    engine.dispose()
    return path


def main() -> None:
    version, out = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        write = {"0": write_version_0, "1": write_version_1}[version]
        with contextlib.closing(sqlite3.connect(write(Path(name)))) as database:
            Path(out).write_text("\n".join(database.iterdump()) + "\n")


if __name__ == "__main__":
    main()
