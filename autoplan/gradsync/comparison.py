"""Every policy on the same gradients, and how much the best grouping depends on the link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.gradsync.exact import exact_grouping, lower_bound_s
from autoplan.gradsync.grouping import Grouping, group_problem
from autoplan.gradsync.policies import POLICIES, policy_named
from autoplan.gradsync.problem import GroupingProblem
from autoplan.gradsync.timing import time_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What becomes of the best grouping if the link is not what it was taken for."""

    num_groups: int
    """Groups that are best on the other link."""
    finish_s: float
    """When they end on that link."""
    regret: float
    """How much later than its own optimum that link ends with the nominal link's groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All policies on one problem, the exact optimum among them."""

    groupings: Mapping[str, Grouping]
    """By policy, in the order of POLICIES."""
    lower_bound_s: float
    """No contiguous grouping ends earlier."""
    compute_s: float
    """Backward alone: what the end would be if exchanging were free."""
    sensitivities: Mapping[str, Sensitivity]
    """By what is off."""

    @property
    def best_s(self) -> float:
        """End of the exact optimum."""
        return self.groupings["exact"].finish_s

    def gap(self, policy: str) -> float:
        """How much later than the optimum a policy ends, as a share."""
        best_s = self.best_s
        return self.groupings[policy].finish_s / best_s - 1 if best_s > 0 else 0.0

    def nothing_to_gain(self, noise: float) -> bool:
        """Whether no policy ends later than the optimum by more than a share of noise."""
        return all(self.gap(policy) <= noise for policy in self.groupings)


def compare(
    problem: GroupingProblem,
    variants: Mapping[str, GroupingProblem],
    *,
    cap_bytes: float | None = None,
) -> Comparison:
    """Groups the same gradients by every policy.

    Args:
        problem: the gradients and the link as it is believed to be.
        variants: the same gradients on links that are off, by what is off.
        cap_bytes: cap of the policies that have one; their own defaults by default.

    Raises:
        InputError: the problem's limits contradict each other.
    """
    options = {} if cap_bytes is None else {"cap_bytes": cap_bytes}
    element_bytes = problem.bytes_per_element
    groupings: dict[str, Grouping] = {
        name: group_problem(problem, policy_named(name, bytes_per_element=element_bytes, **options))
        for name in POLICIES
    }
    groups, choices = exact_grouping(problem)
    sensitivities = {}
    for what, variant in variants.items():
        best_groups, best_choices = exact_grouping(variant)
        best_s = time_groups(variant, best_groups, best_choices).finish_s
        kept_s = time_groups(variant, groups, choices).finish_s
        sensitivities[what] = Sensitivity(
            num_groups=len(best_groups),
            finish_s=best_s,
            regret=kept_s / best_s - 1 if best_s > 0 else 0.0,
        )
    return Comparison(
        groupings=groupings,
        lower_bound_s=lower_bound_s(problem),
        compute_s=float(sum(problem.backward_s)),
        sensitivities=sensitivities,
    )
