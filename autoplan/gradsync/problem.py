"""What a grouping decides about: the gradients of one backward pass and what exchanging costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoplan.errors import InputError, require

_MOST_ELEMENTS = 2**53
"""Elements that a float still counts one by one."""

Cost = Callable[[float], float]
"""Seconds as a function of the elements in a group; it may offer `many` for arrays."""

Groups = tuple[tuple[int, ...], ...]
"""Layer indices of each group, in backward order within the group; groups in sending order."""


class LimitsError(InputError):
    """No grouping of these gradients keeps to the limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCost:
    """One way to exchange a group."""

    communicate: Cost
    """Seconds on the link."""
    sparsify: Cost | None = None
    """Seconds on the compute stream to select the elements that are sent; None for dense."""
    density: float = 1.0
    """Share of the elements that is sent; 1.0 is dense."""
    handling: Cost | None = None
    """Seconds that the exchange takes from the backward that goes on beside it; so it does not
    from the last group's, beside which there is none."""

    @property
    def delays(self) -> bool:
        """Whether exchanging a group makes the backward longer."""
        return self.sparsify is not None or self.handling is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What every policy keeps to."""

    max_elements: float = math.inf
    """Elements in a group; a single layer that holds more goes alone, since none is split."""
    min_elements: float = 0.0
    """Elements in a group; only the last group may hold less, where no neighbour can take it."""
    max_groups: int | None = None
    """Number of groups."""
    max_memory_bytes: float = math.inf
    """Fused buffers of groups with several layers, and residuals of sparse groups, in all."""

    def __post_init__(self) -> None:
        """Refuses limits that no grouping can keep."""
        require(self.max_elements > 0, "max_elements", self.max_elements, "above 0 elements")
        sound = 0 <= self.min_elements <= min(self.max_elements, _MOST_ELEMENTS)
        allowed = f"0 to {min(self.max_elements, _MOST_ELEMENTS):g} elements"
        require(sound, "min_elements", self.min_elements, allowed)
        sound = self.max_groups is None or self.max_groups >= 1
        require(sound, "max_groups", self.max_groups, "at least 1")
        sound = self.max_memory_bytes >= 0
        require(sound, "max_memory_bytes", self.max_memory_bytes, "at least 0 bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingProblem:
    """Gradients of one backward pass.

    Layers are numbered in forward order; backward runs from the last to the first.
    """

    backward_s: Sequence[float]
    """Seconds of each layer's backward."""
    elements: Sequence[float]
    """Gradient elements of each layer."""
    costs: tuple[GroupCost, ...]
    """The ways in which a group may be exchanged; each group takes one of them."""
    limits: GroupLimits = field(default_factory=GroupLimits)
    """What every grouping must keep to."""
    bytes_per_element: float = 4.0
    """Bytes of a gradient element, in buffers and residuals."""
    kinds: Sequence[str] | None = None
    """Number format of each layer's gradients, where frameworks keep them apart."""

    def __post_init__(self) -> None:
        """Refuses figures that are unmatched, negative or not finite."""
        require(len(self.backward_s) > 0, "backward_s", list(self.backward_s), "at least one layer")
        allowed = f"{len(self.backward_s)} entries, one per layer"
        require(len(self.elements) == len(self.backward_s), "elements", len(self.elements), allowed)
        kinds = self.kinds
        require(kinds is None or len(kinds) == len(self.backward_s), "kinds", kinds, allowed)
        require(bool(self.costs), "costs", self.costs, "at least one way to exchange a group")
        sound = math.isfinite(self.bytes_per_element) and self.bytes_per_element > 0
        require(sound, "bytes_per_element", self.bytes_per_element, "above 0 bytes")
        for name in ("backward_s", "elements"):
            for i, value in enumerate(getattr(self, name)):
                sound = math.isfinite(value) and value >= 0
                require(sound, f"{name}[{i}]", value, "a finite number, at least 0")

    @property
    def num_layers(self) -> int:
        """Layers in the backward pass."""
        return len(self.backward_s)

    def groups(self, ends: Sequence[int]) -> Groups:
        """The contiguous groups that end after so many layers of backward each."""
        top, start, groups = self.num_layers - 1, 0, []
        for end in ends:
            groups.append(tuple(range(top - start, top - end, -1)))
            start = end
        return tuple(groups)

    def group_elements(self, group: Sequence[int]) -> float:
        """Gradient elements of a group."""
        return sum(self.elements[layer] for layer in group)

    def memory_bytes(self, group: Sequence[int], choice: int) -> float:
        """Bytes that a group keeps: a fused buffer for several layers, a residual if sparse."""
        size = self.group_elements(group) * self.bytes_per_element
        buffer = size if len(group) > 1 else 0.0
        return buffer + (size if self.costs[choice].density < 1 else 0.0)
