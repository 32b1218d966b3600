"""A lower bound that follows the stages one by one, and can be tightened as long as there is time.

`bounds.step_bound` prices the other stages as cheaply as any choice allows. Here a dynamic program
walks from the first stage to the last and carries what one microbatch really takes to get there
and back, so that deep pipelines pay for their depth, and stages that lie across nodes for the
network. It answers whether any partition can stay within a step time; bisection does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]
REPLICA, STAGE = 0, 1
"""Rank orders."""
GPIPE, ONE_F_ONE_B = 0, 1
"""Schedules."""
PROOF = 1e-10
"""A plan that no other beats by this share is optimal: the rest is rounding."""
NEGLIGIBLE = 1e-12
"""Share of a reached step time by which bounds are not told apart, however small they are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTerms:
    """What stages cost at least with one number of microbatches.

    Axes: R choices of replicas, C = L + 1 cuts. A stage [i, j) lies between cuts i and j.
    """

    microbatches: int
    replicas_R: NDArray[np.int64]
    """Choices of replicas, rising."""
    forward_s_RC: Floats
    """Seconds of one forward of all layers before a cut."""
    backward_s_RC: Floats
    """Seconds of one backward of all layers before a cut."""
    receive_s_2RC: Floats
    """Least seconds to receive one microbatch: over any link; if it must cross nodes."""
    update_s_2RCC: Floats
    """Least seconds from the end of compute to the end of the update of a stage: replicas within
    a node; over several nodes."""
    after_s_NC: Floats
    """Least seconds of one forward and backward of all layers after a cut, by devices left."""
    forward_share: float
    """Least share of forward in what a microbatch spends in the stages before, at most half."""
    least_receive_s_2C: Floats
    """Least seconds to receive over a cut for any replicas, over any link or across nodes."""
    later_receive_s_C: Floats
    """Least seconds to receive over any cut after this one."""
    static_bytes_C: Floats
    """Bytes of parameters, gradients and optimizer state of all layers before a cut."""
    stash_bytes_RC: Floats
    """Bytes that one microbatch stashes in all layers before a cut."""
    received_bytes_RC: Floats
    """Bytes that one microbatch keeps of what crosses a cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSpace:
    """The plans that a certificate covers, whatever their microbatches."""

    stages: tuple[int, ...]
    """Numbers of stages."""
    rank_orders: tuple[int, ...]
    """REPLICA, STAGE or both."""
    devices: int
    """Devices in all."""
    devices_per_node: int
    """Devices of a node."""
    schedules: tuple[int, ...]
    """GPIPE, ONE_F_ONE_B or both."""
    available_bytes: float
    """Memory of a device."""
    may_keep: bool
    """Whether stages may keep their stash."""
    may_recompute: bool
    """Whether stages may recompute it."""


def certify(
    every: Sequence[StageTerms],
    space: CertificateSpace,
    low_s: float,
    high_s: float,
    *,
    precision: float,
    effort: int,
) -> float:
    """Raises a lower bound by bisection between it and a step time that some plan reaches.

    Args:
        every: the terms of each number of microbatches that is open.
        space: the plans that the bound is to cover.
        low_s: a valid lower bound in seconds.
        high_s: a step time in seconds that some plan of the space reaches.
        precision: relative width at which to stop.
        effort: stages looked at, after which to stop; a count, so that the result is the same on
            every machine.

    Returns:
        A valid lower bound in seconds, at least `low_s`.
    """
    cases = list(product(every, space.stages, space.rank_orders, space.schedules))
    left = effort

    def may_reach(step_s: float) -> bool:
        """Whether some case may stay within a step time; true where the effort is used up."""
        nonlocal left
        for n, (terms, *choices) in enumerate(cases):
            reached, looked_at = _within(terms, tuple(choices), space, step_s)
            left -= looked_at
            if left < 0:
                return True
            if reached:
                cases.insert(0, cases.pop(n))  # what was reachable once is tried first
                return True
        return False

    almost_s = high_s * (1 - PROOF)
    if almost_s <= low_s or not may_reach(almost_s):
        return max(low_s, almost_s)
    if may_reach(low_s):
        return low_s
    while left > 0 and high_s - low_s > max(low_s * precision, almost_s * NEGLIGIBLE):
        middle_s = (low_s + high_s) / 2
        if may_reach(middle_s):
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


def _within(
    terms: StageTerms, choices: tuple[int, ...], space: CertificateSpace, step_s: float
) -> tuple[bool, int]:
    """Whether some partition may stay within a step time; how many stages were looked at.

    `choices` are the number of stages, the rank order and the schedule.
    """
    return reachable(*walk_arguments(terms, choices, space, step_s))


def walk_arguments(
    terms: StageTerms, choices: tuple[int, ...], space: CertificateSpace, step_s: float
) -> tuple[Any, ...]:
    """What `reachable` takes, from the same as `_within`."""
    return (
        (terms.microbatches, space.devices, space.devices_per_node, *choices),
        terms.replicas_R,
        terms.forward_s_RC,
        terms.backward_s_RC,
        terms.receive_s_2RC,
        terms.update_s_2RCC,
        terms.after_s_NC,
        terms.least_receive_s_2C,
        terms.later_receive_s_C,
        (terms.static_bytes_C, terms.stash_bytes_RC, terms.received_bytes_RC),
        (space.available_bytes, space.may_keep, space.may_recompute),
        terms.forward_share,
        step_s,
    )


@compiled
def reachable(  # pragma: no cover - runs compiled
    counts: tuple[int, ...],
    replicas_R: NDArray[np.int64],
    forward_s_RC: Floats,
    backward_s_RC: Floats,
    receive_s_2RC: Floats,
    update_s_2RCC: Floats,
    after_s_NC: Floats,
    least_receive_s_2C: Floats,
    later_receive_s_C: Floats,
    memory: tuple[Floats, Floats, Floats],
    room: tuple[float, bool, bool],
    forward_share: float,
    step_s: float,
) -> tuple[bool, int]:
    """Least time of one microbatch there and back, per cut and devices used, stage by stage.

    Each condition is a time that the stage imposes on the step (see `bounds.step_bound`), with
    `trip`, the least forward and backward of the stages before, in the place of the cheapest.
    """
    m, devices, devices_per_node, stages, rank_order, schedule = counts
    static_bytes_C, stash_bytes_RC, received_bytes_RC = memory
    available, may_keep, may_recompute = room
    layers = forward_s_RC.shape[1] - 1
    looked_at = 0
    trips = np.full((layers + 1, devices + 1), np.inf)
    trips[0, 0] = 0.0
    for s in range(stages):
        later = stages - s - 1
        warm = min(later + 1, m)
        rounds = (m - 1) // warm
        rest = (m - 1) - rounds * warm
        held = warm if schedule == 1 else m
        reached = np.full((layers + 1, devices + 1), np.inf)
        for i in range(s, layers - later):
            for used in range(s, devices + 1):
                looked_at += 1
                trip = trips[i, used]
                if trip == np.inf:
                    continue
                for r in range(replicas_R.size):
                    count = replicas_R[r]
                    total = used + count
                    if total + later > devices:
                        break
                    crosses = 0
                    spans = 0
                    if rank_order == 0:
                        # Replicas side by side: the stage lies on devices used .. total - 1.
                        crosses = 1 if used > 0 and used % devices_per_node == 0 else 0
                        spans = (
                            1 if used // devices_per_node != (total - 1) // devices_per_node else 0
                        )
                    elif stages <= devices_per_node:
                        # Stages side by side: the first replica lies in the first node, the last
                        # behind at least (count - 1) / count of all devices.
                        behind = (total + later) * (count - 1) // count
                        spans = 1 if behind >= devices_per_node else 0
                    leaves = 1 if rank_order == 0 and total % devices_per_node == 0 else 0
                    receive = receive_s_2RC[crosses, r, i]
                    fill = forward_share * trip + receive
                    first = layers if later == 0 else i + 1
                    for j in range(first, layers - later + 1):
                        looked_at += 1
                        forward = forward_s_RC[r, j] - forward_s_RC[r, i]
                        backward = backward_s_RC[r, j] - backward_s_RC[r, i]
                        static = static_bytes_C[j] - static_bytes_C[i]
                        stash = stash_bytes_RC[r, j] - stash_bytes_RC[r, i]
                        received = held * received_bytes_RC[r, i]
                        if not may_keep or static + held * stash + received > available:
                            if not may_recompute or static + stash + received > available:
                                break
                            backward += forward
                        both = forward + backward
                        there_and_back = trip + 2 * receive
                        if there_and_back + m * both > step_s:
                            break
                        back = 0.0
                        if later > 0:
                            left = devices - total - (later - 1)
                            sends = least_receive_s_2C[leaves, j]
                            sends += (later - 1) * later_receive_s_C[j]
                            back = after_s_NC[left, j] + 2 * sends
                        once = both + back
                        work = max(m * both, once + (m - 1) * receive)
                        returned = work
                        if schedule == 1:
                            # So many microbatches at once come and go, round after round.
                            between = both if rounds > 0 else max(forward, backward)
                            work = max(work, rounds * once + rest * between + once)
                            # After the first has come back: one backward, one forward, and so on.
                            work = max(work, once + (m - warm) * both + (warm - 1) * backward)
                        else:
                            # No backward starts before the last forward has been everywhere.
                            work = max(work, m * both + back)
                            returned = once + 2 * (m - 1) * receive
                        update = update_s_2RCC[spans, r, i, j]
                        whole = there_and_back + max(work, returned)
                        if max(whole, fill + work + update) <= step_s:
                            reached[j, total] = min(reached[j, total], there_and_back + both)
        trips = reached
    return bool(trips[layers].min() < np.inf), looked_at
