"""What a search hands to whoever keeps its results: the interface of an experiment database.

The search itself needs only its study; what it tells here may be told twice, and must be kept once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autoplan.plan import Plan
from autoplan.predict import Score


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
    """Keeps what a search finds. Only the driver calls it."""

    def add(self, found: Sequence[Found]) -> None:
        """Keeps a batch, all or none; plans that are there already stay as they are.

        Raises:
            StorageError: the batch is kept nowhere.
        """

    def finish(self, end: RunEnd) -> None:
        """Keeps how the run ended; raises StorageError where it cannot."""
