"""Seconds of one call as a function of the samples in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoplan.documents import STRICT
from autoplan.errors import require
from autoplan.interpolation import interpolate


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Measured seconds per call at some numbers of samples, interpolated between them.

    Time is affine, not linear, in the microbatch size (facts/realruns.md, section 3b: planning from
    the largest size alone triples the error), so the points are kept. Below the first point the
    curve runs straight to `overhead_s` at zero samples; beyond the last one it keeps the slope of
    the last segment.
    """

    __pydantic_config__ = STRICT

    samples: tuple[float, ...]
    """Samples per call, increasing, at least one point."""
    seconds: tuple[float, ...]
    """Median seconds per call at each of them."""
    overhead_s: float = 0.0
    """Seconds that a call takes however small it is; at most the first point's."""
    spread_s: tuple[float, ...] | None = None
    """Half the interquartile range of the measurements, for each point, where it is known."""

    def __post_init__(self) -> None:
        """Refuses points that are out of order, negative, not finite, or not matched."""
        require(bool(self.samples), "samples", self.samples, "at least one number of samples")
        rising = all(a < b for a, b in zip(self.samples, self.samples[1:], strict=False))
        sound = all(math.isfinite(n) and n > 0 for n in self.samples)
        require(rising and sound, "samples", self.samples, "positive numbers in rising order")
        matched = len(self.seconds) == len(self.samples)
        require(matched, "seconds", self.seconds, f"{len(self.samples)} numbers, one per samples")
        sound = all(math.isfinite(s) and s >= 0 for s in self.seconds)
        require(sound, "seconds", self.seconds, "finite numbers of at least 0")
        sound = 0 <= self.overhead_s <= self.seconds[0]
        require(sound, "overhead_s", self.overhead_s, f"0 to {self.seconds[0]} (the first point)")
        if self.spread_s is not None:
            sound = len(self.spread_s) == len(self.samples) and all(s >= 0 for s in self.spread_s)
            require(sound, "spread_s", self.spread_s, f"{len(self.samples)} numbers of at least 0")

    @classmethod
    def proportional(cls, seconds: float, samples: float = 1.0) -> CostCurve:
        """A curve through one point and the origin, for profiles that hold a single size."""
        return cls(samples=(samples,), seconds=(seconds,))

    def at(self, samples: float) -> float:
        """Seconds of a call with `samples` samples."""
        return interpolate(self.samples, self.seconds, samples, self.overhead_s)

    def extrapolates(self, samples: float) -> bool:
        """Whether `samples` lies outside the measured sizes."""
        return not self.samples[0] <= samples <= self.samples[-1]
