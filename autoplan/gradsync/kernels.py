"""The exact groupings' inner loops, compiled; `oracle` has each of them in plain Python.

Groupings are paths through nodes in backward order, N of them, of which the first is "nothing
exchanged" and the last "everything". An edge is a group. Arrays over edges are indexed
[option, end, start] (suffix OES), infinite where the limits forbid the group. A label at a node is
a way to reach it: `delay` seconds of sparsification so far, the time `link` when the link is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

EPSILON = 1e-15
"""Times closer than this share of the finish are one time: rounding makes no labels of its own."""


def _compiled(function: Kernel) -> Kernel:
    return cast(Kernel, numba.njit(cache=True, error_model="numpy")(function))


@_compiled
def affine_starts(  # pragma: no cover - runs compiled
    ready_s: Floats, total: Floats, alpha_s: float, s_per_element: float
) -> tuple[Floats, Ints]:
    """Dense groups at alpha + beta x, each with elements: O(N) (facts/mgs.md section 1.5).

    free[e] = min over s of max(free[s], ready[e]) + c(s, e). Of all s with free[s] <= ready[e] the
    last is best; for the others free[s] - beta total[s] decides, least first in a monotone queue.

    Returns:
        When the link is free at each node, and the node where the group that ends there starts.
    """
    nodes = len(ready_s)
    free = np.zeros(nodes)
    start = np.zeros(nodes, dtype=np.int64)
    queue = np.empty(nodes, dtype=np.int64)
    head = tail = idle = 0
    for end in range(1, nodes):
        newest = end - 1
        key = free[newest] - s_per_element * total[newest]
        while tail > head:
            last = queue[tail - 1]
            if free[last] - s_per_element * total[last] < key:
                break
            tail -= 1
        queue[tail] = newest
        tail += 1
        while idle < newest and free[idle + 1] <= ready_s[end]:
            idle += 1
        while head < tail and queue[head] <= idle:
            head += 1
        start[end] = idle
        best = max(free[idle], ready_s[end]) + alpha_s
        best += s_per_element * (total[end] - total[idle])
        if head < tail:
            other = queue[head]
            finish = free[other] + alpha_s + s_per_element * (total[end] - total[other])
            if finish < best:
                best = finish
                start[end] = other
        free[end] = best
    return free, start


@_compiled
def affine_merged(  # pragma: no cover - runs compiled
    ready_s: Floats,
    total: Floats,
    alpha_s: float,
    s_per_element: float,
    ends: Ints,
    finish_s: float,
) -> Ints:
    """Joins neighbours wherever everything still ends by `finish_s`; `exact` has it for any cost.

    Args:
        ready_s: of each node.
        total: elements up to each node.
        alpha_s: seconds of each group.
        s_per_element: seconds of each element.
        ends: nodes where the groups end.
        finish_s: when the last group has to end.
    """
    deadline = np.empty(len(ends))
    due = finish_s
    for g in range(len(ends) - 1, -1, -1):
        deadline[g] = due
        first = ends[g - 1] if g > 0 else 0
        due -= alpha_s + s_per_element * (total[ends[g]] - total[first])
    kept = np.empty(len(ends), dtype=np.int64)
    count = start = 0
    before = 0.0
    for g in range(len(ends)):
        if g + 1 < len(ends):
            size = total[ends[g + 1]] - total[start]
            joined = max(before, ready_s[ends[g + 1]]) + alpha_s + s_per_element * size
            if joined <= deadline[g + 1]:
                continue
        size = total[ends[g]] - total[start]
        before = max(before, ready_s[ends[g]]) + alpha_s + s_per_element * size
        kept[count] = start = ends[g]
        count += 1
    return kept[:count]


@_compiled
def dense_rows(  # pragma: no cover - runs compiled
    ready_s: Floats, cost_ES: Floats, first: int, free: Floats, start: Ints
) -> None:
    """Dense groups at any cost: free[e] and start[e] for the rows of ends from `first` on."""
    for row in range(cost_ES.shape[0]):
        end = first + row
        best = np.inf if end > 0 else 0.0
        for s in range(end):
            finish = max(free[s], ready_s[end]) + cost_ES[row, s]
            if finish < best:
                best = finish
                start[end] = s
        free[end] = best


@_compiled
def bounds_to_go(  # pragma: no cover - runs compiled
    ready_s: Floats,
    delay_OES: Floats,
    link_OES: Floats,
    memory_OES: Floats,
    weights: Floats,
    prices: Floats,
    caps: tuple[float, float],
) -> tuple[Floats, Floats, float]:
    """What is at least still to come after each node, by shortest paths.

    The finish is at least the end of compute plus the last exchange, and at least the end of the
    link: hence at least any mean of the two, for which the best path is a shortest path. Memory at
    any price above the cap may be added, since that is less than nothing where the cap is kept.

    Args:
        ready_s: of each node, without sparsification.
        delay_OES: seconds of compute of each edge.
        link_OES: seconds of the link of each edge.
        memory_OES: bytes of each edge; not read unless memory is limited.
        weights: weight of compute in each mean; the first is 0.
        prices: seconds per byte in each mean; the first is 0, and all where memory is free.
        caps: bytes and number of groups that may not be passed.

    Returns:
        Means [weight, node] of what is to come; for each node a time before which nothing ends,
        less the delay at the node; and the best finish of those shortest paths within the caps.
    """
    options, nodes, _ = delay_OES.shape
    heavy = caps[0] < np.inf
    means = np.full((len(weights), nodes), np.inf)
    next_node = np.zeros((len(weights), nodes), dtype=np.int64)
    next_option = np.zeros((len(weights), nodes), dtype=np.int64)
    wait = np.full(nodes, np.inf)
    means[:, nodes - 1] = 0.0
    wait[nodes - 1] = ready_s[nodes - 1]
    for end in range(nodes - 1, 0, -1):
        last = end == nodes - 1
        for o in range(options):
            for s in range(end):
                link = link_OES[o, end, s]
                if link == np.inf:
                    continue
                delay = delay_OES[o, end, s]
                memory = memory_OES[o, end, s] if heavy else 0.0
                for w in range(len(weights)):
                    share = weights[w]
                    cost = share * (delay + (link if last else 0.0)) + (1 - share) * link
                    cost += prices[w] * memory
                    if cost + means[w, end] < means[w, s]:
                        means[w, s] = cost + means[w, end]
                        next_node[w, s] = end
                        next_option[w, s] = o
                later = max(ready_s[end] + delay + link + means[0, end], delay + wait[end])
                wait[s] = min(wait[s], later)
    upper = np.inf
    for w in range(len(weights)):
        if means[w, 0] == np.inf:
            continue
        node = count = 0
        delay = link = held = 0.0
        while node < nodes - 1:
            end, o = next_node[w, node], next_option[w, node]
            delay += delay_OES[o, end, node]
            link = max(link, ready_s[end] + delay) + link_OES[o, end, node]
            held += memory_OES[o, end, node] if heavy else 0.0
            count += 1
            node = end
        if held > caps[0] or count > caps[1]:
            continue
        upper = min(upper, max(link, ready_s[nodes - 1] + delay))
    return means, wait, upper


@_compiled
def least_to_go(weight_OES: Floats) -> Floats:  # pragma: no cover - runs compiled
    """Least sum of the weights from each node to the last."""
    options, nodes, _ = weight_OES.shape
    least = np.full(nodes, np.inf)
    least[nodes - 1] = 0.0
    for end in range(nodes - 1, 0, -1):
        for o in range(options):
            for s in range(end):
                least[s] = min(least[s], weight_OES[o, end, s] + least[end])
    return least


@_compiled
def _at_least(  # pragma: no cover - runs compiled
    delay: float,
    link: float,
    spare: float,
    node: int,
    compute_s: float,
    weights: Floats,
    prices: Floats,
    means: Floats,
) -> float:
    """No completion of a label ends before this; `spare` is what it leaves of the memory."""
    bound = float(link + means[0, node])
    for w in range(1, len(weights)):
        mean = weights[w] * (compute_s + delay) + (1 - weights[w]) * link + means[w, node]
        bound = max(bound, mean - prices[w] * spare)
    return bound


DELAY, LINK, MEMORY, COUNT = range(4)
PARENT, END, OPTION = range(3)


@_compiled
def _doubled(figures: Floats) -> Floats:  # pragma: no cover - runs compiled
    return np.concatenate((figures, np.empty_like(figures)), axis=1)


@_compiled
def _doubled_links(links: Ints) -> Ints:  # pragma: no cover - runs compiled
    return np.concatenate((links, np.empty_like(links)), axis=1)


@_compiled
def _front(figures: Floats, count: int, gap: float) -> Ints:  # pragma: no cover - runs compiled
    """Labels that none beats in delay and link, by rising delay; rounding apart, the least link."""
    kept = np.empty(count, dtype=np.int64)
    size = 0
    anchor = -np.inf
    for i in np.argsort(figures[DELAY, :count]):
        delay, link = figures[DELAY, i], figures[LINK, i]
        if size > 0 and link >= figures[LINK, kept[size - 1]] - gap and delay > anchor:
            continue
        if size > 0 and delay <= anchor + gap:
            if link < figures[LINK, kept[size - 1]]:
                kept[size - 1] = i
            continue
        anchor = delay
        kept[size] = i
        size += 1
    return kept[:size]


@_compiled
def _limited_front(  # pragma: no cover - runs compiled
    figures: Floats, count: int, gap: float, counted: bool
) -> Ints:
    """Labels that none beats in delay, link, memory and, where it is limited, number of groups."""
    kept = np.empty(count, dtype=np.int64)
    size = 0
    for i in np.argsort(figures[DELAY, :count] + gap * figures[COUNT, :count]):
        beaten = False
        for k in range(size - 1, -1, -1):
            j = kept[k]
            if (
                figures[LINK, j] <= figures[LINK, i] + gap
                and figures[DELAY, j] <= figures[DELAY, i] + gap
                and figures[MEMORY, j] <= figures[MEMORY, i]
                and (not counted or figures[COUNT, j] <= figures[COUNT, i])
            ):
                beaten = True
                break
        if not beaten:
            kept[size] = i
            size += 1
    return kept[:size]


@_compiled
def _narrowed(  # pragma: no cover - runs compiled
    figures: Floats, kept: Ints, bounds: Floats, width: int
) -> Ints:
    """The labels with the least bounds, and those with least memory and fewest groups."""
    chosen = np.zeros(len(kept), dtype=np.bool_)
    chosen[np.argsort(bounds[kept])[:width]] = True
    chosen[np.argmin(figures[MEMORY][kept])] = True
    chosen[np.argmin(figures[COUNT][kept])] = True
    return kept[chosen]


@_compiled
def pareto(  # pragma: no cover - runs compiled
    ready_s: Floats,
    delay_OES: Floats,
    link_OES: Floats,
    memory_OES: Floats,
    weights: Floats,
    prices: Floats,
    means: Floats,
    wait: Floats,
    least_memory: Floats,
    fewest: Floats,
    caps: tuple[float, float, float],
    width: int,
) -> tuple[float, Ints, Ints]:
    """The best path by labels that no other label at their node beats.

    Without limits on memory and number: of the labels at an edge's start, which come with rising
    delay and falling link, those after the first that finds the link idle only start later, so
    they are not extended.

    Args:
        ready_s: of each node, without sparsification.
        delay_OES: seconds of compute of each edge.
        link_OES: seconds of the link of each edge.
        memory_OES: bytes of each edge; not read unless memory is limited.
        weights: as in `bounds_to_go`.
        prices: as in `bounds_to_go`.
        means: from `bounds_to_go`.
        wait: from `bounds_to_go`.
        least_memory: bytes at least to come after each node.
        fewest: groups at least to come after each node.
        caps: seconds, bytes and number of groups that may not be passed.
        width: labels kept at each node; the result is exact if this never binds.

    Returns:
        The finish (infinite if nothing keeps the caps), the nodes where the groups of the best
        path end, and their options.
    """
    options, nodes, _ = delay_OES.shape
    upper_s, max_memory, max_count = caps
    heavy, counted = max_memory < np.inf, max_count < np.inf
    gap = EPSILON * upper_s if upper_s < np.inf else 0.0
    limit = upper_s * (1 + 1e-12)
    compute_s = ready_s[nodes - 1]
    first = np.zeros(nodes + 1, dtype=np.int64)
    first[1] = 1
    labels, links = np.zeros((4, 1024)), np.zeros((3, 1024), dtype=np.int64)
    new, new_links = np.empty((4, 1024)), np.empty((3, 1024), dtype=np.int64)
    bounds = np.empty(1024)
    for end in range(1, nodes):
        count = 0
        for s in range(end):
            for o in range(options):
                link_s = link_OES[o, end, s]
                if link_s == np.inf:
                    continue
                delay_s = delay_OES[o, end, s]
                memory = memory_OES[o, end, s] if heavy else 0.0
                for j in range(first[s], first[s + 1]):
                    delay = labels[DELAY, j] + delay_s
                    if delay + wait[end] > limit:
                        if heavy or counted:
                            continue
                        break
                    begin = ready_s[end] + delay
                    idle = labels[LINK, j] <= begin
                    link = (begin if idle else labels[LINK, j]) + link_s
                    held = labels[MEMORY, j] + memory
                    spare = max_memory - held if heavy else 0.0
                    bound = _at_least(delay, link, spare, end, compute_s, weights, prices, means)
                    groups = labels[COUNT, j] + 1
                    within = held + least_memory[end] <= max_memory
                    if bound <= limit and within and groups + fewest[end] <= max_count:
                        if count == len(bounds):
                            new, new_links = _doubled(new), _doubled_links(new_links)
                            bounds = np.concatenate((bounds, bounds))
                        new[DELAY, count], new[LINK, count] = delay, link
                        new[MEMORY, count], new[COUNT, count] = held, groups
                        new_links[PARENT, count] = j
                        new_links[END, count], new_links[OPTION, count] = end, o
                        bounds[count] = max(bound, delay + wait[end])
                        count += 1
                    if idle and not (heavy or counted):
                        break
        if heavy or counted:
            kept = _limited_front(new, count, gap, counted)
        else:
            kept = _front(new, count, gap)
        if len(kept) > width:
            kept = _narrowed(new, kept, bounds, width)
        base = first[end]
        while base + len(kept) > labels.shape[1]:
            labels, links = _doubled(labels), _doubled_links(links)
        for k in range(len(kept)):
            labels[:, base + k] = new[:, kept[k]]
            links[:, base + k] = new_links[:, kept[k]]
        first[end + 1] = base + len(kept)
    best, best_finish = -1, np.inf
    for j in range(first[nodes - 1], first[nodes]):
        finish = max(labels[LINK, j], compute_s + labels[DELAY, j])
        if finish < best_finish or (
            finish == best_finish
            and (labels[DELAY, j], labels[COUNT, j]) < (labels[DELAY, best], labels[COUNT, best])
        ):
            best, best_finish = j, finish
    ends = np.empty(nodes, dtype=np.int64)
    chosen = np.empty(nodes, dtype=np.int64)
    count = 0
    while best > 0:
        ends[count], chosen[count] = links[END, best], links[OPTION, best]
        best = links[PARENT, best]
        count += 1
    return best_finish, ends[:count][::-1].copy(), chosen[:count][::-1].copy()
