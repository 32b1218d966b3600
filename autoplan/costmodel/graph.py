"""Programs as pure data: operators, tensors, roles, collectives, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from autoplan.documents import STRICT, build_json, identity, pretty_json, read_bytes, write_atomic
from autoplan.errors import require

Role = Literal["forward", "backward", "optimizer"]
ROLES: tuple[Role, ...] = ("forward", "backward", "optimizer")
CollectiveKind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
    "send",
    "recv",
    "barrier",
]
Attribute = bool | int | float | str | tuple[bool | int | float | str, ...]

DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
OPEN = -1
"""A dimension that the program leaves open: the batch, or something made of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor of a program: what it is called, how large it is, whether it outlives a step."""

    __pydantic_config__ = STRICT

    name: str
    """Unique in its graph where it is persistable."""
    shape: tuple[int, ...]
    """Dimensions; -1 where the program leaves one open."""
    dtype: str
    """One of DTYPE_BYTES."""
    persistable: bool = False
    """Whether it lives on between steps: parameters, optimizer state, statistics."""
    parameter: bool = False
    """Whether the optimizer trains it."""

    @property
    def elements(self) -> int:
        """Number of elements; the shape must be resolved."""
        assert OPEN not in self.shape, f"{self.name} has an open dimension: {self.shape}"
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements; the shape must be resolved."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What an operator exchanges with other ranks."""

    __pydantic_config__ = STRICT

    kind: CollectiveKind
    ring: int = 0
    """The communicator's number."""
    peer: int | None = None
    """The other rank of a send or receive."""
    num_ranks: int | None = None
    """Members of the ring, where the operator states it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator; tensors are indices into `OpGraph.tensors`."""

    __pydantic_config__ = STRICT

    type: str
    """The operator's name in Paddle's new IR, without dialect and trailing underscore."""
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    input_slots: tuple[str, ...] = ()
    """The parameter that each input is passed as, where the reader tells."""
    output_slots: tuple[str, ...] = ()
    """The result that each output is, where the reader tells."""
    role: Role = "forward"
    attributes: dict[str, Attribute] = field(default_factory=dict)
    collective: Collective | None = None
    id: int | None = None
    """The operator's number in its program."""
    reuses: tuple[tuple[int, int], ...] = ()
    """(position in outputs, position in inputs) that may share memory if the input ends here."""
    shape_only: tuple[int, ...] = ()
    """Positions in inputs of which only the shape is read, so that they may be freed before."""
    blocks: tuple[tuple[Op, ...], ...] = ()
    """Bodies of control flow: one for a loop, one per branch of a condition."""
    trips: int | None = None
    """Iterations of a loop; None for branches, of which one runs."""

    def input(self, slot: str) -> int | None:
        """The tensor passed as `slot`, or None."""
        slots = self.input_slots
        return self.inputs[slots.index(slot)] if slot in slots else None

    def output(self, slot: str) -> int | None:
        """The tensor that is the result `slot`, or None."""
        slots = self.output_slots
        return self.outputs[slots.index(slot)] if slot in slots else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """The operators of one rank's program in execution order, and their tensors."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-opgraph/1"] = "autoplan-opgraph/1"
    name: str = "program"
    tensors: tuple[TensorInfo, ...]
    ops: tuple[Op, ...]
    feeds: tuple[int, ...] = ()
    """Tensors that are fed in before each step."""

    def __post_init__(self) -> None:
        """Refuses tensors of unknown size, and references to tensors that are not there."""
        for dtype in {tensor.dtype for tensor in self.tensors} - DTYPE_BYTES.keys():
            require(False, "tensors: dtype", dtype, ", ".join(DTYPE_BYTES))
        for shape in {tensor.shape for tensor in self.tensors}:
            if min(shape, default=0) < OPEN:
                require(False, "tensors: shape", list(shape), "dimensions of at least 0, or -1")
        ops = list(self.walk())
        self._require_tensors(ops)
        for op in ops:
            if op.blocks and op.trips is not None:
                sound = len(op.blocks) == 1
                require(sound, f"op {op.type}: blocks", len(op.blocks), "one block in a loop")

    def _require_tensors(self, ops: Sequence[Op]) -> None:
        """Refuses references to tensors that are not there: all at once, then one by one."""
        used = list(chain.from_iterable([op.inputs for op in ops]))
        used += chain.from_iterable([op.outputs for op in ops])
        count = len(self.tensors)
        if min(used, default=0) >= 0 and max(used, default=-1) < count:
            return
        for op in ops:
            tensors = [*op.inputs, *op.outputs]
            sound = all(0 <= index < count for index in tensors)
            require(sound, f"op {op.type}: tensors", tensors, f"0 to {count - 1}")

    def walk(self) -> Iterator[Op]:
        """All operators, those inside blocks after the one that holds them."""
        for op in self.ops:
            yield op
            if op.blocks:
                yield from _inside(op)

    @property
    def sha256(self) -> str:
        """The graph's identity."""
        return identity(self)

    def save(self, path: str | Path) -> None:
        """Writes the graph as JSON, whole or not at all; raises InputError where it cannot."""
        write_atomic(path, pretty_json(self))


def _inside(op: Op) -> Iterator[Op]:
    """The operators of an operator's blocks, to any depth."""
    for block in op.blocks:
        for inner in block:
            yield inner
            yield from _inside(inner)


def load_graph(path: str | Path) -> OpGraph:
    """Reads an operator graph.

    Raises:
        InputError: it cannot be read, or is not a valid graph.
    """
    return build_json(OpGraph, read_bytes(path), str(path))
