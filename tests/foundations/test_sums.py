"""Sums by products: those of a loop, and the vector of ones that makes them."""

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_array_equal
from strategies import assert_close, rngs, shapes

from numpy_transformer.foundations.sums import column_sums, ones, row_sums


@given(rngs, shapes())
def test_row_sums_are_those_of_a_loop(rng, shape):
    x = rng.normal(size=shape)
    expected = np.empty(shape[:-1])
    for place in np.ndindex(*shape[:-1]):
        expected[place] = sum(float(number) for number in x[place])
    assert_close(row_sums(x), expected)


@given(rngs, shapes(2, 2))
def test_column_sums_are_those_of_a_loop(rng, shape):
    x = rng.normal(size=shape)
    expected = np.zeros(shape[1])
    for row in x:
        expected += row
    assert_close(column_sums(x), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_the_dtype_stays(dtype):
    x = np.ones((3, 2), dtype)
    assert row_sums(x).dtype == column_sums(x).dtype == dtype


def test_nothing_adds_up_to_zero():
    assert_array_equal(row_sums(np.ones((3, 0))), np.zeros(3))
    assert_array_equal(column_sums(np.ones((0, 3))), np.zeros(3))


def test_the_ones_are_made_but_once_and_nobody_changes_them():
    vector = ones(5, np.dtype(np.float32))
    assert vector is ones(5, np.dtype(np.float32)) is not ones(5, np.dtype(np.float64))
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 2
