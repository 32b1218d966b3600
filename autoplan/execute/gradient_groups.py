"""Gradient groups of a stage: which parameters, in which order, and who exchanges them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.clocks import StepClock

Floats = NDArray[np.float32]


class Gradients(Protocol):
    """The gradients of a stage's parameters, numbered in backward order of their layers."""

    sizes: tuple[int, ...]
    """Elements of each parameter."""

    def read(self, number: int, into: Floats) -> None:
        """Copies a parameter's gradient, zeros where it got none."""

    def write(self, number: int, values: Floats) -> None:
        """Replaces a parameter's gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """One group: consecutive parameters, and what the model says it costs."""

    parameters: tuple[int, int]
    """Half-open range of parameter numbers."""
    density: float
    layers: int
    """Layers whose parameters these are; the buffer of a group of one is shared with others."""
    sparsify_s: float
    handling_s: float
    exchange_s: float


class Exchange(Protocol):
    """How a stage's gradients become the sum over its replicas."""

    def begin(self, clock: StepClock) -> None:
        """A step starts."""

    def mark_ready(self, parameter: int) -> None:
        """A parameter's gradient is final; called in the thread that computes."""

    def finish(self) -> None:
        """Returns when all gradients are exchanged; raises what went wrong meanwhile."""

    def held_bytes(self) -> int:
        """Bytes of buffers and residuals beyond the framework's own count."""

    def close(self) -> None:
        """The stage is done with."""


class NoExchange:
    """A stage with one replica."""

    def begin(self, clock: StepClock) -> None:
        """Nothing to prepare."""

    def mark_ready(self, parameter: int) -> None:
        """Nothing waits for it."""

    def finish(self) -> None:
        """Nothing is under way."""

    def held_bytes(self) -> int:
        """No buffers."""
        return 0

    def close(self) -> None:
        """Nothing to end."""


class GroupOrder:
    """Which groups may be exchanged: each when all its parameters are ready, in planned order."""

    def __init__(self, groups: tuple[PlannedGroup, ...]) -> None:
        """Takes the groups in the order in which they go over the link."""
        self._groups = groups
        self._group_of = {
            number: g for g, group in enumerate(groups) for number in range(*group.parameters)
        }
        self.restart()

    def restart(self) -> None:
        """No parameter is ready."""
        self._waiting = [set(range(*group.parameters)) for group in self._groups]
        self._next = 0

    def due_after(self, parameter: int) -> Iterator[int]:
        """Groups that may go now that this parameter is ready too."""
        self._waiting[self._group_of[parameter]].discard(parameter)
        while self._next < len(self._groups) and not self._waiting[self._next]:
            self._next += 1
            yield self._next - 1

    def rest(self) -> Iterator[int]:
        """Groups that have not gone yet: those with parameters that the loss does not depend on."""
        while self._next < len(self._groups):
            self._next += 1
            yield self._next - 1
