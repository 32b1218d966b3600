"""Writes one search into the experiment database, so that nothing is lost and nothing doubled."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoplan.documents import canonical_json, plain
from autoplan.errors import require
from autoplan.plan import Plan
from autoplan.results import schema
from autoplan.results.database import Database
from autoplan.results.documents import stored_object, stored_plan
from autoplan.results.environment import environment
from autoplan.results.lease import Lease
from autoplan.results.rows import ScoredPlan, insert_new, insert_scores, prepared, usable, utc_now
from autoplan.results.spool import Spool
from autoplan.search.experiment import Experiment, require_same
from autoplan.storage.failures import OutageError
from autoplan.storage.retry import DEFAULT_RETRY, RetryPolicy
from autoplan.storage.url import Storage

_LONGEST_NAME = 200
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a search ended; None where it is not known."""

    stopped_by: str
    """Such as "trials", "time", "optimal" or "interrupted"."""
    num_trials: int | None = None
    num_candidates: int | None = None
    search_s: float | None = None
    """Wall seconds of this run of the search."""
    lower_bound_s: float | None = None
    """No plan of the space has a smaller value of the objective."""


class SpooledError(OutageError):
    """The database is away; the plans that could not be written are kept in `path`.

    The search may go on: each later batch tries the database first, and the same command started
    again brings the kept plans in.
    """

    def __init__(self, message: str, path: Path) -> None:
        """Adds the place to the message."""
        super().__init__(
            f"{message}; scored plans are kept in {path} and are brought in when the same command "
            f"runs again"
        )
        self.path = path


class SearchRecorder:
    """The rows of one experiment. Only the driver of a search has one.

    Every method may be repeated with the same arguments without any effect: plans are known by
    their sha256, and one transaction holds each batch.
    """

    def __init__(
        self,
        database: Database,
        experiment_id: int,
        name: str,
        identities: Mapping[str, str],
        spool: Spool,
    ) -> None:
        """Use `SearchRecorder.open`."""
        self.database = database
        self.experiment_id = experiment_id
        self.lease = Lease(database, experiment_id, name)
        """Not taken yet."""
        self._identities, self._spool = dict(identities), spool
        self._spooled = False

    @classmethod
    def open(
        cls,
        storage: Storage | str,
        experiment: Experiment,
        *,
        name: str | None = None,
        seed: int | None = None,
        spool_folder: Path | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        merge: bool = True,
    ) -> SearchRecorder:
        """Opens the database and the experiment in it, and brings in what waits in its spool.

        Args:
            storage: where the database is.
            experiment: what is planned.
            name: of the experiment in the database; by default its own.
            seed: of the search; by default that of its budget.
            spool_folder: where plans are kept while the database is away; by default the
                experiment's output folder.
            retry: how long locks and lost servers are waited for.
            merge: False leaves the spool alone, as who does not search must: a search may be
                writing there.

        Raises:
            InputError: the URL is wrong, or the name belongs to another experiment.
            StorageError: the database or the spool cannot be used.
        """
        place = Storage.of(storage)
        known_as = name or experiment.name
        sound = 0 < len(known_as) <= _LONGEST_NAME
        require(sound, "study", known_as, f"a name of 1 to {_LONGEST_NAME} characters")
        database = Database.open(place, retry=retry)
        try:
            row = _experiment_row(experiment, known_as, seed)
            experiment_id = database.write(lambda c: _claim(c, experiment, row, place.shown))
            spool = Spool(spool_folder or experiment.output, place, known_as)
            recorder = cls(database, experiment_id, known_as, experiment.identities, spool)
            if merge:
                recorder._merge()
        except BaseException:
            database.close()
            raise
        return recorder

    @property
    def num_scored(self) -> int:
        """Distinct plans that the database holds for the experiment; raises StorageError."""
        of_ours = schema.scores.c.experiment_id == self.experiment_id
        query = sa.select(sa.func.count()).select_from(schema.scores).where(of_ours)
        return self.database.read(lambda connection: connection.scalar(query)) or 0

    def best(self) -> tuple[Plan, float] | None:
        """The feasible plan with the smallest value of the objective, and that value in seconds.

        Raises:
            StorageError: the database cannot be read, or the plan in it is damaged.
        """
        scores, plans = schema.scores.c, schema.plans.c
        query = (
            sa.select(plans.sha256, plans.plan_json, scores.objective_value_s)
            .join_from(schema.scores, schema.plans, plans.sha256 == scores.plan_sha256)
            .where(scores.experiment_id == self.experiment_id, scores.feasible)
            .order_by(scores.objective_value_s, scores.id)
            .limit(1)
        )
        row = self.database.read(lambda connection: connection.execute(query).first())
        if row is None:
            return None
        shown = self.database.storage.shown
        return stored_plan(row.plan_json, row.sha256, shown), float(row.objective_value_s)

    def begin(self) -> None:
        """Takes the experiment's lease until `close`, then brings in what waits in the spool.

        From then on every write checks that no other search has taken the experiment over
        (TakenOverError).

        Raises:
            StudyBusyError: another search has it.
            StorageError: the database or the spool cannot be used.
        """
        self.lease.take()
        self._merge()

    def scores(self, rows: Sequence[ScoredPlan]) -> None:
        """Adds a batch of scored plans, all or none; a plan that is there keeps its first score.

        Raises:
            SpooledError: the database was away for the whole retry budget; the batch is safe in
                the spool.
            StorageError: the database failed for good (damaged, disk full), or the spool did too.
        """
        if not rows:
            return
        storable = [row.storable() for row in rows]
        try:
            self._merge()
            self._write(storable)
        except OutageError as error:
            self._spool.append(self._identities, storable)
            self._spooled = True
            raise SpooledError(str(error), self._spool.path) from None

    def finish(self, outcome: Outcome) -> None:
        """Records how the search ended; a later run of the same experiment overwrites it.

        The bound only rises: what held once holds for the same experiment for ever.

        Raises:
            StorageError: the database failed.
        """
        self._merge()

        def work(connection: Connection) -> None:
            self.lease.beat(connection)
            _finish(connection, self.experiment_id, outcome)

        self.database.write(work)

    def close(self) -> None:
        """Gives the lease and the connections back."""
        self.lease.release()
        self.database.close()

    def __enter__(self) -> SearchRecorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, scored: Sequence[ScoredPlan]) -> None:
        rows = prepared(scored)

        def work(connection: Connection) -> None:
            self.lease.beat(connection)
            insert_scores(connection, self.experiment_id, rows)

        self.database.write(work)

    def _merge(self) -> None:
        """Brings in the batches that wait in the spool."""
        if not self._spooled and not self._spool.path.exists():
            return
        count = 0
        for batch in self._spool.batches(self._identities):
            self._write(batch)
            count += len(batch)
        self._spool.discard()
        self._spooled = False
        if count:
            _LOGGER.warning("%s: %d plans brought in", self._spool.path, count)


def _experiment_row(experiment: Experiment, name: str, seed: int | None) -> dict[str, Any]:
    """The row of `experiments`."""
    spec = {part: plain(getattr(experiment, part)) for part in ("job", "space", "budget")}
    return {
        "name": name,
        "workload_sha256": experiment.workload.sha256,
        "cluster_sha256": experiment.cluster.sha256,
        "objective": experiment.objective,
        "identities_json": canonical_json(experiment.identities),
        "seed": experiment.budget.seed if seed is None else seed,
        "spec_json": canonical_json(spec),
        "environment_json": canonical_json(environment()),
        "created_at_utc": utc_now(),
    }


def _claim(
    connection: Connection, experiment: Experiment, row: Mapping[str, Any], shown: str
) -> int:
    """The experiment's id, new or known; refuses another experiment of the same name."""
    table = schema.experiments
    workload, cluster = experiment.workload, experiment.cluster
    _keep(
        connection,
        schema.workloads,
        {
            "sha256": workload.sha256,
            "name": workload.name[:_LONGEST_NAME],
            "num_layers": len(workload.layers),
            "workload_json": canonical_json(workload),
        },
    )
    _keep(
        connection,
        schema.clusters,
        {
            "sha256": cluster.sha256,
            "name": cluster.name[:_LONGEST_NAME],
            "num_devices": cluster.num_devices,
            "cluster_json": canonical_json(cluster),
        },
    )
    insert_new(connection, table, [row])
    found = connection.execute(sa.select(table).where(table.c.name == row["name"])).one()
    known = stored_object(found.identities_json, shown)
    require_same(row["name"], known, experiment.identities, shown)
    if found.spec_json is None:  # taken over from a study, which kept hashes only
        kept = {key: row[key] for key in ("seed", "spec_json", "environment_json")}
        connection.execute(sa.update(table).where(table.c.id == found.id).values(kept))
    return int(found.id)


def _keep(connection: Connection, table: sa.Table, row: Mapping[str, Any]) -> None:
    """Adds a document, or completes a row of which only the hash was known."""
    insert_new(connection, table, [row])
    unknown = sa.and_(table.c.sha256 == row["sha256"], table.c.name.is_(None))
    connection.execute(sa.update(table).where(unknown).values(row))


def _finish(connection: Connection, experiment_id: int, outcome: Outcome) -> None:
    table = schema.experiments
    ours = table.c.id == experiment_id
    known_s = connection.scalar(sa.select(table.c.objective_lower_bound_s).where(ours))
    bounds = [s for s in (known_s, usable(outcome.lower_bound_s)) if s is not None]
    values = {
        "finished_at_utc": utc_now(),
        "stopped_by": outcome.stopped_by,
        "num_trials": outcome.num_trials,
        "num_candidates": outcome.num_candidates,
        "search_s": usable(outcome.search_s),
        "objective_lower_bound_s": max(bounds, default=None),
    }
    connection.execute(sa.update(table).where(ours).values(values))
