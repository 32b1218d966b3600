"""The exact groupings' inner loops, compiled; `oracle` has each of them in plain Python.

Groupings are paths through nodes in backward order, N of them, of which the first is "nothing
exchanged" and the last "everything". An edge is a group. Arrays over edges are indexed
[option, end, start] (suffix OES), infinite where the limits forbid the group. The best paths
by labels are in `labels`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@compiled
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


@compiled
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


@compiled
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


@compiled
def _least_finish_s(  # pragma: no cover - runs compiled
    ready_s: Floats,
    delay_OES: Floats,
    later_OES: Floats,
    link_OES: Floats,
    memory_OES: Floats,
    means: Floats,
    next_node: Ints,
    next_option: Ints,
    caps: tuple[float, float],
) -> float:
    """The best finish within the caps of the paths that follow `next_node`; infinite if none."""
    nodes = len(ready_s)
    best = np.inf
    for w in range(len(means)):
        if means[w, 0] == np.inf:
            continue
        node = count = 0
        delay = link = held = 0.0
        while node < nodes - 1:
            end, o = next_node[w, node], next_option[w, node]
            begin = ready_s[end] + delay + delay_OES[o, end, node]
            link = max(link, begin) + link_OES[o, end, node]
            delay += later_OES[o, end, node]
            held += memory_OES[o, end, node] if caps[0] < np.inf else 0.0
            count += 1
            node = end
        if held > caps[0] or count > caps[1]:
            continue
        best = min(best, max(link, ready_s[nodes - 1] + delay))
    return best


@compiled
def bounds_to_go(  # pragma: no cover - runs compiled
    ready_s: Floats,
    delay_OES: Floats,
    later_OES: Floats,
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
        delay_OES: seconds of compute of each edge before its exchange.
        later_OES: seconds of compute of each edge in all; none after the exchange of the last.
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
                delay, after = delay_OES[o, end, s], later_OES[o, end, s]
                memory = memory_OES[o, end, s] if heavy else 0.0
                for w in range(len(weights)):
                    share = weights[w]
                    cost = share * (after + (link if last else 0.0)) + (1 - share) * link
                    cost += prices[w] * memory
                    if cost + means[w, end] < means[w, s]:
                        means[w, s] = cost + means[w, end]
                        next_node[w, s] = end
                        next_option[w, s] = o
                finish = max(ready_s[end] + delay + link + means[0, end], after + wait[end])
                wait[s] = min(wait[s], finish)
    edges = ready_s, delay_OES, later_OES, link_OES, memory_OES
    upper = _least_finish_s(*edges, means, next_node, next_option, caps)
    return means, wait, upper


@compiled
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
