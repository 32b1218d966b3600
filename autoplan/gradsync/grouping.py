"""Policies that decide which gradients are merged, behind one function."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoplan.errors import InputError, require
from autoplan.gradsync.exact import exact_ends
from autoplan.gradsync.problem import Cost, GroupingProblem, Groups, finish_s

DDP_CAP_BYTES = 25 * 2**20
"""PyTorch DDP's default bucket."""
DDP_FIRST_CAP_BYTES = 2**20
"""PyTorch DDP's first bucket, small so that communication starts early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """A grouping and when it ends."""

    groups: Groups
    """Layer indices of each group, in backward order."""
    finish_s: float
    """Seconds from the start of backward to the end of the last group, or of compute if later."""


class Policy(Hashable, Protocol):
    """Decides where groups end; policies with the same settings are equal."""

    def ends(self, problem: GroupingProblem) -> list[int]:
        """Ends of the groups, as rising counts of layers in backward order; the last is L."""


@dataclass(frozen=True, slots=True)
class Layerwise:
    """Every layer alone, as wait-free backpropagation sends them."""

    def ends(self, problem: GroupingProblem) -> list[int]:
        """One end per layer."""
        return list(range(1, problem.num_layers + 1))


@dataclass(frozen=True, slots=True)
class Single:
    """All layers in one group, sent after backward."""

    def ends(self, problem: GroupingProblem) -> list[int]:
        """One end, after all layers."""
        return [problem.num_layers]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A group closes once it holds its cap, so it may overshoot; the first cap may be smaller.

    This is PyTorch DDP's rule with layers in the place of tensors (facts/mgs.md section 5, item 2).
    """

    cap_elements: float
    """Elements that close a group."""
    first_cap_elements: float
    """Elements that close the first group."""

    def ends(self, problem: GroupingProblem) -> list[int]:
        """An end wherever the elements gathered reach the cap."""
        ends: list[int] = []
        gathered = 0.0
        for done, elements in enumerate(reversed(problem.elements), start=1):
            gathered += elements
            if gathered >= (self.cap_elements if ends else self.first_cap_elements):
                ends.append(done)
                gathered = 0.0
        if not ends or ends[-1] < problem.num_layers:
            ends.append(problem.num_layers)
        return ends


@dataclass(frozen=True, slots=True)
class Exact:
    """The grouping that ends earliest of all contiguous ones."""

    def ends(self, problem: GroupingProblem) -> list[int]:
        """Ends of an optimal grouping."""
        return exact_ends(problem)


POLICIES = ("layerwise", "single", "threshold", "exact")


def policy_named(
    name: str, cap_bytes: float = DDP_CAP_BYTES, bytes_per_element: float = 4
) -> Policy:
    """The policy of that name.

    Args:
        name: one of POLICIES.
        cap_bytes: cap of "threshold"; its first group is capped at DDP's 1 MiB or this, if less.
        bytes_per_element: bytes of a gradient element, which turn the caps into elements.

    Raises:
        InputError: no policy has that name, or the cap is not positive.
    """
    if name == "threshold":
        require(cap_bytes > 0, "cap_bytes", cap_bytes, "above 0 bytes")
        first = min(cap_bytes, DDP_FIRST_CAP_BYTES)
        return Threshold(cap_bytes / bytes_per_element, first / bytes_per_element)
    plain: dict[str, Policy] = {"layerwise": Layerwise(), "single": Single(), "exact": Exact()}
    if name not in plain:
        raise InputError("policy", name, ", ".join(POLICIES))
    return plain[name]


def group(
    backward_s: Sequence[float],
    elements: Sequence[float],
    *,
    sparsify: Cost | None = None,
    communicate: Cost,
    policy: str | Policy = "exact",
) -> Grouping:
    """Groups the gradients of one backward pass.

    Args:
        backward_s: seconds of each layer's backward, in forward order.
        elements: gradient elements of each layer, in forward order.
        sparsify: seconds to sparsify a group of so many elements; None for dense groups.
        communicate: seconds to exchange a group of so many elements.
        policy: one of POLICIES, or a Policy.

    Raises:
        InputError: figures that do not match, are negative or not finite; an unknown policy.
    """
    problem = GroupingProblem(
        backward_s=backward_s, elements=elements, communicate=communicate, sparsify=sparsify
    )
    chosen = policy_named(policy) if isinstance(policy, str) else policy
    top = problem.num_layers - 1
    groups, start = [], 0
    for end in chosen.ends(problem):
        groups.append(tuple(range(top - start, top - end, -1)))
        start = end
    return Grouping(groups=tuple(groups), finish_s=finish_s(problem, tuple(groups)))
