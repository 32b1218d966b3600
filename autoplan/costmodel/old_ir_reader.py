"""Programs of Paddle's old IR into operator graphs. Works on the objects, imports nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autoplan.costmodel.graph import CollectiveKind, Op, OpGraph, Role, TensorInfo
from autoplan.costmodel.op_names import canonical_type, collective_kind
from autoplan.costmodel.reading import (
    ReadRules,
    collective_of,
    dtype_name,
    in_bulk,
    plain_attributes,
    reused_memory,
    shape_only,
    trained_only,
)

_BACKWARD, _OPTIMIZE, _SCHEDULE = 1, 2, 16
"""Bits of `op_role` (paddle's OpRole); the learning rate's schedule runs once a step too."""
_GRAD = "@GRAD"
_BODIES = {"while": "sub_block", "if": "sub_block"}
_NAME_STARTS = 2
"""Bytes before the name in a variable's description; more where the name is long."""
_Format = tuple[tuple[int, ...], str, bool]
"""Shape, dtype, and whether the variable outlives a step."""
_NO_WORK = frozenset({"feed", "fetch"})
_OF_TENSORS = ("name", "shape", "dtype", "persistable", "parameter")
_OF_BARE_OPS = ("type", "inputs", "outputs", "input_slots", "role", "collective", "id")
"""Fields in the order of their rows."""


class OldIrReader:
    """Reads one program; variables of the same name are one tensor."""

    def __init__(self, program: Any, rules: ReadRules, *, costs_only: bool = False) -> None:
        """Prepares to read `program`.

        Args:
            program: a program of the old IR.
            rules: what it does not say of itself.
            costs_only: leave attributes and slots out, where costs are known by operator number.
        """
        self._program = program
        self._rules = rules
        self._costs_only = costs_only
        self._tensors: list[TensorInfo] = []
        self._of_name: dict[str, int] = {}
        self._feeds: list[int] = []
        self._gradients: set[int] = set()
        self._formats: dict[bytes, _Format] = {}
        self._kinds: dict[str, tuple[str, CollectiveKind | None]] = {}

    def read(self, name: str) -> OpGraph:
        """The operator graph of the global block."""
        ops = tuple(self._block(self._program.global_block()))
        tensors = trained_only(self._tensors, ops)
        return OpGraph(name=name, tensors=tensors, ops=ops, feeds=tuple(self._feeds))

    def _block(self, block: Any) -> list[Op]:
        self._of_name.update(zip(block.vars, itertools.count(len(self._tensors)), strict=False))
        rows = list(self._variables(block.vars))
        self._tensors += in_bulk(TensorInfo, _OF_TENSORS, rows)
        if self._costs_only:
            return in_bulk(Op, _OF_BARE_OPS, list(self._bare(block.ops)))
        return [self._operator(op) for op in block.ops if op.type not in _NO_WORK]

    def _variables(self, variables: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """The fields of a block's variables as tensors."""
        known, gradients = self._formats, self._gradients
        for index, (name, variable) in enumerate(variables.items(), len(self._tensors)):
            described = variable.desc
            # One call instead of several: tag, length and name, then all that it says of itself.
            text = described.serialize_to_string()[_NAME_STARTS + len(name) :]
            found = known.get(text)
            if found is None:
                found = known[text] = _format(described)
            shape, dtype, persistable = found
            if not persistable and getattr(variable, "is_data", False):
                self._feeds.append(index)
            if name.endswith(_GRAD):
                gradients.add(index)
            parameter = persistable and getattr(variable, "trainable", False)
            yield name, shape, dtype, persistable, parameter

    def _kind(self, name: str) -> tuple[str, CollectiveKind | None]:
        """The new IR's name of an operator, and what it exchanges."""
        kind = self._kinds.get(name)
        if kind is None:
            new = canonical_type(name, old_ir=True)
            kind = self._kinds[name] = (new, collective_kind(new))
        return kind

    def _operator(self, op: Any) -> Op:
        kind, exchange = self._kind(op.type)
        inputs, input_slots = self._named(op.input, op.input_names)
        outputs, output_slots = self._named(op.output, op.output_names)
        blocks = self._blocks(op, kind)
        attributes = {} if blocks else plain_attributes(op.all_attrs())
        return Op(
            type=kind,
            inputs=inputs,
            outputs=outputs,
            input_slots=input_slots,
            output_slots=output_slots,
            role=_role(op.desc),
            attributes=attributes,
            collective=collective_of(exchange, attributes),
            id=op.desc.id(),
            reuses=reused_memory(kind, input_slots, output_slots),
            shape_only=shape_only(kind, input_slots),
            blocks=blocks,
            trips=self._rules.next_trips(kind) if kind == "while" else None,
        )

    def _bare(self, ops: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """The fields of operators, of slots only the gradients that an update reads."""
        kinds, gradients = self._kinds, self._gradients
        for op in ops:
            described = op.desc
            name = described.type()
            if name in _NO_WORK:
                continue
            kind, exchange = kinds.get(name) or self._kind(name)
            role = _role(described)
            inputs = self._found(described.input_arg_names())
            outputs = self._found(described.output_arg_names())
            slots: tuple[str, ...] = ()
            if role == "optimizer":
                slots = tuple(["grad" if tensor in gradients else "" for tensor in inputs])
            collective = collective_of(exchange, _ring(op)) if exchange else None
            yield kind, inputs, outputs, slots, role, collective, described.id()

    def _found(self, names: Iterable[str]) -> tuple[int, ...]:
        """The tensors of these names, those left out that no block declares."""
        known = self._of_name
        try:
            return tuple(map(known.__getitem__, names))
        except KeyError:
            return tuple([known[name] for name in names if name in known])

    def _named(self, of_slot: Any, slots: Iterable[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Tensors and the new IR's names of their slots ("Out@GRAD" is "out_grad")."""
        pairs = [
            (self._of_name[name], slot.replace(_GRAD, "_grad").lower())
            for slot in slots
            for name in of_slot(slot)
            if name in self._of_name
        ]
        return tuple(tensor for tensor, _ in pairs), tuple(slot for _, slot in pairs)

    def _blocks(self, op: Any, kind: str) -> tuple[tuple[Op, ...], ...]:
        if kind not in _BODIES:
            return ()
        return (tuple(self._block(self._program.block(op.attr(_BODIES[kind]).id))),)


def _format(described: Any) -> _Format:
    """Of a variable; step scopes and arrays hold no elements of their own."""
    persistable = bool(described.persistable())
    try:
        return tuple(described.shape()), dtype_name(described.dtype()), persistable
    except (ValueError, AttributeError, RuntimeError):
        return (0,), "uint8", persistable


def _role(described: Any) -> Role:
    number = described.attr("op_role") or 0
    if number & (_OPTIMIZE | _SCHEDULE):
        return "optimizer"
    return "backward" if number & _BACKWARD else "forward"


def _ring(op: Any) -> dict[str, int]:
    """The attributes of a collective that name its ring and peer."""
    names = ("ring_id", "peer", "nranks")
    return {name: int(op.attr(name)) for name in names if op.has_attr(name)}
