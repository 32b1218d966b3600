"""Costs of a stage, whatever plan it is part of: compute, gradient exchange, memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import Cluster
from autoplan.cluster.collectives import CollectiveCost, GroupShape, collective_cost
from autoplan.errors import InputError, words
from autoplan.gradsync import GroupCost, GroupingProblem, GroupLimits, Policy, group_problem
from autoplan.gradsync.costs import (
    INDEX_BYTES,
    Affine,
    AllReduce,
    ElementCost,
    OfKept,
    SparseAllGather,
    Sum,
    Table,
)
from autoplan.job import Job
from autoplan.plan import GradientGroup, Stage
from autoplan.prediction import Memory
from autoplan.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingRule:
    """How the gradients of a stage are to be grouped."""

    policy: Policy
    densities: tuple[float, ...] = (1.0,)
    """Densities that a group may have; the one that ends earliest is taken."""
    limits: GroupLimits = field(default_factory=GroupLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """What a stage's last backward adds to its gradients, in seconds after that starts."""

    spans: tuple[tuple[float, float, int], ...]
    """(start, end, index of the group) of each exchange."""
    compute_s: float
    """End of backward, with what exchanges took from it."""
    sparsify_s: float
    """Seconds of compute that went into sparsification."""
    handling_s: float
    """Seconds of compute that exchanges took from the backward that went on beside them."""
    finish_s: float
    """End of the last exchange, or of compute if later."""

    @property
    def taken_s(self) -> float:
        """Seconds that the exchanges of a last backward make it longer."""
        return self.sparsify_s + self.handling_s

    def later(self, seconds: float) -> Exchanges:
        """The same with as many seconds before the first layer's backward."""
        if seconds == 0:
            return self
        return Exchanges(
            spans=tuple((start + seconds, end + seconds, i) for start, end, i in self.spans),
            compute_s=self.compute_s + seconds,
            sparsify_s=self.sparsify_s,
            handling_s=self.handling_s,
            finish_s=self.finish_s + seconds,
        )


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
        self.parameter_bytes_L = np.array([layer.parameter_bytes for layer in layers])
        self.stash_bytes_L = np.array([layer.stash_bytes_per_sample for layer in layers])
        workspace_L = np.array([layer.workspace_bytes_per_sample for layer in layers])
        self.working_bytes_L = workspace_L + self.cut_bytes_C[:-1] + self.cut_bytes_C[1:]
        self.constant_working_bytes_L = np.array([x.workspace_bytes or 0.0 for x in layers])
        per_element = job.gradient_bytes_per_element + job.optimizer_bytes_per_element
        self.static_bytes_L = self.parameter_bytes_L + self.elements_L * per_element
        self.available_bytes = cluster.device.memory_bytes * (1 - job.memory_headroom)
        self.layer_seconds = functools.lru_cache(maxsize=512)(self._layer_seconds)
        self.group_cost = functools.lru_cache(maxsize=4096)(self._group_cost)
        self.least_group_cost = functools.lru_cache(maxsize=4096)(self._least_group_cost)
        self.handling_s_C = functools.lru_cache(maxsize=512)(self._handling_s_C)
        self.workspace_excess_L = functools.lru_cache(maxsize=512)(self._workspace_excess_L)
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
        measured = self.cluster.device.update_s_per_element(job.optimizer)
        if measured is not None:
            return measured
        return job.update_bytes_per_element / bandwidth if bandwidth else 0.0

    @property
    def earliest_is_best(self) -> bool:
        """Whether dense groups that end first make no plan slower than any other groups.

        Where exchanges take compute from the last backward, the stages before wait for its
        gradient, and fewer groups that end later may serve them better.
        """
        return self.cluster.device.exchange_handling is None

    def _layer_seconds(self, samples: float) -> LayerSeconds:
        return LayerSeconds(self.workload, samples)

    def _group_cost(self, shape: GroupShape, density: float) -> GroupCost:
        """What groups of a density cost on this collective; raises InputError if unknown."""
        return self._cost_on(self._collective(shape, density), shape, density)

    def _least_group_cost(self, shape: GroupShape, density: float) -> GroupCost:
        """The same but for a measured table, in whose place is what it is nowhere below."""
        return self._cost_on(self._collective(shape, density).floor, shape, density)

    def _collective(self, shape: GroupShape, density: float) -> CollectiveCost:
        """What carries groups of a density."""
        return collective_cost(self.cluster, shape, "all_reduce" if density == 1 else "all_gather")

    def _cost_on(self, collective: CollectiveCost, shape: GroupShape, density: float) -> GroupCost:
        """What groups of a density cost if their collective costs that."""
        device, job = self.cluster.device, self.job
        copy = device.fused_copy
        parts: list[ElementCost] = []
        if copy is not None:
            parts.append(Affine(copy.s_per_group, copy.s_per_element))
        if density == 1:
            parts.append(AllReduce(collective, job.gradient_bytes_per_element))
            handling = self._exchange_handling(shape.devices, density)
            return GroupCost(communicate=_joined(parts), handling=handling)
        if device.top_k is None:
            allowed = f"a table of measured seconds, since a group has density {density:g}"
            raise InputError("device.top_k", words("nothing"), allowed, source=self.cluster.name)
        parts.append(
            SparseAllGather(
                collective,
                shape.devices,
                density,
                value_bytes=job.gradient_bytes_per_element,
                scatter_add_s_per_element=device.top_k.scatter_add_s_per_element,
            )
        )
        select = Table(device.top_k.elements, device.top_k.seconds)
        return GroupCost(
            communicate=_joined(parts),
            sparsify=select,
            density=density,
            handling=self._exchange_handling(shape.devices, density),
        )

    def _handling_s_C(self, samples: float) -> Floats:
        """What a message across each cut takes from the time of the device at either end of it.

        None crosses the ends of the model.
        """
        handling = self.cluster.device.message_handling
        seconds_C = np.zeros_like(self.cut_bytes_C)
        if handling is not None:
            seconds_C[1:-1] = [handling.at(size * samples) for size in self.cut_bytes_C[1:-1]]
        return seconds_C

    def _exchange_handling(self, replicas: int, density: float) -> ElementCost | None:
        """What the exchange of a group takes from a backward that goes on meanwhile."""
        device = self.cluster.device
        handling, copy = device.exchange_handling, device.fused_copy
        if handling is None:
            return None
        width = self.job.gradient_bytes_per_element
        parts: list[ElementCost] = []
        if copy is not None:
            parts.append(Affine(copy.s_per_group, copy.s_per_element))
        if density == 1:
            parts.append(Affine(handling.s_per_message, handling.s_per_byte * width))
        else:
            for each_bytes in (width, INDEX_BYTES):
                by_sent = Affine(handling.s_per_message, handling.s_per_byte * each_bytes)
                parts.append(OfKept(by_sent, density))
            assert device.top_k is not None, "a sparse group without a cost of top-k"
            added = Affine(0.0, replicas * device.top_k.scatter_add_s_per_element)
            parts.append(OfKept(added, density))
        return _joined(parts)

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
        compute = float(seconds.forward_s_L[first:end].sum()) if stage.recompute else 0.0
        link = sparsified = handled = 0.0
        spans = []
        for i, group in enumerate(stage.groups):
            low, high = group.layers
            compute += float(seconds.backward_s_L[low:high].sum())
            elements = float(self.elements_L[low:high].sum())
            if elements > 0 and stage.replicas > 1:
                cost = self.group_cost(shape, group.density)
                if cost.sparsify is not None:
                    work = cost.sparsify(elements)
                    compute += work
                    sparsified += work
                start = max(link, compute)
                link = start + cost.communicate(elements)
                spans.append((start, link, i))
                if cost.handling is not None and i + 1 < len(stage.groups):
                    work = cost.handling(elements)
                    compute += work
                    handled += work
        finish = max(compute, link)
        return Exchanges(
            spans=tuple(spans),
            compute_s=compute,
            sparsify_s=sparsified,
            handling_s=handled,
            finish_s=finish,
        )

    def grouping_problem(
        self,
        layers: tuple[int, int],
        samples: float,
        shape: GroupShape,
        densities: tuple[float, ...] = (1.0,),
        limits: GroupLimits | None = None,
    ) -> GroupingProblem:
        """The gradients of a stage's last backward; layers count from the stage's first."""
        first, end = layers
        return GroupingProblem(
            backward_s=self.layer_seconds(samples).backward_s_L[first:end].tolist(),
            elements=self.elements_L[first:end].tolist(),
            costs=tuple(self.group_cost(shape, density) for density in densities),
            limits=limits or GroupLimits(),
            bytes_per_element=self.job.gradient_bytes_per_element,
        )

    def _grouped(
        self, layers: tuple[int, int], samples: float, shape: GroupShape, rule: GroupingRule
    ) -> tuple[GradientGroup, ...]:
        """The gradient groups that a rule makes of a stage; one where nothing is exchanged."""
        first, end = layers
        if shape.devices == 1 or not self.elements_L[first:end].any():
            return (GradientGroup(layers=layers),)
        problem = self.grouping_problem(layers, samples, shape, rule.densities, rule.limits)
        found = group_problem(problem, rule.policy)
        return tuple(
            GradientGroup(layers=(first + group[-1], first + group[0] + 1), density=density)
            for group, density in zip(found.groups, found.densities, strict=True)
        )

    def _memory(self, stage: Stage, samples: float, microbatches_in_flight: int) -> Memory:
        """Bytes at the peak on one device of the stage (DESIGN 3.3)."""
        first, end = stage.layers
        job, inside = self.job, slice(first, end)
        elements = float(self.elements_L[inside].sum())
        sizes = [float(self.elements_L[slice(*group.layers)].sum()) for group in stage.groups]
        alone = stage.replicas == 1
        pairs = list(zip(sizes, stage.groups, strict=True))
        fused = sum(size for size, group in pairs if group.layers[1] - group.layers[0] > 1)
        single = [pair for pair in pairs if pair[1].layers[1] - pair[1].layers[0] == 1]
        scratch = max((size for size, group in single if group.density == 1), default=0.0)
        scratch += sum(size for size, group in single if group.density < 1)
        kept = sum(
            size for size, group in zip(sizes, stage.groups, strict=True) if group.density < 1
        )
        received = float(self.cut_bytes_C[first])
        activations = float(self.stash_bytes_L[inside].sum())
        stash = microbatches_in_flight * (received if stage.recompute else received + activations)
        each_L = self.working_bytes_L[inside] * samples + self.constant_working_bytes_L[inside]
        released = float(each_L.max() - self._needed_bytes_L(stage.layers, each_L, samples).max())
        working = float(each_L.max()) + (activations * samples if stage.recompute else 0.0)
        return Memory(
            parameter_bytes=float(self.parameter_bytes_L[inside].sum()),
            gradient_bytes=elements * job.gradient_bytes_per_element,
            optimizer_bytes=elements * job.optimizer_bytes_per_element,
            buffer_bytes=0.0 if alone else fused * job.gradient_bytes_per_element,
            scratch_bytes=0.0 if alone else scratch * job.gradient_bytes_per_element,
            residual_bytes=0.0 if alone else kept * job.gradient_bytes_per_element,
            stash_bytes=stash * samples,
            working_bytes=working,
            released_bytes=max(0.0, released),
            available_bytes=self.available_bytes,
        )

    def _needed_bytes_L(self, layers: tuple[int, int], each_L: Floats, samples: float) -> Floats:
        """What the backward of each layer of a stage needs beyond all that the stage keeps.

        Those of the layers behind it are over then. Inside a stage a layer's output and its
        gradient go as soon as they are used; the stage's own are held to the end.

        Args:
            layers: of the stage.
            each_L: working bytes of each layer as the last of a stage.
            samples: of a microbatch on each replica.
        """
        first, end = layers
        each_L = each_L - self.workspace_excess_L(samples)[first:end]
        stash_L = self.stash_bytes_L[first:end] * samples
        entering_L = self.cut_bytes_C[first:end] * samples
        leaving_L = self.cut_bytes_C[first + 1 : end + 1] * samples
        inner_L = np.maximum(each_L - 2 * leaving_L, entering_L) + 2 * leaving_L[-1]
        inner_L[-1] = each_L[-1]
        needed_L: Floats = inner_L - (stash_L.sum() - np.cumsum(stash_L))
        return needed_L

    def _workspace_excess_L(self, samples: float) -> Floats:
        """By how much each layer's workspace stays below its bound, where it was measured."""
        excess_L = np.zeros(len(self.workload.layers))
        for i, layer in enumerate(self.workload.layers):
            if layer.workspace_curve is not None:
                bound = layer.workspace_bytes_per_sample * samples + (layer.workspace_bytes or 0.0)
                excess_L[i] = max(0.0, bound - layer.workspace_curve.at(samples))
        return excess_L


def _joined(parts: list[ElementCost]) -> ElementCost:
    """Costs that follow each other, as one."""
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))
