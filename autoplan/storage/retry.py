"""Bounded retries of database work that failed for a reason that passes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autoplan.errors import require

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long work is tried again, with growing random waits between."""

    budget_s: float = 60.0
    """Seconds from the first try after which no other one starts."""
    first_wait_s: float = 0.05
    """Longest wait after the first failure; it doubles with each."""
    longest_wait_s: float = 2.0

    def __post_init__(self) -> None:
        """Refuses waits that are not finite."""
        for name in ("budget_s", "first_wait_s", "longest_wait_s"):
            value = getattr(self, name)
            sound = math.isfinite(value) and value >= 0
            require(sound, name, value, "a finite number of at least 0")

    def run(self, work: Callable[[], T], passes: Callable[[Exception], bool]) -> T:
        """Calls `work` until it succeeds.

        Args:
            work: may be called several times, so it must be harmless to repeat.
            passes: whether an error is worth another try.

        Raises:
            Exception: the last error of `work`, when it does not pass or the budget is used up.
        """
        deadline_s = time.monotonic() + self.budget_s
        wait_s = self.first_wait_s
        while True:
            try:
                return work()
            except Exception as error:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not passes(error):
                    raise
            # Jitter keeps several programs from coming back at the same moment.
            time.sleep(min(left_s, random.uniform(wait_s / 2, wait_s)))
            wait_s = min(2 * wait_s, self.longest_wait_s)


DEFAULT_RETRY = RetryPolicy()
