"""Optuna's tables in the experiment database, so that its own tools open it too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import event

from autoplan.storage.engine import engine_options, limit_lock_waits
from autoplan.storage.failures import (
    lost_connection,
    lost_race,
    passes,
    possible_values,
    storage_errors,
)
from autoplan.storage.retry import DEFAULT_RETRY, RetryPolicy
from autoplan.storage.url import Storage

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


@contextlib.contextmanager
def study_errors(storage: Storage) -> Iterator[None]:
    """Turns what Optuna raises while it reads a database into our errors, in one line.

    Raises:
        OutageError: the database was away or locked.
        StorageError: it failed otherwise, or holds values that cannot be.
        InputError: its driver is not installed.
    """
    with storage_errors(storage), possible_values(storage):
        yield


def study_storage(storage: Storage, retry: RetryPolicy = DEFAULT_RETRY) -> RDBStorage:
    """Optuna's view of a database, its tables made; any number of programs may do so at once.

    Where a connection breaks, the caller learns it at once (`ConnectionLostError`), and looks what
    has been written (`wait_for_writers`) before it writes again.

    The result holds the password, in its pickle too: it stays in the driver.

    Raises:
        InputError: the driver is not installed.
        StorageError: the database cannot be used.
    """
    from optuna.storages import RDBStorage

    # Optuna takes braces for a template.
    url = storage.url.render_as_string(hide_password=False)
    url = url.replace("{", "{{").replace("}", "}}")
    with study_errors(storage):
        made = retry.run(
            lambda: RDBStorage(url, engine_kwargs=engine_options(storage)),
            lambda error: passes(error) or lost_race(error),
        )
    event.listen(made.engine, "handle_error", lost_connection)
    limit_lock_waits(made.engine)
    return made


def wait_for_writers(database: RDBStorage, study: str) -> None:
    """Waits until nobody is in the middle of adding a trial to a study.

    A server may still commit what it was sent over a connection that has broken since; who looks
    before that sees too little. Optuna adds trials under the lock that this waits for.

    Raises:
        SQLAlchemyError: the database failed, or the lock was not given back in time.
        ConnectionLostError: the connection broke.
    """
    studies = sa.table("studies", sa.column("study_name"))
    ours = sa.select(studies.c.study_name).where(studies.c.study_name == study)
    with database.engine.begin() as connection:
        connection.execute(ours.with_for_update()).all()
