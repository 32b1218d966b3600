"""Which of a problem's costs each of given groups takes."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np

from autoplan.gradsync import kernels
from autoplan.gradsync.edges import Seconds, valued
from autoplan.gradsync.paths import labelled
from autoplan.gradsync.problem import GroupingProblem, Groups, LimitsError
from autoplan.gradsync.timing import time_groups

Choices = tuple[int, ...]
"""For each group, which of the problem's costs it takes."""

_COMBINATIONS = 4096


def choose_costs(problem: GroupingProblem, groups: Groups) -> Choices:
    """The costs with which given groups end earliest within `max_memory_bytes`; ties: less compute.

    Exact where the groups are sent in the order in which they are ready, or where there are few
    combinations; else no single group can change its cost for the better.

    Args:
        problem: gradients, costs and limits; the other limits are not looked at.
        groups: every layer once; contiguous or not.

    Raises:
        InputError: no choice keeps the memory; a cost is not a number of seconds.
    """
    if len(problem.costs) == 1:
        return (0,) * len(groups)
    sent = [g for g, group in enumerate(groups) if problem.group_elements(group) > 0]
    first = [min(groups[g]) for g in sent]
    if any(later > earlier for earlier, later in pairwise(first)):
        return _searched(problem, groups, sent)
    found = _chain_options(problem, [groups[g] for g in sent], len(groups) - 1 in sent)
    choices = [0] * len(groups)
    for g, choice in zip(sent, found, strict=True):
        choices[g] = choice
    return tuple(choices)


def _chain_options(
    problem: GroupingProblem, groups: list[tuple[int, ...]], to_the_end: bool
) -> list[int]:
    """Best options of groups that are sent as they get ready: a path without branches.

    No backward goes on beside the last of them if they go to the end.
    """
    size, options = len(groups) + 2, len(problem.costs)
    sizes = np.array([problem.group_elements(group) for group in groups], dtype=np.float64)
    delay_OES, later_OES, memory_OES = (np.zeros((options, size, size)) for _ in range(3))
    link_OES = np.full((options, size, size), np.inf)
    start = np.arange(len(groups))
    for o, cost in enumerate(problem.costs):
        link_OES[o, start + 1, start] = valued("communicate", cost.communicate, sizes)
        if cost.sparsify is not None:
            delay_OES[o, start + 1, start] = valued("sparsify", cost.sparsify, sizes)
        later_OES[o] = delay_OES[o]
        if cost.handling is not None:
            beside = start[:-1] if to_the_end else start
            handled = valued("handling", cost.handling, sizes[beside])
            later_OES[o, beside + 1, beside] += handled
        memory_OES[o, start + 1, start] = [problem.memory_bytes(group, o) for group in groups]
    link_OES[0, size - 1, size - 2] = 0.0
    done = np.concatenate(([0.0], np.cumsum(np.array(problem.backward_s[::-1], dtype=float))))
    closing = [problem.num_layers - min(group) for group in groups]
    ready_s = done[[0, *closing, problem.num_layers]]
    cap = problem.limits.max_memory_bytes
    memory_OES = np.where(link_OES < math.inf, memory_OES, math.inf)
    seconds = Seconds(delay_OES, later_OES, link_OES)
    path = labelled(ready_s, seconds, memory_OES, (cap, math.inf))
    if path is None:
        least = f"at least {kernels.least_to_go(memory_OES)[0]:g} bytes for these groups"
        raise LimitsError("max_memory_bytes", cap, least)
    return path[1][:-1]


def _searched(problem: GroupingProblem, groups: Groups, sent: list[int]) -> Choices:
    """For groups that overtake each other: all combinations, or one change after the other."""
    cap = problem.limits.max_memory_bytes

    def key(choices: Choices) -> tuple[float, float, float]:
        kept = sum(problem.memory_bytes(*each) for each in zip(groups, choices, strict=True))
        timing = time_groups(problem, groups, choices)
        return max(0.0, kept - cap), timing.finish_s, timing.compute_s

    def with_options(changes: tuple[tuple[int, int], ...], base: Choices) -> Choices:
        changed = dict(changes)
        return tuple(changed.get(g, choice) for g, choice in enumerate(base))

    options = range(len(problem.costs))
    plain: Choices = (0,) * len(groups)
    if len(options) ** len(sent) <= _COMBINATIONS:
        every = product(options, repeat=len(sent))
        best = min(
            (with_options(tuple(zip(sent, each, strict=True)), plain) for each in every), key=key
        )
    else:
        best = min(((o,) * len(groups) for o in options), key=key)
        found = key(best)
        while True:
            single = (with_options(((g, o),), best) for g in sent for o in options)
            better = min(single, key=key)
            if key(better) >= found:
                break
            best, found = better, key(better)
    if key(best)[0] > 0:
        raise LimitsError("max_memory_bytes", cap, "enough for these groups")
    return best
