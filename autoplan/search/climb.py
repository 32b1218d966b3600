"""Moving the cuts of a layout to where the step is shortest, many partitions at a time."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.batch_scores import BatchScorer, BatchShape
from autoplan.search.layout import Layout

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_REACH = (1, 2, 4, 8, 16)
"""Layers by which one cut is moved."""
_MOST_ROUNDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbed:
    """Where a climb ended, and how many partitions it looked at."""

    layout: Layout
    step_s: float
    missing_bytes: float
    num_scored: int

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Less is better, like `refine.Candidate.rank`."""
        misfit = self.missing_bytes > 0
        return (misfit, self.missing_bytes if misfit else 0.0, self.step_s)


def climb_cuts(layout: Layout, batch: BatchScorer) -> Climbed:
    """Takes the best of all moves of one or two cuts until none improves the layout."""
    shape = BatchShape(
        replicas=layout.replicas,
        microbatches=layout.microbatches,
        schedule=layout.schedule,
        rank_order=layout.rank_order,
        recompute=layout.recompute,
    )
    bounds = np.array(layout.bounds, dtype=np.int64)
    best = (True, np.inf, np.inf)
    scored = 0
    for _ in range(_MOST_ROUNDS):
        moved_KB = bounds + _moves(len(layout.replicas))
        valid = (np.diff(moved_KB, axis=1) >= 1).all(axis=1)
        moved_KB = moved_KB[valid]
        step_K, missing_K = batch.score(moved_KB, shape)
        scored += len(step_K)
        first = int(np.lexsort((step_K, missing_K))[0])
        missing, step = float(missing_K[first]), float(step_K[first])
        rank = (missing > 0, missing, step)
        if rank >= best:
            break
        best, bounds = rank, moved_KB[first]
    return Climbed(
        layout=dataclasses.replace(layout, bounds=tuple(bounds.tolist())),
        step_s=best[2],
        missing_bytes=best[1],
        num_scored=scored,
    )


@functools.lru_cache(maxsize=64)
def _moves(num_stages: int) -> Ints:
    """Changes of the S + 1 bounds: none; one cut by some layers; two neighbours by one layer."""
    moves = [np.zeros(num_stages + 1, dtype=np.int64)]
    for k in range(1, num_stages):
        for reach in _REACH:
            for step in (reach, -reach):
                moves.append(np.zeros(num_stages + 1, dtype=np.int64))
                moves[-1][k] = step
    for k in range(1, num_stages - 1):
        for pair in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
            moves.append(np.zeros(num_stages + 1, dtype=np.int64))
            moves[-1][k : k + 2] = pair
    return np.stack(moves)
