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

_REACH = (1, 2, 4, 8, 16, 64, 256)
"""Layers by which one cut is moved; more than 16 only in stages that are longer."""
_MOST_ROUNDS = 64
DEEP, DEEPEST = 64, 512
"""Stages beyond which the moves are limited, and beyond which there are none."""
_BUSIEST = 12
"""Stages of a deep pipeline whose cuts are moved."""
_MOST_WORK = 1_000_000_000
"""Microbatches times stages times candidates after which a deep pipeline is left."""


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


def climb_cuts(layout: Layout, batch: BatchScorer, *, buffers: bool = True) -> Climbed:
    """Takes the best of all moves of one or two cuts until none improves the layout.

    Without buffers, gradient groups are taken to need none, so that what is found may not fit. Of
    very deep pipelines, only cuts of the busiest stages are moved, and not for as long; the
    deepest are left as they are.
    """
    shape = BatchShape(
        replicas=layout.replicas,
        microbatches=layout.microbatches,
        schedule=layout.schedule,
        rank_order=layout.rank_order,
        recompute=layout.recompute,
    )
    bounds = np.array(layout.bounds, dtype=np.int64)
    num_stages = len(layout.replicas)
    best = (True, np.inf, np.inf)
    scored = work = 0
    for _ in range(_MOST_ROUNDS):
        if num_stages > DEEP and work > _MOST_WORK:
            break
        moved_KB = bounds + _moves_of(bounds, batch, shape)
        valid = (np.diff(moved_KB, axis=1) >= 1).all(axis=1)
        moved_KB = moved_KB[valid]
        step_K, missing_K = batch.score(moved_KB, shape, buffers=buffers)
        scored += len(step_K)
        work += len(step_K) * num_stages * layout.microbatches
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


def _moves_of(bounds: Ints, batch: BatchScorer, shape: BatchShape) -> Ints:
    """Changes of the bounds that are tried from here."""
    num_stages = len(shape.replicas)
    num_layers = int(bounds[-1])
    reaches = tuple(reach for reach in _REACH if reach <= max(16, num_layers // num_stages))
    if num_stages <= DEEP:
        return _moves(num_stages, reaches)
    busiest = np.argsort(-batch.compute_s(bounds, shape), kind="stable")[:_BUSIEST]
    cuts = np.unique(np.concatenate([busiest, busiest + 1]))
    cuts = cuts[(cuts > 0) & (cuts < num_stages)]
    if num_stages > DEEPEST:
        cuts = cuts[:0]
    moves = np.zeros((1 + 2 * len(reaches) * len(cuts), num_stages + 1), dtype=np.int64)
    steps = np.array([step for reach in reaches for step in (reach, -reach)])
    moves[np.arange(1, len(moves)), np.repeat(cuts, len(steps))] = np.tile(steps, len(cuts))
    return moves


@functools.lru_cache(maxsize=64)
def _moves(num_stages: int, reaches: tuple[int, ...]) -> Ints:
    """Changes of the S + 1 bounds: none; one cut by some layers; two neighbours by one layer."""
    moves = [np.zeros(num_stages + 1, dtype=np.int64)]
    for k in range(1, num_stages):
        for reach in reaches:
            for step in (reach, -reach):
                moves.append(np.zeros(num_stages + 1, dtype=np.int64))
                moves[-1][k] = step
    for k in range(1, num_stages - 1):
        for pair in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
            moves.append(np.zeros(num_stages + 1, dtype=np.int64))
            moves[-1][k : k + 2] = pair
    return np.stack(moves)
