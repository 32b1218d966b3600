"""Curves through measured points."""

from __future__ import annotations

import bisect
from collections.abc import Sequence


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
