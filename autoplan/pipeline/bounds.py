"""What no partition of the layers can beat, and the partition that comes closest to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LeastCost = Callable[[Floats], Floats]
"""Least seconds for numbers of elements."""


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
    """Least seconds for so many replicas to receive what crosses a cut; 0 at the first and last."""
    elements_L: Floats
    """Gradient elements of each layer."""
    exchange_R: Sequence[LeastCost]
    """Least seconds after backward for a group of so many elements that is ready last; rising."""
    link_R: Sequence[LeastCost]
    """Least seconds of the link for so many elements, however they are grouped."""
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
    carries M transfers, one at a time; and M backwards follow the return of the first microbatch
    from the later stages. Each term uses the least cost over all choices for the other stages on
    the devices that are left, so the minimum holds for every schedule, placement and grouping.
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
        self.elements_C = prefix(problem.elements_L)
        self.last_s_RL = np.stack([cost(problem.elements_L) for cost in problem.exchange_R])
        self.forward_s_RC = prefix(problem.forward_s_RL)
        self.backward_s_RC = prefix(problem.backward_s_RL)
        # What the other stages take at least, given the devices that this one leaves them.
        other_forward_s_RL = self._least_of_others(problem.forward_s_RL)
        other_backward_s_RL = self._least_of_others(problem.backward_s_RL)
        self.forward_before_s_RC = prefix(other_forward_s_RL)
        self.backward_before_s_RC = prefix(other_backward_s_RL)
        both = other_forward_s_RL + other_backward_s_RL
        self.both_after_s_RC = prefix(both[:, ::-1])[:, ::-1]

    def stage_s(self, r: int, end: int) -> Floats:
        """Least step seconds if a stage [start, end) has choice r of replicas, for all starts."""
        problem, m = self.problem, self.problem.microbatches
        forward = self.forward_s_RC[r, end] - self.forward_s_RC[r, :end]
        backward = self.backward_s_RC[r, end] - self.backward_s_RC[r, :end]
        receive = problem.receive_s_RC[r, :end]
        before = self.forward_before_s_RC[r, :end]
        by_compute = before + receive + m * (forward + backward)
        by_transfers = before + m * receive + forward + backward
        by_return = before + receive + forward + self._return_s(r, end) + m * backward
        compute_end = np.maximum.reduce([by_compute, by_transfers, by_return])
        drain = self.backward_before_s_RC[r, :end] + receive
        update = update_s(
            self.last_s_RL[r, :end],
            self.elements_C[end] - self.elements_C[:end],
            np.maximum(self.backward_s_RC[r, end - 1] - self.backward_s_RC[r, :end], 0.0),
            problem.link_R[r],
            problem.optimizer_s_per_element,
        )
        stage: Floats = compute_end + np.maximum(drain, update)
        return stage

    def _least_of_others(self, seconds_RL: Floats) -> Floats:
        """Least seconds of each layer on the replicas that are left beside each choice.

        Row r is infinite where choice r leaves none, so that stages around it are ruled out.
        """
        replicas = np.array(self.problem.replicas_R)
        rows = []
        for count in replicas:
            left = replicas <= self.problem.devices - count
            rows.append(np.where(left[:, None], seconds_RL, np.inf).min(axis=0))
        return np.stack(rows)

    def _return_s(self, r: int, end: int) -> float:
        """Least seconds until a microbatch that left a stage comes back as a gradient."""
        receive = 2 * float(self.problem.receive_s_RC[:, end].min())
        return float(self.both_after_s_RC[r, end]) + receive


def update_s(
    last_s: Floats, elements: Floats, beside_s: Floats, link: LeastCost, rate: float
) -> Floats:
    """Least seconds from the end of stages' compute to the end of their update.

    The first layer's gradient is ready only when compute ends; and no exchange starts before the
    last layer's gradient is ready, so what does not fit beside the rest is exposed.

    Args:
        last_s: least seconds to exchange each stage's first layer.
        elements: gradient elements of each stage.
        beside_s: seconds of each stage's backward after its last layer.
        link: least seconds on the link for all gradients of a stage.
        rate: seconds of the update per element.

    Returns:
        Seconds for each stage, in the common shape of the arrays.
    """
    seconds: Floats = np.maximum(last_s, link(elements) - beside_s) + elements * rate
    return seconds


def prefix(values: Floats) -> Floats:
    """Sums of the first 0, 1, ... values along the last axis."""
    zero = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
