"""Every group that could be, with what it costs: the edges that exact groupings are paths of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoplan.errors import InputError
from autoplan.gradsync.kernels import Floats, Ints
from autoplan.gradsync.problem import Cost, GroupingProblem
from autoplan.gradsync.timing import priced


class Seconds(NamedTuple):
    """What edges take, each array [option, end, start]."""

    delay_OES: Floats
    """Of compute, before the exchange of the group."""
    later_OES: Floats
    """Of compute in all, by which what follows is later."""
    link_OES: Floats
    """Of the link; infinite where the limits forbid the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Every group that the limits on elements allow (axes and legend: `kernels`)."""

    problem: GroupingProblem
    cuts: Ints
    ready_s: Floats
    total: Floats
    filled: Ints
    """Layers with elements until each node."""
    small_last: bool = False
    """Whether the last group may hold less than `min_elements`."""

    @staticmethod
    def of(problem: GroupingProblem) -> Edges:
        """The edges between all nodes."""
        cuts, ready_s, total = backward_nodes(problem)
        filled = np.cumsum([0, *(x > 0 for x in problem.elements[::-1])])[cuts]
        return Edges(problem=problem, cuts=cuts, ready_s=ready_s, total=total, filled=filled)

    @property
    def size(self) -> int:
        """Nodes, N."""
        return len(self.cuts)

    @property
    def dense(self) -> bool:
        """Whether no group ever delays compute."""
        costs = self.problem.costs
        return len(costs) == 1 and not costs[0].delays

    def elements(self, first: int, last: int) -> tuple[Floats, Ints]:
        """Elements and layers of the edges to nodes first..last-1 from any; axes [end, start]."""
        layers = self.cuts[first:last, None] - self.cuts[None, :]
        size = self.total[first:last, None] - self.total[None, :]
        least = min((x for x in self.problem.elements if x > 0), default=0.0)
        filled = self.filled[first:last, None] > self.filled[None, :]
        # Elements that rounding loses in the sums still make a group that has to be sent.
        return np.where(filled, np.maximum(size, least), 0.0), layers

    def rows(self, first: int, last: int) -> Seconds:
        """Seconds of all edges to nodes first..last-1."""
        limits = self.problem.limits
        size, layers = self.elements(first, last)
        allowed = (layers > 0) & ((size <= limits.max_elements) | (layers == 1))
        small = size < limits.min_elements
        if self.small_last:
            small &= self.cuts[first:last, None] < self.cuts[-1]
        allowed &= ~small
        active = allowed & (size > 0)
        sizes = size[active]
        shape = (len(self.problem.costs), *size.shape)
        delay_OES, link_OES = np.zeros(shape), np.full(shape, np.inf)
        for o, cost in enumerate(self.problem.costs):
            link_OES[o][allowed] = 0.0
            link_OES[o][active] = valued("communicate", cost.communicate, sizes)
            if cost.sparsify is not None:
                delay_OES[o][active] = valued("sparsify", cost.sparsify, sizes)
        if not any(cost.handling for cost in self.problem.costs):
            return Seconds(delay_OES, delay_OES, link_OES)
        later_OES = delay_OES.copy()
        beside = active & (self.cuts[first:last, None] < self.cuts[-1])
        for o, cost in enumerate(self.problem.costs):
            if cost.handling is not None:
                later_OES[o][beside] += valued("handling", cost.handling, size[beside])
        return Seconds(delay_OES, later_OES, link_OES)

    def memory_bytes(self) -> Floats:
        """What each edge keeps, [option, end, start]."""
        size, layers = self.elements(0, self.size)
        copies = [(layers > 1) + float(cost.density < 1) for cost in self.problem.costs]
        return np.array(copies) * size * self.problem.bytes_per_element


def backward_nodes(problem: GroupingProblem) -> tuple[Ints, Floats, Floats]:
    """Where groups may start and end: layers done, seconds of backward and elements until there.

    Layers without elements delay nothing if they go with the next that has some, and are joined to
    it unless limits count elements or buffers.
    """
    elements = np.array(problem.elements[::-1], dtype=np.float64)
    ready_s = np.concatenate(([0.0], np.cumsum(np.array(problem.backward_s[::-1], dtype=float))))
    total = np.concatenate(([0.0], np.cumsum(elements)))
    limits = problem.limits
    cuts = np.arange(len(total))
    counted = limits.min_elements > 0 or limits.max_elements < math.inf
    if not counted and limits.max_memory_bytes == math.inf:
        cuts = np.concatenate(([0], np.flatnonzero(elements > 0) + 1))
        if len(cuts) > 1 and ready_s[cuts[-1]] == ready_s[-1]:
            cuts[-1] = len(elements)
        elif cuts[-1] < len(elements):
            cuts = np.append(cuts, len(elements))
    return cuts, ready_s[cuts], total[cuts]


def valued(name: str, cost: Cost, sizes: Floats) -> Floats:
    """A cost of many groups, all with elements; `many` where it has that."""
    many = getattr(cost, "many", None)
    if many is None:
        distinct, where = np.unique(sizes, return_inverse=True)
        return np.array([priced(name, cost, float(x)) for x in distinct], dtype=float)[where]
    values: Floats = many(sizes)
    wrong = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
    for i in wrong[:1]:
        allowed = "a finite number of seconds, at least 0"
        raise InputError(f"{name}({sizes[i]:g})", float(values[i]), allowed)
    return values
