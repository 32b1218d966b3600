"""What it costs to sparsify and to exchange a group of gradients, by its elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster.collectives import CollectiveCost
from autoplan.errors import require
from autoplan.gradsync.problem import Cost
from autoplan.interpolation import interpolate, interpolate_many

Floats = NDArray[np.float64]

INDEX_BYTES = 4
"""Top-k sends a 32-bit index with each value."""


class ElementCost(Protocol):
    """Seconds by elements, for one group and for arrays of them."""

    def __call__(self, elements: float) -> float:
        """Seconds for one group; nothing for no elements."""

    def many(self, elements: Floats) -> Floats:
        """Seconds for each of an array of groups."""


@dataclass(frozen=True, slots=True)
class Affine:
    """alpha + beta * elements; MG-WFBP's all-reduce (facts/mgs.md section 1.2) and much else."""

    alpha_s: float
    s_per_element: float

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return self.alpha_s + self.s_per_element * elements if elements > 0 else 0.0

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group."""
        return np.where(elements > 0, self.alpha_s + self.s_per_element * elements, 0.0)


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """s * x * log2 x: top-k as MGS publishes it (facts/mgs.md section 1.1); without a floor."""

    s_per_element_and_bit: float

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return float(self.many(np.array(float(elements))))

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group."""
        bits = np.log2(np.maximum(elements, 1.0))
        return self.s_per_element_and_bit * np.asarray(elements) * bits


@dataclass(frozen=True, slots=True)
class Table:
    """Measured points: straight between them, flat below the first, the last slope beyond."""

    elements: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuses tables that are empty, out of order or unmatched."""
        points = self.elements
        rising = bool(points) and points[0] > 0 and all(a < b for a, b in pairwise(points))
        require(rising, "elements", points, "positive numbers in rising order")
        matched = len(self.seconds) == len(points)
        sound = matched and all(math.isfinite(s) and s >= 0 for s in self.seconds)
        require(sound, "seconds", self.seconds, f"{len(points)} finite numbers, at least 0")

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return interpolate(self.elements, self.seconds, elements) if elements > 0 else 0.0

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group."""
        every = interpolate_many(self.elements, self.seconds, np.asarray(elements))
        return np.where(elements > 0, every, 0.0)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """A dense group on the cluster's links."""

    collective: CollectiveCost
    bytes_per_element: float

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return self.collective.at(elements * self.bytes_per_element)

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group."""
        return self.collective.many(elements * self.bytes_per_element)


@dataclass(frozen=True, slots=True)
class SparseAllGather:
    """Two all-gathers in sequence, of k values and k indices, and adding up what arrived.

    k = max(1, floor(density * elements)), as frameworks round it. A gathered buffer holds the k
    entries of every replica (facts/mgs.md section 1.1); the scatter-add, which the published
    model leaves out (1.4), touches all of them.
    """

    collective: CollectiveCost
    """All-gather by the bytes gathered in all."""
    replicas: int
    density: float
    value_bytes: float = 4.0
    scatter_add_s_per_element: float = 0.0

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return float(self.many(np.array([float(elements)]))[0])

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group."""
        gathered = self.replicas * kept(elements, self.density)
        exchange = self.collective.many(gathered * self.value_bytes)
        exchange = exchange + self.collective.many(gathered * INDEX_BYTES)
        return np.where(elements > 0, exchange + gathered * self.scatter_add_s_per_element, 0.0)


def kept(elements: Floats, density: float) -> Floats:
    """Elements that top-k keeps of each group: a whole number, at least 1."""
    # The nudge keeps 0.01 * 300 at 3 although the product falls just below it.
    return np.maximum(1.0, np.floor(density * elements * (1 + 1e-12)))


@dataclass(frozen=True, slots=True)
class OfKept:
    """A cost by the elements that top-k keeps of a group."""

    cost: ElementCost
    density: float

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return float(self.many(np.array([float(elements)]))[0])

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group."""
        return np.where(elements > 0, self.cost.many(kept(elements, self.density)), 0.0)


@dataclass(frozen=True, slots=True)
class Sum:
    """Costs that follow each other, such as copying into a fused buffer and exchanging it."""

    parts: tuple[ElementCost, ...]

    def __call__(self, elements: float) -> float:
        """Seconds for one group."""
        return sum(part(elements) for part in self.parts)

    def many(self, elements: Floats) -> Floats:
        """Seconds for each group."""
        total: Floats = np.sum([part.many(elements) for part in self.parts], axis=0)
        return total


def lines_of(cost: Cost) -> Floats:
    """Rows (seconds, seconds per element), the least of which is what a dense exchange takes.

    Copies into fused buffers are included; nothing is known of other costs, nor of measured
    tables, whose floors have lines.
    """
    parts = cost.parts if isinstance(cost, Sum) else (cost,)
    lines = np.zeros((1, 2))
    for part in parts:
        if isinstance(part, AllReduce):
            lines = lines + np.array(part.collective.pieces) * (1.0, part.bytes_per_element)
        else:
            assert isinstance(part, Affine)
            lines = lines + np.array((part.alpha_s, part.s_per_element))
    return lines
