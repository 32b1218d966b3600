"""MGS: merged gradient sparsification, as published and with its known defects corrected."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.gradsync.policies.limits import keep_limits
from autoplan.gradsync.policies.parameters import (
    backward_between_s,
    layers_with_gradients,
    with_empty_layers,
)
from autoplan.gradsync.problem import GroupCost, GroupingProblem, Groups
from autoplan.gradsync.timing import priced


@dataclass(frozen=True, slots=True)
class Mgs:
    """The greedy of the released MGS code (facts/mgs.md sections 1.1 and 1.3).

    Gradients are tested from the last layer on; one joins the group before it iff waiting for it
    costs less than an exchange saves. Two defects are kept, since results under this name have
    them: the first two gradients are merged untested while the timing still counts two exchanges,
    and the top-k of the gradient that joins is subtracted from the wait. The first sparse cost of
    the problem is used, or the first; top-k takes no time where it is dense.
    """

    def groups(self, problem: GroupingProblem) -> Groups:
        """The published groups, or the nearest to them within the limits."""
        return _greedy(problem, corrected=False)


@dataclass(frozen=True, slots=True)
class MgsCorrected:
    """The same greedy with every pair tested and the time at which the merged group is ready.

    Merging moves that time from E to E' = E + backward of the next + h(x + y) - h(x), and pays
    while the link is busy iff E' - start < c(x) + c(y) - c(x + y) (facts/mgs.md section 1.3).
    """

    def groups(self, problem: GroupingProblem) -> Groups:
        """The corrected greedy's groups, or the nearest to them within the limits."""
        return _greedy(problem, corrected=True)


def _greedy(problem: GroupingProblem, *, corrected: bool) -> Groups:
    """One pass in backward order; times are those of the group that is still open."""
    sparse = [cost for cost in problem.costs if cost.sparsify is not None]
    cost = (sparse or problem.costs)[0]
    layers = layers_with_gradients(problem)
    groups: list[list[int]] = []
    compute_s = link_s = held = 0.0
    for layer, waited_s in zip(layers, backward_between_s(problem, layers), strict=True):
        # compute_s is the end of backward before this layer, without the open group's top-k.
        ready_s = compute_s + _top_k(cost, held)
        start_s = max(link_s, ready_s)
        added = problem.elements[layer]
        saved_s = _send(cost, held) + _send(cost, added) - _send(cost, held + added)
        wait_s = waited_s + _top_k(cost, held + added) - _top_k(cost, held) - (start_s - ready_s)
        if not corrected:
            wait_s -= _top_k(cost, added)
        untested = not corrected and len(groups) == 1 and len(groups[0]) == 1
        if groups and not untested and wait_s < saved_s:
            groups[-1].append(layer)
            held += added
        else:
            link_s = start_s + _send(cost, held)
            compute_s = ready_s
            held = added
            if untested:
                groups[0].append(layer)
            else:
                groups.append([layer])
        compute_s += waited_s
    return keep_limits(problem, with_empty_layers(problem, groups))


def _top_k(cost: GroupCost, elements: float) -> float:
    """Seconds to sparsify a group: h."""
    return 0.0 if cost.sparsify is None else priced("sparsify", cost.sparsify, elements)


def _send(cost: GroupCost, elements: float) -> float:
    """Seconds to exchange a group: c."""
    return priced("communicate", cost.communicate, elements)
