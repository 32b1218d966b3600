"""What every possible stage of a linear order of layers computes, receives and sends.

A stage [i, j) holds the layers at places i to j - 1 of the order. Matrices [i, j] have the suffix
CC over the C = L + 1 cuts around L layers; they are 0 where i >= j. The definitions are those of
facts/planners.md section 5: a tensor counts once for each stage it leaves and once for each that it
enters, however many read it there, and a stage that it only passes by is not charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoplan.errors import require, words
from autoplan.workload.graph import Graph

Floats = NDArray[np.float64]
LoadModel = Literal["compute", "sum", "max"]

_DIRECTIONS = 2
"""What crosses a cut forward comes back as a gradient of its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one layer makes and others read, by their places in the order."""

    producer: int
    """Place of the layer that makes it."""
    consumers: tuple[int, ...]
    """Places of the layers that read it, before or behind the producer, in any order."""
    seconds: float
    """Time to send it, charged to the sender and to each receiver."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageLoads:
    """Seconds per call of every stage."""

    compute_s_CC: Floats
    """Time of its layers."""
    received_s_CC: Floats
    """Time of the tensors from outside that it reads."""
    sent_s_CC: Floats
    """Time of its tensors that are read outside."""

    def under(self, model: LoadModel) -> Floats:
        """The load [C, C] of every stage under a model of how computing and sending overlap.

        Args:
            model: "compute" ignores tensors; "sum" adds up all three (dnn-partitioning, Piper);
                "max" takes the largest, all three overlapping (PipeDream).
        """
        if model == "compute":
            return self.compute_s_CC
        if model == "sum":
            return self.compute_s_CC + self.received_s_CC + self.sent_s_CC
        return np.maximum(self.compute_s_CC, np.maximum(self.received_s_CC, self.sent_s_CC))


def stage_loads(
    graph: Graph, order: Sequence[int], *, samples: float, bytes_per_s: float
) -> StageLoads:
    """The loads of every stage of a graph's layers in a linear order.

    Args:
        graph: layers and tensors.
        order: indices into `graph.layers`, each once.
        samples: samples per call, a microbatch.
        bytes_per_s: bandwidth that every tensor is sent with, forward and back as a gradient.

    Raises:
        InputError: the order is none of the graph's layers, or a number is not positive.
    """
    complete = sorted(order) == list(range(len(graph.layers)))
    found = words(f"{len(order)} indices")
    require(complete, "order", found, f"each of 0 to {len(graph.layers) - 1} once")
    for name, value in (("samples", samples), ("bandwidth in bytes/s", bytes_per_s)):
        require(math.isfinite(value) and value > 0, name, value, "a finite number above 0")
    layers = [graph.layers[node] for node in order]
    place = {layer.name: number for number, layer in enumerate(layers)}
    compute_s_L = [layer.forward.at(samples) + layer.backward.at(samples) for layer in layers]
    transfers = [
        Transfer(
            producer=place[tensor.producer],
            consumers=tuple(place[name] for name in tensor.consumers),
            seconds=_DIRECTIONS * tensor.bytes_per_sample * samples / bytes_per_s,
        )
        for tensor in graph.tensors
    ]
    return loads_of(compute_s_L, transfers)


def loads_of(compute_s_L: Sequence[float], transfers: Sequence[Transfer]) -> StageLoads:
    """The loads of every stage from the layers' times and what is sent between their places.

    O(L^2) additions and O(L) more for each tensor and reader. Nothing is subtracted, so a stage
    that reads nothing from outside receives for exactly 0 seconds.

    Raises:
        InputError: a transfer joins places that are not there, or its time is negative or not
            finite.
    """
    num_layers = len(compute_s_L)
    for number, transfer in enumerate(transfers):
        ends = (transfer.producer, *transfer.consumers)
        outside = [end for end in ends if not 0 <= end < num_layers]
        require(not outside, f"transfers[{number}]", outside, f"places 0 to {num_layers - 1}")
        sound = math.isfinite(transfer.seconds) and transfer.seconds >= 0
        allowed = "a finite number, at least 0"
        require(sound, f"transfers[{number}].seconds", transfer.seconds, allowed)
    ending_with = np.concatenate(([0.0], np.asarray(compute_s_L, dtype=np.float64)))
    grows = np.triu(np.broadcast_to(ending_with, (num_layers + 1, num_layers + 1)), 1)
    return StageLoads(
        compute_s_CC=np.cumsum(grows, axis=1),
        received_s_CC=_received(transfers, num_layers + 1),
        sent_s_CC=_sent(transfers, num_layers + 1),
    )


def _received(transfers: Iterable[Transfer], cuts: int) -> Floats:
    """Sums over the tensors with a reader in the stage and their producer outside."""
    longer, earlier = np.zeros((cuts, cuts)), np.zeros((cuts, cuts))
    for transfer in transfers:
        producer = transfer.producer
        # Of a stage behind the producer the first reader in it counts: every end behind it will do.
        previous = producer
        for place in sorted({place for place in transfer.consumers if place > producer}):
            longer[previous + 1 : place + 1, place + 1] += transfer.seconds
            previous = place
        # Of a stage before it the last reader counts: every start up to it will do.
        following = producer
        for place in sorted({p for p in transfer.consumers if p < producer}, reverse=True):
            earlier[place, place + 1 : following + 1] += transfer.seconds
            following = place
    return _spread(longer, earlier)


def _sent(transfers: Iterable[Transfer], cuts: int) -> Floats:
    """Sums over the tensors with their producer in the stage and a reader outside."""
    longer, earlier = np.zeros((cuts, cuts)), np.zeros((cuts, cuts))
    for transfer in transfers:
        producer = transfer.producer
        first = min((producer, *transfer.consumers))
        last = max((producer, *transfer.consumers))
        # Stages that start behind the first reader, and those that do not but end before the last.
        longer[first + 1 : producer + 1, producer + 1] += transfer.seconds
        earlier[first, producer + 1 : last + 1] += transfer.seconds
    return _spread(longer, earlier)


def _spread(longer: Floats, earlier: Floats) -> Floats:
    """Adds each entry to the stages with a later end, or with an earlier start."""
    later_ends = np.cumsum(longer, axis=1)
    earlier_starts = np.cumsum(earlier[::-1], axis=0)[::-1]
    return np.asarray(later_ends + earlier_starts, dtype=np.float64)
