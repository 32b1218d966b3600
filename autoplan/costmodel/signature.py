"""What a measurement of an operator is filed under."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.costmodel.graph import Op, TensorInfo
from autoplan.documents import canonical_json


def signature(op: Op, tensors: Sequence[TensorInfo]) -> str:
    """Type, shapes, number formats and attributes as one line of text.

    Two operators with the same signature do the same work. Shapes must be resolved.
    """
    arguments = _arguments(op.inputs, op.input_slots, tensors)
    results = _arguments(op.outputs, op.output_slots, tensors)
    return f"{op.type}({arguments})->({results}){canonical_json(op.attributes)}"


def _arguments(indices: Sequence[int], slots: Sequence[str], tensors: Sequence[TensorInfo]) -> str:
    """`x:float32[8,64],...`; slots in alphabetical order, as the two IRs order them differently."""
    named = [
        (slots[i] if i < len(slots) else "", _format(tensors[index]))
        for i, index in enumerate(indices)
    ]
    named.sort(key=lambda pair: pair[0])
    return ",".join(f"{slot}:{text}" for slot, text in named)


def _format(tensor: TensorInfo) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
