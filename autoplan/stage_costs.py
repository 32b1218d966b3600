"""Costs of a stage, whatever plan it is part of: compute, gradient exchange, memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Cluster
from autoplan.cluster.collectives import CollectiveCost, GroupShape, collective_cost
from autoplan.errors import require
from autoplan.gradsync.grouping import Policy
from autoplan.gradsync.problem import GroupingProblem
from autoplan.job import Job
from autoplan.plan import GradientGroup, Stage
from autoplan.prediction import Memory
from autoplan.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Seconds to all-reduce so many gradient elements."""

    collective: CollectiveCost
    bytes_per_element: int

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return self.collective.at(elements * self.bytes_per_element)

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group of an array."""
        return self.collective.many(elements * self.bytes_per_element)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """What goes over the link in a stage's last backward, in seconds after that starts."""

    spans: tuple[tuple[float, float, int], ...]
    """(start, end, index of the group) of each exchange."""
    finish_s: float
    """End of the last exchange, or of backward if later."""


class LayerSeconds:
    """Seconds of every layer for one call of so many samples. Axis: L layers."""

    def __init__(self, workload: Workload, samples: float) -> None:
        """Evaluates all cost curves once."""
        self.forward_s_L = np.array([layer.forward.at(samples) for layer in workload.layers])
        self.backward_s_L = np.array([layer.backward.at(samples) for layer in workload.layers])
        self.extrapolated = sum(
            layer.forward.extrapolates(samples) or layer.backward.extrapolates(samples)
            for layer in workload.layers
        )


class StageCosts:
    """Costs of stages of one workload on one cluster for one job, each computed once."""

    def __init__(self, workload: Workload, cluster: Cluster, job: Job) -> None:
        """Keeps the three and lays out per-layer arrays."""
        self.workload, self.cluster, self.job = workload, cluster, job
        layers = workload.layers
        self.elements_L = np.array([layer.gradient_elements for layer in layers], dtype=np.float64)
        self.cut_bytes_C = np.array(workload.cut_bytes_per_sample, dtype=np.float64)
        self._parameter_bytes_L = np.array([layer.parameter_bytes for layer in layers])
        self._stash_bytes_L = np.array([layer.stash_bytes_per_sample for layer in layers])
        workspace_L = np.array([layer.workspace_bytes_per_sample for layer in layers])
        self._working_bytes_L = workspace_L + self.cut_bytes_C[:-1] + self.cut_bytes_C[1:]
        self.layer_seconds = functools.lru_cache(maxsize=512)(self._layer_seconds)
        self.exchange = functools.lru_cache(maxsize=4096)(self._exchange)
        self.compute_s = functools.lru_cache(maxsize=1 << 16)(self._compute_s)
        self.exchanges = functools.lru_cache(maxsize=1 << 16)(self._exchanges)
        self.memory = functools.lru_cache(maxsize=1 << 16)(self._memory)
        self.grouped = functools.lru_cache(maxsize=1 << 16)(self._grouped)

    @property
    def optimizer_s_per_element(self) -> float:
        """Seconds of the update per element: measured, else bound by memory bandwidth, else 0."""
        job, bandwidth = self.job, self.cluster.device.memory_bandwidth_bytes_per_s
        if job.optimizer_s_per_element is not None:
            return job.optimizer_s_per_element
        return job.update_bytes_per_element / bandwidth if bandwidth else 0.0

    def _layer_seconds(self, samples: float) -> LayerSeconds:
        return LayerSeconds(self.workload, samples)

    def _exchange(self, shape: GroupShape) -> ExchangeCost:
        cost = collective_cost(self.cluster, shape, "all_reduce")
        return ExchangeCost(cost, self.job.gradient_bytes_per_element)

    def _compute_s(
        self, layers: tuple[int, int], samples: float, recompute: bool
    ) -> tuple[float, float]:
        """(forward, backward) seconds of one microbatch with `samples` samples per replica."""
        seconds = self.layer_seconds(samples)
        forward = float(seconds.forward_s_L[layers[0] : layers[1]].sum())
        backward = float(seconds.backward_s_L[layers[0] : layers[1]].sum())
        return forward, backward + (forward if recompute else 0.0)

    def _exchanges(self, stage: Stage, samples: float, shape: GroupShape) -> Exchanges:
        """The gradient groups of a stage's last backward on the link (DESIGN 3.2)."""
        first, end = stage.layers
        seconds = self.layer_seconds(samples)
        exchange = self.exchange(shape)
        compute = float(seconds.forward_s_L[first:end].sum()) if stage.recompute else 0.0
        link = 0.0
        spans = []
        for i, group in enumerate(stage.groups):
            found = group.density
            require(found == 1, f"groups[{i}].density", found, "1.0: dense groups only")
            low, high = group.layers
            compute += float(seconds.backward_s_L[low:high].sum())
            elements = float(self.elements_L[low:high].sum())
            if elements > 0 and stage.replicas > 1:
                start = max(link, compute)
                link = start + exchange(elements)
                spans.append((start, link, i))
        return Exchanges(spans=tuple(spans), finish_s=max(compute, link))

    def _grouped(
        self, layers: tuple[int, int], samples: float, shape: GroupShape, policy: Policy
    ) -> tuple[GradientGroup, ...]:
        """The gradient groups that a policy makes of a stage; one where nothing is exchanged."""
        first, end = layers
        if shape.devices == 1 or not self.elements_L[first:end].any():
            return (GradientGroup(layers=layers),)
        problem = GroupingProblem(
            backward_s=self.layer_seconds(samples).backward_s_L[first:end].tolist(),
            elements=self.elements_L[first:end].tolist(),
            communicate=self.exchange(shape),
        )
        groups, high = [], end
        for done in policy.ends(problem):
            groups.append(GradientGroup(layers=(end - done, high)))
            high = end - done
        return tuple(groups)

    def _memory(self, stage: Stage, samples: float, microbatches_in_flight: int) -> Memory:
        """Bytes at the peak on one device of the stage (DESIGN 3.3)."""
        first, end = stage.layers
        job, inside = self.job, slice(first, end)
        elements = float(self.elements_L[inside].sum())
        fused = sum(
            float(self.elements_L[low:high].sum())
            for low, high in (group.layers for group in stage.groups)
            if high - low > 1
        )
        received = float(self.cut_bytes_C[first])
        activations = float(self._stash_bytes_L[inside].sum())
        stash = microbatches_in_flight * (received if stage.recompute else received + activations)
        working = float(self._working_bytes_L[inside].max())
        working += activations if stage.recompute else 0.0
        return Memory(
            parameter_bytes=float(self._parameter_bytes_L[inside].sum()),
            gradient_bytes=elements * job.gradient_bytes_per_element,
            optimizer_bytes=elements * job.optimizer_bytes_per_element,
            buffer_bytes=fused * job.gradient_bytes_per_element if stage.replicas > 1 else 0.0,
            stash_bytes=stash * samples,
            working_bytes=working * samples,
            available_bytes=self.cluster.device.memory_bytes * (1 - job.memory_headroom),
        )
