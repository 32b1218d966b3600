"""The contiguous partition whose heaviest stage is lightest, for any load of every stage.

`partition.balanced_bounds` knows a stage by the sum of its layers and its two cuts. Here every
stage [i, j) has a load of its own, so that whatever a stage costs can be told: each tensor once
that it reads from outside, the larger of computing and sending, memory that forbids it. Matrices
[first cut, last cut] have the suffix CC over the C = L + 1 cuts around L layers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.errors import InputError, require, words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def min_max_partition(
    load_CC: Floats, num_stages: int, *, exactly: bool
) -> tuple[tuple[int, ...], float]:
    """The partition into non-empty stages whose largest load is least, and that load.

    Exact for any loads: they need not grow with the stage. Of equally good partitions it returns
    one with the fewest stages, whose last stage starts as early as it can, with the layers before
    it parted best by the same rule. Dynamic program over stages and cuts (facts/planners.md
    section 5), O(S L^2) time and, beside the matrix and a copy, O(S L) memory.

    Args:
        load_CC: at [i, j], i < j, the load of stage [i, j) in any one unit; infinite where the
            stage is not allowed. The rest of the matrix is not read.
        num_stages: S.
        exactly: whether all S stages are used; otherwise devices may be left idle.

    Returns:
        The bounds, one more than the stages that are used, and the largest load; this is infinite
        where every partition has a stage that is not allowed.

    Raises:
        InputError: the matrix is not square, a load is not a number or minus infinity, there is no
            stage, or all of more stages than layers must be used.
    """
    loads, most = _checked(load_CC, num_stages, exactly)
    least_SC, start_SC = _least_max(loads, most)
    finish_S = least_SC[1:, -1]
    used = most if exactly else 1 + int(finish_S.argmin())
    bounds = [len(loads) - 1]
    for stage in range(used, 0, -1):
        bounds.append(int(start_SC[stage, bounds[-1]]))
    return tuple(reversed(bounds)), float(finish_S[used - 1])


def min_max_partition_plain(
    load_CC: Floats, num_stages: int, *, exactly: bool
) -> tuple[tuple[int, ...], float]:
    """`min_max_partition` in plain Python, for tests: the same result to the last bit."""
    loads, most = _checked(load_CC, num_stages, exactly)
    last = len(loads) - 1
    # The best partition of the first j layers into k stages, by j, from that into k - 1.
    into: list[dict[int, tuple[float, tuple[int, ...]]]] = [{0: (-np.inf, (0,))}]
    for stages in range(1, most + 1):
        longer = {}
        for j in range(stages, last + 1):
            options = [
                (max(worst, float(loads[i, j])), (*bounds, j))
                for i, (worst, bounds) in into[-1].items()
                if i < j
            ]
            # The first of the least; where none is allowed, the last layer alone.
            least = min(options, key=lambda option: option[0])
            longer[j] = options[-1] if least[0] == np.inf else least
        into.append(longer)
    finished = [into[most][last]] if exactly else [best[last] for best in into[1:]]
    load, bounds = min(finished, key=lambda option: option[0])
    return bounds, load


def _checked(load_CC: Floats, num_stages: int, exactly: bool) -> tuple[Floats, int]:
    """The loads in the kernel's layout, and the most stages that can be used."""
    loads = np.ascontiguousarray(load_CC, dtype=np.float64)
    square = loads.ndim == 2 and len(loads) == loads.shape[1] >= 2
    found = words(f"an array of shape {loads.shape}")
    require(square, "loads", found, "a square matrix with a row for each cut, 2 or more")
    above = np.triu(loads, 1)
    wrong = np.isnan(above) | np.isneginf(above)
    if wrong.any():
        i, j = (int(axis[0]) for axis in np.nonzero(wrong))
        raise InputError(f"load of stage [{i}, {j})", float(above[i, j]), "a number, or infinity")
    num_layers = len(loads) - 1
    sound = 1 <= num_stages <= num_layers or (num_stages > num_layers and not exactly)
    limit = f"1 to {num_layers}, the number of layers" if exactly else "at least 1"
    require(sound, "stages", num_stages, limit)
    return loads, min(num_stages, num_layers)


@compiled
def _least_max(  # pragma: no cover - runs compiled
    load_CC: Floats, num_stages: int
) -> tuple[Floats, Ints]:
    """The least largest load of k stages that end at each cut, and where the last one starts.

    Row k of both is of k stages. Where none is allowed, the last of several is one layer long.
    """
    cuts = len(load_CC)
    least = np.full((num_stages + 1, cuts), np.inf)
    least[0, 0] = -np.inf
    start = np.zeros((num_stages + 1, cuts), dtype=np.int64)
    for k in range(1, num_stages + 1):
        for j in range(cuts):
            start[k, j] = j - 1 if k > 1 else 0
        for i in range(k - 1, cuts - 1):
            before = least[k - 1, i]
            if before == np.inf:
                continue
            for j in range(i + 1, cuts):
                worst = max(before, load_CC[i, j])
                if worst < least[k, j]:
                    least[k, j] = worst
                    start[k, j] = i
    return least, start
