"""The experiment database: opened once, then read and written in transactions that are retried."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from autoplan.errors import InputError, words
from autoplan.results import migrations
from autoplan.storage.engine import (
    for_writing,
    open_engine,
    require_sound,
    require_space,
    use_write_ahead_log,
)
from autoplan.storage.failures import is_locked, passes, possible_values, storage_errors
from autoplan.storage.retry import DEFAULT_RETRY, RetryPolicy
from autoplan.storage.url import Storage, make_folder

T = TypeVar("T")

_SCHEMA_LOCK = 0x6175746F706C616E
"""Spells "autoplan": the key of the lock under which a server's tables are made."""
_SCHEMA_LOCK_S = 60
_LOGGER = logging.getLogger(__name__)


class Database:
    """An open experiment database. Its pickle is refused: other processes get their results sent.

    Work is a function of a connection; it runs in one transaction, and again from the start where
    that failed for a passing reason, so it must write rows that are harmless to repeat.
    """

    def __init__(self, storage: Storage, engine: Engine, retry: RetryPolicy) -> None:
        """Use `Database.open`."""
        self.storage = storage
        self._engine, self._retry = engine, retry

    @classmethod
    def open(
        cls,
        storage: Storage | str,
        *,
        create: bool = True,
        retry: RetryPolicy = DEFAULT_RETRY,
        steps: Sequence[migrations.Step] = migrations.STEPS,
    ) -> Database:
        """Opens a database, makes its tables or brings them to the current version.

        A SQLite file is checked first, and copied before tables that exist are changed. Any number
        of programs may open a fresh database at once.

        Args:
            storage: where it is.
            create: whether a SQLite file that is absent is made; False also opens one that cannot
                be written, if it is of the current version.
            retry: how long locks and lost servers are waited for.
            steps: the versions there are.

        Raises:
            InputError: the URL is wrong, or its driver or file is absent.
            StorageError: the database is damaged, of a later version, or cannot be reached.
        """
        place = Storage.of(storage)
        path = place.path
        if path is not None and not create and not path.exists():
            raise InputError("storage", words(f"no file {path}"), "a database that exists")
        if create:
            make_folder(place)
            require_space(place)
        require_sound(place, retry)
        database = cls(place, open_engine(place), retry)
        try:
            database._bring_up(steps, journal=create)
        except BaseException:
            database.close()
            raise
        return database

    def read(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, from one consistent state.

        Raises:
            StorageError: the database failed, or holds values that cannot be.
        """
        return self._read(work, passes)

    def write(self, work: Callable[[Connection], T], *, retry: RetryPolicy | None = None) -> T:
        """What `work` returns, after its changes were committed, all or none.

        Args:
            work: makes the changes.
            retry: how long locks and lost servers are waited for, in place of the database's own.

        Raises:
            OutageError: the database was away or locked for the whole retry budget.
            StorageError: it failed otherwise.
        """
        return self._transaction(work, passes, writes=True, retry=retry)

    def close(self) -> None:
        """Gives the connections back."""
        self._engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.storage.shown}: an open database is not sent to other processes")

    def _read(
        self, work: Callable[[Connection], T], worth_retrying: Callable[[Exception], bool]
    ) -> T:
        with possible_values(self.storage):
            return self._transaction(work, worth_retrying, writes=False)

    def _transaction(
        self,
        work: Callable[[Connection], T],
        worth_retrying: Callable[[Exception], bool],
        *,
        writes: bool,
        retry: RetryPolicy | None = None,
    ) -> T:
        """Runs work in a transaction, again where it is worth it."""

        def once() -> T:
            with self._engine.connect() as connection:
                ready = for_writing(connection) if writes else connection
                with ready.begin():
                    return work(ready)

        with storage_errors(self.storage):
            return (retry or self._retry).run(once, worth_retrying)

    def _bring_up(self, steps: Sequence[migrations.Step], *, journal: bool) -> None:
        """Leads the tables to the current version; chooses the journal of a file to be written.

        A server that cannot be reached now is an error at once: its address may be wrong. One that
        was reached and lost again is waited for.
        """
        found = self._read(migrations.version_of, _is_locked_or_lost)
        migrations.require_known(found, self.storage.shown, steps)
        if self.storage.is_sqlite and journal:
            self._set_journal()
        if found < steps[-1].version:
            with possible_values(self.storage):
                self.write(lambda connection: self._migrate(connection, steps))

    def _set_journal(self) -> None:
        def once() -> None:
            with self._engine.connect() as connection:
                use_write_ahead_log(connection)

        with storage_errors(self.storage):
            self._retry.run(once, passes)

    def _migrate(self, connection: Connection, steps: Sequence[migrations.Step]) -> None:
        """Looks again under a lock, since others may have done it meanwhile."""
        with _schema_lock(connection):
            found = migrations.version_of(connection)
            path = self.storage.path
            if path is not None and 0 < found < steps[-1].version:
                copy = migrations.back_up(path, found)
                _LOGGER.warning("%s: brought to a new version; the old file is %s", path, copy)
            migrations.migrate(connection, steps)


def _is_locked_or_lost(error: Exception) -> bool:
    """Whether the database was reached, and cannot be read just now."""
    lost = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
    return lost or is_locked(error)


@contextlib.contextmanager
def _schema_lock(connection: Connection) -> Iterator[None]:
    """Keeps other programs from making a server's tables; SQLite's write lock is enough there."""
    dialect = connection.dialect.name
    if dialect == "postgresql":  # given back with the transaction
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
    if dialect not in ("mysql", "mariadb"):
        yield
        return
    connection.execute(sa.select(sa.func.get_lock(str(_SCHEMA_LOCK), _SCHEMA_LOCK_S)))
    try:
        yield
    finally:
        connection.execute(sa.select(sa.func.release_lock(str(_SCHEMA_LOCK))))
