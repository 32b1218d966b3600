"""The leaderboard as a file for other programs: CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import sqlalchemy as sa

from autoplan.documents import require_writable
from autoplan.errors import InputError, words
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.queries import Leader, all_leaders, require_experiment

Format = Literal["csv", "json", "parquet"]

COLUMNS = tuple(column.name for column in schema.leaderboard.c)
_ROW_GROUP = 20_000


def export(database: Database, experiment: str | None, kind: Format, path: Path) -> int:
    """Writes the leaderboard of one experiment, or of all, whole or not at all.

    Args:
        database: what is exported.
        experiment: its name; None for all.
        kind: the format.
        path: the file; an earlier one is replaced.

    Returns:
        The number of rows.

    Raises:
        InputError: there is no such experiment, the file cannot be written, or Parquet is asked
            for and pyarrow is not installed.
        StorageError: the database cannot be read.
    """
    require_writable(path, "--out")
    if kind == "parquet":
        _require_parquet()
    return database.read(lambda c: _write(c, database.storage.shown, experiment, kind, path))


def write_text(rows: Iterable[Leader], kind: Literal["csv", "json"], out: IO[str]) -> int:
    """Writes rows as text; returns how many."""
    return _write_csv(rows, out) if kind == "csv" else _write_json(rows, out)


def _write(
    connection: sa.Connection, shown: str, experiment: str | None, kind: Format, path: Path
) -> int:
    if experiment is not None:
        require_experiment(connection, experiment, shown)
    rows = all_leaders(connection, experiment)

    def write(temporary: Path) -> int:
        if kind == "parquet":
            return _write_parquet(rows, temporary)
        with temporary.open("w", encoding="utf-8", newline="") as out:
            return write_text(rows, kind, out)

    return _atomically(path, write)


def _atomically(path: Path, write: Callable[[Path], int]) -> int:
    """Lets `write` fill a file beside the target, then puts it in the target's place."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        count = write(Path(temporary))
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        found = words(f"a failure to write ({error.strerror})")
        raise InputError("--out", found, "a place that can be written", source=str(path)) from None
    finally:
        Path(temporary).unlink(missing_ok=True) if temporary else None
    return count


def _write_csv(rows: Iterable[Leader], out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    count = 0
    for row in rows:
        writer.writerow([_text(row[name]) for name in COLUMNS])
        count += 1
    return count


def _write_json(rows: Iterable[Leader], out: IO[str]) -> int:
    """One object per line inside one array."""
    count = 0
    out.write("[")
    for row in rows:
        out.write(",\n " if count else "\n ")
        out.write(json.dumps(json_row(row), allow_nan=False))
        count += 1
    out.write("\n]\n")
    return count


def json_row(row: Leader) -> dict[str, Any]:
    """A row with its moments as text."""
    return {
        name: value.isoformat() if isinstance(value, datetime.datetime) else value
        for name, value in row.items()
    }


def _text(value: Any) -> Any:
    """A cell of a CSV file: numbers keep all their digits, nothing is empty."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def _require_parquet() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        allowed = (
            "csv or json; parquet where pyarrow is installed (pip install 'autoplan[parquet]')"
        )
        raise InputError("--format", "parquet", allowed) from None


def _write_parquet(rows: Iterator[Leader], path: Path) -> int:
    import pyarrow
    import pyarrow.parquet

    types = {
        sa.Double: pyarrow.float64(),
        sa.Boolean: pyarrow.bool_(),
        sa.DateTime: pyarrow.timestamp("us"),
        sa.BigInteger: pyarrow.int64(),
        sa.Integer: pyarrow.int64(),
    }
    fields = [
        (column.name, types.get(type(column.type), pyarrow.string()))
        for column in schema.leaderboard.c
    ]
    layout = pyarrow.schema(fields)
    count = 0
    with pyarrow.parquet.ParquetWriter(path, layout) as writer:
        while batch := list(itertools.islice(rows, _ROW_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=layout))
            count += len(batch)
    return count
