"""Loads of every possible stage of a workload.

A stage's load is what `StagePrediction.load_s` says: all that it does in a step, one after the
other. Axes: L layers, C = L + 1 cuts; a stage [i, j) lies between cuts i and j.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.pipeline.bounds import prefix
from autoplan.stage_costs import StageCosts

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTerms:
    """What the stages of one place in a pipeline have in common."""

    microbatches: int
    replicas: int
    receive_s_C: Floats
    """Seconds of one microbatch over the cut before the stage."""
    send_s_C: Floats
    """Seconds of one microbatch over the cut after it."""
    link_s_CC: Floats
    """Seconds of the gradient exchanges of a step."""
    held_C: NDArray[np.int64]
    """Microbatches whose stash the stage holds, by the cut after it."""
    fused: bool
    """Whether gradients that are exchanged lie in a fused buffer."""
    may_keep: bool
    """Whether the stage may keep its stash."""
    may_recompute: bool
    """Whether it may recompute it; where both, it does so if it does not fit otherwise."""


class StageLoads:
    """Loads of all stages [i, j) of one workload."""

    def __init__(self, costs: StageCosts) -> None:
        """Lays out what does not depend on the samples of a microbatch."""
        self.costs = costs
        elements_C = prefix(costs.elements_L)
        self.elements_CC = np.maximum(elements_C[None, :] - elements_C[:, None], 0.0)
        self._seconds = functools.lru_cache(maxsize=64)(self._prefix_seconds)

    def under(self, terms: StageTerms, available_bytes: float) -> Floats:
        """The load [C, C] of every stage, infinite where it takes more memory than this."""
        samples = self.costs.job.global_batch / terms.microbatches / terms.replicas
        forward_C, backward_C = self._seconds(samples)
        forward_CC = forward_C[None, :] - forward_C[:, None]
        compute_CC = forward_CC + backward_C[None, :] - backward_C[:, None]
        crossing_CC = terms.receive_s_C[:, None] + terms.send_s_C[None, :]
        once_CC = terms.link_s_CC + self.elements_CC * self.costs.optimizer_s_per_element
        load_CC = terms.microbatches * (compute_CC + 2 * crossing_CC) + once_CC
        kept_CC, again_CC = self._memory(terms, samples)
        again = load_CC + terms.microbatches * forward_CC
        again = np.where(again_CC <= available_bytes, again, np.inf)
        if not terms.may_keep:
            return again
        without = again if terms.may_recompute else np.inf
        return np.where(kept_CC <= available_bytes, load_CC, without)

    def _memory(self, terms: StageTerms, samples: float) -> tuple[Floats, Floats]:
        """Bytes that every stage needs if it keeps its stash, and if it recomputes it."""
        costs, held_C = self.costs, terms.held_C
        static_CC = _differences(costs.static_bytes_L)
        if terms.fused and terms.replicas > 1:
            buffers_CC = self.elements_CC * costs.job.gradient_bytes_per_element
            static_CC = static_CC + buffers_CC
        if terms.fused:
            static_CC = static_CC + _largest_CC(costs.constant_working_bytes_L)
        stash_CC = _differences(costs.stash_bytes_L)
        received_CC = held_C[None, :] * costs.cut_bytes_C[:, None]
        kept_CC = held_C[None, :] * stash_CC + self._working_bytes_CC
        again_CC = stash_CC + self._working_bytes_CC
        return (
            static_CC + (received_CC + kept_CC) * samples,
            static_CC + (received_CC + again_CC) * samples,
        )

    def _prefix_seconds(self, samples: float) -> tuple[Floats, Floats]:
        seconds = self.costs.layer_seconds(samples)
        return prefix(seconds.forward_s_L), prefix(seconds.backward_s_L)

    @functools.cached_property
    def _working_bytes_CC(self) -> Floats:
        """The largest working set per sample of the layers [i, j)."""
        return _largest_CC(self.costs.working_bytes_L)


def _largest_CC(values_L: Floats) -> Floats:
    """The largest value of every interval of layers."""
    table = np.zeros((values_L.size + 1, values_L.size + 1))
    for i in range(values_L.size):
        table[i, i + 1 :] = np.maximum.accumulate(values_L[i:])
    return table


def _differences(values_L: Floats) -> Floats:
    """The sum of every interval of layers."""
    sums_C = prefix(values_L)
    return np.asarray(sums_C[None, :] - sums_C[:, None], dtype=np.float64)
