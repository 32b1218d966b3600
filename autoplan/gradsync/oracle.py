"""The exact groupings again, slow and readable: what the compiled kernels are tested against.

Nothing here serves in production.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from autoplan.gradsync.problem import GroupingProblem, Groups
from autoplan.gradsync.timing import time_groups


def every_grouping(problem: GroupingProblem) -> Iterator[Groups]:
    """All 2^(L-1) contiguous groupings."""
    layers = problem.num_layers
    for count in range(layers):
        for cuts in combinations(range(1, layers), count):
            yield problem.groups((*cuts, layers))


def keeps_limits(
    problem: GroupingProblem, groups: Groups, choices: Sequence[int], *, small_last: bool = False
) -> bool:
    """Whether a grouping is within the limits; `small_last` allows the last group to be small."""
    limits = problem.limits
    for g, group in enumerate(groups):
        size = problem.group_elements(group)
        if size > limits.max_elements and len(group) > 1:
            return False
        if size < limits.min_elements and not (small_last and g == len(groups) - 1):
            return False
    if limits.max_groups is not None and len(groups) > limits.max_groups:
        return False
    memory = sum(problem.memory_bytes(*each) for each in zip(groups, choices, strict=True))
    return memory <= limits.max_memory_bytes


def brute_force(problem: GroupingProblem) -> tuple[float, float] | None:
    """Least (finish, compute) in seconds over all groupings and choices within the limits.

    None if there is none. A small last group is allowed only if nothing else is within the limits.
    """
    options = range(len(problem.costs))
    for small_last in (False, True):
        found = [
            (timing.finish_s, timing.compute_s)
            for groups in every_grouping(problem)
            for choices in product(options, repeat=len(groups))
            if keeps_limits(problem, groups, choices, small_last=small_last)
            for timing in (time_groups(problem, groups, choices),)
        ]
        if found:
            return min(found)
    return None


def dense_finish_s(problem: GroupingProblem) -> float:
    """Without limits, for one dense cost: f[e] = min over s of max(f[s], ready[e]) + c(s, e).

    Groups without elements take no time and wait for nothing (facts/mgs.md section 1.5).
    """
    cost = problem.costs[0].communicate
    layers, ready = list(range(problem.num_layers))[::-1], [0.0]
    for layer in layers:
        ready.append(ready[-1] + problem.backward_s[layer])
    free = [0.0]
    for end in range(1, len(ready)):
        finishes = []
        for start in range(end):
            size = problem.group_elements(layers[start:end])
            waited = max(free[start], ready[end])
            finishes.append(waited + cost(size) if size > 0 else free[start])
        free.append(min(finishes))
    return max(free[-1], ready[-1])


@dataclass(frozen=True, slots=True)
class _Label:
    """A way to have exchanged the first layers."""

    compute: float
    link: float
    memory: float
    groups: int

    def beats(self, other: _Label) -> bool:
        """Whether it is no worse in anything."""
        return (
            self.compute <= other.compute
            and self.link <= other.link
            and self.memory <= other.memory
            and self.groups <= other.groups
        )


def pareto_finish_s(problem: GroupingProblem) -> float | None:
    """By labels that none beats, under all limits; None if nothing keeps them."""
    for small_last in (False, True):
        labels = _labels(problem, small_last)
        if labels:
            return min(max(label.compute, label.link) for label in labels)
    return None


def _labels(problem: GroupingProblem, small_last: bool) -> list[_Label]:
    """Labels after the whole of backward."""
    layers = tuple(range(problem.num_layers))[::-1]
    most = problem.limits.max_groups or len(layers)
    fronts = [[_Label(0.0, 0.0, 0.0, 0)]]
    for end in range(1, len(layers) + 1):
        reached = [
            grown
            for start in range(end)
            for choice in range(len(problem.costs))
            if _allowed(problem, layers[start:end], small_last and end == len(layers))
            for label in fronts[start]
            for last in (end == len(layers),)
            for grown in (_grown(problem, label, layers[start:end], choice, last=last),)
            if grown.memory <= problem.limits.max_memory_bytes and grown.groups <= most
        ]
        fronts.append(_unbeaten(reached))
    return fronts[-1]


def _allowed(problem: GroupingProblem, group: tuple[int, ...], may_be_small: bool) -> bool:
    """Whether the limits on elements allow a group."""
    size = problem.group_elements(group)
    fits = size <= problem.limits.max_elements or len(group) == 1
    return fits and (may_be_small or size >= problem.limits.min_elements)


def _grown(
    problem: GroupingProblem, label: _Label, group: tuple[int, ...], choice: int, *, last: bool
) -> _Label:
    """A label with one more group."""
    size, cost = problem.group_elements(group), problem.costs[choice]
    compute = label.compute + sum(problem.backward_s[layer] for layer in group)
    link = label.link
    if size > 0:
        compute += cost.sparsify(size) if cost.sparsify is not None else 0.0
        link = max(link, compute) + cost.communicate(size)
        compute += cost.handling(size) if cost.handling is not None and not last else 0.0
    memory = label.memory + problem.memory_bytes(group, choice)
    return _Label(compute, link, memory, label.groups + 1)


def _unbeaten(labels: list[_Label]) -> list[_Label]:
    """Labels that no other beats; one of those that are alike."""
    labels = sorted(labels, key=lambda each: (each.compute, each.link, each.memory, each.groups))
    kept: list[_Label] = []
    for label in labels:
        if not any(other.beats(label) for other in kept):
            kept.append(label)
    return kept
