"""Partitions whose heaviest stage is lightest, where stages differ: by replicas, or by place.

`minmax.min_max_partition` gives all stages the same loads. Here a stage [i, j) with r replicas has
a load of its own, and replicas are shared out together with the layers; or every stage of a fixed
row has its own loads. Matrices [first cut, last cut] have the suffix CC over C = L + 1 cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.errors import require, words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedOut:
    """The best partitions of all layers, by the devices that they use."""

    load_N: Floats
    """Least largest load with exactly n devices, n = 0, 1, ...; infinite where there is none."""
    replicas_R: tuple[int, ...]
    choice_CN2: Ints
    """The last stage of the first layers up to each cut on n devices: its first cut, its row."""

    def partition(self, devices: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bounds and replicas of the best partition that uses so many devices."""
        bounds, replicas = [len(self.choice_CN2) - 1], []
        while bounds[-1] > 0:
            start, row = (int(n) for n in self.choice_CN2[bounds[-1], devices])
            replicas.append(self.replicas_R[row])
            devices -= replicas[-1]
            bounds.append(start)
        return tuple(bounds[::-1]), tuple(replicas[::-1])


def min_max_shared_out(load_RCC: Floats, replicas: Sequence[int], devices: int) -> SharedOut:
    """The least largest load of any partition into any stages, for each number of devices.

    Dynamic program over cuts, replicas and devices: O(D R L^2) time, O(D L) memory.

    Args:
        load_RCC: at [r, i, j], i < j, the load of stage [i, j) with the r-th number of replicas, at
            least 0; infinite where the stage is not allowed. The rest is not read.
        replicas: the numbers of replicas, rising.
        devices: D, the most devices that all stages may use.

    Raises:
        InputError: the loads are not a square matrix for each number of replicas.
    """
    square = load_RCC.ndim == 3 and load_RCC.shape[1] == load_RCC.shape[2] >= 2
    found = words(f"an array of shape {load_RCC.shape}")
    require(square, "loads", found, "square matrices with a row for each cut, 2 or more")
    require(len(replicas) == len(load_RCC), "replicas", tuple(replicas), f"{len(load_RCC)} numbers")
    require(min(replicas) >= 1, "replicas", tuple(replicas), "at least 1 each")
    best_CN, choice_CN2 = _shared_out(
        np.ascontiguousarray(load_RCC, dtype=np.float64),
        np.array(replicas, dtype=np.int64),
        devices,
    )
    return SharedOut(load_N=best_CN[-1], replicas_R=tuple(replicas), choice_CN2=choice_CN2)


def min_max_cuts(loads_CC: Iterable[Floats]) -> tuple[tuple[int, ...], float]:
    """The cuts of a row of stages whose largest load is least, and that load.

    Args:
        loads_CC: for each stage, at [i, j], i < j, its load if it is [i, j); infinite where that is
            not allowed. The rest is not read. One matrix is held at a time.

    Returns:
        The S + 1 bounds, and the largest load; this is infinite where every partition has a stage
        that is not allowed, the bounds then being some partition.

    Raises:
        InputError: the loads are not square matrices, or there are more stages than layers.
    """
    least_C = np.zeros(0)
    starts: list[Ints] = []
    for load_CC in loads_CC:
        square = load_CC.ndim == 2 and len(load_CC) == load_CC.shape[1] >= 2
        found = words(f"an array of shape {load_CC.shape}")
        require(square, "loads", found, "square matrices with a row for each cut, 2 or more")
        if not starts:
            least_C = np.full(len(load_CC), np.inf)
            least_C[0] = 0.0
        least_C, start_C = _one_more(
            least_C, np.ascontiguousarray(load_CC, dtype=np.float64), len(starts)
        )
        starts.append(start_C)
    layers = len(least_C) - 1
    require(1 <= len(starts) <= layers, "stages", len(starts), "1 to the number of layers")
    bounds = [layers]
    for start_C in reversed(starts):
        bounds.append(int(start_C[bounds[-1]]))
    return tuple(reversed(bounds)), float(least_C[-1])


@compiled
def _shared_out(  # pragma: no cover - runs compiled
    load_RCC: Floats, replicas_R: Ints, devices: int
) -> tuple[Floats, Ints]:
    """Least largest load per cut and devices used, and the last stage of each."""
    cuts = load_RCC.shape[1]
    best = np.full((cuts, devices + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((cuts, devices + 1, 2), dtype=np.int64)
    for end in range(1, cuts):
        for r in range(replicas_R.size):
            count = replicas_R[r]
            for start in range(end):
                load = load_RCC[r, start, end]
                if load == np.inf:
                    continue
                for used in range(devices + 1 - count):
                    value = max(best[start, used], load)
                    if value < best[end, used + count]:
                        best[end, used + count] = value
                        choice[end, used + count, 0] = start
                        choice[end, used + count, 1] = r
    return best, choice


@compiled
def _one_more(  # pragma: no cover - runs compiled
    least_C: Floats, load_CC: Floats, before: int
) -> tuple[Floats, Ints]:
    """Least largest load with one more stage behind so many others, and where that starts."""
    cuts = len(load_CC)
    reached = np.full(cuts, np.inf)
    start_C = np.zeros(cuts, dtype=np.int64)
    for end in range(before + 1, cuts):
        start_C[end] = end - 1 if before > 0 else 0
        for start in range(before, end):
            worst = max(least_C[start], load_CC[start, end])
            if worst < reached[end]:
                reached[end] = worst
                start_C[end] = start
    return reached, start_C
