"""Contiguous partitions of layers into stages that balance a load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.errors import require

Floats = NDArray[np.float64]


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
    Dynamic program over stages and cuts, O(S L^2).

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
    choices, largest = _balanced(prefix, crossing, np.array(replicas, dtype=np.float64))
    bounds = [num_layers]
    for k in range(num_stages - 1, -1, -1):
        bounds.append(int(choices[k, bounds[-1]]))
    return tuple(reversed(bounds)), float(largest)


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


def _require_stages(num_stages: int, num_layers: int) -> None:
    sound = 1 <= num_stages <= num_layers
    require(sound, "stages", num_stages, f"1 to {num_layers}, the number of layers")
