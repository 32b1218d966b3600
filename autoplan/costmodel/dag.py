"""Operators without their tensors: who waits for whom, on which stream, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.costmodel.graph import Op
from autoplan.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    """Pieces of work in an order in which nothing waits for anything later.

    Each stream runs its pieces one at a time, in this order.
    """

    seconds: tuple[float, ...]
    streams: tuple[int, ...]
    waits_for: tuple[tuple[int, ...], ...]
    """For each piece the earlier ones that it needs, each once."""

    def __post_init__(self) -> None:
        """Refuses pieces that wait for later ones."""
        count = len(self.seconds)
        sound = len(self.streams) == count and len(self.waits_for) == count
        require(sound, "dag", count, "as many streams and waits as seconds")
        for piece, needed in enumerate(self.waits_for):
            if needed and not 0 <= min(needed) <= max(needed) < piece:
                require(False, f"waits_for[{piece}]", list(needed), f"0 to {piece - 1}")


def dependencies(ops: Sequence[Op]) -> tuple[tuple[int, ...], ...]:
    """For each operator the earlier ones that it must wait for, each once.

    A tensor that is written again is a new one from then on, so that updates in place make no
    cycle: whoever reads it waits for the last writer, and who writes it waits for the last writer
    and for all who read what was there.
    """
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    needed_by: list[tuple[int, ...]] = []
    for position, op in enumerate(ops):
        needed = {writer[tensor] for tensor in op.inputs if tensor in writer}
        for tensor in op.outputs:
            if tensor in writer:
                needed.add(writer[tensor])
            needed.update(readers.pop(tensor, ()))
        needed.discard(position)
        needed_by.append(tuple(needed))
        for tensor in op.inputs:
            readers.setdefault(tensor, []).append(position)
        for tensor in op.outputs:
            writer[tensor] = position
    return tuple(needed_by)


def build_dag(ops: Sequence[Op], seconds: Sequence[float], *, compute_streams: int = 1) -> Dag:
    """The operators on their streams.

    Computing operators go to the compute stream, exchanges to the communication stream behind it,
    unless they are told to use the compute stream. With several compute streams an operator takes
    the one on which it can start first (list scheduling), the lowest of equals.

    Args:
        ops: in execution order.
        seconds: of each.
        compute_streams: streams that compute at the same time.
    """
    require(compute_streams >= 1, "compute_streams", compute_streams, "at least 1")
    if compute_streams == 1:
        streams = tuple(1 if _on_communication_stream(op) else 0 for op in ops)
        # A single stream runs its pieces in order anyway.
        alone = 1 not in streams
        waits_for = ((),) * len(ops) if alone else dependencies(ops)
        return Dag(seconds=tuple(seconds), streams=streams, waits_for=waits_for)
    waits_for = dependencies(ops)
    free = [0.0] * (compute_streams + 1)
    end = [0.0] * len(ops)
    chosen = []
    for position, op in enumerate(ops):
        ready = max((end[piece] for piece in waits_for[position]), default=0.0)
        stream = compute_streams
        if not _on_communication_stream(op):
            stream = min(range(compute_streams), key=lambda s: max(free[s], ready))
        free[stream] = end[position] = max(free[stream], ready) + seconds[position]
        chosen.append(stream)
    return Dag(seconds=tuple(seconds), streams=tuple(chosen), waits_for=waits_for)


def _on_communication_stream(op: Op) -> bool:
    return op.collective is not None and not op.attributes.get("use_calc_stream", False)


def simulated_s(dag: Dag) -> float:
    """The oracle: seconds until the last piece ends, by running the list."""
    free = [0.0] * (max(dag.streams, default=0) + 1)
    end: list[float] = []
    for seconds, stream, needed in zip(dag.seconds, dag.streams, dag.waits_for, strict=True):
        start = free[stream]
        for piece in needed:
            if end[piece] > start:
                start = end[piece]
        free[stream] = start + seconds
        end.append(free[stream])
    return max(free)
