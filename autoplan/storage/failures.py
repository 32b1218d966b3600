"""What went wrong with a database, in one line, and whether it passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy.exc
from sqlalchemy.engine import ExceptionContext

from autoplan.errors import AutoplanError, InputError, StorageError, words
from autoplan.redaction import redacted
from autoplan.storage.url import Storage

_LOCKED = ("database is locked", "database table is locked", "database schema is locked")
_FULL = ("database or disk is full", "disk i/o error", "no space left", "file too large")
_DAMAGED = (
    "malformed", "not a database", "could not decode", "can't decode", "unsupported file format",
)  # fmt: skip
_LASTING = (
    *_FULL,
    *_DAMAGED,
    "authentication failed",
    "access denied",
    "unknown database",
    "does not exist",
    "no such",
    "no pg_hba.conf entry",
    "no password supplied",
    "readonly database",
    "unable to open database file",
    "syntax error",
    "already exists",
)
"""Parts of the messages of OperationalErrors that waiting does not cure."""
_HINTS = (
    (_LOCKED, "another program kept it locked; end that program and run the same command again"),
    (_FULL, "the disk is full or failing; free some space and run the same command again"),
    (_DAMAGED, "it is damaged and was left as it was; restore a copy or use another database"),
)


class OutageError(StorageError):
    """The database was away, or locked, for the whole retry budget."""


class ConnectionLostError(Exception):
    """A connection broke in mid-work; whether the server has committed that is not known.

    It is no error of SQLAlchemy's, since Optuna takes all of those for deadlocks and writes the
    same trial up to four times more.
    """

    def __init__(self, known: sqlalchemy.exc.SQLAlchemyError) -> None:
        """Keeps the database's error."""
        super().__init__(str(known))
        self.known = known


def lost_connection(context: ExceptionContext) -> ConnectionLostError | None:
    """The error of a connection that broke, for SQLAlchemy's `handle_error` event."""
    known = context.sqlalchemy_exception
    broken = context.is_disconnect and not context.is_pre_ping
    return ConnectionLostError(known) if broken and known is not None else None


def reason_of(error: BaseException) -> str:
    """The database's own words, on one line, without secrets."""
    known = _of_database(error) or error
    cause = getattr(known, "orig", None) or known
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return redacted(" ".join(line.strip() for line in lines[:2]))


def is_locked(error: BaseException) -> bool:
    """Whether somebody else holds a lock on a SQLite file."""
    return _holds(reason_of(error), _LOCKED)


def passes(error: BaseException) -> bool:
    """Whether the same work may succeed later: locks, lost connections, restarts."""
    known = _of_database(error)
    if isinstance(known, sqlalchemy.exc.DBAPIError) and known.connection_invalidated:
        return True
    passing = (
        sqlalchemy.exc.OperationalError,
        sqlalchemy.exc.InterfaceError,
        sqlalchemy.exc.TimeoutError,
    )
    return isinstance(known, passing) and not _holds(reason_of(error), _LASTING)


def lost_race(error: BaseException) -> bool:
    """Whether somebody else has just made the same table or row."""
    known = _of_database(error)
    taken = isinstance(known, sqlalchemy.exc.IntegrityError)
    return taken or (known is not None and _holds(reason_of(error), ("already exists",)))


def _of_database(error: BaseException) -> sqlalchemy.exc.SQLAlchemyError | None:
    """The database's error: this one, or what a library on top of SQLAlchemy has wrapped."""
    for each in (error, error.__cause__):
        if isinstance(each, sqlalchemy.exc.SQLAlchemyError):
            return each
        if isinstance(each, ConnectionLostError):
            return each.known
    return None


@contextlib.contextmanager
def storage_errors(storage: Storage) -> Iterator[None]:
    """Turns what a database raises into our errors, in one line without a password.

    Raises:
        OutageError: the database was away or locked.
        StorageError: it failed otherwise.
        InputError: its driver is not installed.
    """
    try:
        yield
    except ImportError as error:
        found = words(f"{storage.shown} ({redacted(str(error))})")
        allowed = "a database whose driver is installed (pip install 'autoplan[postgres,mysql]')"
        raise InputError("storage", found, allowed) from None
    except Exception as error:
        if _of_database(error) is None:
            raise
        raise storage_error(storage, error) from None


@contextlib.contextmanager
def possible_values(storage: Storage) -> Iterator[None]:
    """Tells values of another type than their column's, which only damage can cause.

    Raises:
        StorageError: the work inside met one.
    """
    try:
        yield
    except AutoplanError:
        raise
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        reason = redacted(" ".join(str(error).split()))
        raise StorageError(
            f"{storage.shown}: it holds a value that cannot be ({reason}); it is damaged and was "
            f"left as it was; restore a copy"
        ) from None


def storage_error(storage: Storage, error: BaseException) -> StorageError:
    """Our error for one of a database."""
    reason = reason_of(error)
    hint = next((f"; {hint}" for parts, hint in _HINTS if _holds(reason, parts)), "")
    kind = OutageError if passes(error) else StorageError
    return kind(f"{storage.shown}: {reason}{hint}")


def _holds(reason: str, parts: tuple[str, ...]) -> bool:
    lower = reason.lower()
    return any(part in lower for part in parts)
