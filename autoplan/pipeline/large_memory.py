"""How many layers of a long chain fit on the devices of one stage, whatever the others do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROUNDS = 3
"""Times that the fewest later stages are counted again with what is known of the earlier count."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageMemory:
    """Least bytes on a device of a stage. Axes: R choices of replicas, C = L + 1 cuts."""

    static_bytes_C: Floats
    """Parameters, gradients and optimizer state of the layers before each cut."""
    stash_bytes_RC: Floats
    """What those layers keep of one microbatch."""
    received_bytes_RC: Floats
    """What a stage that starts at a cut keeps of one microbatch it received."""
    available_bytes: float
    """Memory of a device."""
    may_recompute: bool
    """Whether stages may keep the stash of one microbatch only."""
    may_alternate: bool
    """Whether a stage may do backwards before all its forwards; it then holds one microbatch for
    each later stage and one of its own, otherwise all."""
    microbatches: int
    """Microbatches per step."""


def furthest_ends(memory: StageMemory) -> Ints:
    """The last cut at which a stage may end, R x C by its first cut; that cut itself where none.

    Never falls along the cuts: a stage is not refused what one that starts earlier is granted. The
    fewest stages that the later layers need, one at a time on as many devices as each would like,
    tell how many microbatches a stage must hold.
    """
    cuts = memory.static_bytes_C.size
    held_C = np.ones(cuts)
    if not memory.may_alternate:
        held_C[:] = memory.microbatches
    for _ in range(_ROUNDS if memory.may_alternate else 1):
        ends_RC = _ends(
            memory.static_bytes_C,
            np.ascontiguousarray(memory.stash_bytes_RC),
            np.ascontiguousarray(memory.received_bytes_RC),
            np.ones(cuts) if memory.may_recompute else held_C,
            held_C,
            memory.available_bytes,
        )
        if memory.may_alternate:
            # A stage itself is one of the stages from its first cut on, so that many at least are
            # held there: one for itself and one for each after it.
            needed_C = _fewest_stages(ends_RC.max(axis=0))
            held_C = np.clip(needed_C, 1, memory.microbatches).astype(np.float64)
    return ends_RC


@compiled
def _ends(  # pragma: no cover - runs compiled
    static_C: Floats,
    stash_RC: Floats,
    received_RC: Floats,
    stashed_C: Floats,
    held_C: Floats,
    available: float,
) -> Ints:
    """The ends for given microbatches held by a stage that starts at each cut."""
    choices, cuts = stash_RC.shape
    ends_RC = np.zeros((choices, cuts), dtype=np.int64)
    for r in range(choices):
        furthest = 0
        for start in range(cuts):
            furthest = max(furthest, start)
            base = static_C[start] + stashed_C[start] * stash_RC[r, start] + available
            base -= held_C[start] * received_RC[r, start]
            while furthest + 1 < cuts:
                end = furthest + 1
                if static_C[end] + stashed_C[start] * stash_RC[r, end] > base:
                    break
                furthest = end
            ends_RC[r, start] = furthest
    return ends_RC


@compiled
def _fewest_stages(end_C: Ints) -> Ints:  # pragma: no cover - runs compiled
    """Stages that the layers from each cut on need at least; many where they cannot be had."""
    cuts = end_C.size
    fewest_C = np.zeros(cuts, dtype=np.int64)
    for start in range(cuts - 2, -1, -1):
        if end_C[start] > start:
            fewest_C[start] = 1 + fewest_C[end_C[start]]
        else:
            fewest_C[start] = cuts
    return fewest_C
