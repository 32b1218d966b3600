"""The Optuna study of a search: proposals in memory, finished trials in the database in batches.

Writing a trial of twenty parameters one call at a time costs SQLite about 70 ms; the sampler
works on an in-memory copy, and finished trials go to the database together (facts/ecosystem.md
section 2.2).
"""

from __future__ import annotations

import datetime
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import event
from sqlalchemy.engine import Connection

from autoplan.documents import STRICT, build, plain
from autoplan.plan import Plan
from autoplan.search.experiment import require_same
from autoplan.search.layout import Layout
from autoplan.search.objective import ObjectiveName
from autoplan.search.refine import Candidate
from autoplan.search.result import Stop
from autoplan.storage.engine import require_sound
from autoplan.storage.failures import passes, storage_errors
from autoplan.storage.retry import DEFAULT_RETRY
from autoplan.storage.studies import study_errors, study_storage, wait_for_writers
from autoplan.storage.url import Storage, make_folder

IDENTITY = "autoplan:identity"
PLAN = "plan"
LAYOUT = "layout"
FIGURES = "figures"
PROPOSED_BY = "proposed_by"
ISLAND = "island"
BESIDE = "beside_the_trials"
ENDING = "autoplan:ending"
WITHOUT_ROW = "autoplan:trials_without_row:"
"""Then the run of a search: trials that it counted and did not write, since there are too many."""
ROW = "row"
"""What tells a row from all others, so that one that was written is not written again."""
CONSTRAINT = "missing_bytes"
LIMITS = "breaks_limits"
_STARTUP_TRIALS = 20
Guard = Callable[[Connection], None]
"""Raises in a transaction that is about to be committed and must not be."""
_FIRST_OBJECTIVE = {"objective": "step_time"}
"""What studies minimise that do not say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a search that is finished ended."""

    __pydantic_config__ = STRICT

    stopped_by: Stop
    trials: int
    """Of the study, all runs together."""
    lower_bound: float
    """No plan of the space has a smaller value."""
    exhaustive: bool
    """Whether every plan of the space that might be better was looked at."""


class SearchStudy:
    """A named study in a database, with the sampler's copy of it in memory."""

    def __init__(
        self,
        storage: Storage | str,
        name: str,
        identities: Mapping[str, str],
        seed: int,
        objective: ObjectiveName,
        available_bytes: float,
        guard: Guard | None = None,
    ) -> None:
        """Opens or creates the study.

        Args:
            storage: a SQLAlchemy URL.
            name: the study's name.
            identities: what tells experiments apart, by name.
            seed: of the sampler.
            objective: what is minimised; two figures are told apart by the sampler.
            available_bytes: memory that a plan may use on each device.
            guard: is asked before each transaction is committed.

        Raises:
            InputError: the URL is not one, or the study holds trials of another experiment.
            StorageError: the database cannot be opened.
        """
        self.storage = Storage.of(storage)
        self.name = name
        self._two = objective == "step_time_and_memory"
        self._available_bytes = available_bytes
        self._pending: list[FrozenTrial] = []
        self._run = secrets.token_hex(6)
        self._num_rows = self._num_without_row = self._num_told = 0
        self._failed = False
        """Whether the first pending row may have been written, or not."""
        self._asked_s = time.monotonic()
        directions = [StudyDirection.MINIMIZE] * (2 if self._two else 1)
        logging.getLogger("optuna").setLevel(logging.ERROR)
        make_folder(self.storage)
        require_sound(self.storage)
        self._database = study_storage(self.storage)
        if guard is not None:
            event.listen(self._database.engine, "commit", guard)
        with study_errors(self.storage):
            attributes, earlier = DEFAULT_RETRY.run(
                lambda: self._open(directions, dict(identities)), passes
            )
        counts = [n for name, n in attributes.items() if name.startswith(WITHOUT_ROW)]
        self._num_earlier_without_row = sum(n for n in counts if isinstance(n, int))
        self.ending = _ending_in(attributes, self.shown_storage)
        """How the search ended, where an earlier run finished it."""
        self.num_earlier = len(earlier)
        # Trials without parameters hold plans that no proposal led to; the sampler must not see
        # them, since it models the parameters that all trials have in common.
        self._found = [trial for trial in earlier if not trial.params]
        sampler = optuna.samplers.TPESampler(
            seed=(seed + self.num_earlier) % 2**32, n_startup_trials=_STARTUP_TRIALS
        )
        self._memory = optuna.create_study(directions=directions, sampler=sampler)
        self._memory.add_trials([trial for trial in earlier if trial.params])

    @property
    def shown_storage(self) -> str:
        """The database's URL without its password."""
        return self.storage.shown

    @property
    def num_trials(self) -> int:
        """Finished trials, earlier runs included."""
        rows = sum(BESIDE not in trial.user_attrs for trial in self._finished())
        return rows + self._num_earlier_without_row + self._num_without_row

    @property
    def proposals(self) -> list[FrozenTrial]:
        """Finished proposals, for other samplers to learn from."""
        return self._memory.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    def earlier(self) -> Iterator[tuple[Layout, Plan]]:
        """Layouts and plans of the feasible trials of earlier runs, best first.

        Raises:
            InputError: what the database holds is not a layout, or not a plan.
        """
        trials = [
            trial
            for trial in self._finished()
            if LAYOUT in trial.user_attrs and all(v <= 0 for v in trial.constraints.values())
        ]
        source = self.shown_storage
        for trial in sorted(trials, key=lambda trial: trial.values):
            layout = build(Layout, trial.user_attrs[LAYOUT], source, LAYOUT)
            yield layout, build(Plan, trial.user_attrs[PLAN], source, PLAN)

    def propose_first(self, parameters: Mapping[str, Any], name: str) -> None:
        """Queues a proposal ahead of the sampler's own."""
        self._memory.enqueue_trial(dict(parameters), user_attrs={PROPOSED_BY: name})

    def ask(self) -> Trial:
        """The next proposal."""
        self._asked_s = time.monotonic()
        return self._memory.ask()

    def tell(self, trial: Trial, refined: Candidate) -> None:
        """Records what a trial led to; it reaches the database with the next `flush`."""
        for name, violation in self._violations(refined).items():
            trial.set_constraint(name, violation)
        for name, value in (_attributes(refined) | self._row()).items():
            trial.set_user_attr(name, value)
        told = self._memory.tell(trial, self._values(refined))
        # The wall clock may have been set back since.
        took = datetime.timedelta(seconds=time.monotonic() - self._asked_s)
        told.datetime_complete = told.datetime_start and told.datetime_start + took
        self._pending.append(told)

    def record(
        self,
        found: Candidate,
        name: str,
        *,
        island: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
        counted: bool = True,
    ) -> None:
        """Records a plan that was found without a proposal of ours, as a trial.

        Args:
            found: the plan.
            name: how it was found.
            island: which one found it.
            parameters: of the proposal, where another sampler made one.
            distributions: of the parameters.
            counted: whether it is one of the search's trials, or a row beside them.
        """
        attributes: dict[str, Any] = {PROPOSED_BY: name, **_attributes(found), **self._row()}
        attributes |= {} if island is None else {ISLAND: island}
        attributes |= {} if counted else {BESIDE: True}
        trial = optuna.trial.create_trial(
            params=dict(parameters or {}),
            distributions=dict(distributions or {}),
            values=self._values(found),
            user_attrs=attributes,
            constraints=self._violations(found),
        )
        self._found.append(trial)
        self._pending.append(trial)

    def count(self, trials: int) -> None:
        """Counts trials that are finished and get no row."""
        self._num_without_row += trials

    def drop(self, trial: Trial, reason: str) -> None:
        """Records a trial that has no usable figure, so that the sampler does not learn from it."""
        trial.set_user_attr("reason", reason)
        self._memory.tell(trial, state=TrialState.FAIL)

    def flush(self) -> None:
        """Writes the trials that are finished since the last flush.

        Raises:
            StorageError: the database cannot be written.
        """
        with storage_errors(self.storage):
            DEFAULT_RETRY.run(self._write_pending, passes)

    def finish(self, ending: Ending) -> None:
        """Writes what is left, and how the search ended; raises StorageError like `flush`."""
        self.flush()
        if ending != self.ending:
            self.ending = ending
            value = plain(ending)
            with storage_errors(self.storage):
                DEFAULT_RETRY.run(lambda: self._persisted.set_user_attr(ENDING, value), passes)

    def _write_pending(self) -> None:
        """Writes rows one by one, then the count of the others; harmless to repeat."""
        while self._pending:
            row = self._pending[0].user_attrs[ROW]
            if not (self._failed and self._is_written(row)):
                self._failed = True
                self._persisted.add_trial(self._pending[0])
            self._failed = False
            del self._pending[0]
        if self._num_told != self._num_without_row:
            count = self._num_without_row
            self._persisted.set_user_attr(WITHOUT_ROW + self._run, count)
            self._num_told = count

    def _is_written(self, row: str) -> bool:
        """Whether a write that failed, or was interrupted, has reached the database all the same.

        A connection can be lost after the database has committed.
        """
        wait_for_writers(self._database, self.name)
        trials = self._persisted.get_trials(deepcopy=False)
        return any(trial.user_attrs.get(ROW) == row for trial in trials)

    def _row(self) -> dict[str, str]:
        """The mark of the next row."""
        self._num_rows += 1
        return {ROW: f"{self._run}-{self._num_rows}"}

    def _finished(self) -> list[FrozenTrial]:
        """All finished trials."""
        proposed = self._memory.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return proposed + self._found

    def _open(
        self, directions: list[StudyDirection], identities: dict[str, str]
    ) -> tuple[dict[str, Any], list[FrozenTrial]]:
        """Opens or creates the study and marks it; its attributes and finished trials."""
        self._persisted = optuna.create_study(
            storage=self._database,
            study_name=self.name,
            directions=directions,
            load_if_exists=True,
        )
        self._claim(identities)
        finished = self._persisted.get_trials(states=(TrialState.COMPLETE,))
        return self._persisted.user_attrs, finished

    def _claim(self, identities: dict[str, str]) -> None:
        """Marks a new study with its experiment; refuses one of another experiment."""
        found = self._persisted.user_attrs.get(IDENTITY)
        if found is None:
            self._persisted.set_user_attr(IDENTITY, identities)
            return
        require_same(self.name, _FIRST_OBJECTIVE | found, identities, self.shown_storage)

    def _values(self, candidate: Candidate) -> list[float]:
        """What the sampler minimises."""
        score = candidate.score
        return [score.step_s, score.peak_bytes] if self._two else [candidate.value]

    def _violations(self, candidate: Candidate) -> dict[str, float]:
        """What makes a plan infeasible, by name; 0 where it does not."""
        return violations_of(candidate, self._available_bytes)


def ending_of(storage: Storage, name: str) -> Ending | None:
    """How the search of a study ended; None where it is not finished, or there is no such study.

    Raises:
        StorageError: the database cannot be read.
    """
    with study_errors(storage):
        try:
            attributes = DEFAULT_RETRY.run(
                lambda: (
                    optuna.load_study(study_name=name, storage=study_storage(storage)).user_attrs
                ),
                passes,
            )
        except KeyError:
            return None
    return _ending_in(attributes, storage.shown)


def _ending_in(attributes: Mapping[str, Any], shown: str) -> Ending | None:
    found = attributes.get(ENDING)
    return None if found is None else build(Ending, found, shown, ENDING)


def violations_of(candidate: Candidate, available_bytes: float) -> dict[str, float]:
    """What makes a plan infeasible, by name; 0 where it does not."""
    score = candidate.score
    missing_bytes = max(0.0, score.peak_bytes - available_bytes)
    return {CONSTRAINT: missing_bytes, LIMITS: float(not score.keeps_limits)}


def _attributes(candidate: Candidate) -> dict[str, Any]:
    """What is kept of a plan beside its values."""
    score = candidate.score
    return {
        PLAN: plain(candidate.plan),
        LAYOUT: plain(candidate.layout),
        FIGURES: {
            "step_s": score.step_s,
            "max_load_s": score.max_load_s,
            "num_devices": score.num_devices,
            "peak_bytes": score.peak_bytes,
        },
    }
