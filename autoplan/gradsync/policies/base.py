"""What a grouping policy is."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from autoplan.gradsync.problem import GroupingProblem, Groups


class Policy(Hashable, Protocol):
    """Decides which gradients are exchanged together; equal settings make equal policies."""

    def groups(self, problem: GroupingProblem) -> Groups:
        """Every layer in one group each, within the problem's limits.

        Raises:
            InputError: the limits contradict each other.
        """
