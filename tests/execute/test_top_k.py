from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from autoplan.execute.top_k import top_k

FLOATS = st.floats(width=32, allow_nan=False)


def oracle(values, k):
    """Sorted by magnitude, the first of equals first."""
    order = np.argsort(-np.abs(values), kind="stable")
    return np.sort(order[:k])


@settings(deadline=None)  # the first call compiles
@given(arrays.arrays(np.float32, st.integers(1, 60), elements=FLOATS), st.data())
def test_selects_the_largest_magnitudes(values, data):
    k = data.draw(st.integers(1, len(values)))
    found = top_k(values, k)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, oracle(values, k))


@pytest.mark.parametrize("k", [1, 100, 5000, 100_000])
def test_agrees_with_sorting_on_a_large_gradient(k):
    values = np.random.default_rng(3).standard_normal(100_000).astype(np.float32) ** 3
    np.testing.assert_array_equal(top_k(values, k), oracle(values, k))


def test_equal_magnitudes_are_taken_from_the_front():
    np.testing.assert_array_equal(top_k(np.array([1, -1, 0, 1], np.float32), 2), [0, 1])


def test_what_is_not_finite_is_sent_first():
    values = np.array([3, np.nan, 2, -np.inf], np.float32)
    np.testing.assert_array_equal(top_k(values, 2), [1, 3])
