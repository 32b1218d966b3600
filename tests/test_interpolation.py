import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.interpolation import interpolate, interpolate_many, line_below


@pytest.mark.parametrize(
    ("at", "at_zero", "value"),
    [
        (1, None, 4.0),
        (1, 2.0, 3.0),
        (0, 2.0, 2.0),
        (2, None, 4.0),
        (3, None, 5.0),
        (4, None, 6.0),
        (6, None, 6.0),
        (8, None, 6.0),
        (10, None, 6.0),
    ],
)
def test_straight_between_points_and_level_or_to_zero_outside(at, at_zero, value):
    assert interpolate((2, 4, 8), (4.0, 6.0, 6.0), at, at_zero) == value


def test_the_last_slope_goes_on_and_never_falls():
    assert interpolate((2, 4), (4.0, 6.0), 6) == 8.0
    assert interpolate((2, 4), (6.0, 4.0), 6) == 4.0


def test_one_point_makes_a_line_from_zero():
    assert interpolate((2,), (4.0,), 4) == 8.0
    assert interpolate((2,), (4.0,), 4, 1.0) == 7.0


@st.composite
def curves(draw):
    """Rising places, each with a value above 0 that need not rise."""
    points = sorted(draw(st.sets(st.floats(1e-3, 1e9), min_size=1, max_size=8)))
    value = st.floats(1e-6, 1e3)
    return points, draw(st.lists(value, min_size=len(points), max_size=len(points)))


places = st.lists(st.floats(0, 1e10), min_size=1, max_size=20)


@given(curves(), places)
def test_many_places_at_once_give_the_same_to_the_last_bit(curve, at):
    at = [*at, *curve[0]]
    expected = [interpolate(*curve, each) for each in at]
    assert interpolate_many(*curve, np.array(at)).tolist() == expected


@given(curves(), places)
def test_no_curve_goes_below_its_line(curve, at):
    height, slope = line_below(*curve)
    assert min(height, slope) >= 0
    for each in [*at, *curve[0]]:
        assert height + slope * each <= interpolate(*curve, each) * (1 + 1e-9)


def test_the_line_below_a_line_is_that_line_and_below_a_bend_the_nearer_part_of_it():
    assert line_below((1.0, 2.0, 4.0), (3.0, 4.0, 6.0)) == pytest.approx((2.0, 1.0))
    assert line_below((1.0, 10.0, 20.0, 40.0), (5.0, 5.0, 10.0, 20.0)) == (0.0, 0.5)
    assert line_below((1.0, 2.0, 3.0), (5.0, 5.0, 5.0)) == (5.0, 0.0)
    assert line_below((2.0,), (3.0,)) == (0.0, 1.5)
