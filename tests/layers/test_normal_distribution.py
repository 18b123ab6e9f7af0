"""The normal distribution function: math.erfc's digits, at every x."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from numpy_transformer.layers.normal_distribution import BLOCK, NODES, TERMS, normal_distribution, taylor_coefficients


def by_entry(x):
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape)


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=st.floats(-45, 45)))
def test_entry_by_entry(x):
    y = normal_distribution(x)
    assert isinstance(y, np.ndarray) and y.shape == x.shape
    assert_allclose(y, by_entry(x), rtol=0, atol=3e-16)


def test_all_the_way_and_between_all_nodes():
    x = np.linspace(-40, 10, 200_003)
    assert len(x) > 3 * BLOCK
    y, expected = normal_distribution(x), by_entry(x)
    assert np.abs(y - expected).max() <= 3e-16
    near = x > -12
    assert (np.abs(y - expected)[near] <= 2e-13 * expected[near]).all()  # small values keep their digits too


def test_half_way_between_two_nodes_both_serve():
    middle = (np.arange(-5 * NODES, 5 * NODES) + 0.5) / NODES
    for x in (middle, np.nextafter(middle, -9), np.nextafter(middle, 9)):
        assert_allclose(normal_distribution(x), by_entry(x), rtol=0, atol=3e-16)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_is_kept_and_the_ends_are_exact(dtype):
    top = np.finfo(dtype).max
    x = np.array([-np.inf, -top, -40, 0, 10, top, np.inf], dtype)
    y = normal_distribution(x)
    assert y.dtype == dtype
    assert_array_equal(y, np.array([0, 0, 0, 0.5, 1, 1, 1], dtype))
    x = np.linspace(-6, 6, 101).astype(dtype)
    assert_allclose(normal_distribution(x), by_entry(x.astype(float)).astype(dtype), rtol=max(2 * np.finfo(dtype).eps, 1e-13))


def test_integers_are_promoted_and_text_is_refused():
    assert normal_distribution(np.array([0, 1])).dtype == np.float64
    with pytest.raises(TypeError, match="^x must hold real numbers"):
        normal_distribution(np.array(["a"]))


def test_the_coefficients_are_those_of_the_derivatives():
    """φ, −xφ / 2, (x² − 1)φ / 6, (3x − x³)φ / 24 …"""
    x = np.array([-1.5, 0.0, 0.5, 3.0])
    phi = np.exp(-x**2 / 2) / math.sqrt(2 * math.pi)
    found = taylor_coefficients(x)
    assert len(found) == TERMS == 7
    polynomials = (1, -x, x**2 - 1, 3 * x - x**3, x**4 - 6 * x**2 + 3, -(x**5) + 10 * x**3 - 15 * x)
    assert_allclose(found[0], by_entry(x), rtol=1e-15)
    for n, polynomial in enumerate(polynomials, start=1):
        assert_allclose(found[n], polynomial * phi / math.factorial(n), rtol=1e-13, atol=1e-17)
