"""Connections that wait for locks, notice lost servers, and look at a file before they trust it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from autoplan.errors import StorageError
from autoplan.storage.failures import passes, storage_errors
from autoplan.storage.retry import DEFAULT_RETRY, RetryPolicy
from autoplan.storage.url import Storage

_LOCK_WAIT_S = 5.0
"""How long one statement waits for a lock; the retries around it wait longer."""
_IDLE_S = 30.0
"""How long a program may do nothing within a transaction; less than others try again."""
_CONNECT_WAIT_S = 10
_LEAST_FREE_BYTES = 16 * 2**20
_WRITES = "autoplan_writes"


def engine_options(storage: Storage) -> dict[str, Any]:
    """Keyword arguments of `sqlalchemy.create_engine` that any user of a storage should give.

    Connections are looked at before each use, so that a server's restart is not noticed by
    whoever comes next.
    """
    given, backend = set(storage.url.query), storage.url.get_backend_name()
    connect: dict[str, Any] = {}
    if backend == "sqlite" and "timeout" not in given:
        connect["timeout"] = _LOCK_WAIT_S
    drivers = ("psycopg", "psycopg2", "pymysql")
    if storage.url.get_driver_name() in drivers and "connect_timeout" not in given:
        connect["connect_timeout"] = _CONNECT_WAIT_S
    return {"pool_pre_ping": True, "connect_args": connect}


def open_engine(storage: Storage) -> Engine:
    """An engine; nothing is connected yet.

    Raises:
        InputError: the driver is not installed.
    """
    with storage_errors(storage):
        engine = sqlalchemy.create_engine(storage.url, **engine_options(storage))
    if storage.is_sqlite:
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        limit_lock_waits(engine)
    return engine


def limit_lock_waits(engine: Engine) -> None:
    """Ends waits for a lock of a PostgreSQL server after some seconds, as SQLite's end too.

    The server also gives back the locks of a program that was suspended in mid-transaction.
    """
    if engine.dialect.name == "postgresql":
        event.listen(engine, "begin", _limit_lock_waits)


def for_writing(connection: Connection) -> Connection:
    """Marks a connection whose next transaction writes, before that begins.

    SQLite must take its lock at the start then: a transaction that reads first and writes later
    fails at once, without waiting, when another one has written in between.
    """
    return connection.execution_options(**{_WRITES: True})


def use_write_ahead_log(connection: Connection) -> None:
    """Lets readers read a SQLite file while somebody writes it; harmless to repeat.

    File systems that cannot share memory keep the rollback journal.
    """
    driver: Any = connection.connection.dbapi_connection
    driver.execute("PRAGMA journal_mode=WAL").fetchone()


def require_sound(storage: Storage, retry: RetryPolicy = DEFAULT_RETRY) -> None:
    """Checks a SQLite file's structure; absent and empty files are sound.

    Raises:
        StorageError: it is damaged or no database (it is left as it was), or locked for too long.
    """
    path = storage.path
    if path is None or not path.exists() or path.stat().st_size == 0:
        return
    if not path.is_file():
        raise StorageError(f"{storage.shown}: something that is not a file; name another one")
    with storage_errors(storage):
        found = retry.run(lambda: _quick_check(path), passes)
    if found != "ok":
        raise StorageError(
            f"{storage.shown}: database disk image is malformed ({found}); it is damaged and was "
            f"left as it was; restore a copy or use another database"
        )


def _quick_check(path: Path) -> str:
    """The first thing that is wrong with a SQLite file, or "ok"."""
    try:
        return _checked(f"{path.absolute().as_uri()}?mode=ro")
    except sqlalchemy.exc.OperationalError as error:
        if not any(part in str(error) for part in ("readonly", "unable to open")):
            raise
    # A writer was killed: its journal must be rolled back before anything can be read.
    return _checked(path.absolute().as_uri())


def _checked(address: str) -> str:
    try:
        with contextlib.closing(sqlite3.connect(address, timeout=_LOCK_WAIT_S, uri=True)) as file:
            # What is wrong may be told in the words of a damaged page.
            file.text_factory = lambda data: data.decode(errors="replace")
            found = file.execute("PRAGMA quick_check(1)").fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise sqlalchemy.exc.OperationalError(None, None, error) from None
    return " ".join(str(found).split())


def require_space(storage: Storage) -> None:
    """Refuses to begin what a full disk would end soon; raises StorageError."""
    path = storage.path
    if path is None:
        return
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < _LEAST_FREE_BYTES:
        raise StorageError(
            f"{storage.shown}: {free_bytes / 2**20:.1f} MiB are free there; free at least "
            f"{_LEAST_FREE_BYTES / 2**20:g} MiB, or use another database"
        )


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # SQLAlchemy's begin event sends BEGIN itself: the driver would send it late, and not for DDL.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _limit_lock_waits(connection: Connection) -> None:
    """For one transaction: a setting of the connection would not pass every connection pool."""
    limits_s = {"lock_timeout": _LOCK_WAIT_S, "idle_in_transaction_session_timeout": _IDLE_S}
    settings = (f"set_config('{name}', '{s * 1e3:.0f}', true)" for name, s in limits_s.items())
    connection.exec_driver_sql(f"SELECT {', '.join(settings)}")
