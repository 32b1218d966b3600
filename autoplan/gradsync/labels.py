"""Exact paths by Pareto labels, compiled; `oracle` has them in plain Python.

A label at a node is a way to reach it: `delay` seconds added to compute so far, the time `link`
when the link is free, and, where they are limited, the bytes kept and the number of groups. Nodes,
edges and the suffix OES are those of `kernels`.
"""

from __future__ import annotations

import numpy as np

from autoplan.compiled import compiled
from autoplan.gradsync.kernels import Floats, Ints

EPSILON = 1e-15
"""Times closer than this share of the finish are one time: rounding makes no labels of its own."""
DELAY, LINK, MEMORY, COUNT = range(4)
PARENT, END, OPTION = range(3)


@compiled
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


@compiled
def _doubled(figures: Floats) -> Floats:  # pragma: no cover - runs compiled
    return np.concatenate((figures, np.empty_like(figures)), axis=1)


@compiled
def _doubled_links(links: Ints) -> Ints:  # pragma: no cover - runs compiled
    return np.concatenate((links, np.empty_like(links)), axis=1)


@compiled
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


@compiled
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


@compiled
def _narrowed(  # pragma: no cover - runs compiled
    figures: Floats, kept: Ints, bounds: Floats, width: int
) -> Ints:
    """The labels with the least bounds, and those with least memory and fewest groups."""
    chosen = np.zeros(len(kept), dtype=np.bool_)
    chosen[np.argsort(bounds[kept])[:width]] = True
    chosen[np.argmin(figures[MEMORY][kept])] = True
    chosen[np.argmin(figures[COUNT][kept])] = True
    return kept[chosen]


@compiled
def _best_label(  # pragma: no cover - runs compiled
    figures: Floats, first: int, last: int, compute_s: float
) -> tuple[int, float]:
    """Which of the labels first..last-1 ends earliest, with the least delay, and when; or -1."""
    best, best_s = -1, np.inf
    for j in range(first, last):
        finish = max(figures[LINK, j], compute_s + figures[DELAY, j])
        if finish < best_s or (
            finish == best_s
            and (figures[DELAY, j], figures[COUNT, j])
            < (figures[DELAY, best], figures[COUNT, best])
        ):
            best, best_s = j, finish
    return best, best_s


@compiled
def _way_to(  # pragma: no cover - runs compiled
    links: Ints, label: int, nodes: int
) -> tuple[Ints, Ints]:
    """The nodes where the groups of a label end, and their options."""
    ends = np.empty(nodes, dtype=np.int64)
    options = np.empty(nodes, dtype=np.int64)
    count = 0
    while label > 0:
        ends[count], options[count] = links[END, label], links[OPTION, label]
        label = links[PARENT, label]
        count += 1
    return ends[:count][::-1].copy(), options[:count][::-1].copy()


@compiled
def pareto(  # pragma: no cover - runs compiled
    ready_s: Floats,
    delay_OES: Floats,
    later_OES: Floats,
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
        delay_OES: as in `bounds_to_go`.
        later_OES: as in `bounds_to_go`.
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
                delay_s, later_s = delay_OES[o, end, s], later_OES[o, end, s]
                memory = memory_OES[o, end, s] if heavy else 0.0
                for j in range(first[s], first[s + 1]):
                    delay = labels[DELAY, j] + later_s
                    if delay + wait[end] > limit:
                        if heavy or counted:
                            continue
                        break
                    begin = ready_s[end] + labels[DELAY, j] + delay_s
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
    best, best_s = _best_label(labels, int(first[-2]), int(first[-1]), compute_s)
    ends, chosen = _way_to(links, best, nodes)
    return best_s, ends, chosen
