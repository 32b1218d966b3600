"""Figures that compare predicted with measured steps of real runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoplan import Plan
from autoplan.execute.protocol import noise_floor
from autoplan.execute.real_run import RealRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One plan, what it was predicted to take, and its run."""

    name: str
    plan: Plan
    predicted_s: float
    """As the profile has it."""
    calibrated_s: float
    """With the factor fitted to a few of the runs, none of which is this one if `fitted` is not."""
    undisturbed_s: float
    """With the factor fitted to the quickest rounds of the same runs."""
    fitted: bool
    predicted_bytes: tuple[float, ...]
    run: RealRun

    @property
    def measured_s(self) -> float:
        """Median of the rounds."""
        found = self.run.median_s
        assert found is not None
        return found

    @property
    def error(self) -> float:
        """Of the prediction without the factor."""
        return self.predicted_s / self.measured_s - 1

    @property
    def calibrated_error(self) -> float:
        """Of the prediction with the factor."""
        return self.calibrated_s / self.measured_s - 1

    @property
    def undisturbed_error(self) -> float:
        """Of the prediction for a step that nothing slows, beside the quickest round.

        What others do to a machine only adds to a step. An error that is in the median and not
        here is the machine's, not the model's.
        """
        return self.undisturbed_s / min(self.run.step_s) - 1

    @property
    def memory_error(self) -> float | None:
        """Of the stage whose peak is furthest from its prediction."""
        pairs = zip(self.predicted_bytes, self.run.peak_memory_bytes, strict=False)
        errors = [predicted / measured - 1 for predicted, measured in pairs]
        return max(errors, key=abs, default=None)


def mape(errors: Sequence[float]) -> float:
    """Mean of their sizes; 0 of none."""
    return statistics.fmean(map(abs, errors)) if errors else 0.0


def largest(errors: Sequence[float]) -> float:
    """The largest of their sizes; 0 of none."""
    return max(map(abs, errors), default=0.0)


def apart(plans: Sequence[Measured], floor: float) -> list[Measured]:
    """The fastest plan, the next one that is no tie of it, and so on."""
    kept: list[Measured] = []
    for each in sorted(plans, key=lambda each: each.measured_s):
        if not kept or each.measured_s > kept[-1].measured_s * (1 + floor):
            kept.append(each)
    return kept


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation; 1 of fewer than three."""
    if len(a) < 3:
        return 1.0
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def regret(plans: Sequence[Measured]) -> float:
    """How much slower the plan that is predicted fastest is than the fastest, measured."""
    chosen = min(plans, key=lambda each: each.calibrated_s)
    return chosen.measured_s / min(each.measured_s for each in plans) - 1


def floor_of(plans: Sequence[Measured]) -> float:
    """Share by which medians differ by chance."""
    return noise_floor([each.run for each in plans]) or 0.0
