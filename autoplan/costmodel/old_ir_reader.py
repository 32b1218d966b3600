"""Programs of Paddle's old IR into operator graphs. Works on the objects, imports nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autoplan.costmodel.graph import CollectiveKind, Op, OpGraph, Role, TensorInfo
from autoplan.costmodel.op_names import canonical_type, collective_kind
from autoplan.costmodel.reading import (
    ReadRules,
    collective_of,
    dtype_name,
    plain_attributes,
    reused_memory,
    shape_only,
    trained_only,
)

_BACKWARD, _OPTIMIZE, _SCHEDULE = 1, 2, 16
"""Bits of `op_role` (paddle's OpRole); the learning rate's schedule runs once a step too."""
_GRAD = "@GRAD"
_BODIES = {"while": "sub_block", "if": "sub_block"}


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
        self._dtypes: dict[int, str] = {}
        self._types: dict[str, tuple[str, CollectiveKind | None]] = {}

    def read(self, name: str) -> OpGraph:
        """The operator graph of the global block."""
        block = self._program.global_block()
        ops = tuple(self._block(block))
        tensors = trained_only(self._tensors, ops)
        return OpGraph(name=name, tensors=tensors, ops=ops, feeds=tuple(self._feeds))

    def _block(self, block: Any) -> Iterable[Op]:
        for name, variable in block.vars.items():
            self._variable(name, variable)
        for op in block.ops:
            name = op.type
            if name in {"feed", "fetch"}:
                continue
            known = self._types.get(name)
            if known is None:
                kind = canonical_type(name, old_ir=True)
                known = self._types[name] = (kind, collective_kind(kind))
            yield self._operator(op, *known)

    def _variable(self, name: str, variable: Any) -> None:
        """Makes a tensor of a variable; step scopes and arrays hold no elements of their own."""
        described = variable.desc
        try:
            shape, dtype = tuple(described.shape()), self._dtype(described.dtype())
        except (ValueError, AttributeError, RuntimeError):
            shape, dtype = (0,), "uint8"
        index = self._of_name[name] = len(self._tensors)
        persistable = described.persistable()
        if not persistable and getattr(variable, "is_data", False):
            self._feeds.append(index)
        tensor = TensorInfo(
            name=name,
            shape=shape,
            dtype=dtype,
            persistable=persistable,
            parameter=persistable and getattr(variable, "trainable", False),
        )
        self._tensors.append(tensor)

    def _dtype(self, dtype: Any) -> str:
        """The name of a dtype, looked up by its number: hashing the enumeration itself is slow."""
        number = int(dtype)
        name = self._dtypes.get(number)
        if name is None:
            name = self._dtypes[number] = dtype_name(dtype)
        return name

    def _operator(self, op: Any, kind: str, exchange: CollectiveKind | None) -> Op:
        role = _role(op.attr("op_role") or 0)
        if self._costs_only:
            return self._bare(op, kind, role, exchange)
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
            role=role,
            attributes=attributes,
            collective=collective_of(exchange, attributes),
            id=op.desc.id(),
            reuses=reused_memory(kind, input_slots, output_slots),
            shape_only=shape_only(kind, input_slots),
            blocks=blocks,
            trips=self._rules.next_trips(kind) if kind == "while" else None,
        )

    def _bare(self, op: Any, kind: str, role: Role, exchange: CollectiveKind | None) -> Op:
        """An operator without attributes and slots, but for the gradients that an update reads."""
        known, described = self._of_name, op.desc
        names = [name for name in described.input_arg_names() if name in known]
        written = [known[name] for name in described.output_arg_names() if name in known]
        slots: tuple[str, ...] = ()
        if role == "optimizer":
            slots = tuple(["grad" if name.endswith(_GRAD) else "" for name in names])
        return Op(
            type=kind,
            inputs=tuple([known[name] for name in names]),
            outputs=tuple(written),
            input_slots=slots,
            role=role,
            id=described.id(),
            collective=collective_of(exchange, _ring(op)) if exchange else None,
        )

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


def _role(number: int) -> Role:
    if number & (_OPTIMIZE | _SCHEDULE):
        return "optimizer"
    return "backward" if number & _BACKWARD else "forward"


def _ring(op: Any) -> dict[str, int]:
    """The attributes of a collective that name its ring and peer."""
    names = ("ring_id", "peer", "nranks")
    return {name: int(op.attr(name)) for name in names if op.has_attr(name)}
