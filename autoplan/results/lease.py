"""Who searches a study: one driver at a time, known by a token that each of its writes checks.

Clocks are not compared, since those of hosts differ and may be set back: a driver shows that it
lives by counting, and whoever waits for it counts how often it has looked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoplan.errors import StorageError
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.driver import Driver, Presence
from autoplan.results.rows import insert_new, utc_now
from autoplan.search.recording import StudyBusyError, TakenOverError
from autoplan.storage.failures import OutageError
from autoplan.storage.retry import RetryPolicy

BEAT_S = 2.0
"""How often a driver counts on, with what it writes or without."""
LOOK_S = 0.5
LOOKS = 24
"""How often, in waits of `LOOK_S`, the count must be found unmoved before a study is taken over
from a driver that may still live."""
_LONGEST_AGE_S = 1.5 * BEAT_S
"""Age of the last count at which a driver looks itself whether the study is still its own."""
_ONE_TRY = RetryPolicy(budget_s=0.0)
_RELEASE = RetryPolicy(budget_s=2.0)
"""A lease that is not given back delays the next search a little, and no end should wait for it."""
_BEATER_ENDS_S = 5.0
_IN_MEMORY = (None, "", ":memory:")
_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What a row says."""

    driver: Driver
    beats: int
    since: str
    """Only shown."""

    @property
    def shown(self) -> str:
        return f"{self.driver.shown} (since {self.since} UTC)"


class Lease:
    """The right to search one study, for one driver; what is not taken guards nothing.

    Whoever has it counts on in a thread of its own, so that long work elsewhere does not look like
    death. A driver that lost it, because it was suspended, learns that from its next write.
    """

    def __init__(self, database: Database, experiment_id: int, study: str) -> None:
        """Takes nothing yet; `study` is shown."""
        self._database, self._experiment_id, self._study = database, experiment_id, study
        self.driver = Driver.here()
        self._beaten_s = -float("inf")
        self._ending = threading.Event()
        self._beater: threading.Thread | None = None
        self._private = database.storage.is_sqlite and database.storage.url.database in _IN_MEMORY
        """Whether no other process can see the database."""

    @property
    def held(self) -> bool:
        """Whether the lease was taken, and not given back."""
        return self._beater is not None

    def take(self) -> None:
        """Takes the lease; from a driver that died at once, from one that may live after a while.

        A driver of this host that runs is believed. One of another host, and one that is suspended,
        is watched: it keeps the study if it counts on meanwhile. Looks are writes, so that time in
        which nobody can write is not held against it.

        Raises:
            StudyBusyError: somebody else searches the study.
            StorageError: the database failed.
        """
        if self.held or self._private:
            return
        watched: _Held | None = None
        looks = 0
        while (found := self._try(watched if looks >= LOOKS else None)) is not None:
            presence = found.driver.presence()
            if presence is Presence.GONE:
                watched, looks = found, LOOKS
                continue
            moved = watched is not None and _moved(watched, found)
            if presence is Presence.RUNNING or moved:
                raise self._busy(found)
            if watched is None or watched.driver != found.driver:
                watched, looks = found, 0
                _LOGGER.warning(
                    "study %s: %s has searched it; looking for %.0f s whether it still does",
                    self._study, found.shown, LOOKS * LOOK_S,
                )  # fmt: skip
            looks += 1
            time.sleep(LOOK_S)
        if watched is not None:
            _LOGGER.warning(
                "study %s: taken over from %s, which ended or does not answer",
                self._study, watched.shown,
            )  # fmt: skip
        self._beater = threading.Thread(target=self._count_on, name="study lease", daemon=True)
        self._beater.start()

    def beat(self, connection: Connection) -> None:
        """Counts on, in the transaction of what is being written; raises TakenOverError."""
        if not self.held:
            return
        table = schema.search_leases
        counted = connection.execute(
            sa.update(table).where(self._is_ours).values(beats=table.c.beats + 1)
        )
        if counted.rowcount == 0:
            raise self._taken_over(connection)
        self._beaten_s = time.monotonic()

    def guard(self, connection: Connection) -> None:
        """Lets a transaction of Optuna's end only while the lease is held; raises TakenOverError.

        The row stays locked until then: who takes the lease over has to wait.
        """
        if not self.held:
            return
        if connection.engine.url == self._database.storage.url:
            self._require_ours(connection)
        else:  # the study is in another database than its rows
            self._database.read(self._require_ours)

    def check(self, age_s: float = _LONGEST_AGE_S) -> None:
        """Counts on where that was last done longer ago; a database that is away tells nothing.

        Raises:
            TakenOverError: somebody else searches the study now.
        """
        if not self.held or time.monotonic() - self._beaten_s < age_s:
            return
        with contextlib.suppress(OutageError):
            self._database.write(self.beat, retry=_ONE_TRY)

    def release(self) -> None:
        """Gives the lease back, if it is still held and the database can be reached."""
        if self._beater is None:
            return
        self._ending.set()
        self._beater.join(_BEATER_ENDS_S)
        self._beater = None
        ours = sa.delete(schema.search_leases).where(self._is_ours)
        with contextlib.suppress(StorageError):
            self._database.write(lambda connection: connection.execute(ours), retry=_RELEASE)

    @property
    def _is_ours(self) -> sa.ColumnElement[bool]:
        columns = schema.search_leases.c
        return sa.and_(
            columns.experiment_id == self._experiment_id, columns.token == self.driver.token
        )

    def _try(self, dead: _Held | None) -> _Held | None:
        """Takes the lease if it is free or `dead` has it; returns who else has it."""
        found = self._database.write(lambda connection: self._write_row(connection, dead))
        return None if found.driver.token == self.driver.token else found

    def _write_row(self, connection: Connection, dead: _Held | None) -> _Held:
        """Who has the lease after the try."""
        table = schema.search_leases
        row = {
            "experiment_id": self._experiment_id,
            **dataclasses.asdict(self.driver),
            "beats": 0,
            "acquired_at_utc": utc_now(),
        }
        if dead is not None:
            unmoved = sa.and_(
                table.c.experiment_id == self._experiment_id,
                table.c.token == dead.driver.token,
                table.c.beats == dead.beats,
            )
            connection.execute(sa.update(table).where(unmoved).values(row))
        insert_new(connection, table, [row])
        # A row that was given back between the two is free, and this try goes on with the next.
        found = self._found(connection)
        return found or self._write_row(connection, None)

    def _found(self, connection: Connection) -> _Held | None:
        table = schema.search_leases
        ours = table.c.experiment_id == self._experiment_id
        row = connection.execute(sa.select(table).where(ours).with_for_update()).first()
        if row is None:
            return None
        names = [each.name for each in dataclasses.fields(Driver)]
        return _Held(
            driver=Driver(**{name: getattr(row, name) for name in names}),
            beats=row.beats,
            since=f"{row.acquired_at_utc:%Y-%m-%d %H:%M:%S}",
        )

    def _require_ours(self, connection: Connection) -> None:
        query = sa.select(schema.search_leases.c.token).where(self._is_ours)
        if connection.execute(query.with_for_update(read=True)).first() is None:
            raise self._taken_over(connection)

    def _count_on(self) -> None:
        """Counts on while the driver is busy with something else."""
        while not self._ending.wait(BEAT_S):
            try:
                self.check(BEAT_S / 2)
            except TakenOverError:
                return  # the driver's own next write tells it
            except StorageError as error:
                _LOGGER.debug("study %s: %s", self._study, error)  # and so does this

    def _busy(self, found: _Held) -> StudyBusyError:
        allowed = (
            f"one that nobody else searches; {found.shown} searches this one: wait until that "
            f"ends, stop it, or choose another --study"
        )
        return StudyBusyError("study", self._study, allowed, source=self._database.storage.shown)

    def _taken_over(self, connection: Connection) -> TakenOverError:
        found = self._found(connection)
        by = "another search" if found is None else found.shown
        return TakenOverError(
            f"{self._database.storage.shown}: study {self._study!r} was taken over by {by} while "
            f"this search did not answer; this one ends, and what it had not written is dropped"
        )


def _moved(before: _Held, now: _Held) -> bool:
    """Whether the same driver has counted on."""
    return before.driver == now.driver and before.beats != now.beats
