"""The optimum behind the protocol of policies."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.gradsync.exact import exact_grouping
from autoplan.gradsync.problem import GroupingProblem, Groups


@dataclass(frozen=True, slots=True)
class Exact:
    """The grouping that ends earliest of all that are contiguous and keep the limits."""

    def groups(self, problem: GroupingProblem) -> Groups:
        """Groups of an optimal grouping; the number formats of layers do not matter to it."""
        return exact_grouping(problem)[0]
