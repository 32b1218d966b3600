"""Whether published times and sizes can mean what their format says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoplan.errors import InputError, words

TimeUnit = Literal["s", "ms", "us"]

SECONDS_PER: dict[TimeUnit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Seconds in one of each unit that a file may state its times in."""

FLOP_PER_PARAMETER = 6.0
"""Multiply and add, once forward and twice backward, for each use of a parameter."""

LEAST_FLOP_PER_S = 1e7
"""Below what any processor that is used for training reaches, a thousandth of one CPU core."""

MOST_FLOP_PER_S = 1e16
"""Above what one accelerator reaches in any number format."""

CALL_OVERHEAD_S = 10e-3
"""Time that a layer may take however little it computes."""

LARGEST_RATIO = 1000.0
"""Between compute and communication; beyond it a unit is more likely wrong than right."""

ASSUMED_BYTES_PER_S = (1e9, 1e11)
"""Slowest and fastest link that is considered where a file names no bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTotals:
    """What a file says of one run of a whole model, for the choice of its time unit."""

    time: float
    """Forward and backward of all layers, in the file's unit."""
    parameter_elements: float
    samples: int = 1
    """Samples in that run, 1 where the file does not say."""
    num_layers: int

    def bounds_s(self) -> tuple[float, float]:
        """The shortest and the longest time that is plausible for the run."""
        flop = FLOP_PER_PARAMETER * self.parameter_elements * self.samples
        overhead_s = self.num_layers * CALL_OVERHEAD_S
        return flop / MOST_FLOP_PER_S, flop / LEAST_FLOP_PER_S + overhead_s

    def plausible(self, unit: TimeUnit) -> bool:
        """Whether the time, read in `unit`, lies within the bounds."""
        shortest_s, longest_s = self.bounds_s()
        return shortest_s <= self.time * SECONDS_PER[unit] <= longest_s


def choose_time_unit(
    totals: TimeTotals, documented: TimeUnit, declared: TimeUnit | None
) -> tuple[TimeUnit, tuple[str, ...]]:
    """The unit of a file's times, and what a reader of the figures must know about it.

    Published profiles have been off by 1000x (Piper's gnmt.json holds milliseconds where its
    format says seconds), and nothing in such a file says so. Arithmetic does: every parameter is
    used at least once per sample, forward and backward, so a run takes at least 6 FLOP per
    parameter and sample. The rate that this implies is a lower bound of the real one (convolutions
    and sequences use a parameter many times, a minibatch of unknown size more often still), so the
    window from 1e7 to 1e16 FLOP/s is wide: gnmt.json read as seconds would run at 3e6 FLOP/s. A
    model without parameters, or all of whose times are 0, cannot be judged and keeps the
    documented unit.

    Args:
        totals: sums over the file.
        documented: the unit that the format's publisher states.
        declared: the unit that the user states; it is always taken.

    Raises:
        InputError: no unit is plausible and none was declared.
    """
    if declared:
        if _unjudged(totals) or totals.plausible(declared):
            return declared, (f"times read as {declared}, as declared",)
        return declared, (f"warning: times read as {declared}, as declared, {_doubt(totals)}",)
    if _unjudged(totals):
        return documented, (f"times read as {documented}, as the format documents; not checked",)
    if totals.plausible(documented):
        return documented, (f"times read as {documented}, as the format documents",)
    units: list[TimeUnit] = ["s", "ms", "us"]
    for unit in sorted(units, key=lambda unit: abs(units.index(unit) - units.index(documented))):
        if totals.plausible(unit):
            note = f"warning: the format documents {documented}, which is {_doubt(totals)}"
            return unit, (f"{note}; times read as {unit}; declare time_unit to settle it",)
    shortest_s, longest_s = totals.bounds_s()
    allowed = f"{shortest_s:.2g} to {longest_s:.3g} s in s, ms or us; declare time_unit to insist"
    raise InputError("time_unit", words(f"times that sum to {totals.time:g}"), allowed)


def imbalance_notes(
    compute_s: float, sent_bytes: float, bytes_per_s: float | None
) -> tuple[str, ...]:
    """A warning where communication and compute differ by more than 1000x.

    Args:
        compute_s: forward and backward of all layers.
        sent_bytes: all tensors between layers, each once; as much goes back as gradients.
        bytes_per_s: the file's own bandwidth; without one it must be off at every bandwidth
            from 1e9 to 1e11 bytes/s.
    """
    if not compute_s or not sent_bytes:
        return ()
    slowest, fastest = (bytes_per_s, bytes_per_s) if bytes_per_s else ASSUMED_BYTES_PER_S
    most, least = (2 * sent_bytes / rate / compute_s for rate in (slowest, fastest))
    if most >= 1 / LARGEST_RATIO and least <= LARGEST_RATIO:
        return ()
    span = f"{least:.2g}" if bytes_per_s else f"{least:.2g} to {most:.2g}"
    where = f"{slowest:.3g} bytes/s" if bytes_per_s else f"{slowest:g} to {fastest:g} bytes/s"
    return (
        f"warning: sending every tensor takes {span} times the compute at {where}; "
        "a unit may be wrong",
    )


def _unjudged(totals: TimeTotals) -> bool:
    return totals.time <= 0 or totals.parameter_elements <= 0


def _doubt(totals: TimeTotals) -> str:
    shortest_s, longest_s = totals.bounds_s()
    return (
        f"implausible for {totals.parameter_elements:.3g} parameters "
        f"({totals.time:g} in all; {shortest_s:.2g} to {longest_s:.3g} s expected)"
    )
