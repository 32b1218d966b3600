"""The path of one microbatch through a long pipeline, weighed against the work of its stages.

A step holds, for every stage k, the inequalities (M microbatches, f and b a stage's seconds, w
their sum, t both transfers over the cut before it, c = w + t)

    work:   T >= sum of c of the stages before k  +  t_k + M w_k
    return: T >= sum of c of all stages  +  (M - n_k) f_k + (M - 1) b_k

where n_k, the microbatches in flight, is at most the number of stages from k on: the stage has
nothing to do backwards until its first microbatch has come back, and only n_k forwards meanwhile.
A sum of these over the stages, each weighed with the share of the model's work that lies in it, is
a sum of costs of single stages [i, j), because shares before and after a stage add up over the
layers. So is the number of devices, priced at any rate; the least of such a sum over all partitions
is a shortest path over the cuts, and no partition within the devices has a smaller T. In the
return inequality, n_k f_k is at most n_k times the forward share of T / M.

The costs fulfil the quadrangle inequality, so that later starts win for later ends, and the
shortest path takes O(R L log L) steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_RANGE, _PRICES = 8.0, 7
"""Devices are priced between a share and a multiple of what they cost if all are busy, at so many
rates that halve the range that holds the best. The bound is flat around it."""
_NEAR, _PRICES_NEAR = 2.0, 4
"""The same for the second inequality, around the best price for the first."""
_HALVINGS = 3
_MARGIN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathProblem:
    """Axes: R choices of replicas, C = L + 1 cuts; sums are of the layers before each cut."""

    replicas_R: Ints
    forward_s_RC: Floats
    """Sums of seconds of one microbatch's forward."""
    backward_s_RC: Floats
    receive_s_RC: Floats
    """Least seconds to receive a microbatch over the cut before a stage."""
    end_RC: Ints
    """The last cut at which a stage may end, by its first cut; rising."""
    share_C: Floats
    """Share of the model's work before each cut, from 0 to 1."""
    forward_share: float
    """The largest share of forward in a layer's forward and backward."""
    microbatches: int
    devices: int


def path_bound_s(problem: PathProblem, low_s: float) -> float:
    """A time that no partition beats, at least `low_s`, which has to be one itself."""
    m = problem.microbatches
    work_RC = problem.forward_s_RC + problem.backward_s_RC
    weighed = (m * work_RC, 0.0, 1.0)
    usual = low_s / problem.devices
    range_ = (usual / _RANGE, usual * _RANGE)
    least_s, price = _best_price(problem, weighed, range_, _PRICES, 0.0)
    low_s = max(low_s, least_s * (1 - _MARGIN))
    if m == 1:
        return low_s
    weighed = (m * work_RC - problem.backward_s_RC, 1.0, 0.0)

    def reward_s(step_s: float) -> float:
        return problem.forward_share * step_s / m

    range_ = (price / _NEAR, price * _NEAR)
    high_s, price = _best_price(problem, weighed, range_, _PRICES_NEAR, reward_s(low_s))
    if high_s <= low_s:
        return low_s
    # A longer step lets more microbatches come in between, so that the sum falls: the step that
    # the sum just forbids lies between the two.
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        least_s = _least(problem, weighed, price, reward_s(middle_s))[0]
        if least_s * (1 - _MARGIN) >= middle_s:
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


Weighed = tuple[Floats, float, float]
"""Seconds that count with a stage's own share; whether its path counts in full, or with the share
after it."""


def _best_price(
    problem: PathProblem,
    weighed: Weighed,
    range_: tuple[float, float],
    rounds: int,
    reward_s: float,
) -> tuple[float, float]:
    """The greatest bound over prices of a device, and its price: the bound is concave in it."""
    low, high = range_
    best_s, best_price = -np.inf, 0.0
    for _ in range(rounds):
        price = math.sqrt(low * high)
        least_s, used = _least(problem, weighed, price, reward_s)
        if least_s > best_s:
            best_s, best_price = least_s, price
        if used > problem.devices:
            low = price
        else:
            high = price
    return best_s, best_price


def _least(
    problem: PathProblem, weighed: Weighed, price: float, reward_s: float
) -> tuple[float, int]:
    """The least sum less what all devices cost, and the devices of the partition that has it."""
    own_RC, all_share, later_share = weighed
    least_s, used = _shortest(
        problem.replicas_R,
        np.ascontiguousarray(own_RC),
        problem.forward_s_RC + problem.backward_s_RC,
        problem.receive_s_RC,
        problem.end_RC,
        problem.share_C,
        (all_share, later_share, price, reward_s),
    )
    return least_s - price * problem.devices, used


@compiled
def _cost(  # pragma: no cover - runs compiled
    own_RC: Floats,
    work_RC: Floats,
    receive_s_RC: Floats,
    share_C: Floats,
    weights: tuple[float, float, float, float],
    place: tuple[int, int, int],
) -> float:
    """What stage [start, end) with choice r adds to the sum, but for the price of its devices."""
    all_share, later_share, _, reward_s = weights
    r, start, end = place
    share = share_C[end] - share_C[start]
    cost: float = (own_RC[r, end] - own_RC[r, start]) * share - reward_s * share_C[end]
    cost += (work_RC[r, end] - work_RC[r, start]) * (all_share + later_share * (1 - share_C[end]))
    both_s = 2 * receive_s_RC[r, start]
    cost += both_s * (all_share + later_share * (1 - share_C[start]))
    return cost


@compiled
def _shortest(  # pragma: no cover - runs compiled
    replicas_R: Ints,
    own_RC: Floats,
    work_RC: Floats,
    receive_s_RC: Floats,
    end_RC: Ints,
    share_C: Floats,
    weights: tuple[float, float, float, float],
) -> tuple[float, int]:
    """The least sum over all partitions, and the devices of the one that has it.

    For each choice of replicas a queue holds the first cuts that are best for some end yet to come,
    in the order of those ends, and the first end that each is best for.
    """
    choices, cuts = own_RC.shape
    parts = (own_RC, work_RC, receive_s_RC, share_C, weights)
    best_C = np.full(cuts, np.inf)
    used_C = np.zeros(cuts, dtype=np.int64)
    best_C[0] = 0.0
    start_RC = np.zeros((choices, cuts), dtype=np.int64)
    from_RC = np.zeros((choices, cuts), dtype=np.int64)
    head_R = np.zeros(choices, dtype=np.int64)
    tail_R = np.zeros(choices, dtype=np.int64)
    for end in range(1, cuts):
        new = end - 1
        for r in range(choices):
            if best_C[new] < np.inf and end_RC[r, new] > new:
                tail = tail_R[r]
                first = end
                while tail > head_R[r]:
                    old = start_RC[r, tail - 1]
                    low = max(from_RC[r, tail - 1], end)
                    if not _wins(new, old, low, r, best_C, end_RC, parts):
                        first = _first_win(new, old, low, r, best_C, end_RC, parts)
                        break
                    first = low
                    tail -= 1
                if first < cuts:
                    start_RC[r, tail] = new
                    from_RC[r, tail] = first
                    tail += 1
                tail_R[r] = tail
            while head_R[r] + 1 < tail_R[r] and from_RC[r, head_R[r] + 1] <= end:
                head_R[r] += 1
            if head_R[r] < tail_R[r]:
                start = start_RC[r, head_R[r]]
                if end <= end_RC[r, start]:
                    value = best_C[start] + weights[2] * replicas_R[r]
                    value += _cost(*parts, (r, start, end))
                    if value < best_C[end]:
                        best_C[end] = value
                        used_C[end] = used_C[start] + replicas_R[r]
    return best_C[-1], used_C[-1]


@compiled
def _wins(  # pragma: no cover - runs compiled
    new: int,
    old: int,
    end: int,
    r: int,
    best_C: Floats,
    end_RC: Ints,
    parts: tuple[Floats, Floats, Floats, Floats, tuple[float, float, float, float]],
) -> bool:
    """Whether a later start is at least as good as an earlier one for a stage that ends here."""
    if end > end_RC[r, old]:
        return True
    if end > end_RC[r, new]:
        return False
    return bool(
        best_C[new] + _cost(*parts, (r, new, end)) <= best_C[old] + _cost(*parts, (r, old, end))
    )


@compiled
def _first_win(  # pragma: no cover - runs compiled
    new: int,
    old: int,
    low: int,
    r: int,
    best_C: Floats,
    end_RC: Ints,
    parts: tuple[Floats, Floats, Floats, Floats, tuple[float, float, float, float]],
) -> int:
    """The first end above `low` for which the later start is as good; past the last if none."""
    high = best_C.size
    while low + 1 < high:
        middle = (low + high) // 2
        if _wins(new, old, middle, r, best_C, end_RC, parts):
            high = middle
        else:
            low = middle
    return high
