"""The front of step time and memory: which plans are on it, and where it may have more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from autoplan.prediction import ROUNDING
from autoplan.search.refine import Candidate


class Front:
    """The plans so far that no other beats both in step time and in memory of a device."""

    def __init__(self, available_bytes: float, *, in_any_order: bool = False) -> None:
        """Starts empty.

        Args:
            available_bytes: plans that need more are never on it.
            in_any_order: of plans that are equal in both the same one stays, whichever comes first.
        """
        self.available_bytes, self._in_any_order = available_bytes, in_any_order
        self.points: list[Candidate] = []
        """The fastest first, the leanest last."""

    def add(self, found: Candidate) -> None:
        """Puts a plan on the front, if it belongs there, in place of those that it beats."""
        step_s, peak_bytes = found.score.step_s, found.score.peak_bytes
        fits = peak_bytes <= self.available_bytes and math.isfinite(step_s)
        if not (fits and found.score.keeps_limits):
            return
        if any(
            point.score.step_s <= step_s * (1 + ROUNDING)
            and point.score.peak_bytes <= peak_bytes * (1 + ROUNDING)
            and not (self._in_any_order and _is_before(found, point))
            for point in self.points
        ):
            return
        others = [
            point
            for point in self.points
            if step_s > point.score.step_s * (1 + ROUNDING)
            or peak_bytes > point.score.peak_bytes * (1 + ROUNDING)
        ]
        # Assigned at once, so that an interruption loses none.
        self.points = sorted([*others, found], key=lambda point: point.score.step_s)


def _is_before(one: Candidate, other: Candidate) -> bool:
    """Whether a plan equals another in both figures and has the lesser hash."""
    equal = (
        other.score.step_s * (1 + ROUNDING) >= one.score.step_s
        and other.score.peak_bytes * (1 + ROUNDING) >= one.score.peak_bytes
        and one.score.step_s * (1 + ROUNDING) >= other.score.step_s
        and one.score.peak_bytes * (1 + ROUNDING) >= other.score.peak_bytes
    )
    return equal and one.plan != other.plan and one.plan.sha256 < other.plan.sha256


Searched = tuple[float, float]
"""Of a memory limit that was looked within, the memory of the fastest plan found, 0 for none, and
the limit: no plan between the two is faster."""


def open_limit(
    points: Sequence[Candidate],
    searched: Sequence[Searched],
    band: tuple[float, float] = (0.0, math.inf),
) -> float | None:
    """A memory limit to look within next; None where nothing is left between the points.

    Args:
        points: the front, the fastest first.
        searched: the earlier limits.
        band: of memory, to which the limit must belong.
    """
    peaks = [point.score.peak_bytes for point in points] + [0.0]
    widest, limit = 1.0, None
    for above, lower in pairwise(peaks):
        top, below = min(above * (1 - 2 * ROUNDING), band[1]), max(lower, band[0])
        if top <= below:
            continue
        untouched = True
        for low, high in sorted(searched, key=lambda pair: pair[1], reverse=True):
            if low < top <= high:
                top, untouched = low * (1 - 2 * ROUNDING), False
            elif below < high < top:
                untouched = False
        if top <= below:
            continue
        # Below the leanest plan there is room for a single look, at the very top.
        width = top / below if below > 0 else 1 + ROUNDING
        if width > widest:
            widest, limit = width, top
            if untouched and below > 0:
                limit = math.sqrt(top * below)
    return limit


def thinned(points: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most so many points: those whose loss would cost the least are left out, never the ends.

    A point's loss costs the product of the seconds and the bytes by which its neighbours are worse.
    """
    kept = list(points)
    while len(kept) > max(most, 2):
        losses = [
            (after.score.step_s - point.score.step_s)
            * (before.score.peak_bytes - point.score.peak_bytes)
            for before, point, after in zip(kept, kept[1:], kept[2:], strict=False)
        ]
        del kept[1 + min(range(len(losses)), key=losses.__getitem__)]
    return kept


def bands(points: Sequence[Candidate], count: int) -> list[tuple[float, float]]:
    """The memory between the ends of a front in so many bands, of equal ratios, the leanest first.

    The first reaches down to nothing and the last up without end.
    """
    low, high = points[-1].score.peak_bytes, points[0].score.peak_bytes
    inner = [low * (high / low) ** (k / count) for k in range(1, count)] if low > 0 else []
    edges = [0.0, *inner, math.inf]
    return list(pairwise(edges))
