"""From clock readings of many calls on a machine of wandering speed to cost curves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.execute.layer_steps import Call
from autoplan.workload import CostCurve

_SHORTEST_S = 1e-9
"""A call takes some time even where the clock did not tick."""
_LEAST_SHARE = 0.1
"""Of a reading that counts at least, whatever starting it costs."""

Reading = tuple[float, float]
"""(wall seconds, CPU seconds of the measuring thread)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The seconds of every call in every round, before and after the machine's wander is removed.

    Axes: C calls (forward and backward of each layer), R rounds.
    """

    sizes: tuple[int, ...]
    """Samples per call, rising."""
    calls: tuple[Call, ...]
    """What the rows of the arrays are."""
    raw_s_CR: dict[int, NDArray[np.float64]]
    """Per size, the seconds read."""
    steady_s_CR: dict[int, NDArray[np.float64]]
    """Per size, the seconds at the machine's median speed."""
    whole_s: dict[int, float]
    """Per size, median seconds of the uncut model at the machine's median speed."""
    seam_s: float
    """Seconds that a backward by layers takes more than one in a piece, per cut between them."""
    wander: float
    """Half the interquartile range of the rounds' speed, over the median."""
    wall_per_thread_s: float
    """Wall seconds over CPU seconds of the measuring thread, all calls together."""
    cpu_clock: bool
    """Whether the seconds are the thread's CPU seconds."""

    def curve(self, call: Call) -> CostCurve:
        """Medians, half interquartile ranges, and the intercept of a straight line.

        A stage's backward is one piece, so that what each layer's own costs to start is taken out.
        """
        row = self.calls.index(call)
        points = [self.steady_s_CR[n][row] for n in self.sizes]
        seam_s = self._seam_share_s if call[0] == "backward" else 0.0
        medians = tuple(
            max(float(np.median(point)) - seam_s, _LEAST_SHARE * float(np.median(point)))
            for point in points
        )
        _, intercept = statistics.linear_regression(self.sizes, medians)
        return CostCurve(
            samples=tuple(float(n) for n in self.sizes),
            seconds=medians,
            overhead_s=min(max(intercept, 0.0), medians[0]),
            spread_s=tuple(_half_iqr(point) for point in points),
        )

    def noise(self, *, steady: bool) -> float:
        """Half interquartile range over median, the median over all calls and sizes."""
        every = self.steady_s_CR if steady else self.raw_s_CR
        rows = [row for table in every.values() for row in table]
        return statistics.median(_half_iqr(row) / float(np.median(row)) for row in rows)

    def excess_over_whole(self) -> float:
        """How far the layers add up to more than the uncut model at the largest size, a share."""
        summed_s = sum(self.curve(call).seconds[-1] for call in self.calls)
        return summed_s / self.whole_s[self.sizes[-1]] - 1

    @property
    def _seam_share_s(self) -> float:
        """A layer's share of the cuts, of which there is one less than layers."""
        layers = len(self.calls) / 2
        return self.seam_s * (layers - 1) / layers


def steady_readings(
    readings: Mapping[int, Mapping[Call, Sequence[Reading]]],
    whole: Mapping[int, Sequence[Reading]],
    *,
    cpu_clock: bool,
) -> Readings:
    """Divides out what slows all calls of a round, or all calls of one step, alike.

    A shared host slows a virtual machine by tens of per cent for seconds at a time, in CPU time
    too (its neighbours use the same cores and caches). Each round holds every size, so: first
    every reading is divided by its round's factor, the median over all calls of reading over that
    call's median; then, per size, by the same factor of its step. Both are 1 on the median round.
    The factors come from the calls themselves, so that a model of one or two layers looks less
    noisy than it is.

    Args:
        readings: per size and call, one reading per round.
        whole: of the uncut model per size, one per round.
        cpu_clock: take the thread's CPU seconds, not the wall's.
    """
    sizes = tuple(sorted(readings))
    calls = tuple(readings[sizes[0]])
    clock = 1 if cpu_clock else 0
    both = {n: np.array([readings[n][call] for call in calls]) for n in sizes}
    raw_s_CR = {n: np.maximum(both[n][:, :, clock], _SHORTEST_S) for n in sizes}
    round_factor_R = _common_factor(np.concatenate([raw_s_CR[n] for n in sizes]))
    by_round_s_CR = {n: raw_s_CR[n] / round_factor_R for n in sizes}
    whole_s_R = {
        n: np.array([reading[clock] for reading in whole[n]]) / round_factor_R for n in sizes
    }
    wall_s, thread_s = sum(table.sum(axis=(0, 1)) for table in both.values())
    return Readings(
        sizes=sizes,
        calls=calls,
        raw_s_CR=raw_s_CR,
        steady_s_CR={n: by_round_s_CR[n] / _common_factor(by_round_s_CR[n]) for n in sizes},
        whole_s={n: float(np.median(whole_s_R[n])) for n in sizes},
        seam_s=_seam_s(by_round_s_CR, whole_s_R, len(calls) // 2),
        wander=_half_iqr(round_factor_R) / float(np.median(round_factor_R)),
        wall_per_thread_s=float(wall_s / max(thread_s, _SHORTEST_S)),
        cpu_clock=cpu_clock,
    )


def _seam_s(
    layers_s_CR: Mapping[int, NDArray[np.float64]],
    whole_s_R: Mapping[int, NDArray[np.float64]],
    layers: int,
) -> float:
    """Seconds per cut; small sizes count most, since noise grows with the samples."""
    if layers < 2:
        return 0.0
    excess_s = [float(np.median(layers_s_CR[n].sum(axis=0) - whole_s_R[n])) for n in layers_s_CR]
    weights = [n**-2.0 for n in layers_s_CR]
    return max(0.0, float(np.average(excess_s, weights=weights)) / (layers - 1))


def _common_factor(seconds_CR: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per round, by how much its calls are slower than their medians; 1 on the median round."""
    ratios_CR = seconds_CR / np.median(seconds_CR, axis=1, keepdims=True)
    factor_R: NDArray[np.float64] = np.median(ratios_CR, axis=0)
    return factor_R / np.median(factor_R)


def _half_iqr(values: NDArray[np.float64]) -> float:
    q1, q3 = np.quantile(values, [0.25, 0.75])
    return float(q3 - q1) / 2
