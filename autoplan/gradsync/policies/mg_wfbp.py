"""MG-WFBP: one pass over neighbouring gradients, for dense exchanges, as published."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.gradsync.policies.limits import keep_limits
from autoplan.gradsync.policies.parameters import (
    backward_between_s,
    layers_with_gradients,
    with_empty_layers,
)
from autoplan.gradsync.problem import GroupingProblem, Groups
from autoplan.gradsync.timing import priced


@dataclass(frozen=True, slots=True)
class MgWfbp:
    """MG-WFBP's greedy (facts/mgs.md section 1.2): merge while waiting costs less than a start-up.

    With R the time at which a gradient is ready, s the start and T the seconds of the group so
    far, the next gradient joins iff R < s + T and (s > R or R - s < alpha). alpha is what the pair
    saves, T(x) + T(y) - T(x + y), which for affine costs is their start-up. The first dense cost
    of the problem is used, or the first; sparsification is unknown to the rule and ignored.
    """

    def groups(self, problem: GroupingProblem) -> Groups:
        """MG-WFBP's groups, or the nearest to them within the limits."""
        dense = [cost for cost in problem.costs if cost.sparsify is None]
        cost = (dense or problem.costs)[0].communicate
        layers = layers_with_gradients(problem)
        groups: list[list[int]] = []
        ready_s = start_s = link_s = held = 0.0
        for layer, waited_s in zip(layers, backward_between_s(problem, layers), strict=True):
            ready_s += waited_s
            added = problem.elements[layer]
            seconds = priced("communicate", cost, held)
            saved_s = (
                seconds
                + priced("communicate", cost, added)
                - priced("communicate", cost, held + added)
            )
            joins = start_s > ready_s or ready_s - start_s < saved_s
            if groups and ready_s < start_s + seconds and joins:
                groups[-1].append(layer)
                held += added
            else:
                link_s = start_s + seconds
                groups.append([layer])
                held = added
            start_s = max(link_s, ready_s)
        return keep_limits(problem, with_empty_layers(problem, groups))
