"""When gradients are exchanged, and in which groups: timing, policies, the exact optimum."""

from autoplan.gradsync.grouping import Grouping, group, group_problem
from autoplan.gradsync.policies import POLICIES, Policy, policy_named
from autoplan.gradsync.problem import (
    GroupCost,
    GroupingProblem,
    GroupLimits,
    LimitsError,
)
from autoplan.gradsync.timing import Timing, time_groups

__all__ = [
    "POLICIES",
    "GroupCost",
    "GroupLimits",
    "Grouping",
    "GroupingProblem",
    "LimitsError",
    "Policy",
    "Timing",
    "group",
    "group_problem",
    "policy_named",
    "time_groups",
]
