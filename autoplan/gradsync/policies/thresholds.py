"""The rules by which frameworks fill buckets up to a size (facts/mgs.md section 6).

Layers stand in the place of tensors: where a workload's layers hold several tensors each, give it
one layer per tensor to see a framework's buckets to the byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from autoplan.errors import require
from autoplan.gradsync.policies.limits import keep_limits
from autoplan.gradsync.policies.parameters import (
    backward_between_s,
    layers_with_gradients,
    with_empty_layers,
)
from autoplan.gradsync.problem import GroupingProblem, Groups

MIB = 2**20
DDP_CAP_BYTES = 25 * MIB
"""PyTorch DDP's default bucket, and Paddle's."""
SMALL_CAP_BYTES = MIB
"""DDP's first bucket, so that communication starts early; Paddle's last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedDataParallel:
    """PyTorch DDP after it has rebuilt its buckets in the order of arrival.

    A bucket closes once it holds its cap, so it may overshoot. Each kind of gradient fills buckets
    of its own, the first of them with the small cap. Buckets are sent in the order in which they
    close, then the unfilled ones, whose order among several kinds DDP leaves open: here that in
    which the kinds appear (`compute_bucket_assignment_by_size` in its reducer).
    """

    cap_bytes: float = DDP_CAP_BYTES
    """Bytes that close a bucket: `bucket_cap_mb`."""
    first_cap_bytes: float = SMALL_CAP_BYTES
    """Bytes that close the first bucket of each kind."""

    def __post_init__(self) -> None:
        """Refuses caps that are not positive."""
        _require_positive(cap_bytes=self.cap_bytes, first_cap_bytes=self.first_cap_bytes)

    def groups(self, problem: GroupingProblem) -> Groups:
        """DDP's buckets, or the nearest to them within the limits."""
        layers = layers_with_gradients(problem)
        buckets = _filled(problem, layers, [self.first_cap_bytes, self.cap_bytes])
        return keep_limits(problem, with_empty_layers(problem, buckets), kinds_apart=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddleDataParallel:
    """paddle.DataParallel: buckets filled in forward order, then sent from the last to the first.

    The first bucket to fill, which is the last one sent, has the small cap; what is left over at
    the end of the model is sent first, however little it is (`init_reducer` in
    paddle/distributed/parallel.py and `eager_assign_group_by_size`).
    """

    comm_buffer_bytes: float = DDP_CAP_BYTES
    """Bytes that close a bucket: `comm_buffer_size`."""
    last_comm_buffer_bytes: float = SMALL_CAP_BYTES
    """Bytes that close the bucket of each kind that is sent last: `last_comm_buffer_size`."""

    def __post_init__(self) -> None:
        """Refuses caps that are not positive."""
        _require_positive(
            comm_buffer_bytes=self.comm_buffer_bytes,
            last_comm_buffer_bytes=self.last_comm_buffer_bytes,
        )

    def groups(self, problem: GroupingProblem) -> Groups:
        """Paddle's buckets, or the nearest to them within the limits."""
        layers = layers_with_gradients(problem)[::-1]
        buckets = _filled(problem, layers, [self.last_comm_buffer_bytes, self.comm_buffer_bytes])
        buckets.sort(key=lambda bucket: bucket[0], reverse=True)
        return keep_limits(problem, with_empty_layers(problem, buckets), kinds_apart=True)


@dataclass(frozen=True, slots=True)
class Horovod:
    """Buckets that close after the layer that crosses a threshold, in ELEMENTS and of any kind.

    This is what MGS's fork of Horovod's optimizer does unless told to adapt, with 8,192 elements
    (facts/mgs.md section 1.3).
    """

    threshold_elements: float = 8192
    """Elements that close a bucket."""

    def __post_init__(self) -> None:
        """Refuses thresholds that are not positive."""
        _require_positive(threshold_elements=self.threshold_elements)

    def groups(self, problem: GroupingProblem) -> Groups:
        """The fork's buckets, or the nearest to them within the limits."""
        groups: list[list[int]] = [[]]
        held = 0.0
        for layer in layers_with_gradients(problem):
            if held >= self.threshold_elements:
                groups.append([])
                held = 0.0
            groups[-1].append(layer)
            held += problem.elements[layer]
        return keep_limits(problem, with_empty_layers(problem, filter(None, groups)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodFusion:
    """Horovod's tensor fusion: in each cycle, what has become ready is packed into buffers.

    A buffer never holds more than the threshold; a larger layer goes alone. Layers of another kind
    are looked past while buffer and skipped layers stay below the threshold (`FuseResponses` in
    horovod/common/controller.cc). Real cycles drift with negotiation, so real buffers vary from
    step to step; here they begin with backward and take no time.
    """

    threshold_bytes: float = 128 * MIB
    """Bytes of the buffer: `HOROVOD_FUSION_THRESHOLD`."""
    cycle_s: float = 1e-3
    """Seconds between looks at the queue: `HOROVOD_CYCLE_TIME`."""

    def __post_init__(self) -> None:
        """Refuses settings that are not positive."""
        _require_positive(threshold_bytes=self.threshold_bytes, cycle_s=self.cycle_s)

    def groups(self, problem: GroupingProblem) -> Groups:
        """Horovod's buffers, or the nearest to them within the limits."""
        layers = layers_with_gradients(problem)
        cycles, ready_s = [], 0.0
        for layer, waited_s in zip(layers, backward_between_s(problem, layers), strict=True):
            ready_s += waited_s
            cycles.append((math.ceil(ready_s / self.cycle_s), layer))
        buffers: list[list[int]] = []
        for _, arrived in groupby(cycles, key=lambda entry: entry[0]):
            queue = [layer for _, layer in arrived]
            while queue:
                buffer = self._next_buffer(problem, queue)
                buffers.append(buffer)
                queue = [layer for layer in queue if layer not in buffer]
        return keep_limits(problem, with_empty_layers(problem, buffers), kinds_apart=True)

    def _next_buffer(self, problem: GroupingProblem, queue: Sequence[int]) -> list[int]:
        """The head of the queue and what fuses with it."""
        threshold = self.threshold_bytes / problem.bytes_per_element
        held, skipped = problem.elements[queue[0]], 0.0
        buffer = [queue[0]]
        for layer in queue[1:]:
            elements = problem.elements[layer]
            if _kind(problem, layer) == _kind(problem, queue[0]) and held + elements <= threshold:
                held += elements
                buffer.append(layer)
                continue
            skipped += elements
            if held + skipped > threshold:
                break
        return buffer


def _filled(
    problem: GroupingProblem, layers: Iterable[int], caps_bytes: Sequence[float]
) -> list[list[int]]:
    """Buckets per kind in the order in which they close; the last of the caps is for the rest."""
    closed: list[list[int]] = []
    filling: dict[str, list[int]] = {}
    held: dict[str, float] = {}
    turn: dict[str, int] = {}
    for layer in layers:
        kind = _kind(problem, layer)
        filling.setdefault(kind, []).append(layer)
        held[kind] = held.get(kind, 0.0) + problem.elements[layer]
        cap_bytes = caps_bytes[min(turn.get(kind, 0), len(caps_bytes) - 1)]
        if held[kind] * problem.bytes_per_element >= cap_bytes:
            closed.append(filling[kind])
            filling[kind] = []
            held[kind] = 0.0
            turn[kind] = turn.get(kind, 0) + 1
    return closed + [bucket for bucket in filling.values() if bucket]


def _kind(problem: GroupingProblem, layer: int) -> str:
    """The layer's number format; all are alike unless told."""
    return problem.kinds[layer] if problem.kinds is not None else ""


def _require_positive(**settings: float) -> None:
    """Refuses settings that are not above 0."""
    for name, value in settings.items():
        require(value > 0, name, value, "above 0")
