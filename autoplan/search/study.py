"""The Optuna study of a search: proposals in memory, finished trials in the database in batches.

Writing a trial of twenty parameters one call at a time costs SQLite about 70 ms; the sampler
works on an in-memory copy, and finished trials go to the database together (facts/ecosystem.md
section 2.2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from autoplan.documents import build, plain
from autoplan.errors import InputError
from autoplan.plan import Plan
from autoplan.search.layout import Layout
from autoplan.search.objective import ObjectiveName
from autoplan.search.refine import Candidate
from autoplan.storage.engine import require_sound
from autoplan.storage.failures import passes, storage_errors
from autoplan.storage.retry import DEFAULT_RETRY
from autoplan.storage.studies import study_storage
from autoplan.storage.url import Storage, make_folder

IDENTITY = "autoplan:identity"
PLAN = "plan"
LAYOUT = "layout"
FIGURES = "figures"
PROPOSED_BY = "proposed_by"
CONSTRAINT = "missing_bytes"
LIMITS = "breaks_limits"
_STARTUP_TRIALS = 20
_FIRST_OBJECTIVE = {"objective": "step_time"}
"""What studies minimise that do not say so."""


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
    ) -> None:
        """Opens or creates the study.

        Args:
            storage: a SQLAlchemy URL.
            name: the study's name.
            identities: what tells experiments apart, by name.
            seed: of the sampler.
            objective: what is minimised; two figures are told apart by the sampler.
            available_bytes: memory that a plan may use on each device.

        Raises:
            InputError: the URL is not one, or the study holds trials of another experiment.
            StorageError: the database cannot be opened.
        """
        self.storage = Storage.of(storage)
        self.name = name
        self._two = objective == "step_time_and_memory"
        self._available_bytes = available_bytes
        self._pending: list[FrozenTrial] = []
        directions = [optuna.study.StudyDirection.MINIMIZE] * (2 if self._two else 1)
        logging.getLogger("optuna").setLevel(logging.ERROR)
        make_folder(self.storage)
        require_sound(self.storage)
        database = study_storage(self.storage)
        with storage_errors(self.storage):
            self._persisted = optuna.create_study(
                storage=database, study_name=name, directions=directions, load_if_exists=True
            )
            self._claim(dict(identities))
            earlier = self._persisted.get_trials(states=(TrialState.COMPLETE,))
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
        return len(self._finished())

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
        return self._memory.ask()

    def tell(self, trial: Trial, refined: Candidate) -> None:
        """Records what a trial led to; it reaches the database with the next `flush`."""
        for name, violation in self._violations(refined).items():
            trial.set_constraint(name, violation)
        for name, value in _attributes(refined).items():
            trial.set_user_attr(name, value)
        self._pending.append(self._memory.tell(trial, self._values(refined)))

    def record(self, found: Candidate, name: str) -> None:
        """Records a plan that was found without a proposal, as a trial without parameters."""
        trial = optuna.trial.create_trial(
            values=self._values(found),
            user_attrs={PROPOSED_BY: name, **_attributes(found)},
            constraints=self._violations(found),
        )
        self._found.append(trial)
        self._pending.append(trial)

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

    def _write_pending(self) -> None:
        while self._pending:
            self._persisted.add_trial(self._pending[0])
            del self._pending[0]  # one by one, so that an interruption doubles none

    def _finished(self) -> list[FrozenTrial]:
        """All finished trials."""
        proposed = self._memory.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return proposed + self._found

    def _claim(self, identities: dict[str, str]) -> None:
        """Marks a new study with its experiment; refuses one of another experiment."""
        found = self._persisted.user_attrs.get(IDENTITY)
        if found is None:
            self._persisted.set_user_attr(IDENTITY, identities)
            return
        found = _FIRST_OBJECTIVE | found
        changed = [part for part, value in identities.items() if found.get(part) != value]
        if changed:
            what = f"{', '.join(changed)} changed"
            if "objective" in changed:
                what += f", the objective was {found['objective']}"
            allowed = (
                f"the experiment that this study was started with ({what}); "
                f"give --study another name to start afresh"
            )
            raise InputError("study", self.name, allowed, source=self.shown_storage)

    def _values(self, candidate: Candidate) -> list[float]:
        """What the sampler minimises."""
        score = candidate.score
        return [score.step_s, score.peak_bytes] if self._two else [candidate.value]

    def _violations(self, candidate: Candidate) -> dict[str, float]:
        """What makes a plan infeasible, by name; 0 where it does not."""
        score = candidate.score
        missing_bytes = max(0.0, score.peak_bytes - self._available_bytes)
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
