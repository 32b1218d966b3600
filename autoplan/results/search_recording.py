"""Lets a search tell what it finds to the experiment database."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType

from sqlalchemy.engine import Connection

from autoplan.results.recorder import Outcome, SearchRecorder, SpooledError
from autoplan.results.rows import ScoredPlan
from autoplan.search.experiment import Experiment
from autoplan.search.recording import Found, RunEnd
from autoplan.storage.url import Storage

_LOGGER = logging.getLogger(__name__)


class SearchRecording:
    """A `Recording` that writes rows; while the database is away, plans wait in a file."""

    def __init__(self, recorder: SearchRecorder) -> None:
        """Takes the recorder over."""
        self._recorder = recorder

    def begin(self) -> None:
        """Keeps other drivers out of the study; raises StudyBusyError and StorageError."""
        self._recorder.begin()

    def guard(self, connection: Connection) -> None:
        """Lets a transaction end only while the study is this search's; raises TakenOverError."""
        self._recorder.lease.guard(connection)

    def add(self, found: Sequence[Found]) -> None:
        """Adds a batch; raises TakenOverError, and StorageError where it can be kept nowhere."""
        if not found:
            self._recorder.lease.check()
            return
        try:
            self._recorder.scores([_row(each) for each in found])
        except SpooledError as error:
            _LOGGER.warning("%s", error)

    def finish(self, end: RunEnd) -> None:
        """Records how a run ended; raises TakenOverError and StorageError."""
        self._recorder.finish(
            Outcome(
                stopped_by=end.stopped_by,
                num_trials=end.num_trials,
                num_candidates=end.num_candidates,
                search_s=end.search_s,
                lower_bound_s=end.lower_bound,
            )
        )

    def __enter__(self) -> SearchRecording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recorder.close()


def open_recording(
    storage: Storage, experiment: Experiment, study: str | None, seed: int
) -> SearchRecording:
    """Opens the database for one search.

    Args:
        storage: where it is.
        experiment: what is planned.
        study: name of the study and of the experiment in the database; by default its own.
        seed: of the search.

    Raises:
        InputError: the name belongs to another experiment.
        StorageError: the database cannot be used.
    """
    recorder = SearchRecorder.open(storage, experiment, name=study, seed=seed, merge=False)
    return SearchRecording(recorder)


def _row(found: Found) -> ScoredPlan:
    return ScoredPlan.of_score(
        found.plan,
        found.score,
        value_s=found.value,
        proposed_by=found.proposed_by,
        island=found.island,
        trial_number=found.trial_number,
    )
