"""The timing of merged gradients: when the last group of a backward pass has been exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoplan.errors import require

Cost = Callable[[float], float]
"""Seconds as a function of the elements in a group."""

Groups = tuple[tuple[int, ...], ...]
"""Layer indices of each group, in backward order within and between groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingProblem:
    """Gradients of one backward pass and what exchanging them costs.

    Layers are numbered in forward order; backward runs from the last to the first.
    """

    backward_s: Sequence[float]
    """Seconds of each layer's backward."""
    elements: Sequence[float]
    """Gradient elements of each layer."""
    communicate: Cost
    """Seconds on the link for a group of so many elements."""
    sparsify: Cost | None = None
    """Seconds on the compute stream to sparsify a group; None for dense groups."""

    def __post_init__(self) -> None:
        """Refuses figures that are unmatched, negative or not finite."""
        require(len(self.backward_s) > 0, "backward_s", list(self.backward_s), "at least one layer")
        matched = len(self.elements) == len(self.backward_s)
        allowed = f"{len(self.backward_s)} numbers, one per layer"
        require(matched, "elements", len(self.elements), allowed)
        for name in ("backward_s", "elements"):
            for i, value in enumerate(getattr(self, name)):
                sound = math.isfinite(value) and value >= 0
                require(sound, f"{name}[{i}]", value, "a finite number, at least 0")

    @property
    def num_layers(self) -> int:
        """Layers in the backward pass."""
        return len(self.backward_s)


def finish_s(problem: GroupingProblem, groups: Groups) -> float:
    """Seconds from the start of backward to the end of the last group, or of compute if later.

    DESIGN 3.2: a group is ready when its last layer is; sparsification runs on the compute stream
    and delays what follows; communication queues on one FIFO link. Groups without elements cost
    nothing.

    Raises:
        InputError: the groups are not the layers in backward order.
    """
    order = [layer for group in groups for layer in group]
    expected = list(range(problem.num_layers - 1, -1, -1))
    require(order == expected, "groups", order, f"all layers in backward order, {expected}")
    compute = link = 0.0
    for group in groups:
        compute += sum(problem.backward_s[layer] for layer in group)
        elements = sum(problem.elements[layer] for layer in group)
        if elements > 0:
            if problem.sparsify is not None:
                compute += _priced("sparsify", problem.sparsify, elements)
            link = max(link, compute) + _priced("communicate", problem.communicate, elements)
    return max(compute, link)


def _priced(name: str, cost: Cost, elements: float) -> float:
    """A cost that is a number of seconds; NaN would vanish in a maximum."""
    seconds = cost(elements)
    sound = math.isfinite(seconds) and seconds >= 0
    require(sound, f"{name}({elements:g})", seconds, "a finite number of seconds, at least 0")
    return seconds
