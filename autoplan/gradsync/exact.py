"""The contiguous grouping that ends earliest, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.gradsync.problem import GroupingProblem

Floats = NDArray[np.float64]


def exact_ends(problem: GroupingProblem) -> list[int]:
    """Ends of the groups of an optimal grouping, as counts of layers in backward order.

    Dense groups leave one state, the time the link is free: f[e] = min over s of
    max(f[s], ready[e]) + c(x[e] - x[s]), O(L^2) for any cost (facts/mgs.md section 1.5). Groups
    that are sparsified delay compute too, so the states are Pareto labels (compute, link).
    """
    backward = np.array(problem.backward_s[::-1], dtype=np.float64)
    elements = np.array(problem.elements[::-1], dtype=np.float64)
    total = np.concatenate(([0.0], np.cumsum(elements)))
    if problem.sparsify is not None:
        return _sparse_ends(problem, backward, total)
    ready = np.concatenate(([0.0], np.cumsum(backward)))
    cost = cost_of_array(problem.communicate)
    free = np.zeros(len(total))
    start = np.zeros(len(total), dtype=np.int64)
    for end in range(1, len(total)):
        sizes = total[end] - total[:end]
        finish = np.where(sizes > 0, np.maximum(free[:end], ready[end]) + cost(sizes), free[:end])
        start[end] = int(finish.argmin())
        free[end] = finish[start[end]]
    ends = [len(total) - 1]
    while start[ends[-1]] > 0:
        ends.append(int(start[ends[-1]]))
    return ends[::-1]


def cost_of_array(cost: Callable[[float], float]) -> Callable[[Floats], Floats]:
    """A cost as a function of arrays: its own `many`, or itself for each element."""
    many: Callable[[Floats], Floats] | None = getattr(cost, "many", None)
    return many if many is not None else np.vectorize(cost, otypes=[np.float64])


@dataclass(frozen=True, slots=True)
class _Label:
    """A way to have exchanged the first layers: when compute and link are free after it."""

    compute: float
    link: float
    end: int
    before: _Label | None


def _sparse_ends(problem: GroupingProblem, backward: Floats, total: Floats) -> list[int]:
    """Pareto labels over (compute, link) for each count of layers done."""
    assert problem.sparsify is not None
    labels: list[list[_Label]] = [[_Label(0.0, 0.0, 0, None)]]
    for end in range(1, len(total)):
        reached = []
        for start in range(end):
            size = float(total[end] - total[start])
            work = float(backward[start:end].sum())
            sparsify = problem.sparsify(size) if size > 0 else 0.0
            communicate = problem.communicate(size) if size > 0 else 0.0
            for label in labels[start]:
                compute = label.compute + work + sparsify
                link = max(label.link, compute) + communicate if size > 0 else label.link
                reached.append(_Label(compute, link, end, label))
        labels.append(_pareto(reached))
    best: _Label | None = min(labels[-1], key=lambda label: max(label.compute, label.link))
    ends = []
    while best is not None and best.end > 0:
        ends.append(best.end)
        best = best.before
    return ends[::-1]


def _pareto(labels: list[_Label]) -> list[_Label]:
    """Those that no other label beats in both times."""
    labels.sort(key=lambda label: (label.compute, label.link))
    kept: list[_Label] = []
    for label in labels:
        if not kept or label.link < kept[-1].link:
            kept.append(label)
    return kept
