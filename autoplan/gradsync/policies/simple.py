"""The two ends of the scale: every layer alone, and everything together."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.gradsync.policies.limits import keep_limits
from autoplan.gradsync.problem import GroupingProblem, Groups


@dataclass(frozen=True, slots=True)
class Layerwise:
    """Every layer alone, as wait-free backpropagation sends them."""

    def groups(self, problem: GroupingProblem) -> Groups:
        """One group per layer, or the nearest to that within the limits."""
        return keep_limits(problem, problem.groups(range(1, problem.num_layers + 1)))


@dataclass(frozen=True, slots=True)
class Single:
    """All layers in one group, sent after backward."""

    def groups(self, problem: GroupingProblem) -> Groups:
        """One group, or as few as the limits allow."""
        return keep_limits(problem, problem.groups([problem.num_layers]))
