"""From any earlier version of the database to the current one, step by step.

Every step looks at what is there and adds what is missing, so that a step that was cut short (MySQL
commits each change of a table at once) is simply done again. A fresh database goes through all
steps too. A step is never changed in a way that alters what it did to a database that exists.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoplan.errors import StorageError
from autoplan.results import adoption, schema
from autoplan.results.environment import own_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One version further."""

    version: int
    """The version that the step leads to."""
    what: str
    apply: Callable[[Connection], None]


def _add_planning(connection: Connection) -> None:
    tables = (
        schema.workloads, schema.clusters, schema.experiments, schema.plans, schema.scores,
    )  # fmt: skip
    schema.METADATA.create_all(connection, tables=tables)
    adoption.adopt_studies(connection)


def _add_real_runs(connection: Connection) -> None:
    tables = (schema.real_runs, schema.real_run_rounds)
    schema.METADATA.create_all(connection, tables=tables)


def _add_leases(connection: Connection) -> None:
    schema.METADATA.create_all(connection, tables=(schema.search_leases,))


STEPS: tuple[Step, ...] = (
    Step(version=1, what="planned and scored plans", apply=_add_planning),
    Step(version=2, what="real runs and the leaderboard", apply=_add_real_runs),
    Step(version=3, what="who searches a study", apply=_add_leases),
)


def version_of(connection: Connection) -> int:
    """The version of a database; 0 where it holds no tables of ours."""
    if not sa.inspect(connection).has_table(schema.schema_version.name):
        return 0
    return connection.scalar(sa.select(schema.schema_version.c.version)) or 0


def require_known(found: int, shown: str, steps: Sequence[Step] = STEPS) -> None:
    """Refuses a database of a later version; raises StorageError."""
    newest = steps[-1].version
    if found > newest:
        raise StorageError(
            f"{shown}: the database has version {found}, and this autoplan ({own_version()})"
            f" knows versions up to {newest}; install the autoplan that wrote it, or a later one"
        )


def migrate(connection: Connection, steps: Sequence[Step] = STEPS) -> None:
    """Takes the steps that a database still needs, inside the connection's transaction."""
    found = version_of(connection)
    if found >= steps[-1].version:
        return
    connection.execute(sa.text(f"DROP VIEW IF EXISTS {schema.LEADERBOARD}"))
    for step in steps:
        if step.version > found:
            step.apply(connection)
    connection.execute(sa.text(schema.LEADERBOARD_SQL))
    schema.METADATA.create_all(connection, tables=(schema.schema_version,))
    connection.execute(sa.delete(schema.schema_version))
    row = {"id": 1, "version": steps[-1].version, "written_by": f"autoplan {own_version()}"}
    connection.execute(sa.insert(schema.schema_version), row)


def back_up(path: Path, version: int) -> Path:
    """Copies a SQLite file beside itself before its tables change; earlier copies stay.

    Raises:
        StorageError: the copy cannot be written.
    """
    target, number = Path(f"{path}.v{version}-backup"), 1
    while target.exists():
        number += 1
        target = Path(f"{path}.v{version}-backup-{number}")
    try:
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
    except sqlite3.Error as error:
        target.unlink(missing_ok=True)
        raise StorageError(
            f"{target}: the copy that is made before the database is brought to the current "
            f"version could not be written ({error})"
        ) from None
    return target
