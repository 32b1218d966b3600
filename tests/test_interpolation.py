import pytest

from autoplan.interpolation import interpolate


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
