"""Min-max partitions of stages that lie one after the other on the devices of a cluster's nodes.

A stage on devices [d, d + r) has transfers and exchanges that cost more where they leave a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.pipeline.minmax_stages import SharedOut

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedLoads:
    """Loads of stages in parts. Axes: R choices of replicas, D first devices, C cuts."""

    replicas_R: tuple[int, ...]
    """Rising."""
    alone_RCC: Floats
    """Load of stage [i, j) but for transfers and exchanges; infinite where it is not allowed."""
    link_2RCC: Floats
    """What exchanges add: within a node; over several."""
    size_C: Floats
    """Bytes over each cut in a step, in both directions."""
    messages: float
    """Transfers over a cut in a step."""
    receive_2RD: Floats
    """Seconds of each message, and of each byte, that a stage receives by its first device."""
    send_2RD: Floats
    """The same of what it sends."""
    spans_RD: NDArray[np.bool_]
    """Whether the stage lies over several nodes."""


def min_max_placed(loads: PlacedLoads, devices: int) -> SharedOut:
    """The least largest load for each number of devices, the first stage on the first devices.

    Dynamic program over cuts, replicas and devices: O(D R L^2) time, O(D L) memory.
    """
    best_CN, choice_CN2 = _placed(
        loads.alone_RCC,
        loads.link_2RCC,
        _crossing_s(loads, loads.receive_2RD),
        _crossing_s(loads, loads.send_2RD),
        loads.spans_RD.astype(np.int64),
        np.array(loads.replicas_R, dtype=np.int64),
        devices,
    )
    return SharedOut(load_N=best_CN[-1], replicas_R=loads.replicas_R, choice_CN2=choice_CN2)


def least_of_more_stages(
    load_RCC: Floats, replicas: tuple[int, ...], devices: int, more_than: int
) -> float:
    """The least largest load of partitions into more stages than this, on more devices than stages.

    O(S D R L^2) time for S up to the devices.
    """
    return float(_more_stages(load_RCC, np.array(replicas, dtype=np.int64), devices, more_than))


def _crossing_s(loads: PlacedLoads, rates_2RD: Floats) -> Floats:
    """Seconds in a step over each cut, [R, D, C]; a cut that nothing crosses is free."""
    seconds = loads.messages * rates_2RD[0][:, :, None] + rates_2RD[1][:, :, None] * loads.size_C
    return np.where(loads.size_C > 0, seconds, 0.0)


@compiled
def _placed(  # pragma: no cover - runs compiled
    alone_RCC: Floats,
    link_2RCC: Floats,
    receive_RDC: Floats,
    send_RDC: Floats,
    spans_RD: Ints,
    replicas_R: Ints,
    devices: int,
) -> tuple[Floats, Ints]:
    """Least largest load per cut and devices used, and the last stage of each."""
    cuts = alone_RCC.shape[1]
    best = np.full((cuts, devices + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((cuts, devices + 1, 2), dtype=np.int64)
    for end in range(1, cuts):
        for r in range(replicas_R.size):
            count = replicas_R[r]
            for start in range(end):
                alone = alone_RCC[r, start, end]
                if alone == np.inf:
                    continue
                for used in range(devices + 1 - count):
                    load = alone + receive_RDC[r, used, start] + send_RDC[r, used, end]
                    load += link_2RCC[spans_RD[r, used], r, start, end]
                    value = max(best[start, used], load)
                    if value < best[end, used + count]:
                        best[end, used + count] = value
                        choice[end, used + count, 0] = start
                        choice[end, used + count, 1] = r
    return best, choice


@compiled
def _more_stages(  # pragma: no cover - runs compiled
    load_RCC: Floats, replicas_R: Ints, devices: int, more_than: int
) -> float:
    """Adds one stage after the other."""
    cuts = load_RCC.shape[1]
    least = np.inf
    best = np.full((cuts, devices + 1), np.inf)
    best[0, 0] = 0.0
    for stages in range(1, min(devices, cuts - 1) + 1):
        longer = np.full((cuts, devices + 1), np.inf)
        for end in range(stages, cuts):
            for r in range(replicas_R.size):
                count = replicas_R[r]
                for start in range(stages - 1, end):
                    load = load_RCC[r, start, end]
                    if load == np.inf:
                        continue
                    for used in range(stages - 1, devices + 1 - count):
                        value = max(best[start, used], load)
                        if value < longer[end, used + count]:
                            longer[end, used + count] = value
        if stages > more_than:
            for used in range(stages + 1, devices + 1):
                least = min(least, longer[cuts - 1, used])
        best = longer
    return least
