"""What no partition of a very long chain over very many devices can beat.

`bounds.step_bound` looks at every stage [i, j) with every number of devices used before it, which
takes L^2 R N steps. Here a time T is tried: how far can a stage that starts at layer i with r
replicas reach, if it must be done within T? Those reaches, chained, tell whether N devices are
enough for the model, in O(R (L + N)) steps up to a logarithm; T is found by bisection. What is left
out against `step_bound` to make loads grow with the stage: transfers over the cuts that other
stages have, the backward of the last layer beside an exchange, and that others cannot have the
devices of the stage itself.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.pipeline.bounds import Bound, prefix
from autoplan.pipeline.large_memory import StageMemory, furthest_ends
from autoplan.pipeline.large_paths import PathProblem, path_bound_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PRECISION = 2e-3
"""Relative width at which the bisection stops."""
_MARGIN = 1e-9
"""Times within this share of what is tried count as reached: sums are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LargeProblem:
    """Least costs of layers and cuts. Axes: R choices of replicas, L layers, C = L + 1 cuts."""

    replicas_R: Ints
    """Choices of replicas, rising."""
    forward_s_RL: Floats
    """Seconds of each layer's forward of one microbatch on one of so many replicas."""
    backward_s_RL: Floats
    """Seconds of each layer's backward of one microbatch."""
    receive_s_RC: Floats
    """Least seconds for so many replicas to receive a microbatch over a cut; 0 at the ends."""
    elements_L: Floats
    """Gradient elements of each layer."""
    exchange_R2: Floats
    """Least seconds, and least seconds per element, to exchange a stage's gradients."""
    optimizer_s_per_element: float
    """Seconds of the update per element."""
    memory: StageMemory
    """What limits the layers of a stage."""
    microbatches: int
    """Microbatches per step."""
    devices: int
    """Devices that all stages share."""


class LargeBound:
    """The bounds for one number of microbatches, a quick and a closer one."""

    def __init__(self, problem: LargeProblem) -> None:
        """Works out which stages fit in memory."""
        self.problem = problem
        self.end_RC = furthest_ends(problem.memory)
        self.fits = self._reaches(math.inf)[0]
        """Whether the devices have the memory for the model, as far as single stages tell."""
        if not self.fits:  # the cheapest bound regardless of memory may still be asked for
            self.end_RC = np.full_like(self.end_RC, self.end_RC.shape[1] - 1)

    @functools.cached_property
    def quick(self) -> Bound:
        """A time that no partition beats, and a partition that comes near it.

        Each stage must be done within the step, in the terms of `bounds.step_bound`, and fit in
        memory; the stages together have so many devices. The time is within 0.2 % of the least for
        which these conditions can be met; infinite, with one stage, where `fits` is false.
        """
        if self.fits:
            return self._nearest
        layers, most = self.problem.elements_L.size, int(self.problem.replicas_R[-1])
        return Bound(step_s=math.inf, bounds=(0, layers), replicas=(most,))

    @property
    def regardless_s(self) -> float:
        """Where `fits` is false: a time that no partition beats, whatever memory it needs."""
        return self._nearest.step_s

    @functools.cached_property
    def _nearest(self) -> Bound:
        """The bound and its partition, by bisection."""
        low_s = self._no_less_than
        high_s = self._reached(low_s)
        while high_s > low_s * (1 + _PRECISION) and high_s > np.finfo(np.float64).tiny:
            middle_s = math.sqrt(low_s * high_s) if low_s > 0 else high_s / 2
            if self._reaches(middle_s)[0]:
                high_s = middle_s
            else:
                low_s = middle_s
        return _traced(self.problem, low_s, *self._reaches(high_s)[1:])

    @functools.cached_property
    def closer_s(self) -> float:
        """At least as large: with the time that a microbatch takes through all stages."""
        problem = self.problem
        work_s_RL = problem.forward_s_RL + problem.backward_s_RL
        least_L = (work_s_RL * problem.replicas_R[:, None]).min(axis=0)
        total = float(least_L.sum())
        if total <= 0 or not self.fits:
            return self.quick.step_s
        shares = np.divide(
            problem.forward_s_RL, work_s_RL, out=np.zeros_like(work_s_RL), where=work_s_RL > 0
        )
        share_C = np.minimum(prefix(least_L) / total, 1.0)
        share_C[-1] = 1.0
        paths = PathProblem(
            replicas_R=problem.replicas_R,
            forward_s_RC=prefix(problem.forward_s_RL),
            backward_s_RC=prefix(problem.backward_s_RL),
            receive_s_RC=np.ascontiguousarray(problem.receive_s_RC),
            end_RC=self.end_RC,
            share_C=share_C,
            forward_share=float(shares.max()),
            microbatches=problem.microbatches,
            devices=problem.devices,
        )
        return path_bound_s(paths, self.quick.step_s)

    @property
    def _no_less_than(self) -> float:
        """Seconds of all work shared out evenly: no step takes less."""
        problem = self.problem
        work_s_RL = problem.forward_s_RL + problem.backward_s_RL
        least_s_L = (work_s_RL * problem.replicas_R[:, None]).min(axis=0)
        return float(least_s_L.sum()) * problem.microbatches / problem.devices * (1 - _MARGIN)

    def _reached(self, low_s: float) -> float:
        """Some time for which the devices are enough."""
        high_s, grows_by = max(low_s, 1e-9), 1.02
        while not self._reaches(high_s)[0]:
            high_s *= grows_by
            grows_by *= grows_by
        return high_s

    def _reaches(self, step_s: float) -> tuple[bool, Ints, Ints]:
        """Whether all layers are reached in time; the layers by devices; the last choices."""
        problem = self.problem
        reach_N, choice_N = _chain(
            (problem.microbatches, problem.devices),
            np.ascontiguousarray(problem.replicas_R, dtype=np.int64),
            self._sums,
            self._least_sums,
            np.ascontiguousarray(problem.receive_s_RC),
            problem.exchange_R2,
            prefix(problem.elements_L),
            problem.optimizer_s_per_element,
            self.end_RC,
            step_s * (1 + _MARGIN),
        )
        return bool(reach_N[-1] == problem.elements_L.size), reach_N, choice_N

    @functools.cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """Forward and backward seconds of the layers before each cut, by replicas."""
        return prefix(self.problem.forward_s_RL), prefix(self.problem.backward_s_RL)

    @functools.cached_property
    def _least_sums(self) -> tuple[Floats, Floats]:
        """The same, each layer with the replicas that suit it best."""
        problem = self.problem
        return prefix(problem.forward_s_RL.min(axis=0)), prefix(problem.backward_s_RL.min(axis=0))


def least_of_closer_s(
    quick_s: Mapping[int, float], closer_s: Callable[[int], float], reached_s: float, most: int
) -> float:
    """The least bound over numbers of microbatches, those that decide it bounded closer.

    Args:
        quick_s: a bound for each number of microbatches.
        closer_s: one that is at least as large.
        reached_s: a step that some plan takes: bounds need not be larger.
        most: how many may be bounded closer.
    """
    heap = [(bound_s, m, False) for m, bound_s in quick_s.items()]
    heapq.heapify(heap)
    while True:
        bound_s, m, close = heap[0]
        if close or bound_s >= reached_s or most == 0:
            return min(bound_s, reached_s)
        heapq.heapreplace(heap, (closer_s(m), m, True))
        most -= 1


def _traced(problem: LargeProblem, step_s: float, reach_N: Ints, choice_N: Ints) -> Bound:
    """Follows the choices back from the fewest devices that reach the last layer."""
    layers = problem.elements_L.size
    used = int(np.argmax(reach_N == layers))
    bounds, replicas = [layers], []
    while used > 0:
        count = int(problem.replicas_R[choice_N[used]])
        replicas.append(count)
        used -= count
        # Devices may reach no further than fewer of them: those are left idle.
        used = int(np.argmax(reach_N == reach_N[used]))
        bounds.append(int(reach_N[used]))
    return Bound(step_s=step_s, bounds=tuple(bounds[::-1]), replicas=tuple(replicas[::-1]))


@compiled
def _load(  # pragma: no cover - runs compiled
    m: int,
    r: int,
    start: int,
    end: int,
    own: tuple[Floats, Floats],
    least: tuple[Floats, Floats],
    receive_s_RC: Floats,
    exchange_R2: Floats,
    elements_C: Floats,
    update_rate: float,
) -> float:
    """Least seconds from the start of a step to the end of stage [start, end)'s part of it."""
    layers = elements_C.size - 1
    forward = own[0][r, end] - own[0][r, start]
    backward = own[1][r, end] - own[1][r, start]
    receive = receive_s_RC[r, start]
    later = least[0][layers] - least[0][end] + least[1][layers] - least[1][end]
    busy = max(m * (forward + backward) + receive, m * receive + forward + backward)
    work = max(busy, receive + forward + later + m * backward)
    elements = elements_C[end] - elements_C[start]
    update = elements * update_rate
    load: float = work + max(least[1][start] + receive, update)
    if elements > 0:
        exposed = exchange_R2[r, 0] + exchange_R2[r, 1] * elements - backward
        load = max(load, busy + exposed + update)
    load += least[0][start]
    return load


@compiled
def _chain(  # pragma: no cover - runs compiled
    counts: tuple[int, int],
    replicas_R: Ints,
    own: tuple[Floats, Floats],
    least: tuple[Floats, Floats],
    receive_s_RC: Floats,
    exchange_R2: Floats,
    elements_C: Floats,
    update_rate: float,
    end_RC: Ints,
    step_s: float,
) -> tuple[Ints, Ints]:
    """The layers that 0, 1, ... devices reach at most, and the replicas of the stage that does."""
    m, devices = counts
    layers = elements_C.size - 1
    far_RC = np.zeros((replicas_R.size, layers + 1), dtype=np.int64)
    for r in range(replicas_R.size):
        furthest = 0
        for start in range(layers):
            # A stage that starts later may always start earlier: reaches never fall.
            furthest = max(furthest, start)
            low, high, stride = furthest, max(end_RC[r, start], furthest) + 1, 1
            while low + 1 < high:
                end = min(low + stride, high - 1)
                stride *= 2
                load = _load(
                    m, r, start, end, own, least, receive_s_RC, exchange_R2, elements_C, update_rate
                )
                if load <= step_s:
                    low = end
                else:
                    high, stride = end, max(1, (end - low) // 2)
            furthest = far_RC[r, start] = low
        far_RC[r, layers] = layers
    reach_N = np.zeros(devices + 1, dtype=np.int64)
    choice_N = np.zeros(devices + 1, dtype=np.int64)
    for used in range(1, devices + 1):
        reach_N[used] = reach_N[used - 1]
        for r in range(replicas_R.size):
            if replicas_R[r] > used:
                break
            reached = far_RC[r, reach_N[used - replicas_R[r]]]
            if reached > reach_N[used]:
                reach_N[used] = reached
                choice_N[used] = r
    return reach_N, choice_N
