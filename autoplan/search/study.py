"""The Optuna study of a search: proposals in memory, finished trials in the database in batches.

Writing a trial of twenty parameters one call at a time costs SQLite about 70 ms; the sampler
works on an in-memory copy, and finished trials go to the database together (facts/ecosystem.md
section 2.2).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.trial import FrozenTrial, Trial, TrialState

from autoplan.documents import build, plain
from autoplan.errors import InputError, StorageError, words
from autoplan.search.layout import Layout
from autoplan.search.refine import Candidate

IDENTITY = "autoplan:identity"
PLAN = "plan"
LAYOUT = "layout"
PROPOSED_BY = "proposed_by"
CONSTRAINT = "missing_bytes"
LIMITS = "breaks_limits"
_STARTUP_TRIALS = 20


class SearchStudy:
    """A named study in a database, with the sampler's copy of it in memory."""

    def __init__(self, storage: str, name: str, identities: Mapping[str, str], seed: int) -> None:
        """Opens or creates the study.

        Args:
            storage: a SQLAlchemy URL.
            name: the study's name.
            identities: sha256 of each part of the experiment, by name.
            seed: of the sampler.

        Raises:
            InputError: the URL is not one, or the study holds trials of another experiment.
            StorageError: the database cannot be opened.
        """
        self.url = _parsed(storage)
        self.name = name
        self._pending: list[FrozenTrial] = []
        logging.getLogger("optuna").setLevel(logging.ERROR)
        with self._storage_errors():
            _make_folder(self.url)
            database = optuna.storages.RDBStorage(storage)
            self._persisted = optuna.create_study(
                storage=database, study_name=name, direction="minimize", load_if_exists=True
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
        self._memory = optuna.create_study(direction="minimize", sampler=sampler)
        self._memory.add_trials([trial for trial in earlier if trial.params])

    @property
    def shown_storage(self) -> str:
        """The database's URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @property
    def num_trials(self) -> int:
        """Finished trials, earlier runs included."""
        return len(self._finished())

    def earlier_layouts(self) -> list[Layout]:
        """Layouts of the feasible trials of earlier runs, best first.

        Raises:
            InputError: what the database holds is not a layout.
        """
        trials = [
            trial
            for trial in self._finished()
            if LAYOUT in trial.user_attrs and all(v <= 0 for v in trial.constraints.values())
        ]
        trials.sort(key=lambda trial: trial.value or 0.0)
        source = self.shown_storage
        return [build(Layout, trial.user_attrs[LAYOUT], source) for trial in trials]

    def propose_first(self, parameters: Mapping[str, Any], name: str) -> None:
        """Queues a proposal ahead of the sampler's own."""
        self._memory.enqueue_trial(dict(parameters), user_attrs={PROPOSED_BY: name})

    def ask(self) -> Trial:
        """The next proposal."""
        return self._memory.ask()

    def tell(self, trial: Trial, refined: Candidate) -> None:
        """Records what a trial led to; it reaches the database with the next `flush`."""
        for name, violation in _violations(refined).items():
            trial.set_constraint(name, violation)
        trial.set_user_attr(PLAN, plain(refined.plan))
        trial.set_user_attr(LAYOUT, plain(refined.layout))
        self._pending.append(self._memory.tell(trial, refined.score.step_s))

    def record(self, found: Candidate, name: str) -> None:
        """Records a plan that was found without a proposal, as a trial without parameters."""
        trial = optuna.trial.create_trial(
            value=found.score.step_s,
            user_attrs={
                PROPOSED_BY: name,
                PLAN: plain(found.plan),
                LAYOUT: plain(found.layout),
            },
            constraints=_violations(found),
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
        with self._storage_errors():
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
        changed = [part for part, sha in identities.items() if found.get(part) != sha]
        if changed:
            allowed = (
                f"the experiment that this study was started with ({', '.join(changed)} changed); "
                f"give --study another name to start afresh"
            )
            raise InputError("study", self.name, allowed, source=self.shown_storage)

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Turns database errors into ours, without the URL's password."""
        try:
            yield
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
            reason = str(getattr(error, "orig", None) or error.__cause__ or error).splitlines()[0]
            raise StorageError(
                f"{self.shown_storage}: {_without_password(reason, self.url)}"
            ) from None
        except ImportError as error:
            allowed = "a database whose driver is installed (pip install 'autoplan[postgres]')"
            raise InputError("storage", self.shown_storage + f" ({error})", allowed) from None


def _violations(candidate: Candidate) -> dict[str, float]:
    """What makes a plan infeasible, by name; 0 where it does not."""
    score = candidate.score
    return {CONSTRAINT: score.missing_bytes, LIMITS: float(not score.keeps_limits)}


def _parsed(storage: str) -> sqlalchemy.URL:
    """The URL of a storage, or an InputError that does not show a password."""
    try:
        url = sqlalchemy.engine.make_url(storage)
        url.get_dialect()
    except (sqlalchemy.exc.ArgumentError, ValueError):
        scheme = storage.split("://")[0] + "://..." if "://" in storage else storage
        allowed = "a database URL such as sqlite:///study.db or postgresql+psycopg://user@host/name"
        raise InputError("storage", scheme, allowed) from None
    return url


def _make_folder(url: sqlalchemy.URL) -> None:
    """Makes the folder of a SQLite file."""
    if url.get_backend_name() == "sqlite" and url.database:
        try:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            allowed = "a database in a folder that exists or can be made"
            found = words(f"{url.database} ({error.strerror})")
            raise InputError("storage", found, allowed) from None


def _without_password(text: str, url: sqlalchemy.URL) -> str:
    return text.replace(str(url.password), "***") if url.password else text
