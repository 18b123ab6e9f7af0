"""One norm for all parameters: what is too long is shortened, what is not is the same object as before."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loops
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import map_tree, to_vector
from numpy_transformer.layers.layer_norm import LayerNorm
from numpy_transformer.training.clipping import clip_gradients
from strategies import assert_close, assert_same, read_only, rngs, shapes

quiet = partial(np.errstate, over="raise", invalid="raise", divide="raise")


@st.composite
def gradients(draw):
    """Trees of arrays of several ranks, none of them all zeros"""
    rng, drawn = draw(rngs), draw(st.lists(shapes(0, 3), min_size=1, max_size=4))
    return tuple(np.asarray(rng.normal(scale=3, size=shape)) for shape in drawn)


def test_three_and_four_make_five():
    clipped, norm = clip_gradients(np.array([3.0, 4.0]), 1.0)
    assert_close(clipped, [0.6, 0.8], 1e-15)
    assert type(norm) is float and norm == 5


def test_the_norm_is_one_for_all_arrays_together():
    gradient = Linear(np.array([[3.0, 0.0]]), np.array([0.0, 4.0]))
    clipped, norm = clip_gradients(gradient, 4.5)
    assert norm == 5
    assert type(clipped) is Linear
    assert_close(clipped.weight, [[2.7, 0]], 1e-15)
    assert_close(clipped.bias, [0, 3.6], 1e-15)


@given(gradients(), st.sampled_from([0.0, 0.1, 0.999, 1.001, 7.0]), st.sampled_from([np.float32, np.float64]))
def test_it_agrees_with_scalar_loops(gradient, share, dtype):
    gradient = read_only(map_tree(lambda array: array.astype(dtype), gradient))
    kept = map_tree(np.copy, gradient)
    _, length = loops.clip_gradients(list(gradient), math.inf)
    expected, _ = loops.clip_gradients(list(gradient), share * length)
    clipped, norm = clip_gradients(gradient, share * length)
    near = 1e-6 if dtype == np.float32 else 1e-12
    assert norm == pytest.approx(length, rel=near)
    for found, array in zip(clipped, expected, strict=True):
        assert found.dtype == dtype
        assert_close(found, array, near)
    assert (clipped is gradient) == (share > 1)
    assert_same(gradient, kept)


@pytest.mark.parametrize("max_norm", [5.0, 5.1, 1e300])
def test_up_to_the_limit_it_is_the_same_object(max_norm):
    gradient = Linear(np.array([[3.0, 0.0]]), np.array([0.0, 4.0]))
    clipped, norm = clip_gradients(gradient, max_norm)
    assert clipped is gradient
    assert norm == 5


@pytest.mark.parametrize("max_norm", [0.0, 1.0])
@pytest.mark.parametrize("zeros", [np.zeros(3), np.zeros(0), np.float32(0) * np.ones((2, 3), np.float32),
                                   (np.zeros(2), np.zeros((0, 3))), ()], ids=repr)
def test_zeros_stay_zeros(zeros, max_norm):
    with quiet():
        clipped, norm = clip_gradients(zeros, max_norm)
    assert clipped is zeros
    assert type(norm) is float and norm == 0


def test_a_limit_of_zero_leaves_nothing():
    clipped, norm = clip_gradients(np.array([3.0, -4.0]), 0)
    assert norm == 5 and not clipped.any()


@pytest.mark.parametrize("dtype, size", [
    (np.float16, 6e4), (np.float32, 1e30), (np.float32, 1e-30), (np.float64, 1e200),
    (np.float64, 1e-200), (np.float64, 1e307)])
def test_squares_neither_overflow_nor_vanish(dtype, size):
    gradient = (np.array([[3.0], [0.0]], dtype) * dtype(size / 10), np.array([-4], dtype) * dtype(size / 10))
    with quiet():
        clipped, norm = clip_gradients(gradient, 0.25 * size)
    near = 1e-3 if dtype == np.float16 else 1e-6
    assert norm == pytest.approx(size / 2, rel=near)
    np.testing.assert_allclose(to_vector(clipped).astype(float) / size, [0.15, 0, -0.2], rtol=near)
    assert to_vector(clipped).dtype == dtype


def test_more_float16_squares_than_float16_can_count():
    with quiet():
        clipped, norm = clip_gradients(np.ones(70000, np.float16), 10.0)
    assert norm == pytest.approx(math.sqrt(70000))
    np.testing.assert_allclose(clipped, 10 / math.sqrt(70000), rtol=1e-3)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_is_refused_by_name_and_nothing_is_changed(value, dtype):
    layers = [Linear(np.ones((2, 3), dtype), np.ones(3, dtype)), LayerNorm(np.ones(3, dtype), np.ones(3, dtype))]
    layers[1].shift[2] = value
    gradient = (np.zeros(2, dtype), tuple(layers))
    kept = map_tree(np.copy, gradient)
    with pytest.raises(ValueError, match=rf"^the gradient of 1\.1\.shift holds {'nan' if np.isnan(value) else 'inf'}$"):
        clip_gradients(read_only(gradient), 1.0)
    assert_same(gradient, kept)
    with pytest.raises(ValueError, match="^the gradient of the array holds "):
        clip_gradients(np.array([1.0, value, 2.0]), 1e9)


@pytest.mark.parametrize("value", [-1, -1e-300, math.nan, math.inf, None, "1"], ids=repr)
def test_a_limit_is_a_number_that_is_not_negative(value):
    gradient = read_only(np.array([3.0, 4.0]))
    with pytest.raises(ValueError, match=rf"^max_norm must be a number at least 0, not {value!r}$"):
        clip_gradients(gradient, value)
