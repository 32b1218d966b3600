"""Values of the small integer tensors that programs compute shapes with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoplan.costmodel.graph import OPEN, Op, TensorInfo

Values = dict[int, tuple[int, ...]]
"""Elements of the tensors whose values are known, by index."""
Shapes = Sequence[tuple[int, ...] | None]

_JOINS = frozenset({"stack", "concat"})
_PASSES = frozenset({"cast", "reshape", "squeeze", "unsqueeze", "assign", "flatten"})
_LARGEST = 64
"""Longer lists are no shapes."""


def follow(op: Op, values: Values, shapes: Shapes, tensors: Sequence[TensorInfo]) -> None:
    """Adds the value of the operator's result to `values`, where it follows from its inputs."""
    if len(op.outputs) != 1 or not tensors[op.outputs[0]].dtype.startswith("int"):
        return
    result = _result(op, values, shapes)
    if result is not None and len(result) <= _LARGEST:
        values[op.outputs[0]] = result


def shape_given_by(op: Op, values: Mapping[int, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that a tensor of known value tells an operator to give its result.

    None where it tells part of it only: a reshape's 0 and -1 stand for sizes of its input.
    """
    for slot in ("shape", "shapetensor", "shapetensorlist"):
        parts = [t for t, s in zip(op.inputs, op.input_slots, strict=False) if s == slot]
        if parts and all(part in values for part in parts):
            sizes = tuple(size for part in parts for size in values[part])
            return sizes if min(sizes, default=1) > 0 else None
    return None


def _result(op: Op, values: Values, shapes: Shapes) -> tuple[int, ...] | None:
    """The elements of the one result, or None."""
    if op.type in {"full", "full_int_array"} and not op.inputs:
        return _constant(op)
    if op.type == "shape" and op.inputs:
        shape = shapes[op.inputs[0]]
        return None if shape is None or OPEN in shape else shape
    known = [values.get(tensor) for tensor in op.inputs]
    if not known or known[0] is None:
        return None
    if op.type in _JOINS:
        parts = [part for part in known if part is not None]
        return tuple(v for part in parts for v in part) if len(parts) == len(known) else None
    if op.type in _PASSES:
        return known[0]
    return _slice(op, known[0], values) if op.type == "slice" else None


def _constant(op: Op) -> tuple[int, ...] | None:
    """The value of a constant of integers."""
    value = op.attributes.get("value")
    if op.type == "full_int_array":
        return tuple(int(v) for v in value) if isinstance(value, tuple) else None
    shape = op.attributes.get("shape")
    single = isinstance(shape, tuple) and shape in {(), (1,)}
    return (int(value),) if single and isinstance(value, (int, float)) else None


def _slice(op: Op, elements: tuple[int, ...], values: Values) -> tuple[int, ...] | None:
    """A range of a list."""
    bounds = []
    for slot in ("starts", "ends"):
        tensor = op.input(slot)
        given = op.attributes.get(slot) if tensor is None else values.get(tensor)
        if not isinstance(given, tuple) or len(given) != 1:
            return None
        bounds.append(int(given[0]))
    return elements[bounds[0] : bounds[1]]
