"""A model as the planner sees it: a chain of layers and what crosses between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from autoplan.documents import STRICT, identity
from autoplan.errors import require
from autoplan.interpolation import interpolate
from autoplan.workload.cost_curve import CostCurve

SCHEMA: Literal["autoplan-workload/1"] = "autoplan-workload/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesCurve:
    """Measured bytes by the samples of a call, straight between the sizes measured."""

    __pydantic_config__ = STRICT

    samples: tuple[float, ...]
    """Samples per call, increasing, at least one point."""
    bytes: tuple[float, ...]
    """Bytes at each of them."""

    def __post_init__(self) -> None:
        """Refuses points that are out of order, negative, not finite, or not matched."""
        points = self.samples
        rising = bool(points) and points[0] > 0 and all(a < b for a, b in pairwise(points))
        sound = rising and math.isfinite(points[-1])
        require(sound, "samples", points, "positive numbers in rising order")
        sound = len(self.bytes) == len(points) and all(
            math.isfinite(each) and each >= 0 for each in self.bytes
        )
        require(sound, "bytes", self.bytes, f"{len(points)} finite numbers, at least 0")

    def at(self, samples: float) -> float:
        """Bytes of a call with `samples` samples."""
        return interpolate(self.samples, self.bytes, samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: what it costs to run and what it keeps."""

    __pydantic_config__ = STRICT

    name: str
    """What the framework or the publisher calls it."""
    forward: CostCurve
    """Seconds of the forward pass per call."""
    backward: CostCurve
    """Seconds of the backward pass (input and weight gradients) per call."""
    gradient_elements: int = 0
    """Elements of the gradients that replicas must exchange."""
    parameter_bytes: float = 0.0
    """Bytes of the parameters as they are stored for compute."""
    stash_bytes_per_sample: float = 0.0
    """Bytes kept from forward until backward, its output included, its input not."""
    workspace_bytes_per_sample: float = 0.0
    """Bytes that backward needs for a moment beyond the stash and the gradients it passes on."""
    workspace_bytes: float | None = None
    """The same whatever the samples, where it was measured: new gradients of the parameters."""
    workspace_curve: BytesCurve | None = None
    """Both together at the sizes measured: what is expected, where those two are an upper bound."""
    weight_gradient_share: float | None = None
    """Share of `backward` spent on weight gradients, where it was measured."""

    def __post_init__(self) -> None:
        """Refuses negative and non-finite figures."""
        require(bool(self.name.strip()), "name", self.name, "a name")
        elements = self.gradient_elements
        require(0 <= elements <= 2**53, "gradient_elements", elements, "0 to 2^53")
        for name in (
            "parameter_bytes",
            "stash_bytes_per_sample",
            "workspace_bytes_per_sample",
        ):
            value = getattr(self, name)
            require(math.isfinite(value) and value >= 0, name, value, "a finite number, at least 0")
        constant = self.workspace_bytes
        sound = constant is None or (math.isfinite(constant) and constant >= 0)
        require(sound, "workspace_bytes", constant, "a finite number, at least 0")
        share = self.weight_gradient_share
        require(share is None or 0 <= share <= 1, "weight_gradient_share", share, "0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a workload's figures came from."""

    __pydantic_config__ = STRICT

    source: str
    """The file, the module or the publication."""
    source_sha256: str | None = None
    """Hash of the file that was read."""
    device: str | None = None
    """What it was measured on."""
    framework: str | None = None
    """Name and version of the framework that ran the layers."""
    threads: int | None = None
    """Compute threads of the framework, on a CPU."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures must know: units assumed, derived values, caveats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A chain of layers, numbered 0..L-1 in forward order, and the L+1 cuts around them."""

    __pydantic_config__ = STRICT

    schema: Literal["autoplan-workload/1"] = SCHEMA
    name: str
    """What the model is called."""
    sample: str = "one sample"
    """What one sample is; batch sizes count these."""
    layers: tuple[Layer, ...]
    cut_bytes_per_sample: tuple[float, ...]
    """Bytes per sample that cross each cut forward: cut i lies before layer i, so there are L+1.

    Every tensor counts once at each cut between its producer and its last consumer; the same
    number of bytes crosses backward as gradients. The first and last cut are the model's input
    and output, which no stage sends.
    """
    provenance: Provenance = field(default_factory=lambda: Provenance(source="not stated"))

    def __post_init__(self) -> None:
        """Refuses a model without layers, or with cuts that do not match them."""
        require(bool(self.layers), "layers", self.layers, "at least one layer")
        cuts, expected = self.cut_bytes_per_sample, len(self.layers) + 1
        what = f"{expected} numbers, one per cut around {len(self.layers)} layers"
        require(len(cuts) == expected, "cut_bytes_per_sample", len(cuts), what)
        for i, value in enumerate(cuts):
            sound = math.isfinite(value) and value >= 0
            require(sound, f"cut_bytes_per_sample[{i}]", value, "a finite number, at least 0")

    @property
    def sha256(self) -> str:
        """The workload's identity."""
        return identity(self)
