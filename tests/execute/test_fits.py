from __future__ import annotations

import numpy as np
import pytest

from autoplan.execute.fits import fit_line

SIZES = np.geomspace(1e3, 1e7, 9)
COLUMNS = np.stack([np.ones(9), SIZES], axis=1)


def test_points_on_a_line_give_the_line():
    fit = fit_line(COLUMNS, 2e-4 + 3e-10 * SIZES)
    assert fit.coefficients == pytest.approx((2e-4, 3e-10), rel=1e-9)
    assert fit.largest_residual < 1e-9


def test_a_disturbed_point_hardly_moves_the_line_and_shows_as_residual():
    values = 2e-4 + 3e-10 * SIZES
    values[4] *= 3
    fit = fit_line(COLUMNS, values)
    assert fit.coefficients == pytest.approx((2e-4, 3e-10), rel=0.05)
    assert fit.largest_residual == pytest.approx(2 / 3, rel=0.05)
    assert fit.median_residual < 0.05


def test_no_coefficient_is_negative():
    fit = fit_line(COLUMNS, 3e-10 * SIZES - 1e-8)
    assert fit.coefficients[0] == 0.0
    assert fit.coefficients[1] > 0
