"""Dimensions that a program leaves open, from the batch size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from autoplan.costmodel.graph import OPEN, Op, OpGraph, TensorInfo
from autoplan.costmodel.integers import Values, follow, shape_given_by
from autoplan.costmodel.workspace import GATES
from autoplan.errors import InputError, require, words

Shape = tuple[int, ...]

_REGROUPING = frozenset({"reshape", "flatten", "squeeze", "unsqueeze", "view_shape"})
"""Operators that keep the number of elements and nothing else."""


def resolved(graph: OpGraph, batch_size: int) -> OpGraph:
    """The graph with every open dimension filled in, operator by operator.

    An open dimension of a fed tensor is the batch. Further on it may be something else (batch
    times tokens, after a reshape), so each operator's outputs follow from its inputs: an output of
    the same declared shape has the same size; the gradient of a tensor has its shape; a reshape
    keeps the number of elements; otherwise dimensions follow the input they are aligned with.

    Args:
        graph: as read, -1 in open dimensions.
        batch_size: samples in one call of the program.

    Raises:
        InputError: a dimension follows from nothing in the graph; the message names the operator.
    """
    require(batch_size >= 1, "batch_size", batch_size, "at least 1 sample")
    if is_settled(graph) and not any(op.type in _HIDDEN for op in graph.walk()):
        return graph
    known: list[Shape | None] = [
        None if OPEN in tensor.shape else tensor.shape for tensor in graph.tensors
    ]
    written = {tensor for op in graph.walk() for tensor in op.outputs}
    for index, tensor in enumerate(graph.tensors):
        if known[index] is None and (index in graph.feeds or index not in written):
            known[index] = _filled(tensor.shape, batch_size)
    _resolve(graph.ops, graph.tensors, known, {})
    tensors = tuple(
        tensor if shape == tensor.shape else dataclasses.replace(tensor, shape=shape or ())
        for tensor, shape in zip(graph.tensors, known, strict=True)
    )
    return dataclasses.replace(graph, tensors=tensors)


def is_settled(graph: OpGraph) -> bool:
    """Whether every dimension of every tensor is known."""
    return not any(OPEN in shape for shape in {tensor.shape for tensor in graph.tensors})


def has_open_batch(graph: OpGraph) -> bool:
    """Whether the program takes batches of any size."""
    return any(OPEN in graph.tensors[index].shape for index in graph.feeds)


def _filled(shape: Shape, batch_size: int) -> Shape:
    return tuple(batch_size if size == OPEN else size for size in shape)


def _resolve(
    ops: Sequence[Op], tensors: Sequence[TensorInfo], known: list[Shape | None], values: Values
) -> None:
    """Fills in the outputs of each operator in turn, those inside its blocks first."""
    for op in ops:
        for block in op.blocks:
            _resolve(block, tensors, known, values)
        hidden = _HIDDEN.get(op.type)
        if hidden is not None:
            hidden(op, known)
        given = None
        for index in op.outputs:
            if known[index] is None:
                given = given or shape_given_by(op, values)
                fits = given is not None and _agrees(given, tensors[index].shape)
                known[index] = given if fits else _output_shape(tensors, op, index, known)
        follow(op, values, known, tensors)


def _hide_nothing(op: Op, known: list[Shape | None]) -> None:
    """Only cuDNN fills the space that a batch norm reserves."""
    reserved = op.output("reserve_space")
    if reserved is None:
        reserved = op.output("reservespace")
    if reserved is not None:
        known[reserved] = (0,)


_CELLS = {"LSTM": 2, "GRU": 1}


def _hide_gates(op: Op, known: list[Shape | None]) -> None:
    """What a recurrent net keeps for its backward: gates, cells, and states between layers."""
    reserve, source = op.output("reserve"), op.input("x")
    if source is None:
        source = op.input("input")
    shape = None if source is None else known[source]
    if reserve is None or shape is None or op.attributes.get("is_test"):
        return
    mode = str(op.attributes.get("mode"))
    layers, hidden = op.attributes.get("num_layers"), op.attributes.get("hidden_size")
    if not isinstance(layers, int) or not isinstance(hidden, int):
        return
    directions = 2 if op.attributes.get("is_bidirec") else 1
    kept = (GATES.get(mode, 1) + _CELLS.get(mode, 0)) * layers + layers - 1
    known[reserve] = (kept, shape[0], shape[1], directions * hidden)


_HIDDEN = {
    "batch_norm": _hide_nothing,
    "sync_batch_norm": _hide_nothing,
    "rnn": _hide_gates,
}
"""Results whose declared shape says nothing of what the kernel allocates."""


def _output_shape(
    tensors: Sequence[TensorInfo], op: Op, index: int, known: Sequence[Shape | None]
) -> Shape:
    """The shape of one output, from the inputs whose shapes are known."""
    declared = tensors[index].shape
    inner = [i for block in op.blocks for body in reversed(block) for i in body.outputs]
    inputs = [(tensors[i].shape, known[i]) for i in (*inner, *op.inputs)]
    pairs = [(seen, shape) for seen, shape in inputs if shape is not None]
    for rule in (_of_forward_input(op, index, known), *_by_rules(op, declared, pairs)):
        if rule is not None and _agrees(rule, declared):
            return rule
    found = words(f"shape {list(declared)} of {tensors[index].name}, made by {op.type}")
    raise InputError("program", found, "shapes that follow from the batch size")


def _of_forward_input(op: Op, index: int, known: Sequence[Shape | None]) -> Shape | None:
    """A gradient has the shape of what it is the gradient of."""
    if index not in op.outputs or not op.output_slots:
        return None
    slot = op.output_slots[op.outputs.index(index)]
    origin = op.input(slot.removesuffix("_grad")) if slot.endswith("_grad") else None
    return None if origin is None else known[origin]


def _by_rules(
    op: Op, declared: Shape, pairs: Sequence[tuple[Shape, Shape]]
) -> Iterable[Shape | None]:
    """Candidates in the order of how surely they hold."""
    base = op.type.removesuffix("_grad")
    if base in _REGROUPING:
        for _, shape in pairs[:1] if op.type == base else pairs[::-1]:
            if math.prod(shape):  # the old IR passes a shape as an operand without elements
                yield _regrouped(declared, math.prod(shape))
    yield from (shape for seen, shape in pairs if seen == declared)
    if base == "matmul" and len(pairs) >= 2:
        yield _multiplied(op, declared, pairs[0][1], pairs[1][1])
    if base == "transpose" and pairs:
        yield _transposed(op, pairs[0][1])
    yield _aligned(declared, pairs)


def _agrees(shape: Shape, declared: Shape) -> bool:
    """Whether `shape` is the declared one but for open dimensions."""
    matched = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(d in (OPEN, s) for s, d in matched)


def _regrouped(declared: Shape, elements: int) -> Shape | None:
    """The declared shape with its one open dimension chosen to hold `elements`."""
    stated = math.prod(size for size in declared if size != OPEN)
    if declared.count(OPEN) > 1 or stated == 0 or elements % stated:
        return None
    return tuple(elements // stated if size == OPEN else size for size in declared)


def _multiplied(op: Op, declared: Shape, left: Shape, right: Shape) -> Shape | None:
    """The shape of a matrix product: batch dimensions broadcast, rows and columns."""
    if len(left) < 2 or len(right) < 2 or len(declared) < 2:
        return None
    turned_x = op.attributes.get("transpose_x", op.attributes.get("trans_x", False))
    turned_y = op.attributes.get("transpose_y", op.attributes.get("trans_y", False))
    longest = max(left[:-2], right[:-2], key=len)
    rows = left[-1] if turned_x else left[-2]
    columns = right[-2] if turned_y else right[-1]
    return (*longest, rows, columns)


def _transposed(op: Op, shape: Shape) -> Shape | None:
    order = op.attributes.get("perm", op.attributes.get("axis"))
    if not isinstance(order, tuple) or len(order) != len(shape):
        return None
    return tuple(shape[int(axis)] for axis in order)


def _aligned(declared: Shape, pairs: Sequence[tuple[Shape, Shape]]) -> Shape | None:
    """Each open dimension as the open one of an input at the same place, from either end."""
    filled = list(declared)
    for axis, size in enumerate(declared):
        if size != OPEN:
            continue
        candidates = [
            shape[place]
            for seen, shape in pairs
            for place in (axis, len(seen) - len(declared) + axis)
            if 0 <= place < len(seen) and seen[place] == OPEN
        ]
        if not candidates:
            return None
        filled[axis] = candidates[0]
    return tuple(filled)
