"""The least load that any set of units with a given unit in it can have.

A stage with the unit u pays for the time of its units, and for the tensors that it shares with
others. Over all sets, contiguous or not, that is a minimum cut: every unit that joins u costs its
time, every tensor that is parted costs its own. By max-flow min-cut, whatever flow leaves u through
tensors into the times of other units is a lower bound, even if it is not the largest flow.

The network has a node for each of N units, two for each of T tensors (in, out), and a sink.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.workload.stage_loads import Transfer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_NEGLIGIBLE = 1e-13
"""Of the time of all units: flow that is not worth another search."""


def alone_s(compute_s_N: Floats, tensors: Sequence[Transfer]) -> Floats:
    """What each unit [N] would pay alone, which is at least its floor."""
    most_s_N = compute_s_N.copy()
    for tensor in tensors:
        ends = {tensor.producer, *tensor.consumers}
        for unit in ends if len(ends) > 1 else ():
            most_s_N[unit] += tensor.seconds
    return most_s_N


class UnitFloor:
    """The network, ready for one unit after the other."""

    __slots__ = ("_back_A", "_begin_V", "_compute_s_N", "_room_A", "_target_A")

    def __init__(self, compute_s_N: Floats, tensors: Sequence[Transfer]) -> None:
        """Builds it for units that take so long [N]."""
        num_units, num_tensors = len(compute_s_N), len(tensors)
        arcs = [(unit, num_units + 2 * num_tensors, time) for unit, time in enumerate(compute_s_N)]
        for number, tensor in enumerate(tensors):
            enter, leave = num_units + number, num_units + num_tensors + number
            arcs.append((enter, leave, tensor.seconds))
            for unit in {tensor.producer, *tensor.consumers}:
                arcs += [(unit, enter, np.inf), (leave, unit, np.inf)]
        sources = [source for source, _, _ in arcs] + [target for _, target, _ in arcs]
        order = np.argsort(sources, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        count = len(arcs)
        targets = np.array([target for _, target, _ in arcs] + sources[:count], dtype=np.int64)
        room = np.array([room for _, _, room in arcs] + [0.0] * count)
        back = np.concatenate([np.arange(count, 2 * count), np.arange(count)])
        self._target_A, self._room_A, self._back_A = targets[order], room[order], place[back[order]]
        nodes = num_units + 2 * num_tensors + 1
        self._begin_V = np.searchsorted(np.array(sources)[order], np.arange(nodes + 1))
        self._compute_s_N = compute_s_N

    def least_s(self, unit: int) -> float:
        """A lower bound, exact up to rounding, on the load of every set with the unit."""
        negligible = _NEGLIGIBLE * float(self._compute_s_N.sum())
        room_A = self._room_A.copy()
        flow = _flow(self._begin_V, self._target_A, room_A, self._back_A, unit, negligible)
        return float(self._compute_s_N[unit]) + flow


@compiled
def _flow(
    begin_V: Ints, target_A: Ints, room_A: Floats, back_A: Ints, unit: int, negligible: float
) -> float:  # pragma: no cover - runs compiled
    """Flow from a unit to the sink, the last node, along shortest paths with room.

    The unit's own arc to the sink is not used: its time is paid in any case.
    """
    sink = len(begin_V) - 2
    for arc in range(begin_V[unit], begin_V[unit + 1]):
        if target_A[arc] == sink:
            room_A[arc] = 0.0
    through = np.empty(sink + 1, dtype=np.int64)
    queue = np.empty(sink + 1, dtype=np.int64)
    flow = 0.0
    while True:
        through[:] = -1
        count, taken = 1, 0
        queue[0] = unit
        while taken < count and through[sink] < 0:
            node = queue[taken]
            taken += 1
            for arc in range(begin_V[node], begin_V[node + 1]):
                target = target_A[arc]
                if room_A[arc] > negligible and target != unit and through[target] < 0:
                    through[target] = arc
                    queue[count] = target
                    count += 1
        if through[sink] < 0:
            return flow
        least, node = np.inf, sink
        while node != unit:
            least = min(least, room_A[through[node]])
            node = target_A[back_A[through[node]]]
        node = sink
        while node != unit:
            room_A[through[node]] -= least
            room_A[back_A[through[node]]] += least
            node = target_A[back_A[through[node]]]
        flow += least
