"""How cold operands are: the bytes that a program touches between two uses of a tensor."""

from __future__ import annotations

import statistics
from collections import defaultdict

from autoplan.costmodel.graph import Op, OpGraph
from autoplan.costmodel.op_names import FREE
from autoplan.costmodel.signature import signature


def reuse_bytes(graph: OpGraph) -> dict[str, tuple[int, ...]]:
    """For each signature and each of its operands, the bytes touched since the operand was.

    The median over the operators of that signature, step after step. A cache smaller than this
    has lost the operand.

    Args:
        graph: with resolved shapes.
    """
    size = [tensor.size_bytes for tensor in graph.tensors]
    touched = 0
    last_touch: dict[int, int] = {}
    distances: defaultdict[str, list[list[int]]] = defaultdict(list)
    for step in range(2):
        for op in _running(graph):
            if step == 1:
                since = [touched - last_touch.get(index, 0) for index in op.inputs]
                distances[signature(op, graph.tensors)].append(since)
            operands = {*op.inputs, *op.outputs}
            touched += sum(size[index] for index in operands)
            last_touch.update(dict.fromkeys(operands, touched))
    return {
        key: tuple(int(statistics.median(column)) for column in zip(*rows, strict=True))
        for key, rows in distances.items()
    }


def _running(graph: OpGraph) -> list[Op]:
    return [op for op in graph.walk() if op.type not in FREE and not op.blocks]
