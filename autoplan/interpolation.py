"""Curves through measured points."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def interpolate(
    points: Sequence[float], values: Sequence[float], at: float, at_zero: float | None = None
) -> float:
    """The value at a place: straight between points, the last slope (never falling) beyond them.

    Args:
        points: rising, above 0, at least one.
        values: one per point.
        at: the place, at least 0.
        at_zero: what the curve runs to below the first point; None keeps the first value there.
    """
    x, y = points, values
    if at <= x[0]:
        return y[0] if at_zero is None else at_zero + (y[0] - at_zero) * at / x[0]
    if at >= x[-1]:
        x0, y0 = (x[-2], y[-2]) if len(x) > 1 else (0.0, at_zero or 0.0)
        return y[-1] + max(0.0, y[-1] - y0) / (x[-1] - x0) * (at - x[-1])
    i = bisect.bisect_right(x, at)
    return y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])


def interpolate_many(
    points: Sequence[float], values: Sequence[float], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`interpolate` for each element of an array of any shape, to the last bit."""
    if len(points) == 1:
        beyond = max(0.0, values[0]) / points[0]
        return values[0] + beyond * np.maximum(at - points[0], 0.0)
    x, y = np.array(points, dtype=np.float64), np.array(values, dtype=np.float64)
    i = np.clip(np.searchsorted(x, at, side="right"), 1, len(x) - 1)
    between = y[i - 1] + (y[i] - y[i - 1]) * (at - x[i - 1]) / (x[i] - x[i - 1])
    last = y[-1] + max(0.0, float(y[-1] - y[-2])) / float(x[-1] - x[-2]) * (at - x[-1])
    found: NDArray[np.float64] = np.where(at <= x[0], y[0], np.where(at >= x[-1], last, between))
    return found


def line_below(points: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """A line that `interpolate` is nowhere below: its value at 0, at least 0, and its slope.

    The slope is at least 0. Of all such lines, one that is nearest in the mean of its shares of the
    values.

    Args:
        points: rising, above 0, at least one.
        values: above 0, one per point.
    """
    x, y = np.array(points, dtype=np.float64), np.array(values, dtype=np.float64)
    before = (float(x[-2]), float(y[-2])) if len(x) > 1 else (0.0, 0.0)
    last_slope = max(0.0, float(y[-1]) - before[1]) / (float(x[-1]) - before[0])
    steepest = min(last_slope, float((y / x).min()))
    # The mean is concave in the slope, and bends only where the line touches two points.
    i, j = np.triu_indices(len(x), 1)
    slopes = (y[j] - y[i]) / (x[j] - x[i])
    slopes = np.concatenate([[steepest, 0.0], slopes[(slopes > 0) & (slopes < steepest)]])
    heights = np.maximum(0.0, (y - slopes[:, None] * x).min(axis=1))
    shares = ((heights[:, None] + slopes[:, None] * x) / y).mean(axis=1)
    best = int(np.argmax(shares))
    return float(heights[best]), float(slopes[best])
