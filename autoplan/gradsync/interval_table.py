"""The exact dense grouping of every contiguous piece of a model at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]


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
