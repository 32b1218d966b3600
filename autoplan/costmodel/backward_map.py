"""Which forward operator each backward operator belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.costmodel.graph import Op, OpGraph

_SEEDS = frozenset({"full", "full_like"})
"""What makes the first gradient, of the loss."""


def forward_op_of(graph: OpGraph) -> list[int | None]:
    """For each operator the forward one that it is or differentiates; None for the update.

    Gradients are followed from the loss down: the gradient of an operator's result leads to the
    operator, whose backward makes the gradients of its operands. What takes part in neither (sums
    of gradients, seeds, exchanges) belongs to where its operands come from.
    """
    ops = graph.ops
    maker = {t: i for i, op in enumerate(ops) if op.role == "forward" for t in op.outputs}
    gradient_of: dict[int, int] = {}
    owner: dict[int, int] = {}
    last_forward = max((i for i, op in enumerate(ops) if op.role == "forward"), default=0)
    found: list[int | None] = []
    for position, op in enumerate(ops):
        if op.role == "forward":
            found.append(position)
            continue
        if op.role == "optimizer":
            found.append(None)
            continue
        if op.type.endswith("_grad"):
            forward = _differentiated(op, ops, maker, gradient_of)
        else:
            forward = _undone(op, maker, gradient_of)
        if forward is None:
            places = [owner[tensor] for tensor in op.inputs if tensor in owner]
            forward = min(places, default=last_forward)
        _note_gradients(op, ops[forward], gradient_of)
        owner.update(dict.fromkeys(op.outputs, forward))
        found.append(forward)
    return found


def _differentiated(
    op: Op, ops: Sequence[Op], maker: dict[int, int], gradient_of: dict[int, int]
) -> int | None:
    """The forward operator of a "_grad": the one whose result's gradient it is given."""
    base = op.type.removesuffix("_grad")
    candidates = [
        maker[gradient_of[tensor]]
        for tensor in op.inputs
        if gradient_of.get(tensor) in maker and ops[maker[gradient_of[tensor]]].type == base
    ]
    if candidates:
        return candidates[0]
    shared = [
        maker[tensor] for tensor in op.inputs if tensor in maker and ops[maker[tensor]].type == base
    ]
    if shared:
        return max(shared)
    readers = [
        i
        for i, other in enumerate(ops)
        if other.type == base and other.role == "forward" and set(other.inputs) & set(op.inputs)
    ]
    return max(readers, default=None)


def _undone(op: Op, maker: dict[int, int], gradient_of: dict[int, int]) -> int | None:
    """The forward operator whose backward is an ordinary operator: a concat undoes a split."""
    origins = [gradient_of[tensor] for tensor in op.inputs if tensor in gradient_of]
    return maker.get(origins[0]) if origins else None


def _note_gradients(op: Op, forward: Op, gradient_of: dict[int, int]) -> None:
    """What the results of a backward operator are the gradients of."""
    if op.type.endswith("_grad"):
        _note_operands(op, forward, gradient_of)
        return
    if op.type in _SEEDS:
        gradient_of.update(
            dict.fromkeys(op.outputs, forward.outputs[-1]) if forward.outputs else {}
        )
        return
    origins = {gradient_of[tensor] for tensor in op.inputs if tensor in gradient_of}
    several = len([tensor for tensor in op.inputs if tensor in gradient_of]) > 1
    if len(origins) == 1 and (several or op.collective is not None):  # a sum, or an exchange
        gradient_of.update(dict.fromkeys(op.outputs, next(iter(origins))))
    elif origins and forward.inputs:
        gradient_of.update(dict.fromkeys(op.outputs, forward.inputs[0]))


def _note_operands(op: Op, forward: Op, gradient_of: dict[int, int]) -> None:
    """The results of a "_grad" by their slots: "x_grad" is of what forward took as "x"."""
    taken: dict[str, int] = {}
    for tensor, slot in zip(op.outputs, op.output_slots, strict=False):
        source = slot.removesuffix("_grad")
        operands = [
            t for t, s in zip(forward.inputs, forward.input_slots, strict=False) if s == source
        ]
        place = taken.get(source, 0)
        taken[source] = place + 1
        if place < len(operands):
            gradient_of[tensor] = operands[place]
