"""Estimates of pipelines whose partition is not known yet, to order more of them than can be built.

Stages are taken to share the model's time, parameters and activations evenly, whatever its layers
are. Axes: S numbers of stages.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster.collectives import GroupShape
from autoplan.predict import Predictor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MARGIN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rough:
    """An even pipeline with the same replicas in every stage, and its estimated step."""

    misfits: bool
    """Whether it seems to lack memory."""
    step_s: float
    microbatches: int
    stages: int

    @property
    def rank(self) -> tuple[bool, float, int, int]:
        """Less is more promising."""
        return self.misfits, self.step_s, self.microbatches, self.stages


class CoarseModel:
    """Estimates for one workload, cluster and job."""

    def __init__(self, predictor: Predictor) -> None:
        """Sums up the layers."""
        costs = predictor.costs
        self._predictor, self._costs = predictor, costs
        self._static_bytes = float(costs.static_bytes_L.sum())
        self._stash_bytes = float(costs.stash_bytes_L.sum())
        self._cut_bytes = float(np.median(costs.cut_bytes_C))
        self._elements = float(costs.elements_L.sum())
        self._choices = functools.lru_cache(maxsize=None)(self._replica_choices)

    @property
    def least_stages(self) -> int:
        """Stages without which no device can hold its share of the parameters."""
        return max(1, int(np.ceil(self._static_bytes / self._costs.available_bytes * (1 - 1e-9))))

    def cannot_fit(self, microbatches: int, stages: int, replicas: int) -> bool:
        """Whether no partition into so many stages fits, all microbatches kept in flight by 1F1B.

        The fullest stage holds an even share of what does not depend on the plan at least; the
        first one holds its first layer's activations of the microbatches in flight.
        """
        costs = self._costs
        samples = self._predictor.job.global_batch / microbatches / replicas
        first = float(costs.static_bytes_L[0])
        first += min(stages, microbatches) * samples * float(costs.stash_bytes_L[0])
        most = max(self._static_bytes / stages, first)
        return most > costs.available_bytes * (1 + _MARGIN)

    def even_pipelines(
        self, microbatches: int, stages: Sequence[int], recompute: str
    ) -> list[Rough]:
        """All of these depths that some number of replicas allows."""
        devices = self._predictor.cluster.num_devices
        choices_R = self._choices(microbatches)
        stages_S = np.array(stages, dtype=np.int64)
        place_S = np.searchsorted(choices_R, devices // stages_S, side="right") - 1
        stages_S, place_S = stages_S[place_S >= 0], place_S[place_S >= 0]
        step_S = np.empty(stages_S.size)
        misfits_S = np.empty(stages_S.size, dtype=np.bool_)
        for place in np.unique(place_S).tolist():
            same = place_S == place
            shape = microbatches, int(choices_R[place])
            step_S[same], misfits_S[same] = self._estimate(shape, stages_S[same], recompute)
        return [
            Rough(misfits=misfits, step_s=step_s, microbatches=microbatches, stages=stages)
            for misfits, step_s, stages in zip(
                misfits_S.tolist(), step_S.tolist(), stages_S.tolist(), strict=True
            )
        ]

    def _estimate(
        self, shape: tuple[int, int], stages_S: Ints, recompute: str
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Seconds, and whether memory seems to be missing, for microbatches and replicas."""
        microbatches, replicas = shape
        costs = self._costs
        samples = self._predictor.job.global_batch / microbatches / replicas
        seconds = costs.layer_seconds(samples)
        held_S = np.minimum(stages_S, microbatches)
        kept_S = (self._static_bytes + held_S * samples * self._stash_bytes) / stages_S
        least_S = (self._static_bytes + samples * self._stash_bytes) / stages_S
        received_S = held_S * samples * self._cut_bytes
        available = costs.available_bytes
        again = np.full(stages_S.size, recompute == "always")
        if recompute == "where-needed":
            again = kept_S + received_S > available
        work_L = seconds.forward_s_L + seconds.backward_s_L
        work_S = work_L.sum() / stages_S + again * (seconds.forward_s_L.sum() / stages_S)
        longest_S = np.maximum(work_S, float(work_L.max()))
        elements_S = self._elements / stages_S
        exchange = costs.group_cost(self._shape(replicas), 1.0).communicate
        exchange_S = np.array([exchange(elements) for elements in elements_S.tolist()])
        step_S = (microbatches - 1) * longest_S + stages_S * work_S
        step_S += exchange_S + elements_S * costs.optimizer_s_per_element
        return step_S, np.where(again, least_S, kept_S) + received_S > available

    def _shape(self, replicas: int) -> GroupShape:
        """A stage's collective where its replicas are packed into nodes."""
        cluster = self._predictor.cluster
        nodes = -(-replicas // cluster.devices_per_node)
        bandwidth = float("inf")
        if nodes > 1 and cluster.inter_node is not None:
            bandwidth = cluster.nics_per_node * cluster.inter_node.bandwidth_bytes_per_s
        return GroupShape(devices=replicas, nodes=nodes, inter_node_bytes_per_s=bandwidth)

    def _replica_choices(self, microbatches: int) -> Ints:
        """What a stage may have with so many microbatches, rising."""
        samples = self._predictor.job.global_batch // microbatches
        return np.array(self._predictor.domain.replicas_for(samples), dtype=np.int64)


def thinned(stages: Sequence[int], devices: int, least: int, most: int) -> tuple[int, ...]:
    """At most about so many numbers of stages, denser where they are few; all where that is enough.

    Keeps those that share the devices out evenly, and leaves out those below `least` where any
    others are left.
    """
    if len(stages) <= most:
        return tuple(stages)
    enough = [s for s in stages if s >= least] or list(stages)
    wanted = np.unique(np.geomspace(enough[0], enough[-1], most).round())
    places = np.unique(np.searchsorted(enough, wanted))
    even = {s for s in enough if devices % s == 0}
    return tuple(sorted(even | {enough[min(place, len(enough) - 1)] for place in places.tolist()}))
