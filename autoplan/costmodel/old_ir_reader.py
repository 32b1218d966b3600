"""Programs of Paddle's old IR into operator graphs. Works on the objects, imports nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
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
        self._tensors += in_bulk(TensorInfo, self._variables(block.vars))
        if self._costs_only:
            return in_bulk(Op, self._bare(block.ops))
        return [self._operator(op) for op in block.ops if op.type not in _NO_WORK]

    def _variables(self, variables: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
        """The fields of a block's variables as tensors."""
        names, start = list(variables), len(self._tensors)
        described = [variable.desc for variable in variables.values()]
        # One call instead of several: tag, length and name, then all that it says of itself.
        texts = [
            each.serialize_to_string()[_NAME_STARTS + len(name) :]
            for name, each in zip(names, described, strict=True)
        ]
        known = self._formats
        for text, each in zip(texts, described, strict=True):
            if text not in known:
                known[text] = _format(each)
        formats = [known[text] for text in texts]
        persistables = [persistable for _, _, persistable in formats]
        parameters = [
            persistable and getattr(variable, "trainable", False)
            for persistable, variable in zip(persistables, variables.values(), strict=True)
        ]
        self._feeds += [
            index
            for index, variable in enumerate(variables.values(), start)
            if getattr(variable, "is_data", False) and not persistables[index - start]
        ]
        self._gradients.update(i for i, name in enumerate(names, start) if name.endswith(_GRAD))
        return {
            "name": names,
            "shape": [shape for shape, _, _ in formats],
            "dtype": [dtype for _, dtype, _ in formats],
            "persistable": persistables,
            "parameter": parameters,
        }

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
            role=_role(op.desc.attr("op_role")),
            attributes=attributes,
            collective=collective_of(exchange, attributes),
            id=op.desc.id(),
            reuses=reused_memory(kind, input_slots, output_slots),
            shape_only=shape_only(kind, input_slots),
            blocks=blocks,
            trips=self._rules.next_trips(kind) if kind == "while" else None,
        )

    def _bare(self, ops: Sequence[Any]) -> dict[str, Sequence[Any]]:
        """The fields of operators, of slots only the gradients that an update reads."""
        described = [op.desc for op in ops]
        types = [each.type() for each in described]
        working = [op for op, name in zip(ops, types, strict=True) if name not in _NO_WORK]
        if len(working) < len(ops):
            described = [op.desc for op in working]
            types = [name for name in types if name not in _NO_WORK]
        for name in set(types):
            self._kind(name)
        kinds = [self._kinds[name] for name in types]
        numbers = [each.attr("op_role") for each in described]
        role_of = {number: _role(number) for number in set(numbers)}
        roles = [role_of[number] for number in numbers]
        inputs = self._found([each.input_arg_names() for each in described])
        return {
            "type": [kind for kind, _ in kinds],
            "inputs": inputs,
            "outputs": self._found([each.output_arg_names() for each in described]),
            "input_slots": [
                self._gradient_slots(tensors) if role == "optimizer" else ()
                for tensors, role in zip(inputs, roles, strict=True)
            ],
            "role": roles,
            "collective": [
                collective_of(exchange, _ring(op)) if exchange else None
                for op, (_, exchange) in zip(working, kinds, strict=True)
            ],
            "id": [each.id() for each in described],
        }

    def _gradient_slots(self, tensors: Iterable[int]) -> tuple[str, ...]:
        gradients = self._gradients
        return tuple(["grad" if tensor in gradients else "" for tensor in tensors])

    def _found(self, named: Sequence[Iterable[str]]) -> list[tuple[int, ...]]:
        """The tensors of each of these lists of names, those left out that no block declares."""
        known = self._of_name
        try:
            return [tuple(map(known.__getitem__, names)) for names in named]
        except KeyError:
            return [tuple([known[name] for name in names if name in known]) for names in named]

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


def _role(number: int | None) -> Role:
    """What the bits of an operator's role say; none is forward."""
    number = number or 0
    if number & (_OPTIMIZE | _SCHEDULE):
        return "optimizer"
    return "backward" if number & _BACKWARD else "forward"


def _ring(op: Any) -> dict[str, int]:
    """The attributes of a collective that name its ring and peer."""
    names = ("ring_id", "peer", "nranks")
    return {name: int(op.attr(name)) for name in names if op.has_attr(name)}
