"""The contiguous grouping that ends earliest, and the best choice of costs for given groups."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import InputError, require
from autoplan.gradsync import kernels
from autoplan.gradsync.costs import Affine, AllReduce, Sum
from autoplan.gradsync.problem import Cost, GroupingProblem, GroupLimits, Groups
from autoplan.gradsync.timing import priced, time_groups

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Choices = tuple[int, ...]
Path = tuple[list[int], list[int]]
"""Nodes where the groups end, and their options (legend: `kernels`)."""
Cell = Callable[[int, int], tuple[list[float], list[float]]]
"""Seconds of compute and of the link by option, of the edge to one node from another."""

_CELLS = 4_000_000
"""Edges held at a time where rows of ends can be done one after the other."""
_WEIGHTS = np.linspace(0.0, 1.0, 9)
_NOTHING = np.empty((0, 0, 0))
_PRICES = np.concatenate(([0.0], 2.0 ** np.arange(-12, 7)))
"""Seconds for as much memory as the cap, as multiples of the end of compute and the link."""
_PRICED_MEANS = 12
_BEAM = 16
_COMBINATIONS = 4096


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
    line = _line(problem)
    if line is not None and problem.limits == GroupLimits():
        groups = problem.groups(_affine_ends(problem, line))
        return groups, (0,) * len(groups)
    edges = _Edges.of(problem)
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
    paths over all groups that could be: `kernels.bounds_to_go`.

    Raises:
        InputError: a cost is not a number of seconds.
    """
    free = dataclasses.replace(problem, limits=GroupLimits())
    line = _line(free)
    if line is not None:
        _, ready_s, total = _nodes(free)
        finish_s = ready_s[1:] + line.many(total[-1] - total[:-1])
        return float(max(ready_s[-1], finish_s.max()))
    edges = _Edges.of(free)
    delay_OES, link_OES = edges.rows(0, edges.size)
    means, wait, _ = kernels.bounds_to_go(
        edges.ready_s, delay_OES, link_OES, _NOTHING, _WEIGHTS, 0 * _WEIGHTS, (math.inf, math.inf)
    )
    return float(max(wait[0], np.max(_WEIGHTS * edges.ready_s[-1] + means[:, 0])))


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
    found = _chain_options(problem, [groups[g] for g in sent])
    choices = [0] * len(groups)
    for g, choice in zip(sent, found, strict=True):
        choices[g] = choice
    return tuple(choices)


def _line(problem: GroupingProblem) -> Affine | None:
    """The cost of a problem with one dense cost that is alpha + beta x; None for any other."""
    cost = problem.costs[0]
    if len(problem.costs) > 1 or cost.sparsify is not None:
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


def _nodes(problem: GroupingProblem) -> tuple[Ints, Floats, Floats]:
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


def _affine_ends(problem: GroupingProblem, line: Affine) -> list[int]:
    """Ends of the best groups, in layers of backward."""
    cuts, ready_s, total = _nodes(problem)
    # Only the last node can end a stretch without elements; it needs no exchange.
    silent = not any(problem.elements[: problem.num_layers - int(cuts[-2])])
    nodes = len(cuts) - 1 if silent else len(cuts)
    alpha_s, slope = line.alpha_s, line.s_per_element
    free, start = kernels.affine_starts(ready_s[:nodes], total[:nodes], alpha_s, slope)
    ends = np.array(_traced(start, nodes - 1), dtype=np.int64)
    if len(ends) > 0:
        finish_s = max(float(free[-1]), float(ready_s[-1]))
        ends = kernels.affine_merged(ready_s, total, alpha_s, slope, ends, finish_s)
    found: list[int] = cuts[ends].tolist()
    return [*found, problem.num_layers] if silent else found


def _traced(start: Ints, last: int) -> list[int]:
    """The ends of the groups that lead to the last node."""
    ends = []
    while last > 0:
        ends.append(last)
        last = int(start[last])
    return ends[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edges:
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
    def of(problem: GroupingProblem) -> _Edges:
        """The edges between all nodes."""
        cuts, ready_s, total = _nodes(problem)
        filled = np.cumsum([0, *(x > 0 for x in problem.elements[::-1])])[cuts]
        return _Edges(problem=problem, cuts=cuts, ready_s=ready_s, total=total, filled=filled)

    @property
    def size(self) -> int:
        """Nodes, N."""
        return len(self.cuts)

    @property
    def dense(self) -> bool:
        """Whether no group ever delays compute."""
        costs = self.problem.costs
        return len(costs) == 1 and costs[0].sparsify is None

    def elements(self, first: int, last: int) -> tuple[Floats, Ints]:
        """Elements and layers of the edges to nodes first..last-1 from any; axes [end, start]."""
        layers = self.cuts[first:last, None] - self.cuts[None, :]
        size = self.total[first:last, None] - self.total[None, :]
        least = min((x for x in self.problem.elements if x > 0), default=0.0)
        filled = self.filled[first:last, None] > self.filled[None, :]
        # Elements that rounding loses in the sums still make a group that has to be sent.
        return np.where(filled, np.maximum(size, least), 0.0), layers

    def rows(self, first: int, last: int) -> tuple[Floats, Floats]:
        """Seconds of compute and of the link, [option, end, start], to nodes first..last-1."""
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
            link_OES[o][active] = _valued("communicate", cost.communicate, sizes)
            if cost.sparsify is not None:
                delay_OES[o][active] = _valued("sparsify", cost.sparsify, sizes)
        return delay_OES, link_OES

    def memory_bytes(self) -> Floats:
        """What each edge keeps, [option, end, start]."""
        size, layers = self.elements(0, self.size)
        copies = [(layers > 1) + float(cost.density < 1) for cost in self.problem.costs]
        return np.array(copies) * size * self.problem.bytes_per_element


def _valued(name: str, cost: Cost, sizes: Floats) -> Floats:
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


def _best_path(edges: _Edges) -> Path | None:
    """Without caps on groups and memory if that keeps them; None if nothing does."""
    limits = edges.problem.limits
    most = math.inf if limits.max_groups is None else float(limits.max_groups)
    free = math.inf, math.inf
    path, cell = _dense_path(edges) if edges.dense else _label_path(edges, free)
    if path is None:
        return None
    if limits.max_memory_bytes == math.inf:
        path = _joined(path, edges.ready_s, cell)
        kept = 0.0
    else:
        memory_OES = edges.memory_bytes()
        steps = zip(*path, [0, *path[0]], strict=False)
        kept = sum(float(memory_OES[o, end, start]) for end, o, start in steps)
    if len(path[0]) <= most and kept <= limits.max_memory_bytes:
        return path
    return _label_path(edges, (limits.max_memory_bytes, most))[0]


def _dense_path(edges: _Edges) -> tuple[Path | None, Cell]:
    """Rows of ends one after the other, each from the times when the link is free before."""
    size = edges.size
    free, start = np.zeros(size), np.zeros(size, dtype=np.int64)
    height = max(1, _CELLS // size)
    for first in range(0, size, height):
        link_OES = edges.rows(first, min(first + height, size))[1]
        kernels.dense_rows(edges.ready_s, link_OES[0], first, free, start)
    if free[-1] == math.inf:
        return None, _cells(link_OES, link_OES)
    ends = _traced(start, size - 1)
    if height >= size:
        return (ends, [0] * len(ends)), _cells(np.zeros_like(link_OES), link_OES)

    def cell(end: int, start: int) -> tuple[list[float], list[float]]:
        delay_OES, link_OES = edges.rows(end, end + 1)
        return delay_OES[:, 0, start].tolist(), link_OES[:, 0, start].tolist()

    return (ends, [0] * len(ends)), cell


def _cells(delay_OES: Floats, link_OES: Floats) -> Cell:
    """Looks up what is at hand."""
    return lambda end, start: (delay_OES[:, end, start].tolist(), link_OES[:, end, start].tolist())


def _label_path(edges: _Edges, caps: tuple[float, float]) -> tuple[Path | None, Cell]:
    """By labels, within caps on bytes and on the number of groups."""
    delay_OES, link_OES = edges.rows(0, edges.size)
    cell = _cells(delay_OES, link_OES)
    memory_OES = _NOTHING
    if caps[0] < math.inf:
        memory_OES = np.where(link_OES < math.inf, edges.memory_bytes(), math.inf)
    return _labelled(edges.ready_s, delay_OES, link_OES, memory_OES, caps), cell


def _labelled(
    ready_s: Floats,
    delay_OES: Floats,
    link_OES: Floats,
    memory_OES: Floats,
    caps: tuple[float, float],
) -> Path | None:
    """The best path; a narrow beam first finds a time that few labels of the full run can meet."""
    weights, prices = _WEIGHTS, 0 * _WEIGHTS
    least_memory = fewest = np.zeros(len(ready_s))
    if caps[0] < math.inf:
        least_memory = kernels.least_to_go(memory_OES)
        unit = (ready_s[-1] + np.where(link_OES < math.inf, link_OES, 0.0).max()) / max(caps[0], 1)
        weights, prices = (each.ravel() for each in np.meshgrid(_WEIGHTS, unit * _PRICES))
    if caps[1] < math.inf:
        fewest = kernels.least_to_go(np.where(link_OES < math.inf, 1.0, math.inf))
    if least_memory[0] > caps[0] or fewest[0] > caps[1]:
        return None
    edges = ready_s, delay_OES, link_OES, memory_OES
    means, wait, upper_s = kernels.bounds_to_go(*edges, weights, prices, caps)
    if means[0, 0] == math.inf:
        return None
    if caps[0] < math.inf:
        bounds = weights * ready_s[-1] + means[:, 0] - prices * caps[0]
        telling = np.argsort(-bounds[len(_WEIGHTS) :])[:_PRICED_MEANS] + len(_WEIGHTS)
        chosen = np.concatenate((np.arange(len(_WEIGHTS)), telling))
        weights, prices, means = weights[chosen], prices[chosen], means[chosen]
    bounds_to_go = weights, prices, means, wait, least_memory, fewest
    beam_s, _, _ = kernels.pareto(*edges, *bounds_to_go, (upper_s, *caps), _BEAM)
    upper_s = min(upper_s, beam_s)
    best_s, ends, options = kernels.pareto(*edges, *bounds_to_go, (upper_s, *caps), 2**62)
    return (ends.tolist(), options.tolist()) if best_s < math.inf else None


def _joined(path: Path, ready_s: Floats, cell: Cell) -> Path:
    """Joins neighbours where compute does not grow and everything still ends in time."""
    ends, options = path
    spans = list(pairwise([0, *ends]))
    cells = [cell(end, start) for start, end in spans]
    figures = [(delays[o], links[o]) for (delays, links), o in zip(cells, options, strict=True)]
    delay = link = 0.0
    for end, (delay_s, link_s) in zip(ends, figures, strict=True):
        delay += delay_s
        link = max(link, float(ready_s[end]) + delay) + link_s
    due = max(link, float(ready_s[-1]) + delay)
    deadlines = [due]
    for _, link_s in figures[:0:-1]:
        due -= link_s
        deadlines.append(due)
    deadlines.reverse()
    kept: Path = ([], [])
    start, delay, link = 0, 0.0, 0.0
    end, option, (delay_s, link_s) = ends[0], options[0], figures[0]
    for g in range(1, len(ends)):
        ready = float(ready_s[ends[g]]) + delay
        offers = [
            (delay_o, link_o, o)
            for o, (delay_o, link_o) in enumerate(zip(*cell(ends[g], start), strict=True))
            if delay_o <= delay_s + figures[g][0]
            and max(link, ready + delay_o) + link_o <= deadlines[g]
        ]
        if offers:
            end = ends[g]
            delay_s, link_s, option = min(offers)
            continue
        kept[0].append(end)
        kept[1].append(option)
        delay += delay_s
        link = max(link, float(ready_s[end]) + delay) + link_s
        start, end, option, (delay_s, link_s) = end, ends[g], options[g], figures[g]
    kept[0].append(end)
    kept[1].append(option)
    return kept


def _infeasible(edges: _Edges) -> InputError:
    """Which limit no grouping keeps, given those before it."""
    limits = edges.problem.limits
    link_OES = edges.rows(0, edges.size)[1]
    fewest = kernels.least_to_go(np.where(link_OES < math.inf, 1.0, math.inf))[0]
    if fewest == math.inf:
        allowed = f"what whole layers make up in groups of at most {limits.max_elements:g} elements"
        return InputError("min_elements", limits.min_elements, allowed)
    if limits.max_groups is not None and fewest > limits.max_groups:
        allowed = f"at least {fewest:.0f}, under the limits on elements"
        return InputError("max_groups", limits.max_groups, allowed)
    memory_OES = np.where(link_OES < math.inf, edges.memory_bytes(), math.inf)
    least = kernels.least_to_go(memory_OES)[0]
    allowed = f"at least {least:g} bytes, and more where the other limits bind"
    return InputError("max_memory_bytes", limits.max_memory_bytes, allowed)


def _chain_options(problem: GroupingProblem, groups: Groups | list[tuple[int, ...]]) -> list[int]:
    """Best options of groups that are sent as they get ready: a path without branches."""
    size, options = len(groups) + 2, len(problem.costs)
    sizes = np.array([problem.group_elements(group) for group in groups], dtype=np.float64)
    delay_OES, memory_OES = np.zeros((options, size, size)), np.zeros((options, size, size))
    link_OES = np.full((options, size, size), np.inf)
    start = np.arange(len(groups))
    for o, cost in enumerate(problem.costs):
        link_OES[o, start + 1, start] = _valued("communicate", cost.communicate, sizes)
        if cost.sparsify is not None:
            delay_OES[o, start + 1, start] = _valued("sparsify", cost.sparsify, sizes)
        memory_OES[o, start + 1, start] = [problem.memory_bytes(group, o) for group in groups]
    link_OES[0, size - 1, size - 2] = 0.0
    done = np.concatenate(([0.0], np.cumsum(np.array(problem.backward_s[::-1], dtype=float))))
    closing = [problem.num_layers - min(group) for group in groups]
    ready_s = done[[0, *closing, problem.num_layers]]
    cap = problem.limits.max_memory_bytes
    memory_OES = np.where(link_OES < math.inf, memory_OES, math.inf)
    path = _labelled(ready_s, delay_OES, link_OES, memory_OES, (cap, math.inf))
    if path is None:
        least = f"at least {kernels.least_to_go(memory_OES)[0]:g} bytes for these groups"
        raise InputError("max_memory_bytes", cap, least)
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
    require(key(best)[0] == 0, "max_memory_bytes", cap, "enough for these groups")
    return best
