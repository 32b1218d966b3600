"""The contiguous grouping that ends earliest, and a time before which none can end."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from autoplan.gradsync import kernels
from autoplan.gradsync.affine import affine_cost, affine_ends
from autoplan.gradsync.choices import Choices, choose_costs
from autoplan.gradsync.edges import Edges, Seconds, backward_nodes
from autoplan.gradsync.paths import NOTHING, Cell, Path, bound_s, joined, labelled, traced
from autoplan.gradsync.problem import GroupingProblem, GroupLimits, Groups, LimitsError

__all__ = ["choose_costs", "exact_grouping", "lower_bound_s"]

_CELLS = 4_000_000
"""Edges held at a time where rows of ends can be done one after the other."""


def exact_grouping(problem: GroupingProblem) -> tuple[Groups, Choices]:
    """The contiguous grouping that ends earliest within the problem's limits.

    Of those that end at the same time: one with the least compute, in which no two neighbours can
    be joined at no loss. A last group below `min_elements` counts as within the limits only if no
    other grouping is. Dense groups leave one state, when the link is free: O(L) if the cost is
    affine, else O(L^2); sparsified ones are paths by Pareto labels (facts/mgs.md section 1.5).

    Returns:
        The groups, and which of the problem's costs each takes.

    Raises:
        InputError: no grouping keeps the limits; a cost is not a number of seconds.
    """
    line = affine_cost(problem)
    if line is not None and problem.limits == GroupLimits():
        groups = problem.groups(affine_ends(problem, line))
        return groups, (0,) * len(groups)
    edges = Edges.of(problem)
    path = _best_path(edges)
    if path is None and problem.limits.min_elements > 0:
        edges = dataclasses.replace(edges, small_last=True)
        path = _best_path(edges)
    if path is None:
        raise _infeasible(edges)
    ends, options = path
    return problem.groups(edges.cuts[ends].tolist()), tuple(options)


def lower_bound_s(problem: GroupingProblem) -> float:
    """A time before which no contiguous grouping ends, whatever the costs and limits.

    With one affine dense cost, the greatest of ready[e] + c(elements from e on), since joining
    never lengthens what is exchanged (facts/mgs.md section 1.5). With any others, from shortest
    paths over all groups that could be: `paths.bound_s`.

    Raises:
        InputError: a cost is not a number of seconds.
    """
    free = dataclasses.replace(problem, limits=GroupLimits())
    line = affine_cost(free)
    if line is not None:
        _, ready_s, total = backward_nodes(free)
        finish_s = ready_s[1:] + line.many(total[-1] - total[:-1])
        return float(max(ready_s[-1], finish_s.max()))
    edges = Edges.of(free)
    return bound_s(edges.ready_s, edges.rows(0, edges.size))


def _best_path(edges: Edges) -> Path | None:
    """Without caps on groups and memory if that keeps them; None if nothing does."""
    limits = edges.problem.limits
    # A number too large for a float limits nothing.
    layers = edges.problem.num_layers
    most = math.inf if limits.max_groups is None else float(min(limits.max_groups, layers))
    free = math.inf, math.inf
    path, cell = _dense_path(edges) if edges.dense else _label_path(edges, free)
    if path is None:
        return None
    if limits.max_memory_bytes == math.inf:
        path = joined(path, edges.ready_s, cell)
        kept = 0.0
    else:
        memory_OES = edges.memory_bytes()
        steps = zip(*path, [0, *path[0]], strict=False)
        kept = sum(float(memory_OES[o, end, start]) for end, o, start in steps)
    if len(path[0]) <= most and kept <= limits.max_memory_bytes:
        return path
    return _label_path(edges, (limits.max_memory_bytes, most))[0]


def _dense_path(edges: Edges) -> tuple[Path | None, Cell]:
    """Rows of ends one after the other, each from the times when the link is free before."""
    size = edges.size
    free, start = np.zeros(size), np.zeros(size, dtype=np.int64)
    height = max(1, _CELLS // size)
    for first in range(0, size, height):
        seconds = edges.rows(first, min(first + height, size))
        kernels.dense_rows(edges.ready_s, seconds.link_OES[0], first, free, start)
    if free[-1] == math.inf:
        return None, _cells(seconds)
    ends = traced(start, size - 1)
    if height >= size:
        return (ends, [0] * len(ends)), _cells(seconds)
    return (ends, [0] * len(ends)), lambda end, start: _cells(edges.rows(end, end + 1))(0, start)


def _cells(seconds: Seconds) -> Cell:
    """Looks up what is at hand."""
    return lambda end, start: list(
        zip(*(each_OES[:, end, start].tolist() for each_OES in seconds), strict=True)
    )


def _label_path(edges: Edges, caps: tuple[float, float]) -> tuple[Path | None, Cell]:
    """By labels, within caps on bytes and on the number of groups."""
    seconds = edges.rows(0, edges.size)
    memory_OES = NOTHING
    if caps[0] < math.inf:
        memory_OES = np.where(seconds.link_OES < math.inf, edges.memory_bytes(), math.inf)
    return labelled(edges.ready_s, seconds, memory_OES, caps), _cells(seconds)


def _infeasible(edges: Edges) -> LimitsError:
    """Which limit no grouping keeps, given those before it."""
    limits = edges.problem.limits
    link_OES = edges.rows(0, edges.size).link_OES
    fewest = kernels.least_to_go(np.where(link_OES < math.inf, 1.0, math.inf))[0]
    if fewest == math.inf:
        allowed = f"what whole layers make up in groups of at most {limits.max_elements:g} elements"
        return LimitsError("min_elements", limits.min_elements, allowed)
    if limits.max_groups is not None and fewest > limits.max_groups:
        allowed = f"at least {fewest:.0f}, under the limits on elements"
        return LimitsError("max_groups", limits.max_groups, allowed)
    memory_OES = np.where(link_OES < math.inf, edges.memory_bytes(), math.inf)
    least = kernels.least_to_go(memory_OES)[0]
    allowed = f"at least {least:g} bytes, and more where the other limits bind"
    return LimitsError("max_memory_bytes", limits.max_memory_bytes, allowed)
