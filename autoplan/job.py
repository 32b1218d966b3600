"""What one training step has to do, whichever plan runs it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autoplan.documents import STRICT, identity
from autoplan.errors import require

_STATES_PER_ELEMENT = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
_BYTES_FLOAT32 = 4
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The batch, the optimizer and the number formats of one step."""

    __pydantic_config__ = STRICT

    global_batch: int
    """Samples per optimizer update, over all replicas and microbatches."""
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = "adamw"
    """Decides the bytes of optimizer state per gradient element."""
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """Format of parameters and gradients; 16-bit formats keep a float32 master copy."""
    memory_headroom: float = 0.1
    """Share of a device's memory left free for what no model sees (context, fragmentation)."""
    optimizer_s_per_element: float | None = None
    """Measured seconds of the update per element; by default derived from memory bandwidth."""

    def __post_init__(self) -> None:
        """Refuses batches below one sample and shares outside [0, 1)."""
        sound = 1 <= self.global_batch < 2**31
        require(sound, "global_batch", self.global_batch, "1 to 2147483647 samples")
        known = self.optimizer in _STATES_PER_ELEMENT
        require(known, "optimizer", self.optimizer, ", ".join(_STATES_PER_ELEMENT))
        require(self.precision in _BYTES, "precision", self.precision, ", ".join(_BYTES))
        sound = 0 <= self.memory_headroom < 1
        require(sound, "memory_headroom", self.memory_headroom, "at least 0, below 1")
        rate = self.optimizer_s_per_element
        sound = rate is None or (math.isfinite(rate) and rate >= 0)
        require(sound, "optimizer_s_per_element", rate, "a finite number of seconds, at least 0")

    @property
    def gradient_bytes_per_element(self) -> int:
        """Bytes of one gradient element, in memory and on the wire."""
        return _BYTES[self.precision]

    @property
    def optimizer_bytes_per_element(self) -> int:
        """Bytes of optimizer state per element, with the float32 master copy of 16-bit formats.

        Mixed precision with Adam comes to 2 + 2 + 12 = 16 bytes per parameter, which fits 90
        memory readings of zero-bubble runs (facts/costmodels.md section 0 item 7).
        """
        copies = _STATES_PER_ELEMENT[self.optimizer] + (self.precision != "float32")
        return copies * _BYTES_FLOAT32

    @property
    def update_bytes_per_element(self) -> int:
        """Bytes that the update reads and writes per element; it is bound by memory bandwidth."""
        parameter = 2 * _BYTES_FLOAT32 + (0 if self.precision == "float32" else 2)
        states = 2 * _STATES_PER_ELEMENT[self.optimizer] * _BYTES_FLOAT32
        return parameter + self.gradient_bytes_per_element + states

    @property
    def sha256(self) -> str:
        """The job's identity."""
        return identity(self)
