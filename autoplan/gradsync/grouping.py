"""One function that groups gradients by any policy, and tells what that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.gradsync.exact import choose_costs
from autoplan.gradsync.policies import Policy, policy_named
from autoplan.gradsync.problem import Cost, GroupCost, GroupingProblem, GroupLimits, Groups
from autoplan.gradsync.timing import Timing, time_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """A grouping and how it runs."""

    groups: Groups
    """Layer indices of each group, in backward order."""
    densities: tuple[float, ...]
    """Share of each group's elements that is sent: 1.0 is dense; 0.0 where the caller of `group`
    keeps the share to itself, inside its costs."""
    timing: Timing
    """When what happens."""

    @property
    def finish_s(self) -> float:
        """Seconds from the start of backward to the end of the last group, or of compute."""
        return self.timing.finish_s


def group(
    backward_s: Sequence[float],
    elements: Sequence[float],
    *,
    sparsify: Cost | None = None,
    communicate: Cost,
    policy: str | Policy = "exact",
    limits: GroupLimits | None = None,
) -> Grouping:
    """Groups the gradients of one backward pass.

    Args:
        backward_s: seconds of each layer's backward, in forward order.
        elements: gradient elements of each layer, in forward order.
        sparsify: seconds to sparsify a group of so many elements; None for dense groups.
        communicate: seconds to exchange a group of so many elements.
        policy: a name of `policies.POLICIES`, or a Policy.
        limits: what the grouping must keep to; nothing by default.

    Raises:
        InputError: figures that do not match, are negative or not finite; an unknown policy;
            limits that contradict each other.
    """
    density = 1.0 if sparsify is None else 0.0
    cost = GroupCost(communicate=communicate, sparsify=sparsify, density=density)
    problem = GroupingProblem(
        backward_s=backward_s,
        elements=elements,
        costs=(cost,),
        limits=limits or GroupLimits(),
    )
    return group_problem(problem, policy_named(policy) if isinstance(policy, str) else policy)


def group_problem(problem: GroupingProblem, policy: Policy) -> Grouping:
    """Groups by a policy, then gives each group the costs that end the whole earliest.

    Raises:
        InputError: limits that contradict each other, or a cost that is not a number of seconds.
    """
    groups = policy.groups(problem)
    choices = choose_costs(problem, groups)
    return Grouping(
        groups=groups,
        densities=tuple(problem.costs[choice].density for choice in choices),
        timing=time_groups(problem, groups, choices),
    )
