"""The simulator, compiled for many candidates at once: one candidate in each lane of a vector.

All candidates of a batch run the same pieces in the same order, so that the order can be walked
once for a block of lanes, without branches. Axes: S stages, K candidates.

The walk keeps no list of arrivals. Its order is chosen such that each piece's input is the newest
that its neighbour sent (`_walk`), so that a stage needs one number for each direction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.errors import require
from autoplan.pipeline.schedule import in_flight

Floats = NDArray[np.float64]

LANES = 64
"""Candidates that are walked together: the state of eight stages then fits the first cache."""

# Offsets within one stage's row of the state, each a field of LANES numbers. A view of the state
# starts at the row of the stage before, so that all that a piece reads lies at constant offsets
# from one pointer and LLVM vectorises without tests for overlap.
_FREE = 0 * LANES  # when the stage is free
_FORWARD = 1 * LANES
_BACKWARD = 2 * LANES
_BACK = 3 * LANES  # when the newest gradient arrives at the stage before
_LAST = 4 * LANES
_FORTH = 5 * LANES  # when the newest activation arrives at the stage after
_SEND = 6 * LANES
_ROW = 7 * LANES
_NEXT = 2 * _ROW


def last_backward_starts(
    forward_s_SK: Floats,
    backward_s_SK: Floats,
    microbatches: int,
    schedule: str,
    *,
    last_backward_s_SK: Floats | None = None,
    send_s_SK: Floats | None = None,
) -> Floats:
    """When each stage of each candidate starts its last backward, with exclusive links.

    Column k equals `kernels.last_backward_start_s` of the k-th columns to the last bit, which
    tests hold it to. O(S M K) time; memory besides the result does not grow with M. Arrays of
    float64 in C order are read in place. The seconds are not checked: finite and at least 0.

    Args:
        forward_s_SK: seconds of one forward.
        backward_s_SK: seconds of one backward.
        microbatches: M, at least 1, without limit.
        schedule: "1f1b" or "gpipe".
        last_backward_s_SK: seconds of each stage's last backward; like the others by default.
        send_s_SK: S-1 rows: seconds across the cut after each stage, in both directions. A row
            for the last stage, if there is one, is not read. No transfers by default, which takes
            about two thirds of the time.

    Returns:
        Seconds, S x K.

    Raises:
        InputError: shapes do not match, M is not a whole number of at least 1, or the schedule is
            not known.
    """
    forward = _matrix(forward_s_SK)
    require(forward.ndim == 2 and len(forward) >= 1, "forward_s_SK", forward.shape, "S x K, S >= 1")
    stages, candidates = forward.shape
    sound = isinstance(microbatches, int) and microbatches >= 1
    require(sound, "microbatches", microbatches, "a whole number of at least 1")
    in_flight(schedule, 0, stages, microbatches)  # refuses schedules that are not known
    compute = [forward]
    last = backward_s_SK if last_backward_s_SK is None else last_backward_s_SK
    for name, values in (("backward_s_SK", backward_s_SK), ("last_backward_s_SK", last)):
        compute.append(_matrix(values))
        found = compute[-1].shape
        require(found == forward.shape, name, found, f"the shape of forward_s_SK, {forward.shape}")
    starts = np.empty((stages, candidates))
    send = None
    if send_s_SK is not None and stages > 1:
        send = _matrix(send_s_SK)
        allowed = {(stages - 1, candidates), (stages, candidates)}
        require(send.shape in allowed, "send_s_SK", send.shape, f"{(stages - 1, candidates)}")
    _starts(compute[0], compute[1], compute[2], send, microbatches, schedule == "gpipe", starts)
    return starts


def step_s(
    forward_s_SK: Floats,
    backward_s_SK: Floats,
    microbatches: int,
    schedule: str,
    *,
    last_backward_s_SK: Floats | None = None,
    send_s_SK: Floats | None = None,
    optimizer_s_SK: Floats | None = None,
) -> Floats:
    """Seconds of each candidate's step, from the first forward to the end of the last update.

    Equal to `simulate(..., exclusive_links=True).step_s` to the last bit.

    Args:
        forward_s_SK: as for `last_backward_starts`, like all that is not said here.
        backward_s_SK: seconds of one backward.
        microbatches: M.
        schedule: "1f1b" or "gpipe".
        last_backward_s_SK: seconds of each stage's last backward; like the others by default.
        send_s_SK: seconds across each cut; no transfers by default.
        optimizer_s_SK: seconds of each stage's update after its last backward; 0 by default.

    Returns:
        Seconds, one number for each of K candidates.

    Raises:
        InputError: as for `last_backward_starts`.
    """
    end_s_SK = last_backward_starts(
        forward_s_SK,
        backward_s_SK,
        microbatches,
        schedule,
        last_backward_s_SK=last_backward_s_SK,
        send_s_SK=send_s_SK,
    )
    end_s_SK += backward_s_SK if last_backward_s_SK is None else last_backward_s_SK
    if optimizer_s_SK is not None:
        found, allowed = np.shape(optimizer_s_SK), end_s_SK.shape
        require(found == allowed, "optimizer_s_SK", found, f"the shape of forward_s_SK, {allowed}")
        end_s_SK += optimizer_s_SK
    longest: Floats = end_s_SK.max(axis=0)
    return longest


def _matrix(values: Floats) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


@compiled
def _later(a: float, b: float) -> float:  # pragma: no cover - runs compiled
    """Of two numbers; without the builtin's care for NaN, this is one instruction."""
    return a if a > b else b


@compiled
def _forward(  # pragma: no cover - runs compiled
    state: Floats, k: int, free: float, links: bool | None
) -> None:
    """The next forward of the stage in the middle row, which is free at `free`."""
    arrival = state[(_FREE if links is None else _FORTH) + k]
    end = _later(free, arrival) + state[_ROW + _FORWARD + k]
    state[_ROW + _FREE + k] = end
    if links is not None:
        leave = _later(end, state[_ROW + _FORTH + k])
        state[_ROW + _FORTH + k] = leave + state[_ROW + _SEND + k]


@compiled
def _backward(  # pragma: no cover - runs compiled
    state: Floats, k: int, links: bool | None
) -> float:
    """The next backward of the stage in the middle row, but for its being free: at the end."""
    start = _later(state[_ROW + _FREE + k], state[_NEXT + _BACK + k])
    end: float = start + state[_ROW + _BACKWARD + k]
    if links is None:
        state[_ROW + _BACK + k] = end
    else:
        state[_ROW + _BACK + k] = _later(end, state[_ROW + _BACK + k]) + state[_SEND + k]
    return end


@compiled
def _walk(  # pragma: no cover - runs compiled
    state: Floats, stages: int, microbatches: int, gpipe: bool, links: bool | None
) -> None:
    """Runs one block's step, up to the start of the last backward, which is left as `_FREE`.

    The rounds of forwards go down the pipeline, one microbatch each, through the stages that warm
    up with it. The rounds of backwards come up, one microbatch each; in 1F1B a stage that has
    forwards left runs the next one right after its backward. That is forward m + S - s in round m
    on stage s, whose input left stage s - 1 in the round before: stage s - 1 comes later in this
    round and has sent nothing since.

    Without links, activations arrive when their stage becomes free: `_FREE` stands for `_FORTH`.
    """
    for m in range(microbatches if gpipe else min(stages, microbatches)):
        for s in range(stages if gpipe else stages - m):
            rows = state[s * _ROW : (s + 2) * _ROW]
            for k in range(LANES):
                _forward(rows, k, rows[_ROW + _FREE + k], links)
    for m in range(microbatches - 1):
        alternating = stages if gpipe else max(0, stages + m + 1 - microbatches)
        for s in range(stages - 1, alternating - 1, -1):
            rows = state[s * _ROW : (s + 3) * _ROW]
            for k in range(LANES):
                _forward(rows, k, _backward(rows, k, links), links)
        for s in range(alternating - 1, -1, -1):
            rows = state[s * _ROW : (s + 3) * _ROW]
            for k in range(LANES):
                rows[_ROW + _FREE + k] = _backward(rows, k, links)
    for s in range(stages - 1, -1, -1):
        rows = state[s * _ROW : (s + 3) * _ROW]
        for k in range(LANES):
            rows[_ROW + _FREE + k] = _later(rows[_ROW + _FREE + k], rows[_NEXT + _BACK + k])
            rows[_ROW + _BACKWARD + k] = rows[_ROW + _LAST + k]
            _backward(rows, k, links)


@compiled
def _starts(  # pragma: no cover - runs compiled
    forward: Floats,
    backward: Floats,
    last: Floats,
    send: Floats | None,
    microbatches: int,
    gpipe: bool,
    starts: Floats,
) -> None:
    """Fills `starts`, block by block; lanes beyond the last candidate run without meaning.

    The state has a row of zeros before the first stage and one after the last: their neighbours'
    inputs are there from the start, and sends out of the pipeline take no time.
    """
    stages, candidates = forward.shape
    links = None if send is None else True
    state = np.zeros((stages + 2) * _ROW)
    for first in range(0, candidates, LANES):
        width = min(LANES, candidates - first)
        for s in range(stages):
            row = state[(s + 1) * _ROW : (s + 2) * _ROW]
            for k in range(LANES):
                row[_FREE + k] = row[_FORTH + k] = row[_BACK + k] = 0.0
            for k in range(width):
                row[_FORWARD + k] = forward[s, first + k]
                row[_BACKWARD + k] = backward[s, first + k]
                row[_LAST + k] = last[s, first + k]
            if send is not None and s < stages - 1:
                for k in range(width):
                    row[_SEND + k] = send[s, first + k]
        _walk(state, stages, microbatches, gpipe, links)
        for s in range(stages):
            row = state[(s + 1) * _ROW : (s + 2) * _ROW]
            for k in range(width):
                starts[s, first + k] = row[_FREE + k]
