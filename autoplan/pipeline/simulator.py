"""The readable oracle: what starts when in a pipeline, by following the dependencies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import require
from autoplan.pipeline.schedule import stage_order

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Start of every piece of work. Axes: S stages, M microbatches."""

    step_s: float
    """From the first forward to the end of the last stage's update."""
    forward_start_s_SM: Floats
    backward_start_s_SM: Floats
    forward_s_S: Floats
    backward_s_S: Floats
    last_backward_s_S: Floats
    """The backward of the last microbatch, sparsification included."""
    stage_end_s_S: Floats
    """End of each stage's update."""

    @property
    def busy_s_S(self) -> Floats:
        """Seconds that each stage computes forwards and backwards."""
        microbatches = self.forward_start_s_SM.shape[1]
        usual: Floats = microbatches * self.forward_s_S + (microbatches - 1) * self.backward_s_S
        busy: Floats = usual + self.last_backward_s_S
        return busy

    @property
    def last_backward_start_s_S(self) -> Floats:
        """When each stage starts its last backward, in which its gradients become final."""
        start: Floats = self.backward_start_s_SM[:, -1]
        return start


def simulate(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    microbatches: int,
    schedule: str = "1f1b",
    send_forward_s: Sequence[float] | None = None,
    send_backward_s: Sequence[float] | None = None,
    optimizer_s: Sequence[float] | None = None,
    *,
    exclusive_links: bool = False,
    last_backward_s: Sequence[float] | None = None,
) -> Timeline:
    """Runs one step of a synchronous pipeline.

    A piece starts as soon as its stage is free and its input has arrived (DESIGN 3.1).

    Args:
        forward_s: seconds of one forward on each of S stages.
        backward_s: seconds of one backward on each of S stages.
        microbatches: M, at least 1, without limit.
        schedule: "1f1b" or "gpipe".
        send_forward_s: seconds to send activations across each of the S-1 cuts; 0 by default.
        send_backward_s: seconds to send gradients back across each cut; 0 by default.
        optimizer_s: seconds of each stage's update after its last backward; 0 by default.
        exclusive_links: whether a link carries one transfer at a time in each direction, so that a
            transfer may wait for the one before it. Without it a transfer is a pure delay.
        last_backward_s: seconds of each stage's last backward, where gradients are sparsified in
            it; like the others by default.

    Raises:
        InputError: lengths do not match, a duration is negative or not finite, or the schedule is
            not known.
    """
    stages = len(forward_s)
    require(stages >= 1, "forward_s", list(forward_s), "seconds of at least one stage")
    sound = isinstance(microbatches, int) and microbatches >= 1
    require(sound, "microbatches", microbatches, "a whole number of at least 1")
    forward = _durations("forward_s", forward_s, stages)
    backward = _durations("backward_s", backward_s, stages)
    send_forward = _durations("send_forward_s", send_forward_s, stages - 1)
    send_backward = _durations("send_backward_s", send_backward_s, stages - 1)
    optimizer = _durations("optimizer_s", optimizer_s, stages)
    last = backward if last_backward_s is None else list(last_backward_s)
    last = _durations("last_backward_s", last, stages)
    orders = [stage_order(schedule, s, stages, microbatches) for s in range(stages)]
    compute = (forward, backward, last)
    starts = _run(orders, compute, (send_forward, send_backward), exclusive_links)
    forward_start = np.array(starts[0])
    backward_start = np.array(starts[1])
    compute_end = backward_start[:, -1] + np.array(last)
    end = compute_end + np.array(optimizer)
    return Timeline(
        step_s=float(end.max()),
        forward_start_s_SM=forward_start,
        backward_start_s_SM=backward_start,
        forward_s_S=np.array(forward),
        backward_s_S=np.array(backward),
        last_backward_s_S=np.array(last),
        stage_end_s_S=end,
    )


Matrix = list[list[float]]
Pair = tuple[list[float], list[float]]
Triple = tuple[list[float], list[float], list[float]]


def _run(
    orders: list[list[int]], compute: Triple, send: Pair, exclusive: bool
) -> tuple[Matrix, Matrix]:
    """Starts of forwards and backwards, by following each stage's order as inputs arrive.

    Index 0 is forward, 1 is backward, 2 the backward of the last microbatch.
    """
    stages, microbatches = len(orders), len(orders[0]) // 2
    unknown = math.nan
    arrival = tuple([[unknown] * microbatches for _ in orders] for _ in range(2))
    starts = tuple([[unknown] * microbatches for _ in orders] for _ in range(2))
    arrival[0][0] = [0.0] * microbatches
    arrival[1][-1] = [0.0] * microbatches
    link_free = ([0.0] * stages, [0.0] * stages)
    free = [0.0] * stages
    position = [0] * stages
    runnable = deque(range(stages))
    while runnable:
        s = runnable.popleft()
        order = orders[s]
        while position[s] < len(order):
            piece = order[position[s]]
            way, m = (0, piece) if piece >= 0 else (1, ~piece)
            ready = arrival[way][s][m]
            if ready != ready:  # not arrived: the stage waits until its neighbour has sent it
                break
            start = max(free[s], ready)
            free[s] = starts[way][s][m] = start
            free[s] += compute[2 if piece == ~(microbatches - 1) else way][s]
            position[s] += 1
            neighbour = s + 1 if way == 0 else s - 1
            if 0 <= neighbour < stages:
                cut = min(s, neighbour)
                leave = max(free[s], link_free[way][cut]) if exclusive else free[s]
                link_free[way][cut] = leave + send[way][cut]
                arrival[way][neighbour][m] = leave + send[way][cut]
                runnable.append(neighbour)
    return starts[0], starts[1]


def _durations(name: str, values: Sequence[float] | None, length: int) -> list[float]:
    """`values` as floats, or zeros."""
    if values is None:
        return [0.0] * length
    seconds = [float(value) for value in values]
    require(len(seconds) == length, name, seconds, f"{length} numbers of seconds")
    sound = all(math.isfinite(value) and value >= 0 for value in seconds)
    require(sound, name, seconds, "finite numbers of seconds, at least 0")
    return seconds
