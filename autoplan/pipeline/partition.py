"""Contiguous partitions of layers into stages that balance a load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.errors import require

Floats = NDArray[np.float64]

_MOST_STEPS = 5_000_000
"""Steps of the dynamic program, some hundredths of a second; beyond, loads are tried."""
_PRECISION = 1e-7
_LEAST_WIDTH, _MOST_REACHED = 512, 4_000_000
"""Cuts that are looked at for the end of a stage, and for the ends of all stages together."""
_ROUNDED = 1e-12
"""Sums that differ by less may do so by rounding alone."""


def uniform_bounds(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """The S+1 bounds of stages with as equal numbers of layers as possible.

    Raises:
        InputError: there are more stages than layers.
    """
    _require_stages(num_stages, num_layers)
    return tuple(s * num_layers // num_stages for s in range(num_stages + 1))


def balanced_bounds(
    load_s_L: Floats, replicas: Sequence[int], cut_s: Floats | None = None
) -> tuple[tuple[int, ...], float]:
    """The partition whose heaviest stage is lightest, and that stage's load in seconds.

    A stage's load is the sum of its layers divided by its replicas, plus `cut_s` of the cuts on
    both of its sides: the "sum" model of Piper and dnn-partitioning (facts/planners.md section 5).
    Dynamic program over stages and cuts, O(S L^2); where that is too much, by trying loads, which
    takes O(S L) for each; the load is then within 1e-7 of the least unless a stage could end at
    very many cuts.

    Args:
        load_s_L: seconds per layer on one device.
        replicas: devices of each of the S stages.
        cut_s: seconds to cross each of the L+1 cuts; nothing by default.

    Returns:
        The S+1 bounds and the largest load.

    Raises:
        InputError: there are more stages than layers.
    """
    num_layers, num_stages = len(load_s_L), len(replicas)
    _require_stages(num_stages, num_layers)
    prefix = np.concatenate(([0.0], np.cumsum(load_s_L)))
    crossing = np.zeros(num_layers + 1) if cut_s is None else np.array(cut_s, dtype=np.float64)
    crossing[[0, -1]] = 0.0
    counts = np.array(replicas, dtype=np.float64)
    if num_stages * num_layers**2 > _MOST_STEPS:
        return _tried(prefix, crossing, counts)
    choices, largest = _balanced(prefix, crossing, counts)
    bounds = [num_layers]
    for k in range(num_stages - 1, -1, -1):
        bounds.append(int(choices[k, bounds[-1]]))
    return tuple(reversed(bounds)), float(largest)


def _tried(prefix: Floats, crossing: Floats, replicas: Floats) -> tuple[tuple[int, ...], float]:
    """The same by bisection on the largest load; the least that some partition keeps to."""
    stages, layers = replicas.size, prefix.size - 1
    bounds = np.array(uniform_bounds(layers, stages), dtype=np.int64)
    found = np.empty_like(bounds)
    high = float(_loads(bounds, prefix, crossing, replicas).max())
    low = 0.0
    while high - low > _PRECISION * high and low < (low + high) / 2 < high:
        middle = (low + high) / 2
        if _kept(prefix, crossing, replicas, middle, found):
            bounds[:] = found
            high = float(_loads(bounds, prefix, crossing, replicas).max())
        else:
            low = middle
    return tuple(bounds.tolist()), high


def _loads(bounds: NDArray[np.int64], prefix: Floats, crossing: Floats, replicas: Floats) -> Floats:
    """The load of every stage."""
    loads: Floats = (
        np.diff(prefix[bounds]) / replicas + crossing[bounds[:-1]] + crossing[bounds[1:]]
    )
    return loads


@compiled
def _balanced(  # pragma: no cover - runs compiled
    prefix: Floats, crossing: Floats, replicas: Floats
) -> tuple[NDArray[np.int64], float]:
    """The cut before each stage that ends at each cut, and the largest load of the whole."""
    layers, stages = prefix.size - 1, replicas.size
    best = np.full(layers + 1, np.inf)
    best[0] = 0.0
    choices = np.zeros((stages, layers + 1), dtype=np.int64)
    for k in range(stages):
        reached = np.full(layers + 1, np.inf)
        for end in range(k + 1, layers - (stages - 1 - k) + 1):
            for start in range(k, end):
                load = (prefix[end] - prefix[start]) / replicas[k] + crossing[start] + crossing[end]
                worst = max(best[start], load)
                if worst < reached[end]:
                    reached[end] = worst
                    choices[k, end] = start
        best = reached
    return choices, best[layers]


@compiled
def _kept(  # pragma: no cover - runs compiled
    prefix: Floats, crossing: Floats, replicas: Floats, largest: float, bounds: NDArray[np.int64]
) -> bool:
    """Whether some partition has no load above `largest`; fills in its bounds.

    A cut is reached by stage k where the least of (crossing - prefix / replicas) over the earlier
    cuts that stage k - 1 reaches is small enough. No stage may end before those after it can do
    the rest, crossings aside; of the cuts that are left, the last ones are looked at.
    """
    layers, stages = prefix.size - 1, replicas.size
    width = max(_LEAST_WIDTH, _MOST_REACHED // stages)
    first = np.zeros(stages + 1, dtype=np.int64)
    first[stages] = layers
    for k in range(stages - 1, 0, -1):
        least = (prefix[first[k + 1]] - largest * replicas[k]) * (1 - _ROUNDED)
        first[k] = max(np.searchsorted(prefix, least), k)
    # Of each cut in each row: where the stage that ends there starts; -1 where it is not reached.
    start = np.full((stages + 1, min(width, layers + 1)), -1, dtype=np.int32)
    start[0, 0] = last = 0
    for k in range(1, stages + 1):
        most = (prefix[last] + largest * replicas[k - 1]) * (1 + _ROUNDED)
        limit = min(np.searchsorted(prefix, most, side="right") - 1, layers - (stages - k))
        first[k] = max(first[k], limit - start.shape[1] + 1)
        i, least, chosen, before = first[k - 1], np.inf, -1, last
        last = -1
        for j in range(first[k], limit + 1):
            while i < min(j, before + 1):
                value = crossing[i] - prefix[i] / replicas[k - 1]
                if start[k - 1, i - first[k - 1]] >= 0 and value < least:
                    least, chosen = value, i
                i += 1
            if chosen >= 0 and least + crossing[j] + prefix[j] / replicas[k - 1] <= largest:
                start[k, j - first[k]] = chosen
                last = j
        if last < 0:
            return False
    bounds[stages] = layers
    for k in range(stages, 0, -1):
        bounds[k - 1] = start[k, bounds[k] - first[k]]
    return True


def _require_stages(num_stages: int, num_layers: int) -> None:
    sound = 1 <= num_stages <= num_layers
    require(sound, "stages", num_stages, f"1 to {num_layers}, the number of layers")
