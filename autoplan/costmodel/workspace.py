"""Bytes that kernels allocate for themselves while they run."""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.costmodel.graph import DTYPE_BYTES, Op, TensorInfo

GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
"""Matrices per step of each recurrent cell."""
_STATES_PER_LAYER = 9
"""Gradients of states that the kernel holds per layer, in units of one state."""


def workspace_bytes(op: Op, tensors: Sequence[TensorInfo]) -> int:
    """Bytes beyond operands and results, of the kernels that were measured to need many.

    The recurrent backward on the CPU keeps one layer's gate gradients, and two copies of the
    gradients that pass between layers and between the two directions (read off the allocator's
    peaks: exact for two layers in one direction, within 3 % for one to three layers).
    """
    return _recurrent(op, tensors) if op.type == "rnn_grad" else 0


def _recurrent(op: Op, tensors: Sequence[TensorInfo]) -> int:
    source = op.input("x")
    if source is None:
        source = op.input("input")
    layers, hidden = op.attributes.get("num_layers"), op.attributes.get("hidden_size")
    if source is None or not isinstance(layers, int) or not isinstance(hidden, int):
        return 0
    steps, samples = tensors[source].shape[:2]
    directions = 2 if op.attributes.get("is_bidirec") else 1
    between_layers = 2 * directions if layers > 1 else 0
    between_directions = 4 if directions == 2 else 0
    gates = GATES.get(str(op.attributes.get("mode")), 1) * directions
    per_step = gates + between_layers + between_directions
    states = _STATES_PER_LAYER * layers * directions
    return samples * hidden * (per_step * steps + states) * DTYPE_BYTES[tensors[source].dtype]
