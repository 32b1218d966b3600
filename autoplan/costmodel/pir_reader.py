"""Programs of Paddle's new IR (PIR) into operator graphs. Works on the objects, imports nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from autoplan.costmodel.graph import Op, OpGraph, Role, TensorInfo
from autoplan.costmodel.op_names import canonical_type, collective_kind
from autoplan.costmodel.reading import (
    ReadRules,
    collective_of,
    dtype_name,
    plain_attributes,
    reused_memory,
    trained_only,
)

_ROLE_OF_NUMBER: dict[int, Role] = {0: "forward", 1: "backward", 2: "optimizer"}
_LOSS = 256
"""Paddle ors this into the role of the operators around the loss."""
_MAKES_NOTHING = frozenset({"yield", "stack_create", "tuple_push", "fetch", "set_parameter"})
_OPTIMIZERS = frozenset(
    {
        *("sgd", "momentum", "merged_momentum", "adam", "adamw", "merged_adam", "adamax"),
        *("adagrad", "adadelta", "rmsprop", "lamb", "lars_momentum", "nadam", "radam"),
        *("asgd", "rprop", "dgc_momentum", "decayed_adagrad", "ftrl", "dpsgd", "adam_dense"),
    }
)


class PirReader:
    """Reads one program; values become numbers, packed vectors become their elements."""

    def __init__(self, program: Any, inplace_info: Any, rules: ReadRules) -> None:
        """Prepares to read `program`; `inplace_info` tells which results overwrite operands."""
        self._program = program
        self._inplace_info = inplace_info
        self._rules = rules
        self._tensors: list[TensorInfo] = []
        self._of_value: dict[str, tuple[int, ...]] = {}
        self._feeds: list[int] = []

    def read(self, name: str) -> OpGraph:
        """The operator graph of the global block."""
        ops = list(self._program.global_block().ops)
        roles = pir_roles(ops)
        read = tuple(self._block(ops, roles))
        return OpGraph(
            name=name, tensors=trained_only(self._tensors, read), ops=read, feeds=tuple(self._feeds)
        )

    def _block(self, ops: Iterable[Any], roles: Iterable[Role]) -> Iterator[Op]:
        """The operators of a block that run something."""
        for op, role in zip(ops, roles, strict=True):
            name = op.name()
            if name in _READERS:
                _READERS[name](self, op)
                continue
            kind = canonical_type(name, old_ir=False)
            if kind == "tuple_pop":  # what a loop's forward kept for its backward
                self._results(op, kind, [], {})
            elif kind not in _MAKES_NOTHING:
                yield self._operator(op, kind, role)

    def _operator(self, op: Any, kind: str, role: Role) -> Op:
        # The dialect of control flow has no names, and crashes where it is asked for them.
        named = not op.num_regions()
        names = _slot_names(op, "get_input_names") if named else []
        inputs, input_slots, first = self._operands(op, names)
        blocks = self._blocks(op, kind, role)
        overwritten = {
            result: first[operand]
            for result, operand in self._inplace_info(op).items()
            if operand in first
        }
        names = _slot_names(op, "get_output_names") if named else []
        written = {result: inputs[place] for result, place in overwritten.items()}
        outputs, output_slots = self._results(op, kind, names, written)
        attributes = {} if blocks else plain_attributes(op.attrs())
        unused = [p for p, value in enumerate(op.operands_source()) if self._shape_only(op, value)]
        return Op(
            type=kind,
            inputs=inputs,
            outputs=outputs,
            input_slots=input_slots,
            output_slots=output_slots,
            role=role,
            attributes=attributes,
            collective=collective_of(collective_kind(kind), attributes),
            id=int(op.id()),
            reuses=reused_memory(kind, input_slots, output_slots),
            shape_only=tuple(first[p] for p in unused if p in first),
            blocks=blocks,
            trips=self._rules.next_trips(kind) if kind == "while" else None,
        )

    def _shape_only(self, op: Any, value: Any) -> bool:
        return value.initialized() and bool(op.is_no_need_buffer(value))

    def _operands(
        self, op: Any, names: Sequence[str]
    ) -> tuple[tuple[int, ...], tuple[str, ...], dict[int, int]]:
        """Tensors, the slots they are passed as, and where each operand's first one is."""
        tensors: list[int] = []
        slots: list[str] = []
        first: dict[int, int] = {}
        for position, value in enumerate(op.operands_source()):
            if not value.initialized() or value.id not in self._of_value:
                continue
            parts = self._of_value[value.id]
            first[position] = len(tensors)
            tensors += parts
            slots += [names[position] if position < len(names) else ""] * len(parts)
        return tuple(tensors), tuple(slots), first

    def _results(
        self, op: Any, kind: str, names: Sequence[str], overwritten: dict[int, int]
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """New tensors for the results, but for those that overwrite an operand's tensor."""
        tensors: list[int] = []
        slots: list[str] = []
        for position, value in enumerate(op.results()):
            if not value.initialized() or not _has_type(value):
                continue
            if position in overwritten:
                parts: tuple[int, ...] = (overwritten[position],)
            else:
                parts = self._fresh(value, f"{kind}_{op.id()}.{position}")
            self._of_value[value.id] = parts
            tensors += parts
            slots += [names[position] if position < len(names) else ""] * len(parts)
        return tuple(tensors), tuple(slots)

    def _fresh(self, value: Any, name: str) -> tuple[int, ...]:
        """New tensors for a value: one, or those that a vector holds."""
        kind = value.type()
        vector = kind.as_vec_type() if hasattr(kind, "as_vec_type") else None
        if vector is None:
            return (self._add(value, name, bool(value.persistable)),)
        return tuple(
            self._add(element, f"{name}.{i}", False) for i, element in enumerate(vector.as_list())
        )

    def _add(self, value: Any, name: str, persistable: bool, parameter: bool = False) -> int:
        shape = tuple(int(size) for size in value.shape)
        self._tensors.append(
            TensorInfo(
                name=name,
                shape=shape,
                dtype=dtype_name(value.dtype),
                persistable=persistable,
                parameter=parameter,
            )
        )
        return len(self._tensors) - 1

    def _blocks(self, op: Any, kind: str, role: Role) -> tuple[tuple[Op, ...], ...]:
        """Bodies of control flow; a loop's arguments are the tensors that enter it."""
        if not op.num_regions():
            return ()
        read = []
        for block in op.blocks():
            outer = [value for value in op.operands_source() if value.id in self._of_value]
            entering = outer[1:] if kind == "while" else outer
            for argument, value in zip(block.args(), entering, strict=False):
                self._of_value[argument.id] = self._of_value[value.id]
            ops = list(block.ops)
            read.append(tuple(self._block(ops, [role] * len(ops))))
        return tuple(read)

    def _data(self, op: Any) -> None:
        """A fed tensor, or one that the scope keeps from step to step."""
        value = op.results()[0]
        kept = bool(value.persistable)
        index = self._add(value, str(op.attrs()["name"]), kept)
        self._of_value[value.id] = (index,)
        if not kept:
            self._feeds.append(index)

    def _parameter(self, op: Any) -> None:
        value = op.results()[0]
        name = str(op.attrs()["parameter_name"])
        trained = bool(op.attrs().get("trainable", [True])[0])
        self._of_value[value.id] = (self._add(value, name, True, trained),)

    def _combine(self, op: Any) -> None:
        """A vector of tensors that were there before."""
        parts = [self._of_value.get(value.id, ()) for value in op.operands_source()]
        joined = tuple(tensor for part in parts for tensor in part)
        self._of_value[op.results()[0].id] = joined

    def _split(self, op: Any) -> None:
        """The elements of a vector, one value each."""
        parts = self._of_value.get(op.operands_source()[0].id, ())
        for value, part in zip(op.results(), parts, strict=False):
            self._of_value[value.id] = (part,)

    def _slice(self, op: Any) -> None:
        """One element of a vector."""
        parts = self._of_value.get(op.operands_source()[0].id, ())
        self._of_value[op.results()[0].id] = (parts[int(op.attrs()["index"])],)


_READERS = {
    "pd_op.data": PirReader._data,
    "builtin.parameter": PirReader._parameter,
    "builtin.combine": PirReader._combine,
    "builtin.split": PirReader._split,
    "builtin.slice": PirReader._slice,
}


def pir_roles(ops: Sequence[Any]) -> list[Role]:
    """Forward, backward or optimizer, for each operator of a program's global block.

    Where Paddle has set the attribute it is taken. Plain training programs have none: backward
    then starts with the seed of the first gradient (the constant before the first "_grad"), and
    the update starts after the last "_grad", sums of gradients and exchanges of them excepted.
    """
    types = [canonical_type(op.name(), old_ir=False) for op in ops]
    stated = [int(op.op_role) for op in ops]
    grads = [i for i, kind in enumerate(types) if kind.endswith("_grad")]
    first = grads[0] if grads else len(types)
    while first and types[first - 1] in {"full_like", "full", "full_int_array", "combine", "split"}:
        first -= 1
    if grads:  # a constant just before the seed may still be an operand of the loss
        first = next(i for i in range(first, grads[0] + 1) if types[i] != "full_int_array")
    updates = [i for i, kind in enumerate(types) if kind in _OPTIMIZERS]
    last = grads[-1] + 1 if grads else (updates[0] if updates else len(types))
    while last < len(types) and (
        types[last] in {"add_n", "combine"} or collective_kind(types[last])
    ):
        last += 1
    guessed: list[Role] = [
        "optimizer" if i >= last and updates else "backward" if i >= first else "forward"
        for i in range(len(types))
    ]
    return [
        guess if number < 0 else _ROLE_OF_NUMBER.get(number & ~_LOSS, "forward")
        for number, guess in zip(stated, guessed, strict=True)
    ]


def _slot_names(op: Any, getter: str) -> list[str]:
    """The names of an operator's parameters or results, where its dialect tells them."""
    try:
        return list(getattr(op, getter)())
    except (AttributeError, ValueError, RuntimeError):
        return []


def _has_type(value: Any) -> bool:
    """Whether a result is really made; unwanted gradients have no type."""
    return bool(value.initialized()) and str(value.type()) not in {"", "<<NULL TYPE>>"}
