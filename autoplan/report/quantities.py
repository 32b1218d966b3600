"""Figures with units that fit their size."""

from __future__ import annotations

import math

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_NOTHING_S = 1e-12
"""Less than this is the rounding of a difference."""
_LEAST_SHARE = 1e-4
_ENDLESS_S = 1e7
"""More than this is told by its power of ten."""
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def seconds(value: float) -> str:
    """1.234 s, 56.7 ms, 8.90 us."""
    if abs(value) < _NOTHING_S:
        return "0 s"
    if not abs(value) < _ENDLESS_S:
        return f"{value:.3g} s"
    scale, unit = next((pair for pair in _TIMES if abs(value) >= pair[0]), _TIMES[-1])
    return f"{_digits(value / scale)} {unit}"


def size(value: float) -> str:
    """12.3 GiB, 456 MiB, 7 B."""
    for scale, unit in _BYTES:
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {unit}"
    return f"{value:.0f} B"


def count(value: float) -> str:
    """1.56 B, 123 M, 45."""
    for scale, unit in _COUNTS:
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {unit}"
    return f"{value:g}"


def percent(share: float) -> str:
    """12.3 %, 0 %, < 0.01 %."""
    if 0 < share < _LEAST_SHARE:
        return "< 0.01 %"
    return "0 %" if share == 0 else f"{_digits(100 * share)} %"


def _digits(value: float) -> str:
    """Three significant digits; more only before the decimal point."""
    places = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{min(places, 4)}f}"
