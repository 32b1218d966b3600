"""Fits the factor of a calibration to a few real runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from autoplan.calibration import Calibration, scaled_devices
from autoplan.errors import InputError, words
from autoplan.execute.verification import Verification
from autoplan.plan import Plan
from autoplan.predict import Predictor
from autoplan.search.experiment import Experiment

_STEPS = 40
"""Halvings of an interval of three decades, to far below what any clock can tell."""
_LEAST, _MOST = 1 / 32, 32.0


def calibration_of(verification: Verification, experiment: Experiment) -> Calibration:
    """The calibration that the plans of a verification ask for, on top of the experiment's own.

    Raises:
        InputError: no plan ran, or no factor explains the steps.
    """
    measured = verification.measured
    parts = (experiment.workload, experiment.cluster, experiment.job)

    def scaled(factor: float) -> Predictor:
        return Predictor(*scaled_devices(*parts, factor))

    steps = [(each.plan, each.run.median_s or 0.0) for each in measured]
    factor = fit_factor(scaled, steps)
    after = scaled(factor)
    before = experiment.calibration.device_factor if experiment.calibration else 1.0
    return Calibration(
        device_factor=before * factor,
        clock=verification.clock,
        plans_sha256=tuple(plan.sha256 for plan, _ in steps),
        errors_before=tuple(each.error or 0.0 for each in measured),
        errors_after=tuple(after.score(plan).step_s / step_s - 1 for plan, step_s in steps),
        workload=experiment.workload.name,
        device=experiment.cluster.device.name,
    )


def fit_factor(
    scaled: Callable[[float], Predictor], measured: Sequence[tuple[Plan, float]]
) -> float:
    """The factor on device seconds with which the median of predicted over measured steps is 1.

    A step grows with the factor, though not in proportion, since transfers stay as they are.

    Args:
        scaled: the predictor with a factor on device seconds (`calibration.scaled_devices`).
        measured: plans, and the seconds of their steps in real runs.

    Raises:
        InputError: no factor within a factor of 32 of the files explains the runs.
    """

    def excess(factor: float) -> float:
        predictor = scaled(factor)
        ratios = [predictor.score(plan).step_s / step_s for plan, step_s in measured]
        return statistics.median(ratios) - 1

    low, high = _LEAST, _MOST
    if not measured or excess(low) > 0 or excess(high) < 0:
        found = words("measured steps of " + (", ".join(f"{s:.3g} s" for _, s in measured) or "0"))
        allowed = f"steps that device seconds times {_LEAST:g} to {_MOST:g} explain"
        raise InputError("calibration", found, allowed)
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return math.sqrt(low * high)
