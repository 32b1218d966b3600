"""What no partition of the layers can beat, and the partition that comes closest to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundProblem:
    """Least costs of layers and cuts for each number of replicas that a stage may have.

    Axes: R choices of replicas, L layers, C = L + 1 cuts. All seconds are per microbatch.
    """

    replicas_R: Sequence[int]
    """Choices of replicas, rising."""
    forward_s_RL: Floats
    """Seconds of each layer's forward on one of so many replicas."""
    backward_s_RL: Floats
    """Seconds of each layer's backward."""
    receive_s_RC: Floats
    """Least seconds for so many replicas to receive what crosses a cut; 0 at cut 0."""
    elements_L: Floats
    """Gradient elements of each layer."""
    communicate_R: Sequence[Callable[[Floats], Floats]]
    """Least seconds to exchange groups of so many elements, non-decreasing and subadditive."""
    optimizer_s_per_element: float
    """Seconds of the update per element."""
    microbatches: int
    """Microbatches per step."""
    devices: int
    """Devices that all stages share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A time that no partition beats, and the partition on which it is reached."""

    step_s: float
    bounds: tuple[int, ...]
    replicas: tuple[int, ...]


def step_bound(problem: BoundProblem) -> Bound:
    """Least, over all partitions and replicas, of the largest of these over the stages.

    A stage [i, j) cannot start before the layers before it have passed one microbatch on, then has
    M forwards and backwards to do; its last work is a backward, after which the stages before it
    must still do theirs, and its own gradients be exchanged and applied (DESIGN 3.4). A cut also
    carries M transfers, one at a time. Each term uses the least cost over all choices for the
    other stages, so the minimum holds for every schedule, placement and grouping.
    """
    terms = _Terms(problem)
    num_layers, devices = problem.elements_L.size, problem.devices
    best = np.full((num_layers + 1, devices + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((num_layers + 1, devices + 1, 2), dtype=np.int64)
    for end in range(1, num_layers + 1):
        for r, count in enumerate(problem.replicas_R):
            if count > devices:
                break
            load = terms.stage_s(r, end)
            reached = np.maximum(best[:end, : devices + 1 - count], load[:, None])
            start = reached.argmin(axis=0)
            value = reached[start, np.arange(start.size)]
            used = np.arange(count, devices + 1)
            better = value < best[end, used]
            best[end, used[better]] = value[better]
            choice[end, used[better], 0] = start[better]
            choice[end, used[better], 1] = r
    cheapest = int(best[num_layers].argmin())
    return _trace(problem, choice, cheapest, float(best[num_layers, cheapest]))


def _trace(problem: BoundProblem, choice: NDArray[np.int64], used: int, step_s: float) -> Bound:
    """Follows the choices back from the last layer."""
    bounds, replicas = [problem.elements_L.size], []
    while bounds[-1] > 0:
        start, r = choice[bounds[-1], used]
        replicas.append(problem.replicas_R[r])
        used -= replicas[-1]
        bounds.append(int(start))
    return Bound(step_s=step_s, bounds=tuple(bounds[::-1]), replicas=tuple(replicas[::-1]))


class _Terms:
    """Prefix sums of a problem, and from them the least step time that a stage imposes."""

    def __init__(self, problem: BoundProblem) -> None:
        self.problem = problem
        self.load_s_RC = _prefix(problem.forward_s_RL + problem.backward_s_RL)
        self.backward_s_RC = _prefix(problem.backward_s_RL)
        self.elements_C = _prefix(problem.elements_L)
        receive_s_C = problem.receive_s_RC.min(axis=0)
        self.forward_s_C = _prefix(problem.forward_s_RL.min(axis=0))
        self.fill_s_C = self.forward_s_C + receive_s_C
        self.drain_s_C = _prefix(problem.backward_s_RL.min(axis=0)) + receive_s_C

    def stage_s(self, r: int, end: int) -> Floats:
        """Least step seconds if a stage [start, end) has choice r of replicas, for all starts."""
        microbatches = self.problem.microbatches
        once = self.load_s_RC[r, end] - self.load_s_RC[r, :end]
        transfers = microbatches * self.problem.receive_s_RC[r, :end]
        compute_end = np.maximum(
            self.fill_s_C[:end] + microbatches * once, self.forward_s_C[:end] + transfers + once
        )
        stage: Floats = compute_end + np.maximum(self.drain_s_C[:end], self._update_s(r, end))
        return stage

    def _update_s(self, r: int, end: int) -> Floats:
        """Least seconds from the end of a stage's compute to the end of its update.

        The first layer's gradient is ready only when compute ends; and no exchange starts before
        the last layer's gradient is ready, so what does not fit beside the rest is exposed.
        """
        problem = self.problem
        elements = self.elements_C[end] - self.elements_C[:end]
        communicate = problem.communicate_R[r]
        last = communicate(problem.elements_L[:end])
        beside = self.backward_s_RC[r, end - 1] - self.backward_s_RC[r, :end]
        exposed = np.maximum(last, communicate(elements) - np.maximum(beside, 0.0))
        exposure: Floats = exposed + elements * problem.optimizer_s_per_element
        return exposure


def _prefix(values: Floats) -> Floats:
    """Sums of the first 0, 1, ... values along the last axis."""
    zero = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
