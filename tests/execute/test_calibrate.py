from __future__ import annotations

import pytest
from builders import stage
from real_runs import pipeline, predictor

from autoplan.calibration import scaled_devices
from autoplan.errors import InputError
from autoplan.execute.calibrate import fit_factor
from autoplan.predict import Predictor

PLANS = [
    pipeline(stage(0, 6), microbatches=2),
    pipeline(stage(0, 3), stage(3, 6), microbatches=4),
    pipeline(stage(0, 6, replicas=2), microbatches=2),
]


def scaled(factor):
    made = predictor(layer_s=1e-3)
    return Predictor(*scaled_devices(made.workload, made.cluster, made.job, factor))


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.31])
def test_the_factor_behind_some_steps_is_found(factor):
    steps = [(plan, scaled(factor).score(plan).step_s) for plan in PLANS]
    assert fit_factor(scaled, steps) == pytest.approx(factor, rel=1e-6)


def test_one_strange_run_of_three_does_not_move_the_factor_far():
    steps = [(plan, scaled(1.2).score(plan).step_s) for plan in PLANS]
    strange = [*steps[:2], (PLANS[2], 5 * steps[2][1])]
    assert fit_factor(scaled, strange) == pytest.approx(1.2, rel=1e-6)


@pytest.mark.parametrize("steps", [[], [(PLANS[0], 1e9)], [(PLANS[0], 1e-9)]])
def test_steps_that_no_factor_explains_are_refused(steps):
    with pytest.raises(InputError, match=r"^calibration: found measured steps of"):
        fit_factor(scaled, steps)
