"""What the readers of both IRs share: attributes, types, collectives, memory that is reused."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from autoplan.costmodel.graph import (
    DTYPE_BYTES,
    Attribute,
    Collective,
    CollectiveKind,
    Op,
    TensorInfo,
)
from autoplan.errors import InputError, require, words

_NOT_OF_THE_COST = frozenset(
    {
        *("op_callstack", "stop_gradient", "struct_name", "persistable", "place", "name"),
        *("op_role", "op_role_var", "op_namescope", "op_device", "with_quant_attr", "chunk_id"),
        *("execution_stream", "scheduling_priority", "force_record_event", "event_to_record"),
        *("events_to_wait", "origin_id", "sub_block", "is_inplace", "comp_op_name"),
    }
)
"""Attributes that say where an operator came from or where it runs, not what it does."""
_LONGEST = 64
"""Longer lists (the values of a constant) have no part in a cost."""

_OTHER_DTYPE_NAMES = {
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
    "float": "float32",
    "double": "float64",
    "pstring": "uint8",
    "undefined": "float32",
    "raw": "uint8",
}


Made = TypeVar("Made")


@dataclass(kw_only=True)
class ReadRules:
    """What a program does not say of itself."""

    loop_trips: Sequence[int] = ()
    """Iterations of each loop, in program order."""
    default_trips: int | None = None
    """Iterations of the loops after these; None refuses to guess."""
    _met: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Refuses negative numbers of iterations."""
        for trips in (*self.loop_trips, *(t for t in (self.default_trips,) if t is not None)):
            require(trips >= 0, "loop_trips", trips, "whole numbers of at least 0")

    def next_trips(self, kind: str) -> int:
        """Iterations of the next loop.

        Raises:
            InputError: neither the list nor the default says.
        """
        position = self._met
        self._met += 1
        if position < len(self.loop_trips):
            return self.loop_trips[position]
        if self.default_trips is None:
            found = words(f"a loop ({kind}, number {position}) of unknown length")
            raise InputError("program", found, "loop_trips or default_trips that say how long")
        return self.default_trips


def dtype_name(dtype: Any) -> str:
    """One of DTYPE_BYTES for a dtype of either IR.

    Raises:
        InputError: its size is not known.
    """
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = str(dtype).rpartition(".")[2].partition(":")[0].lower().strip("<> ")
        name = _OTHER_DTYPE_NAMES.get(name, name)
        require(name in DTYPE_BYTES, "dtype", str(dtype), ", ".join(DTYPE_BYTES))
        _DTYPE_NAMES[dtype] = name
    return name


_DTYPE_NAMES: dict[Any, str] = {}


def in_bulk(kind: type[Made], columns: Mapping[str, Sequence[Any]]) -> list[Made]:
    """Instances of a slotted dataclass, several times as fast as its constructor makes them.

    Sets one field of all instances after the other. Checks no values: what holds the instances
    must.

    Args:
        kind: a dataclass with slots and without `__post_init__`.
        columns: for each field its values, one per instance; other fields take their defaults.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    assert len(set(lengths.values())) == 1, f"columns of different lengths: {lengths}"
    count = next(iter(lengths.values()))
    made = list(map(kind.__new__, itertools.repeat(kind, count)))
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        column = columns.get(each.name)
        values = _defaults(each) if column is None else column
        deque(map(getattr(kind, each.name).__set__, made, values), maxlen=0)
    return made


def _defaults(of: dataclasses.Field[Any]) -> Iterator[Any]:
    """A field's default value, as often as it is asked for."""
    if of.default_factory is not dataclasses.MISSING:
        return itertools.starmap(of.default_factory, itertools.repeat(()))
    assert of.default is not dataclasses.MISSING, f"{of.name}: no value and no default"
    return itertools.repeat(of.default)


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    """The attributes that decide what an operator does, as plain values."""
    plain: dict[str, Attribute] = {}
    for name, value in attributes.items():
        if name in _NOT_OF_THE_COST:
            continue
        if isinstance(value, (bool, int, float, str)):
            plain[name] = value
        elif isinstance(value, (list, tuple)):
            scalars = all(isinstance(item, (bool, int, float, str)) for item in value)
            if scalars and len(value) <= _LONGEST:
                plain[name] = tuple(value)
        elif "dtype" in name:
            plain[name] = _attribute_dtype(value)
    return plain


def _attribute_dtype(value: Any) -> str:
    """A dtype as text; an operator may state one that no tensor has."""
    return str(value).rpartition(".")[2].partition(":")[0].lower().strip("<> ")


def collective_of(
    kind: CollectiveKind | None, attributes: Mapping[str, Attribute]
) -> Collective | None:
    """Ring and peer of a collective, from its attributes."""
    if kind is None:
        return None
    peer = attributes.get("peer", attributes.get("dst", attributes.get("src")))
    ranks = attributes.get("nranks", attributes.get("num"))
    sent = kind in {"send", "recv"}
    return Collective(
        kind=kind,
        ring=_number(attributes.get("ring_id")) or 0,
        peer=_number(peer) if sent else None,
        num_ranks=None if sent else _number(ranks),
    )


def _number(value: Attribute | None) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def trained_only(tensors: list[TensorInfo], ops: Sequence[Op]) -> tuple[TensorInfo, ...]:
    """The tensors, as parameters only those that the program updates, if it updates any.

    A recurrent layer keeps a second, flat copy of its weights that is declared trainable too.
    """
    updated = {op.input("param") for op in ops if op.role == "optimizer"} - {None}
    if not updated:
        return tuple(tensors)
    return tuple(
        dataclasses.replace(tensor, parameter=False)
        if tensor.parameter and index not in updated
        else tensor
        for index, tensor in enumerate(tensors)
    )


_ELEMENTWISE = frozenset(
    {
        *("abs", "add", "subtract", "multiply", "divide", "scale", "relu", "sigmoid", "tanh"),
        *("sqrt", "rsqrt", "exp", "log", "square", "floor", "ceil", "round", "reciprocal"),
        *("clip", "cast", "assign", "softmax", "dropout", "triu", "tril", "reshape", "flatten"),
        *("squeeze", "unsqueeze", "elu", "silu", "leaky_relu", "hardtanh", "pow", "where"),
        *("masked_fill", "cumsum", "all_reduce", "c_allreduce_sum", "mp_allreduce_sum"),
        *("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "increment"),
        *("cross_entropy_with_softmax",),
    }
)
"""Forward operators whose first result may lie where their first operand was."""
_GRADS_IN_PLACE = frozenset(
    {
        *("abs", "relu", "sigmoid", "tanh", "sqrt", "rsqrt", "exp", "log", "square", "clip"),
        *("reshape", "flatten", "squeeze", "unsqueeze", "elu", "silu", "leaky_relu", "pow"),
        *("hardtanh", "hardswish", "hardsigmoid", "softplus", "swish", "reciprocal", "relu6"),
    }
)
"""Operators whose gradient may lie where the gradient of their result was."""


_SHAPE_ONLY = {
    "add_grad": ("x", "y"),
    "subtract_grad": ("x", "y"),
    "mean_grad": ("x",),
    "sum_grad": ("x",),
    "slice_grad": ("input",),
    "concat_grad": ("x",),
    "embedding_grad": ("weight", "w"),
    "layer_norm_grad": ("bias",),
    "flatten_grad": ("x",),
    "reshape_grad": ("x",),
    "expand_grad": ("x",),
    "pad_grad": ("x",),
    "gather_grad": ("x",),
    "shape": ("input", "x"),
}
"""Operands of which only the shape is read, as PIR declares them; the old IR does not tell."""


def shape_only(kind: str, input_slots: Sequence[str]) -> tuple[int, ...]:
    """Positions of the operands of which an operator reads the shape alone."""
    slots = _SHAPE_ONLY.get(kind, ())
    return tuple(place for place, slot in enumerate(input_slots) if slot in slots)


def reused_memory(
    kind: str, input_slots: Sequence[str], output_slots: Sequence[str]
) -> tuple[tuple[int, int], ...]:
    """Pairs (output, input) that Paddle's executor lets share memory where the input ends.

    The new executor replaces an operator by its in-place form (the underscore of "relu_") if it
    has one and nothing reads the operand later.
    """
    if not input_slots or not output_slots:
        return ()
    if kind == "cross_entropy_with_softmax_grad":
        return ((0, input_slots.index("softmax")),) if "softmax" in input_slots else ()
    if kind.endswith("_grad"):
        allowed = kind.removesuffix("_grad") in _GRADS_IN_PLACE and "out_grad" in input_slots
        return ((0, input_slots.index("out_grad")),) if allowed else ()
    return ((0, 0),) if kind in _ELEMENTWISE else ()
