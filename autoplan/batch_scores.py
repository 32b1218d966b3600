"""Scores of many partitions at once: tables per stage, then the pipeline for all of them together.

`Predictor.score` is the readable oracle; tests hold the step times of both to 1e-9 relative.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster.collectives import GroupShape
from autoplan.cluster.placement import place
from autoplan.gradsync.costs import lines_of
from autoplan.gradsync.interval_table import FinishTimes
from autoplan.pipeline.bounds import prefix
from autoplan.pipeline.lanes import last_backward_starts
from autoplan.pipeline.schedule import in_flight
from autoplan.plan import RankOrder, Schedule
from autoplan.predict import Predictor
from autoplan.prediction import ROUNDING

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """What the partitions of a batch have in common."""

    replicas: tuple[int, ...]
    """Of each stage."""
    microbatches: int
    schedule: Schedule
    rank_order: RankOrder
    recompute: Literal["never", "where-needed", "always"]


class BatchScorer:
    """Scores partitions of one workload with the best dense gradient groups.

    Axes: K candidates, S stages, C = L + 1 cuts.
    """

    def __init__(self, predictor: Predictor) -> None:
        """Lays out what does not depend on the samples of a microbatch."""
        self.predictor, self.costs = predictor, predictor.costs
        self._elements_C = prefix(self.costs.elements_L)
        self._static_bytes_C = prefix(self.costs.static_bytes_L)
        self._stash_bytes_C = prefix(self.costs.stash_bytes_L)
        self._seconds = functools.lru_cache(maxsize=256)(self._prefix_seconds)
        self._finish = functools.lru_cache(maxsize=256)(self._finish_times)

    @property
    def exact(self) -> bool:
        """Whether step seconds are those of the best groups; else they may be less.

        That is where a measured table, whose floor is used, or what an exchange takes from the
        backward beside it, which is left out, keeps gradients longer.
        """
        cluster = self.predictor.cluster
        return not cluster.measured and cluster.device.exchange_handling is None

    def score(
        self, bounds_KB: Ints, shape: BatchShape, *, buffers: bool = True
    ) -> tuple[Floats, Floats]:
        """Step seconds, as `exact` says, and missing bytes of each partition.

        Missing bytes are an upper bound with buffers: every gradient is taken to lie in a fused
        buffer where it is exchanged. Without, both figures are lower bounds for any groups of the
        gradients and, where the shape recomputes where needed, for any stages that recompute.

        Args:
            bounds_KB: the S + 1 bounds of each candidate, rising from 0 to L.
            shape: what they share; its replicas must divide the microbatch.
            buffers: whether gradients that are exchanged lie in fused buffers.
        """
        samples = self.predictor.job.global_batch // shape.microbatches
        placement = place(self.predictor.cluster, shape.replicas, shape.rank_order)
        num_stages = len(shape.replicas)
        forward_SK, backward_SK, after_SK = (
            np.empty((num_stages, len(bounds_KB))) for _ in range(3)
        )
        missing_K = np.zeros(len(bounds_KB))
        for s, replicas in enumerate(shape.replicas):
            i, j = bounds_KB[:, s], bounds_KB[:, s + 1]
            per_replica = samples / replicas
            forward_C, backward_C = self._seconds(per_replica)
            handling_C = self.costs.handling_s_C(per_replica)
            messages = handling_C[i] + handling_C[j]
            forward, backward = forward_C[j] - forward_C[i], backward_C[j] - backward_C[i]
            finish = self._finish(per_replica, placement.groups[s]).at(i, j)
            held = in_flight(shape.schedule, s, num_stages, shape.microbatches)
            fused = buffers and replicas > 1
            again, missing = self._memory(i, j, per_replica, fused, held, shape.recompute)
            forward_SK[s] = forward + messages
            backward_SK[s] = backward + np.where(again, forward, 0.0) + messages
            update = (self._elements_C[j] - self._elements_C[i]) * self._update_rate
            after_SK[s] = handling_C[j] + finish + np.where(again, forward, 0.0) + update
            np.maximum(missing_K, missing, out=missing_K)
        send_SK = np.zeros_like(forward_SK)
        for s, transfer in enumerate(placement.transfers):
            size = self.costs.cut_bytes_C[bounds_KB[:, s + 1]] * samples
            send_SK[s] = np.where(size > 0, transfer.alpha_s + transfer.s_per_byte * size, 0.0)
        start_SK = last_backward_starts(
            forward_SK, backward_SK, shape.microbatches, shape.schedule, send_s_SK=send_SK
        )
        return (start_SK + after_SK).max(axis=0), missing_K

    def compute_s(self, bounds_B: Ints, shape: BatchShape) -> Floats:
        """Seconds of one microbatch's forward and backward on each stage of one partition."""
        samples = self.predictor.job.global_batch // shape.microbatches
        compute_S = np.empty(len(shape.replicas))
        for s, replicas in enumerate(shape.replicas):
            sums, ends = self._seconds(samples / replicas), bounds_B[s : s + 2]
            compute_S[s] = sum(each[ends[1]] - each[ends[0]] for each in sums)
            compute_S[s] += 2 * self.costs.handling_s_C(samples / replicas)[ends].sum()
        return compute_S

    @property
    def _update_rate(self) -> float:
        return self.costs.optimizer_s_per_element

    def _memory(
        self, i: Ints, j: Ints, samples: float, buffers: bool, held: int, recompute: str
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Whether each stage [i, j) recomputes, and the bytes that it lacks, like `score`."""
        static = self._static_bytes_C[j] - self._static_bytes_C[i]
        if buffers:
            fused = self._elements_C[j] - self._elements_C[i]
            static = static + fused * self.predictor.job.gradient_bytes_per_element
            static = static + _largest_between(self._largest_constant, self._levels, i, j)
        activations = self._stash_bytes_C[j] - self._stash_bytes_C[i]
        received = self.costs.cut_bytes_C[i]
        working = _largest_between(self._largest, self._levels, i, j)
        kept = static + (held * (received + activations) + working) * samples
        thrown = static + (held * received + working + activations) * samples
        available = self.costs.available_bytes * (1.0 if buffers else 1 + ROUNDING)
        again = np.full(len(i), recompute == "always")
        if recompute == "where-needed":
            again = kept > available
        return again, np.maximum(np.where(again, thrown, kept) - available, 0.0)

    def _prefix_seconds(self, samples: float) -> tuple[Floats, Floats]:
        seconds = self.costs.layer_seconds(samples)
        return prefix(seconds.forward_s_L), prefix(seconds.backward_s_L)

    def _finish_times(self, samples: float, shape: GroupShape) -> FinishTimes:
        """Seconds from the start of the last backward to the end of its gradients."""
        backward_s_L = self.costs.layer_seconds(samples).backward_s_L
        pieces = np.zeros((1, 2))
        elements_L = np.zeros_like(self.costs.elements_L)
        if shape.devices > 1:
            pieces = lines_of(self.costs.least_group_cost(shape, 1.0).communicate)
            elements_L = self.costs.elements_L
        return FinishTimes(backward_s_L, elements_L, pieces)

    @functools.cached_property
    def _levels(self) -> Ints:
        """The largest power of two that fits into so many layers, as its exponent."""
        sizes = np.arange(1, self.costs.elements_L.size + 1)
        return np.concatenate([[0], np.frexp(sizes)[1] - 1]).astype(np.int64)

    @functools.cached_property
    def _largest(self) -> Floats:
        """Of working sets per sample."""
        return _largest_of_powers(self.costs.working_bytes_L)

    @functools.cached_property
    def _largest_constant(self) -> Floats:
        """Of what working sets hold whatever the samples."""
        return _largest_of_powers(self.costs.constant_working_bytes_L)


def _largest_of_powers(values_L: Floats) -> Floats:
    """Row n: the largest value among the 2^n layers from each on."""
    rows = [values_L.astype(np.float64)]
    while (half := 1 << (len(rows) - 1)) * 2 <= rows[0].size:
        row = rows[-1].copy()
        row[: row.size - half] = np.maximum(row[: row.size - half], row[half:])
        rows.append(row)
    return np.stack(rows)


def _largest_between(largest: Floats, levels: Ints, i: Ints, j: Ints) -> Floats:
    """The largest value of the layers [i, j)."""
    level = levels[j - i]
    found: Floats = np.maximum(largest[level, i], largest[level, j - (1 << level)])
    return found
