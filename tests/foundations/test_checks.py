"""What is let in at the door, what is refused, and what the refusal says."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from numpy_transformer.foundations.checks import (
    as_float, as_ids, check_count, check_number, check_rank, check_shape, check_width,
)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_floats_come_back_as_they_are(dtype):
    x = np.ones((2, 3), dtype)
    assert as_float("x", x) is x


@pytest.mark.parametrize("x", [[1, 0], np.array([1, 0], np.uint8), np.array([1, 0], np.int64), [True, False]])
def test_integers_and_booleans_become_float64(x):
    y = as_float("x", x)
    assert y.dtype == np.float64
    assert_array_equal(y, [1.0, 0.0])


@pytest.mark.parametrize("x, shown", [([1j], "complex128"), (["a"], "<U1"), ([None], "object"),
                                      (np.array(["2020-01-01"], "M8[D]"), "datetime64")])
def test_what_is_not_a_real_number_is_refused(x, shown):
    with pytest.raises(TypeError, match=rf"^memory must hold real numbers, not dtype .*{shown}"):
        as_float("memory", x)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8, np.uint64])
def test_ids_within_the_range_are_taken_in_any_integer_type(dtype):
    ids = np.array([[0, 3], [1, 0]], dtype)
    assert as_ids("ids", ids, 4) is ids
    assert_array_equal(as_ids("ids", [0, 3], 4), [0, 3])


def test_no_ids_are_ids():
    for empty in ([], np.zeros((2, 0)), np.zeros((0, 3), np.int16)):
        ids = as_ids("ids", empty, 4)
        assert ids.dtype.kind == "i" and ids.shape == np.shape(empty)


@pytest.mark.parametrize("ids, error, message", [
    ([[0, 1], [-1, 2]], IndexError, r"^source\[1, 0\] is -1, outside \[0, 4\)$"),
    ([[0, 1, 3], [2, 0, 4]], IndexError, r"^source\[1, 2\] is 4, outside \[0, 4\)$"),
    ([0, 5, 6], IndexError, r"^source\[1\] is 5, outside"),
    (7, IndexError, r"^source\[\] is 7, outside"),
    (np.array([0, 200], np.uint8), IndexError, r"^source\[1\] is 200, outside"),
    ([1.0, 2.0], TypeError, r"^source must be integers, not dtype float64, for example .*1\.0"),
    ([2.7], TypeError, r"2\.7"),
    ([True], TypeError, r"not dtype bool, for example .*True"),
    (["the"], TypeError, r"for example .*the"),
    (np.zeros(0, bool), TypeError, r"not dtype bool$"),
])
def test_ids_that_are_no_ids(ids, error, message):
    with pytest.raises(error, match=message):
        as_ids("source", ids, 4)


def test_rank():
    check_rank("q", np.zeros((2, 3)), 2, "(..., T, K)")
    check_rank("q", np.zeros((1, 2, 3)), 2, "(..., T, K)")
    with pytest.raises(ValueError, match=r"^q has shape \(3,\): expected \(\.\.\., T, K\)$"):
        check_rank("q", np.zeros(3), 2, "(..., T, K)")


def test_width():
    check_width("k", np.zeros((2, 3)), 3)
    for wrong in ((2, 4), (3, 2), (), (3, 0)):
        with pytest.raises(ValueError, match=rf"^k has shape {str(wrong).replace('(', '.').replace(')', '.')}: "
                                             "its last axis must be 3 wide$"):
            check_width("k", np.zeros(wrong), 3)


def test_shape():
    check_shape("bias", np.zeros((2, 3)), (2, 3))
    for wrong in ((3, 2), (3,), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"^bias has shape \(.*\): expected \(2, 3\)$"):
            check_shape("bias", np.zeros(wrong), (2, 3))


@given(st.integers(-5, 5), st.integers(-5, 10))
def test_count(least, value):
    for whole in (value, np.int32(value)):
        if value >= least:
            check_count("heads", whole, least)
        else:
            with pytest.raises(ValueError, match=rf"^heads must be a whole number of at least {least}, not .*{value}"):
                check_count("heads", whole, least)


@pytest.mark.parametrize("value", [True, False, np.True_, 2.0, 2.5, math.nan, "2", None, np.array(2), [2]])
def test_what_is_no_count(value):
    with pytest.raises(ValueError, match="^heads must be a whole number of at least -1, not "):
        check_count("heads", value, -1)


def test_a_count_is_at_least_one_unless_said_otherwise():
    check_count("heads", 1)
    with pytest.raises(ValueError, match="heads must be a whole number of at least 1, not 0"):
        check_count("heads", 0)


@pytest.mark.parametrize("value", [0, 1, 0.25, np.float32(0.25), np.float16(0), np.int64(1), Fraction(1, 3)])
def test_numbers_within_their_limits(value):
    check_number("rate", value, 0, 1)


@pytest.mark.parametrize("value", [-1e-300, -1, 1.0000001, 2, math.nan, math.inf, -math.inf, "1", None, 1j,
                                   np.array([0.5])])
def test_numbers_beyond_their_limits(value):
    with pytest.raises(ValueError, match="^rate must be a number at least 0 and at most 1, not "):
        check_number("rate", value, 0, 1)


def test_a_number_is_at_least_zero_and_finite_unless_said_otherwise():
    check_number("epsilon", 0.0)
    check_number("epsilon", 1e300)
    check_number("epsilon", -2.0, -3.0)
    for value in (-0.5, math.inf):
        with pytest.raises(ValueError, match=f"^epsilon must be a number at least 0, not {value}$"):
            check_number("epsilon", value)


def test_a_strict_lower_limit():
    check_number("base", 1.5, 1, above=True)
    check_number("base", 1, 1)
    for value in (1, 0.5):
        with pytest.raises(ValueError, match=f"^base must be a number above 1, not {value}$"):
            check_number("base", value, 1, above=True)
    with pytest.raises(ValueError, match="^base must be a number above 1 and at most 2.5, not 3$"):
        check_number("base", 3, 1, 2.5, above=True)
