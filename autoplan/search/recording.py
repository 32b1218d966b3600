"""What a search hands to whoever keeps its results: the interface of an experiment database.

The search itself needs only its study; what it tells here may be told twice, and must be kept once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autoplan.errors import AutoplanError, InputError
from autoplan.plan import Plan
from autoplan.predict import Score

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


OUTSIDE = " (outside the space)"
"""What `Found.proposed_by` ends in for a default that the search's space excludes."""


class StudyBusyError(InputError):
    """Another driver searches the study."""


class TakenOverError(AutoplanError):
    """Another driver has taken the study over, since this one did not show that it lives."""

    exit_code = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan that a search scored."""

    plan: Plan
    score: Score
    value: float
    """What the objective makes of the score."""
    proposed_by: str
    """How it was found, such as "sweep", "sampler" or the name of a default."""
    island: int | None = None
    trial_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How one run of a search ended."""

    stopped_by: str
    num_trials: int
    """Of the study, earlier runs included."""
    num_candidates: int
    search_s: float
    lower_bound: float
    """No plan of the space has a smaller value."""


class Recording(Protocol):
    """Keeps what a search finds, and other drivers out. Only the driver calls it."""

    def begin(self) -> None:
        """Makes the study this search's own, before the study is read.

        Raises:
            StudyBusyError: it is another driver's.
            StorageError: that cannot be known.
        """

    def guard(self, connection: Connection) -> None:
        """Called before a transaction that writes the study is committed.

        Raises:
            TakenOverError: the study is another driver's now.
        """

    def add(self, found: Sequence[Found]) -> None:
        """Keeps a batch, all or none; plans that are there already stay as they are.

        An empty batch only asks whether the study is still this search's.

        Raises:
            TakenOverError: the study is another driver's now.
            StorageError: the batch is kept nowhere.
        """

    def finish(self, end: RunEnd) -> None:
        """Keeps how the run ended; raises TakenOverError, and StorageError where it cannot."""
