"""Paths through the edges between nodes: the best by labels, and neighbours joined at no loss.

Nodes, edges and the suffix OES are those of `kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from autoplan.gradsync import kernels, labels
from autoplan.gradsync.edges import Seconds
from autoplan.gradsync.kernels import Floats, Ints

Path = tuple[list[int], list[int]]
"""Nodes where the groups end, and their options (legend: `kernels`)."""
Cell = Callable[[int, int], list[tuple[float, float, float]]]
"""`edges.Seconds` of each option of the edge to one node from another."""

NOTHING = np.empty((0, 0, 0))
"""Memory of the edges where it is not limited."""
_WEIGHTS = np.linspace(0.0, 1.0, 9)
_PRICES = np.concatenate(([0.0], 2.0 ** np.arange(-12, 7)))
"""Seconds for as much memory as the cap, as multiples of the end of compute and the link."""
_PRICED_MEANS = 12
_BEAM = 16


def traced(start: Ints, last: int) -> list[int]:
    """The ends of the groups that lead to the last node."""
    ends = []
    while last > 0:
        ends.append(last)
        last = int(start[last])
    return ends[::-1]


def bound_s(ready_s: Floats, seconds: Seconds) -> float:
    """A time before which no path ends, from shortest paths: `kernels.bounds_to_go`."""
    means, wait, _ = kernels.bounds_to_go(
        ready_s, *seconds, NOTHING, _WEIGHTS, 0 * _WEIGHTS, (math.inf, math.inf)
    )
    return float(max(wait[0], np.max(_WEIGHTS * ready_s[-1] + means[:, 0])))


def labelled(
    ready_s: Floats, seconds: Seconds, memory_OES: Floats, caps: tuple[float, float]
) -> Path | None:
    """The best path; a narrow beam first finds a time that few labels of the full run can meet."""
    link_OES = seconds.link_OES
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
    edges = ready_s, *seconds, memory_OES
    means, wait, upper_s = kernels.bounds_to_go(*edges, weights, prices, caps)
    if means[0, 0] == math.inf:
        return None
    if caps[0] < math.inf:
        bounds = weights * ready_s[-1] + means[:, 0] - prices * caps[0]
        telling = np.argsort(-bounds[len(_WEIGHTS) :])[:_PRICED_MEANS] + len(_WEIGHTS)
        chosen = np.concatenate((np.arange(len(_WEIGHTS)), telling))
        weights, prices, means = weights[chosen], prices[chosen], means[chosen]
    bounds_to_go = weights, prices, means, wait, least_memory, fewest
    beam_s, _, _ = labels.pareto(*edges, *bounds_to_go, (upper_s, *caps), _BEAM)
    upper_s = min(upper_s, beam_s)
    best_s, ends, options = labels.pareto(*edges, *bounds_to_go, (upper_s, *caps), 2**62)
    return (ends.tolist(), options.tolist()) if best_s < math.inf else None


def joined(path: Path, ready_s: Floats, cell: Cell) -> Path:
    """Joins neighbours where compute does not grow and everything still ends in time."""
    ends, options = path
    spans = list(pairwise([0, *ends]))
    cells = [cell(end, start) for start, end in spans]
    figures = [offers[o] for offers, o in zip(cells, options, strict=True)]
    delay = link = 0.0
    for end, (delay_s, later_s, link_s) in zip(ends, figures, strict=True):
        link = max(link, float(ready_s[end]) + delay + delay_s) + link_s
        delay += later_s
    due = max(link, float(ready_s[-1]) + delay)
    deadlines = [due]
    for _, _, link_s in figures[:0:-1]:
        due -= link_s
        deadlines.append(due)
    deadlines.reverse()
    kept: Path = ([], [])
    start, delay, link = 0, 0.0, 0.0
    end, option, (delay_s, later_s, link_s) = ends[0], options[0], figures[0]
    for g in range(1, len(ends)):
        ready = float(ready_s[ends[g]]) + delay
        offers = [
            (later_o, link_o, o, delay_o)
            for o, (delay_o, later_o, link_o) in enumerate(cell(ends[g], start))
            if later_o <= later_s + figures[g][1]
            and max(link, ready + delay_o) + link_o <= deadlines[g]
        ]
        if offers:
            end = ends[g]
            later_s, link_s, option, delay_s = min(offers)
            continue
        kept[0].append(end)
        kept[1].append(option)
        link = max(link, float(ready_s[end]) + delay + delay_s) + link_s
        delay += later_s
        start, end, option = end, ends[g], options[g]
        delay_s, later_s, link_s = figures[g]
    kept[0].append(end)
    kept[1].append(option)
    return kept
