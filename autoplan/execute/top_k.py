"""Which elements of a gradient a sparse group sends: the k largest by magnitude."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float32]
Indices = NDArray[np.int32]

_MAGNITUDE = 0x7FFFFFFF
_BINS = 1 << 15
_SHIFT = 16


def top_k(values: Floats, k: int) -> Indices:
    """Indices of the k elements of the largest magnitude, in rising order; first ones win ties.

    A float32 without its sign sorts as the integer of its bits, so a histogram of the upper bits
    finds the bin in which the k-th element lies, and only that bin is sorted. Infinities and NaN
    count as largest, so that they are sent and seen.
    """
    if k >= len(values):
        return np.arange(len(values), dtype=np.int32)
    bits = values.view(np.uint32)
    least_bin, needed = threshold_bin(bits, k)
    chosen, border = split_at(bits, least_bin, k, needed)
    magnitudes = (bits[border] & np.uint32(_MAGNITUDE)).astype(np.int64)
    best = border[np.argsort(-magnitudes, kind="stable")[:needed]]
    found: Indices = np.sort(np.concatenate([chosen, best]).astype(np.int32))
    return found


@compiled
def threshold_bin(bits: NDArray[np.uint32], k: int) -> tuple[int, int]:  # pragma: no cover
    """The bin of the k-th largest magnitude, and how many of that bin are among the k."""
    counts = np.zeros(_BINS, dtype=np.int64)
    for i in range(len(bits)):
        counts[(bits[i] & np.uint32(_MAGNITUDE)) >> np.uint32(_SHIFT)] += 1
    above = 0
    b = _BINS - 1
    while above + counts[b] < k:
        above += counts[b]
        b -= 1
    return b, k - above


@compiled
def split_at(
    bits: NDArray[np.uint32], least_bin: int, k: int, needed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # pragma: no cover
    """Indices of all elements above a bin, and of those in it."""
    above = np.empty(k - needed, dtype=np.int64)
    inside = 0
    n = 0
    for i in range(len(bits)):
        b = np.int64((bits[i] & np.uint32(_MAGNITUDE)) >> np.uint32(_SHIFT))
        if b > least_bin:
            above[n] = i
            n += 1
        elif b == least_bin:
            inside += 1
    border = np.empty(inside, dtype=np.int64)
    n = 0
    for i in range(len(bits)):
        if np.int64((bits[i] & np.uint32(_MAGNITUDE)) >> np.uint32(_SHIFT)) == least_bin:
            border[n] = i
            n += 1
    return above, border
