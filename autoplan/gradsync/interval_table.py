"""The exact dense grouping of every contiguous piece of a model at once, or of some of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TABLE_LAYERS = 600
"""The table takes up to L^3 steps; of longer models, pieces are worked out when asked for."""
_MOST_KEPT = 1 << 14


class FinishTimes:
    """When the last backward of a stage [i, j) and its gradients end under the best grouping."""

    def __init__(self, backward_s_L: Floats, elements_L: Floats, pieces: Floats) -> None:
        """Makes the table of a short model; arguments are those of `finish_table`."""
        self._backward_s_L = np.ascontiguousarray(backward_s_L)
        self._elements_L = np.ascontiguousarray(elements_L)
        self._pieces = np.ascontiguousarray(pieces)
        self._cuts = backward_s_L.size + 1
        self._known: dict[int, float] = {}
        self._table_CC: Floats | None = None
        if backward_s_L.size <= _TABLE_LAYERS:
            self._table_CC = finish_table(backward_s_L, elements_L, pieces)

    def at(self, first_K: Ints, end_K: Ints) -> Floats:
        """Seconds after backward starts, for each of K stages."""
        if self._table_CC is not None:
            asked: Floats = self._table_CC[first_K, end_K]
            return asked
        codes, place_K = np.unique(first_K * self._cuts + end_K, return_inverse=True)
        new = np.array([code for code in codes.tolist() if code not in self._known], dtype=np.int64)
        if new.size > 0:
            if len(self._known) > _MOST_KEPT:
                self._known.clear()
                new = codes
            layers = self._backward_s_L, self._elements_L, self._pieces
            times = _finish_times(*layers, new // self._cuts, new % self._cuts)
            self._known.update(zip(new.tolist(), times.tolist(), strict=True))
        found = np.array([self._known[code] for code in codes.tolist()])
        found_K: Floats = found[place_K]
        return found_K


def finish_table(backward_s_L: Floats, elements_L: Floats, pieces: Floats) -> Floats:
    """When the last backward of every stage [i, j) and its gradients end under the best grouping.

    The dynamic program of `exact.exact_grouping` runs once for each last layer j - 1: its state
    after e layers is the optimum of the stage that starts e layers before j, so that all L^2
    stages take O(L^3) steps together at most, and O(L^2) where compute hides the exchange.

    Args:
        backward_s_L: seconds of each layer's backward.
        elements_L: gradient elements of each layer.
        pieces: rows (seconds, seconds per element) of the exchange, the cheapest of which holds.

    Returns:
        Seconds after backward starts, C x C with C = L + 1; 0 where j <= i.
    """
    return _finish_table(
        np.ascontiguousarray(backward_s_L),
        np.ascontiguousarray(elements_L),
        np.ascontiguousarray(pieces),
    )


@compiled
def _finish_table(  # pragma: no cover - runs compiled
    backward_s_L: Floats, elements_L: Floats, pieces: Floats
) -> Floats:
    layers = backward_s_L.size
    table = np.zeros((layers + 1, layers + 1))
    free = np.zeros(layers + 1)
    total = np.zeros(layers + 1)
    for j in range(1, layers + 1):
        ready = 0.0
        idle = 0  # the last end before which the link is free once the next layer is ready
        for e in range(1, j + 1):
            ready += backward_s_L[j - e]
            elements = elements_L[j - e]
            total[e] = total[e - 1] + elements
            if elements > 0:
                # Of all groups that need not wait for the link the smallest ends first, since
                # costs rise with the elements and `free` rises with the end.
                while idle + 1 < e and free[idle + 1] <= ready:
                    idle += 1
                best = np.inf
                for s in range(idle, e):
                    size = total[e] - total[s]
                    cost = np.inf
                    for p in range(pieces.shape[0]):
                        cost = min(cost, pieces[p, 0] + pieces[p, 1] * size)
                    best = min(best, max(free[s], ready) + cost)
                free[e] = best
            else:
                free[e] = free[e - 1]
            table[j - e, j] = max(ready, free[e])
    return table


@compiled
def _finish_times(  # pragma: no cover - runs compiled
    backward_s_L: Floats, elements_L: Floats, pieces: Floats, first_K: Ints, end_K: Ints
) -> Floats:
    """Entries of the table, each in O(L) steps for each piece of the cost.

    Of the ends at which the link is still busy when the next layer is ready, a piece's best is the
    one with the least (free - slope * total); a queue holds those that may become it.
    """
    longest = (end_K - first_K).max()
    free, total = np.zeros(longest + 1), np.zeros(longest + 1)
    queue = np.zeros((pieces.shape[0], longest + 1), dtype=np.int64)
    head, tail = np.zeros((2, pieces.shape[0]), dtype=np.int64)
    times_K = np.zeros(first_K.size)
    for k in range(first_K.size):
        head[:] = tail[:] = 0
        ready = 0.0
        idle = 0  # the last end before which the link is free once the next layer is ready
        for e in range(1, end_K[k] - first_K[k] + 1):
            ready += backward_s_L[end_K[k] - e]
            elements = elements_L[end_K[k] - e]
            total[e] = total[e - 1] + elements
            if elements <= 0:
                free[e] = free[e - 1]
                continue
            while idle + 1 < e and free[idle + 1] <= ready:
                idle += 1
            best = np.inf
            for p in range(pieces.shape[0]):
                alpha, beta = pieces[p]
                new = free[e - 1] - beta * total[e - 1]
                while tail[p] > head[p]:
                    last = queue[p, tail[p] - 1]
                    if free[last] - beta * total[last] < new:
                        break
                    tail[p] -= 1
                queue[p, tail[p]] = e - 1
                tail[p] += 1
                while head[p] < tail[p] and queue[p, head[p]] <= idle:
                    head[p] += 1
                value = max(free[idle], ready) + alpha + beta * (total[e] - total[idle])
                if head[p] < tail[p]:
                    s = queue[p, head[p]]
                    value = min(value, free[s] + alpha + beta * (total[e] - total[s]))
                best = min(best, value)
            free[e] = best
        times_K[k] = max(ready, free[end_K[k] - first_K[k]])
    return times_K
