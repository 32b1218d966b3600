"""Bytes that a program needs: what stays between steps, and the peak by liveness."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from autoplan.costmodel.graph import DTYPE_BYTES, Op, OpGraph, TensorInfo
from autoplan.costmodel.workspace import workspace_bytes

_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of one rank, one call of its program after another."""

    parameter_bytes: int
    """Tensors that the optimizer trains."""
    state_bytes: int
    """Other tensors that outlive a step: optimizer state, running statistics, the step size."""
    gradient_bytes: int
    """Gradients that the optimizer reads."""
    feed_bytes: int
    """Inputs of a step, which stay until the next ones replace them."""
    stash_bytes: int
    """What forward leaves for backward: each further microbatch in flight needs as much again."""
    peak_bytes: int
    """Most bytes alive at any moment, everything above included as it comes and goes."""
    peak_op: str
    """The operator that runs at that moment, with its position."""
    bytes_by_dtype: Mapping[str, int]
    """What is alive at that moment, by number format."""
    largest: tuple[tuple[str, int], ...]
    """The largest tensors alive then that do not outlive the step, with their bytes."""

    @property
    def static_bytes(self) -> int:
        """Parameters, optimizer state and gradients: what microbatches do not multiply."""
        return self.parameter_bytes + self.state_bytes + self.gradient_bytes


def estimate_memory(graph: OpGraph) -> MemoryEstimate:
    """Follows the bytes alive through the execution order.

    A tensor is born with the operator that writes it first and freed after the last one that reads
    its content; a read of its shape alone does not keep it. A result takes over the memory of an
    operand that ends with the operator, where the operator can work in place and sizes match.

    Args:
        graph: with resolved shapes.
    """
    tensors = graph.tensors
    widths = [DTYPE_BYTES[tensor.dtype] for tensor in tensors]
    sizes = list(map(mul, map(math.prod, [tensor.shape for tensor in tensors]), widths))
    fixed = [tensor.persistable for tensor in tensors]
    for index in graph.feeds:
        fixed[index] = True
    kept = [index for index, each in enumerate(fixed) if each]
    kept_bytes = sum([sizes[index] for index in kept])
    lifetimes = _Lifetimes(graph.ops, sizes, fixed)
    alive = peak = kept_bytes
    where, stash = -1, 0
    for position, (op, born, freed) in enumerate(lifetimes.steps()):
        alive += born
        inside = _inside_bytes(op, tensors, sizes) if op.attributes or op.blocks else 0
        if alive + inside > peak:
            peak, where = alive + inside, position
        alive -= freed
        if op.role == "forward":
            stash = alive - kept_bytes
    held = lifetimes.held(where) if where >= 0 else []
    by_dtype: defaultdict[str, int] = defaultdict(int)
    for index in (*kept, *held):
        by_dtype[tensors[index].dtype] += sizes[index]
    held.sort(key=lambda index: -sizes[index])
    return MemoryEstimate(
        parameter_bytes=sum([sizes[i] for i in kept if tensors[i].parameter]),
        state_bytes=sum(
            [sizes[i] for i in kept if tensors[i].persistable and not tensors[i].parameter]
        ),
        gradient_bytes=gradient_bytes(graph),
        feed_bytes=sum(sizes[i] for i in graph.feeds),
        stash_bytes=stash,
        peak_bytes=peak,
        peak_op=f"{graph.ops[where].type} ({where})" if where >= 0 else "",
        bytes_by_dtype=dict(by_dtype),
        largest=tuple((tensors[i].name, sizes[i]) for i in held[:_LISTED]),
    )


def gradient_bytes(graph: OpGraph) -> int:
    """Bytes of the tensors that optimizer operators read as gradients."""
    read = {op.input("grad") for op in graph.ops if op.role == "optimizer"}
    return sum(graph.tensors[index].size_bytes for index in read if index is not None)


def block_peak_bytes(graph: OpGraph, ops: Sequence[Op]) -> int:
    """The most bytes that some of a graph's operators make alive, above what they were given."""
    sizes = [tensor.size_bytes for tensor in graph.tensors]
    return _peak_of_block(ops, graph.tensors, sizes)


class _Lifetimes:
    """When each tensor of a block is born and freed, and which ones share memory."""

    def __init__(self, ops: Sequence[Op], sizes: Sequence[int], fixed: Sequence[bool]) -> None:
        """Follows the tensors that are not `fixed` (alive before and after the block)."""
        self._ops = ops
        self._sizes = sizes
        self._fixed = fixed
        # Of each tensor the positions of the last use, and of the first writer; -1 without any.
        self._last, self._first = [-1] * len(sizes), [-1] * len(sizes)
        last, first = self._last, self._first
        for position, op in enumerate(ops):
            read = op.inputs
            if op.shape_only:
                unread = set(op.shape_only)
                read = tuple(t for place, t in enumerate(op.inputs) if place not in unread)
            for index in read:
                last[index] = position
            for index in op.outputs:
                last[index] = position
                if first[index] < 0:
                    first[index] = position
            if op.blocks:
                for index in _tensors_inside(op):
                    last[index] = position

    def steps(self) -> Iterable[tuple[Op, int, int]]:
        """Each operator, bytes born with it, and bytes freed after it."""
        born, freed = [0] * len(self._ops), [0] * len(self._ops)
        columns = zip(self._first, self._last, self._fixed, self._sizes, strict=True)
        for first, last, fixed, size in columns:
            if first >= 0 and not fixed:
                born[first] += size
                freed[last] += size
        for position, op in enumerate(self._ops):
            if op.reuses:
                shared = sum(self._sizes[old] for old in self._handed_over(op, position))
                born[position] -= shared
                freed[position] -= shared
        return zip(self._ops, born, freed, strict=True)

    def held(self, position: int) -> list[int]:
        """Tensors alive while the operator runs, the fixed ones left out, oldest first."""
        shared = set(self._handed_over(self._ops[position], position))
        held = [
            index
            for index, first in enumerate(self._first)
            if 0 <= first <= position <= self._last[index]
            and not self._fixed[index]
            and index not in shared
        ]
        return sorted(held, key=self._first.__getitem__)

    def _handed_over(self, op: Op, position: int) -> list[int]:
        """Operands whose memory a result takes over."""
        handed = []
        for result, operand in op.reuses:
            if result >= len(op.outputs) or operand >= len(op.inputs):
                continue
            new, old = op.outputs[result], op.inputs[operand]
            if (
                self._first[old] >= 0
                and not (self._fixed[old] or self._fixed[new])
                and self._last[old] == position
                and self._first[new] == position
                and op.inputs.count(old) == 1
                and self._sizes[new] == self._sizes[old]
            ):
                handed.append(old)
        return handed


def _inside_bytes(op: Op, tensors: Sequence[TensorInfo], sizes: Sequence[int]) -> int:
    """Bytes that an operator needs while it runs, beyond operands and results."""
    peaks = [_peak_of_block(block, tensors, sizes) for block in op.blocks]
    return max(peaks, default=0) + workspace_bytes(op, tensors)


def _peak_of_block(block: Sequence[Op], tensors: Sequence[TensorInfo], sizes: Sequence[int]) -> int:
    """The peak inside a body, above what was alive when it started."""
    fixed = [True] * len(sizes)
    for index in {index for op in block for index in op.outputs}:
        fixed[index] = tensors[index].persistable
    lifetimes = _Lifetimes(block, sizes, fixed)
    alive = peak = 0
    for op, born, freed in lifetimes.steps():
        alive += born
        peak = max(peak, alive + _inside_bytes(op, tensors, sizes))
        alive -= freed
    return peak


def _tensors_inside(op: Op) -> set[int]:
    """What the bodies of control flow read from around them."""
    inside: set[int] = set()
    for block in op.blocks:
        for body in block:
            inside.update(body.inputs)
            inside |= _tensors_inside(body)
    return inside
