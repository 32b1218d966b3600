"""Lineups: the replicas of all stages and the order in which they sit; what their stages cost.

With a lineup known, so are all seats, and with them every transfer and the shape of every gradient
collective: only the cuts are open. Axes: N lineups, S stages, R choices of replicas, L layers,
C = L + 1 cuts, G shapes of collectives, T tables; a stage [i, j) lies between cuts i and j.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ELEMENTS, STATIC, STASH = range(3)
"""Rows of sums over layers: gradient elements; bytes of parameters, gradients and optimizer
state; bytes that a sample stashes."""
FORWARD, BACKWARD, LEAST = range(3)
"""Rows of seconds: a microbatch's forward and backward; the least of both together with so many
replicas or fewer."""
CHOICE, SHAPE, TABLE = range(3)
"""Rows of indices: of a stage's replicas among the choices, of its collective's shape, of the table
of its exact exchanges or -1."""
ALPHA, PER_BYTE = range(2)
"""Rows of transfers into a stage: seconds of latency, seconds per byte of a microbatch."""


class Model(NamedTuple):
    """What does not depend on the number of microbatches."""

    sums_3C: Floats
    """Of all layers before a cut: ELEMENTS, STATIC, STASH."""
    received_bytes_C: Floats
    """Bytes of a sample that cross a cut."""
    working_bytes_L: Floats
    """Bytes per sample that a layer works with."""
    update_s_per_element: float
    """Seconds of the update."""
    available_bytes: float
    """Memory of a device."""
    may_keep: bool
    """Whether stages may keep their stash."""
    may_recompute: bool
    """Whether stages may recompute it."""


class Exchanges(NamedTuple):
    """Least seconds to exchange gradients over collectives of each shape."""

    lines_GP2: Floats
    """Pairs (seconds, seconds per element), the cheapest of which holds."""
    last_s_GL: Floats
    """Least seconds from the end of backward to the end of a group with this layer, ready last."""
    finish_s_TCC: Floats
    """Tables of the exact end of a stage's exchanges after its last backward starts, if any."""


class Split(NamedTuple):
    """Costs with one number of microbatches."""

    microbatches: int
    samples_R: Floats
    """Samples of a microbatch on one replica."""
    seconds_3RC: Floats
    """Of all layers before a cut: FORWARD, BACKWARD, LEAST."""
    size_bytes_C: Floats
    """Bytes of a whole microbatch that cross a cut."""


class Lineups(NamedTuple):
    """Lineups, the longest of S stages."""

    stages_N: Ints
    """Stages of each."""
    indices_N3S: Ints
    """CHOICE, SHAPE, TABLE of each stage."""
    transfers_N2S: Floats
    """ALPHA, PER_BYTE of the transfers into each stage."""


class Lineup(NamedTuple):
    """One of them, under one schedule."""

    row: int
    stages: int
    widest: int
    """Choice of the largest number of replicas."""
    gpipe: bool


class Limits(NamedTuple):
    """What the stages at one place in a lineup have in common."""

    choice: int
    widest: int
    microbatches: int
    held: int
    """Microbatches in flight."""
    gpipe: bool
    samples: float
    available_bytes: float
    may_keep: bool
    may_recompute: bool


@compiled
def stage_limits(  # pragma: no cover - runs compiled
    model: Model, split: Split, lineups: Lineups, lineup: Lineup, s: int
) -> Limits:
    """What the stages at place `s` have in common."""
    choice = lineups.indices_N3S[lineup.row, CHOICE, s]
    held = split.microbatches
    if not lineup.gpipe:
        held = min(lineup.stages - s, held)
    return Limits(
        choice,
        lineup.widest,
        split.microbatches,
        held,
        lineup.gpipe,
        split.samples_R[choice],
        model.available_bytes,
        model.may_keep,
        model.may_recompute,
    )


@compiled
def between(  # pragma: no cover - runs compiled
    seconds_3RC: Floats, row: int, choice: int, i: int, j: int
) -> float:
    """Seconds of the layers [i, j)."""
    seconds: float = seconds_3RC[row, choice, j] - seconds_3RC[row, choice, i]
    return seconds


@compiled
def stage_seconds(  # pragma: no cover - runs compiled
    sums_3C: Floats,
    seconds_3RC: Floats,
    limits: Limits,
    stage: tuple[int, int],
    memory: tuple[float, float],
) -> tuple[float, float, bool]:
    """Forward and backward of a stage [i, j), and whether it must recompute; infinite if too big.

    `memory` has the bytes that a sample keeps of what the stage receives, and those of the largest
    working set.
    """
    i, j = stage
    received, working = memory
    forward = between(seconds_3RC, FORWARD, limits.choice, i, j)
    backward = between(seconds_3RC, BACKWARD, limits.choice, i, j)
    room = (limits.available_bytes - (sums_3C[STATIC, j] - sums_3C[STATIC, i])) / limits.samples
    stash = sums_3C[STASH, j] - sums_3C[STASH, i]
    if limits.may_keep and limits.held * (stash + received) + working <= room:
        return forward, backward, False
    if limits.may_recompute and limits.held * received + stash + working <= room:
        return forward, backward + forward, True
    return np.inf, np.inf, True


@compiled
def receive_s(  # pragma: no cover - runs compiled
    split: Split, lineups: Lineups, row: int, s: int, cut: int
) -> float:
    """Seconds of one microbatch over the cut before stage `s` of a lineup."""
    size = split.size_bytes_C[cut]
    if s == 0 or size <= 0:
        return 0.0
    transfers_N2S = lineups.transfers_N2S
    seconds: float = transfers_N2S[row, ALPHA, s] + transfers_N2S[row, PER_BYTE, s] * size
    return seconds


@compiled
def least_step_s(  # pragma: no cover - runs compiled
    seconds_3RC: Floats, limits: Limits, stage: tuple[int, int], both: float, backward: float
) -> float:
    """What a stage [i, j) takes with one microbatch through the rest; a part of it takes no more.

    The stages before come on top of all that it does. Those after do on top of what it does for
    one microbatch and what it cannot do meanwhile: the backwards of the others, and the forwards
    of those that are not in flight yet.
    """
    if both == np.inf:
        return np.inf
    i, j = stage
    m, last = limits.microbatches, seconds_3RC.shape[2] - 1
    before = between(seconds_3RC, LEAST, limits.widest, 0, i)
    after = between(seconds_3RC, LEAST, limits.widest, j, last)
    meanwhile = 0 if limits.gpipe else limits.held - 1
    alone = (m - meanwhile) * both + meanwhile * backward
    return max(before + m * both, before + after + alone)


@compiled
def widest(  # pragma: no cover - runs compiled
    lineups: Lineups, row: int
) -> int:
    """The choice of the largest number of replicas of a lineup."""
    most = 0
    for s in range(lineups.stages_N[row]):
        most = max(most, lineups.indices_N3S[row, CHOICE, s])
    return most


@compiled
def possible(  # pragma: no cover - runs compiled
    model: Model, split: Split, lineups: Lineups, gpipe: bool, step_s: float
) -> NDArray[np.bool_]:
    """Which lineups have cuts at which no stage alone is too long, wherever they are placed."""
    may_N = np.zeros(lineups.stages_N.size, dtype=np.bool_)
    for n in range(may_N.size):
        lineup = Lineup(n, lineups.stages_N[n], widest(lineups, n), gpipe)
        _, high_S = cut_ranges(model, split, lineups, lineup, step_s)
        may_N[n] = high_S[-1] >= 0
    return may_N


@compiled
def cut_ranges(  # pragma: no cover - runs compiled
    model: Model, split: Split, lineups: Lineups, lineup: Lineup, step_s: float
) -> tuple[Ints, Ints]:
    """The first and last place of each cut at which no stage is too long; high[-1] < 0 if none.

    A part of a stage that is not too long is not either, so stages as long as possible from the
    front reach the last places, from the back the first. What a stage receives is left out.
    """
    sums_3C, seconds_3RC = model.sums_3C, split.seconds_3RC
    layers, stages = split.size_bytes_C.size - 1, lineup.stages
    low_S = np.full(stages + 1, layers, dtype=np.int64)
    high_S = np.zeros(stages + 1, dtype=np.int64)
    for s in range(stages):
        limits = stage_limits(model, split, lineups, lineup, s)
        i = j = high_S[s]
        working = 0.0
        while j < layers - (stages - s - 1):
            working = max(working, model.working_bytes_L[j])
            stage, memory = (i, j + 1), (0.0, working)
            forward, backward, _ = stage_seconds(sums_3C, seconds_3RC, limits, stage, memory)
            both = forward + backward
            if not least_step_s(seconds_3RC, limits, stage, both, backward) <= step_s:
                break
            j += 1
        high_S[s + 1] = j
    if high_S[-1] < layers:
        high_S[-1] = -1
        return low_S, high_S
    for s in range(stages - 1, 0, -1):
        limits = stage_limits(model, split, lineups, lineup, s)
        i = j = low_S[s + 1]
        working = 0.0
        while i > s:
            working = max(working, model.working_bytes_L[i - 1])
            stage, memory = (i - 1, j), (0.0, working)
            forward, backward, _ = stage_seconds(sums_3C, seconds_3RC, limits, stage, memory)
            both = forward + backward
            if not least_step_s(seconds_3RC, limits, stage, both, backward) <= step_s:
                break
            i -= 1
        low_S[s] = i
        if i > high_S[s]:
            high_S[-1] = -1
            return low_S, high_S
    low_S[0] = 0
    return low_S, high_S


@compiled
def round_trips(  # pragma: no cover - runs compiled
    model: Model,
    split: Split,
    lineups: Lineups,
    lineup: Lineup,
    ranges: tuple[Ints, Ints],
    open_SC: NDArray[np.bool_],
    step_s: float,
) -> tuple[Floats, int]:
    """Least seconds from the end of a forward to the arrival of its gradient, by stage and cut."""
    low_S, high_S = ranges
    sums_3C, seconds_3RC = model.sums_3C, split.seconds_3RC
    stages, layers = lineup.stages, split.size_bytes_C.size - 1
    looked_at = 0
    return_s_SC = np.full((stages, layers + 1), np.inf)
    return_s_SC[-1, layers] = 0.0
    for s in range(stages - 1, 0, -1):
        limits = stage_limits(model, split, lineups, lineup, s)
        for i in range(low_S[s], high_S[s] + 1):
            if not open_SC[s, i]:
                continue
            least = np.inf
            received = model.received_bytes_C[i]
            working = 0.0
            for j in range(i + 1, high_S[s + 1] + 1):
                looked_at += 1
                working = max(working, model.working_bytes_L[j - 1])
                stage, memory = (i, j), (received, working)
                forward, backward, _ = stage_seconds(sums_3C, seconds_3RC, limits, stage, memory)
                both = forward + backward
                if not least_step_s(seconds_3RC, limits, stage, both, backward) <= step_s:
                    break
                least = min(least, both + return_s_SC[s, j])
            return_s_SC[s - 1, i] = least + 2 * receive_s(split, lineups, lineup.row, s, i)
    return return_s_SC, looked_at
