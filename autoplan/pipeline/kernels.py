"""The simulator, compiled: the same recurrence without the timeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.pipeline.schedule import in_flight

Floats = NDArray[np.float64]


def last_backward_start_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    send_s: Sequence[float],
    microbatches: int,
    schedule: str,
    last_backward_s: Sequence[float] | None = None,
) -> Floats:
    """When each of S stages starts its last backward, with exclusive links.

    Equal to `simulate(..., exclusive_links=True).last_backward_start_s_S` to the last bit, which
    tests hold it to. Inputs are not checked.

    Args:
        forward_s: seconds of one forward on each stage.
        backward_s: seconds of one backward on each stage.
        send_s: seconds across each of the S-1 cuts, in both directions.
        microbatches: M.
        schedule: "1f1b" or "gpipe".
        last_backward_s: seconds of each stage's last backward; like the others by default.
    """
    stages = len(forward_s)
    warm = [in_flight(schedule, s, stages, microbatches) for s in range(stages)]
    last_s = backward_s if last_backward_s is None else last_backward_s
    compute = np.array([forward_s, backward_s, last_s], dtype=np.float64)
    send = np.array([*send_s, 0.0], dtype=np.float64)
    return _last_backward_start(compute, send, np.array(warm, dtype=np.int64), microbatches)


@compiled
def _last_backward_start(  # pragma: no cover - runs compiled
    compute: Floats, send: Floats, warm: NDArray[np.int64], microbatches: int
) -> Floats:
    """Sweeps over the stages, each running on until its next input has not arrived.

    Row 0 of `compute` is forward, row 1 backward, row 2 the last backward. A stage runs `warm`
    forwards, then one backward and one forward in turn, then the backwards that are left.
    """
    stages = compute.shape[1]
    arrival = np.full((2, stages, microbatches), np.nan)
    arrival[0, 0, :] = 0.0
    arrival[1, stages - 1, :] = 0.0
    free = np.zeros(stages)
    link_free = np.zeros((2, stages))
    position = np.zeros(stages, dtype=np.int64)
    last = np.zeros(stages)
    left = 2 * stages * microbatches
    while left > 0:
        for s in range(stages):
            while position[s] < 2 * microbatches:
                p = position[s]
                alternating = p - warm[s]
                if p < warm[s]:
                    way, m = 0, p
                elif alternating < 2 * (microbatches - warm[s]):
                    way = 1 - alternating % 2
                    m = alternating // 2 + (warm[s] if way == 0 else 0)
                else:
                    way, m = 1, p - microbatches
                ready = arrival[way, s, m]
                if np.isnan(ready):
                    break
                start = max(free[s], ready)
                row = 2 if way == 1 and m == microbatches - 1 else way
                free[s] = start + compute[row, s]
                position[s] = p + 1
                left -= 1
                if way == 1:
                    last[s] = start
                neighbour = s + 1 - 2 * way
                if 0 <= neighbour < stages:
                    cut = min(s, neighbour)
                    leave = max(free[s], link_free[way, cut])
                    link_free[way, cut] = leave + send[cut]
                    arrival[way, neighbour, m] = leave + send[cut]
    return last
