"""One dense cost that is a line of the elements: whether a problem has it, and its best groups."""

from __future__ import annotations

import math

import numpy as np

from autoplan.gradsync import kernels
from autoplan.gradsync.costs import Affine, AllReduce, Sum
from autoplan.gradsync.edges import backward_nodes
from autoplan.gradsync.paths import traced
from autoplan.gradsync.problem import GroupingProblem


def affine_cost(problem: GroupingProblem) -> Affine | None:
    """The cost of a problem with one dense cost that is alpha + beta x; None for any other."""
    cost = problem.costs[0]
    if len(problem.costs) > 1 or cost.delays:
        return None
    line = _straight(cost.communicate)
    sound = line is not None and min(line.alpha_s, line.s_per_element) >= 0
    if line is None or not sound or not math.isfinite(line(sum(problem.elements))):
        return None
    return line


def _straight(cost: object) -> Affine | None:
    """A cost as alpha + beta x, if it says that it is."""
    if isinstance(cost, Sum):
        parts = [_straight(part) for part in cost.parts]
        lines = [part for part in parts if part is not None]
        if len(lines) < len(parts):
            return None
        alpha_s = sum(line.alpha_s for line in lines)
        return Affine(alpha_s, sum(line.s_per_element for line in lines))
    if isinstance(cost, AllReduce):
        pieces = cost.collective.pieces
        if not pieces:
            return Affine(0.0, 0.0)
        if cost.collective.table is not None or len(pieces) > 1:
            return None
        return Affine(pieces[0][0], pieces[0][1] * cost.bytes_per_element)
    slope = getattr(cost, "s_per_element", None)
    constant = getattr(cost, "alpha_s", None)
    if isinstance(constant, int | float) and isinstance(slope, int | float):
        return Affine(constant, slope)
    return None


def affine_ends(problem: GroupingProblem, line: Affine) -> list[int]:
    """Ends of the best groups, in layers of backward."""
    cuts, ready_s, total = backward_nodes(problem)
    # Only the last node can end a stretch without elements; it needs no exchange.
    silent = not any(problem.elements[: problem.num_layers - int(cuts[-2])])
    nodes = len(cuts) - 1 if silent else len(cuts)
    alpha_s, slope = line.alpha_s, line.s_per_element
    free, start = kernels.affine_starts(ready_s[:nodes], total[:nodes], alpha_s, slope)
    ends = np.array(traced(start, nodes - 1), dtype=np.int64)
    if len(ends) > 0:
        finish_s = max(float(free[-1]), float(ready_s[-1]))
        ends = kernels.affine_merged(ready_s, total, alpha_s, slope, ends, finish_s)
    found: list[int] = cuts[ends].tolist()
    return [*found, problem.num_layers] if silent else found
