"""When gradients are exchanged, and in which groups: timing, policies, the exact optimum."""

from autoplan.gradsync.grouping import POLICIES, Grouping, group
from autoplan.gradsync.problem import GroupingProblem, finish_s

__all__ = ["POLICIES", "Grouping", "GroupingProblem", "finish_s", "group"]
