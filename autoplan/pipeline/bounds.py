"""What no partition of the layers can beat, and the partition that comes closest to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundProblem:
    """Least costs of layers and cuts for each number of replicas that a stage may have.

    Axes: R choices of replicas, L layers, C = L + 1 cuts. A stage [i, j) lies between cuts i and j.
    """

    replicas_R: Sequence[int]
    """Choices of replicas, rising."""
    forward_s_RL: Floats
    """Seconds of each layer's forward of one microbatch on one of so many replicas."""
    backward_s_RL: Floats
    """Seconds of each layer's backward of one microbatch."""
    receive_s_RC: Floats
    """Least seconds for so many replicas to receive a microbatch over a cut; 0 at the ends."""
    elements_L: Floats
    """Gradient elements of each layer."""
    last_s_RL: Floats
    """Least seconds after backward to exchange each layer, if it is ready last."""
    link_s_RCC: Floats | None
    """Least seconds of the link for all gradients of a stage, however grouped; None: unknown."""
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
    other_forward_s_RL = _least_of_others(problem, problem.forward_s_RL)
    other_backward_s_RL = _least_of_others(problem, problem.backward_s_RL)
    both_s_RL = other_forward_s_RL + other_backward_s_RL
    return_s_RC = prefix(both_s_RL[:, ::-1])[:, ::-1] + 2 * problem.receive_s_RC.min(axis=0)
    link_s_RCC = problem.link_s_RCC
    best, choice = _walk(
        (problem.microbatches, problem.devices),
        np.array(problem.replicas_R, dtype=np.int64),
        (prefix(problem.forward_s_RL), prefix(problem.backward_s_RL)),
        (prefix(other_forward_s_RL), prefix(other_backward_s_RL)),
        return_s_RC,
        problem.receive_s_RC,
        problem.last_s_RL,
        np.zeros((0, 0, 0)) if link_s_RCC is None else link_s_RCC,
        prefix(problem.elements_L) * problem.optimizer_s_per_element,
    )
    cheapest = int(best[-1].argmin())
    return _trace(problem, choice, cheapest, float(best[-1, cheapest]))


def _least_of_others(problem: BoundProblem, seconds_RL: Floats) -> Floats:
    """Least seconds of each layer on the replicas that are left beside each choice.

    Row r is infinite where choice r leaves none, so that stages around it are ruled out.
    """
    replicas = np.array(problem.replicas_R)
    rows = []
    for count in replicas:
        left = replicas <= problem.devices - count
        rows.append(np.where(left[:, None], seconds_RL, np.inf).min(axis=0))
    return np.stack(rows)


def _trace(problem: BoundProblem, choice: Ints, used: int, step_s: float) -> Bound:
    """Follows the choices back from the last layer."""
    bounds, replicas = [problem.elements_L.size], []
    while bounds[-1] > 0:
        start, r = choice[bounds[-1], used]
        replicas.append(problem.replicas_R[r])
        used -= replicas[-1]
        bounds.append(int(start))
    return Bound(step_s=step_s, bounds=tuple(bounds[::-1]), replicas=tuple(replicas[::-1]))


@compiled
def _walk(  # pragma: no cover - runs compiled
    counts: tuple[int, int],
    replicas_R: Ints,
    own: tuple[Floats, Floats],
    before: tuple[Floats, Floats],
    return_s_RC: Floats,
    receive_s_RC: Floats,
    last_s_RL: Floats,
    link_s_RCC: Floats,
    update_s_C: Floats,
) -> tuple[Floats, Ints]:
    """Least time per cut and devices used, and the stage before; pairs are forward, backward."""
    m, devices = counts
    forward_s_RC, backward_s_RC = own
    layers = update_s_C.size - 1
    best = np.full((layers + 1, devices + 1), np.inf)
    best[0, 0] = 0.0
    choice = np.zeros((layers + 1, devices + 1, 2), dtype=np.int64)
    for end in range(1, layers + 1):
        for r in range(replicas_R.size):
            count = replicas_R[r]
            if count > devices:
                break
            for start in range(end):
                forward = forward_s_RC[r, end] - forward_s_RC[r, start]
                backward = backward_s_RC[r, end] - backward_s_RC[r, start]
                receive = receive_s_RC[r, start]
                work = max(m * (forward + backward) + receive, m * receive + forward + backward)
                work = max(work, receive + forward + return_s_RC[r, end] + m * backward)
                update = last_s_RL[r, start]
                if link_s_RCC.size > 0:
                    beside = max(backward_s_RC[r, end - 1] - backward_s_RC[r, start], 0.0)
                    update = max(update, link_s_RCC[r, start, end] - beside)
                update += update_s_C[end] - update_s_C[start]
                load = before[0][r, start] + work + max(before[1][r, start] + receive, update)
                for used in range(devices + 1 - count):
                    value = max(best[start, used], load)
                    if value < best[end, used + count]:
                        best[end, used + count] = value
                        choice[end, used + count, 0] = start
                        choice[end, used + count, 1] = r
    return best, choice


def prefix(values: Floats) -> Floats:
    """Sums of the first 0, 1, ... values along the last axis."""
    zero = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
