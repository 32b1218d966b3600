"""The workers of a search, as its driver sees them: asked for one thing at a time, and mortal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

SURVEYOR = -1
"""The worker that does what a search does once; the islands are 0, 1, 2, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a worker is asked for: a method of `Island` or `Surveyor`, and its arguments."""

    method: str
    arguments: tuple[Any, ...]
    limit_s: float
    """Seconds after which a worker that has not answered counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker answered."""

    worker: int
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker that will not answer."""

    worker: int
    reason: str
    died: bool
    """Whether it died, rather than that nothing was heard of it in time."""


class Crew(Protocol):
    """Workers by their numbers, each busy with one call at most."""

    def submit(self, worker: int, call: Call) -> None:
        """Asks a worker, which is started where it does not run."""

    def wait(self, seconds: float) -> Sequence[Answer | Lost]:
        """What has happened, as soon as something has, or nothing after so many seconds.

        Raises:
            Exception: what a worker raised.
        """

    def dismiss(self, worker: int) -> None:
        """Ends a worker, whatever it is doing."""

    def close(self) -> None:
        """Ends all workers; harmless to repeat."""
