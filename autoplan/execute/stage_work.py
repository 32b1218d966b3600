"""What a rank does for its stage, and the emulated form of it: sleeping profiled seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.clocks import StepClock
from autoplan.execute.gradient_groups import Gradients
from autoplan.execute.step_costs import StageSeconds
from autoplan.execute.transport import Message
from autoplan.plan import Stage

Floats = NDArray[np.float32]
_MOST_EMULATED_BYTES = 65_536

Ready = Callable[[int], None]
"""Is told the number of each parameter whose gradient is final."""


class StageWork(Protocol):
    """The compute of one stage on one rank, microbatch by microbatch."""

    gradients: Gradients

    def begin(self, clock: StepClock) -> None:
        """A step starts."""

    def forward(self, microbatch: int, received: Message | None) -> Message | None:
        """Runs a forward on what the stage before sent; None is sent on by the last stage."""

    def backward(self, microbatch: int, received: Message | None, ready: Ready | None) -> Message:
        """Runs a backward; `ready` is told of final gradients, in the step's last backward."""

    def update(self) -> float | None:
        """Runs the optimizer; the step's loss on this rank's samples, on the last stage."""

    def close(self) -> dict[str, object]:
        """Ends the work on this plan; what was found out about it, JSON-ready."""


class EmulatedGradients:
    """Zeros of the right sizes, one parameter per layer that has gradients."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """Takes the elements of each parameter."""
        self.sizes = sizes

    def read(self, number: int, into: Floats) -> None:
        """Touches as many bytes as a real gradient would."""
        into[:] = 0.0

    def write(self, number: int, values: Floats) -> None:
        """Nothing to replace."""


class EmulatedWork:
    """Sleeps the profiled seconds of every layer and sends zeros.

    Over native links it sends as many bytes as real work would. Emulated links are slept, and may
    be faster than any that this machine has, so that over these a part stands for the whole.
    """

    def __init__(
        self, stage: Stage, seconds: StageSeconds, *, last: bool, emulated_link: bool
    ) -> None:
        """Keeps the seconds of a stage, and numbers its layers' gradients in backward order."""
        self._most_bytes = _MOST_EMULATED_BYTES if emulated_link else None
        self._stage, self._seconds, self._last = stage, seconds, last
        # Groups run backward, layers inside each of them forward.
        elements_L = [n for group in reversed(seconds.groups) for n in group.layer_elements]
        trained = [i for i in reversed(range(len(elements_L))) if elements_L[i] > 0]
        self._number = {layer: number for number, layer in enumerate(trained)}
        sizes = (elements_L[i] for i in trained)
        if self._most_bytes is not None:
            sizes = (min(size, self._most_bytes // 4) for size in sizes)
        self.gradients: Gradients = EmulatedGradients(tuple(sizes))
        self._received: Message | None = None
        self._clock: StepClock

    def begin(self, clock: StepClock) -> None:
        """A step starts."""
        self._clock = clock

    def forward(self, microbatch: int, received: Message | None) -> Message | None:
        """Sleeps the forwards of all layers."""
        self._received = received
        self._clock.begin_work()
        self._clock.spend(sum(self._seconds.forward_s_L) + sum(self._seconds.handling_s))
        if self._last:
            return None
        width = math.ceil(self._seconds.output_bytes_per_sample)
        if self._most_bytes is not None:
            width = min(width, self._most_bytes // self._seconds.samples)
        output = np.zeros((self._seconds.samples, width), dtype=np.uint8)
        return Message(arrays=(output,), needs_gradient=(True,))

    def backward(self, microbatch: int, received: Message | None, ready: Ready | None) -> Message:
        """Sleeps the backward of each layer; the gradient is as large as what was received."""
        before_s, after_s = self._seconds.handling_s
        self._clock.begin_work()
        self._clock.spend(
            after_s + (sum(self._seconds.forward_s_L) if self._stage.recompute else 0)
        )
        for layer in reversed(range(len(self._seconds.backward_s_L))):
            self._clock.spend(self._seconds.backward_s_L[layer])
            if ready is not None and layer in self._number:
                ready(self._number[layer])
        self._clock.spend(before_s)
        return Message(arrays=self._received.arrays if self._received is not None else ())

    def update(self) -> float | None:
        """Sleeps the optimizer's seconds."""
        self._clock.begin_work()
        self._clock.spend(self._seconds.update_s)
        return None

    def close(self) -> dict[str, object]:
        """Nothing was found out."""
        return {}
