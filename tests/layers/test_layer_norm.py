"""Layer normalisation: its definition in numbers, its gradient, and what it must not depend on."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

import loops
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.layers.layer_norm import LayerNorm
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same_for_layouts, randomised, rngs, shapes)

epsilons = st.sampled_from([1e-5, 1e-3, 0.3])  # a large one cannot hide on which side of the root it stands


@st.composite
def layers_and_inputs(draw, least=1):
    x_shape, rng = draw(shapes(least)), draw(rngs)
    layer = randomised(LayerNorm.init(x_shape[-1], epsilon=draw(epsilons)), rng)
    return layer, rng.normal(draw(st.sampled_from([0, -3, 20])), draw(st.sampled_from([0.7, 4])), x_shape), rng


def plain(*numbers, epsilon=1e-5):
    """The normalisation alone, γ = 1 and β = 0, of one row"""
    return LayerNorm.init(len(numbers), epsilon=epsilon, dtype=np.float64)(np.array(numbers, np.float64))


# ── The definition ───────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("x, y", [
    ([1, 2, 3, 4], [-1.3416354199689269, -0.447211806656309, 0.447211806656309, 1.3416354199689269]),
    ([1, 0, 0, 0], [1.7320046213947808, -0.5773348737982603, -0.5773348737982603, -0.5773348737982603]),
    ([0, 1e-3], [-0.1561737618886061, 0.1561737618886061]),
])
def test_known_values(x, y):
    """÷ D and ε inside the root; ÷ (D − 1) or ε outside would give other digits."""
    assert_allclose(plain(*x)[0], y, rtol=1e-14)


def test_known_gradient():
    _, backward = plain(1, 2, 3, 4)
    gradient, dx = backward(np.array([1.0, 0, 0, 0]))
    assert_allclose(dx, [0.2683303038930342, -0.3577683720252976, -0.0894434346310114, 0.1788815027632748], rtol=1e-12)
    assert_allclose(gradient.gain, [-1.3416354199689269, 0, 0, 0], rtol=1e-14)
    assert_array_equal(gradient.shift, [1, 0, 0, 0])


def test_epsilon_stands_inside_the_root():
    """σ² = 1 and ε = 3: √(1 + 3) = 2, where √1 + 3 = 4"""
    y, backward = plain(-1, 1, epsilon=3.0)
    assert_array_equal(y, [-0.5, 0.5])
    _, dx = backward(np.array([1.0, 0.0]))
    assert_allclose(dx, [0.1875, -0.1875], rtol=1e-14)  # s (dy − mean(dy) − x̂ mean(dy x̂)) = ½ (½ − ½ · ¼)


@given(layers_and_inputs())
def test_agrees_with_loops(drawn):
    layer, x, rng = drawn
    y, backward = layer(x)
    assert_close(y, loops.layer_norm(x, layer.gain, layer.shift, layer.epsilon))
    dy = rng.normal(size=x.shape)
    gradient, dx = backward(dy)
    d_gain, d_shift, dx_of_loops = loops.layer_norm_backward(x, layer.gain, dy, layer.epsilon)
    assert_close(gradient.gain, d_gain)
    assert_close(gradient.shift, d_shift)
    assert_close(dx, dx_of_loops)


@given(layers_and_inputs())
def test_gradients(drawn):
    layer, x, rng = drawn
    assume(x.shape[-1] == 1 or (x.std(axis=-1) > 0.3 + 0.05 * np.abs(x.mean(axis=-1))).all())  # else x̂ is half rounding
    worst = check_gradients(lambda layer, x: layer(x), layer, x, rng=rng)
    assert set(worst) == {"layer.gain", "layer.shift", "x"}


@given(layers_and_inputs())
def test_the_gradient_is_a_layer_of_the_same_settings(drawn):
    layer, x, rng = drawn
    gradient, _ = layer(x)[1](x)
    assert isinstance(gradient, LayerNorm) and gradient.epsilon == layer.epsilon


def test_parameters_gather_over_all_rows():
    """Six rows of ones from upstream: each shift receives six, each gain the sum of its column of x̂."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, 4))
    x_hat, backward = LayerNorm.init(4, dtype=np.float64)(x)
    gradient, _ = backward(np.ones_like(x))
    assert_array_equal(gradient.shift, [6] * 4)
    assert gradient.gain.shape == (4,)
    assert_allclose(gradient.gain, x_hat.sum(axis=(0, 1)), rtol=1e-12)


# ── What it depends on, and what not ─────────────────────────────────────────────────────────────

def test_output_has_mean_zero_and_variance_one():
    x = np.random.default_rng(2).normal(5, 3, (4, 6, 50))
    y, _ = LayerNorm.init(50, epsilon=1e-12, dtype=np.float64)(x)
    assert_close(y.mean(axis=-1), np.zeros((4, 6)))
    assert_close((y**2).mean(axis=-1), np.ones((4, 6)), 1e-10)


@given(layers_and_inputs(), st.sampled_from([-1e4, -1.0, 0.5, 1e4]))
def test_moving_all_of_a_row_changes_nothing(drawn, offset):
    layer, x, _ = drawn
    assert_close(layer(x + offset)[0], layer(x)[0], 1e-9)


@given(layers_and_inputs(), st.sampled_from([0.01, 3.0, 1e4]))
def test_stretching_a_row_changes_nothing_when_epsilon_stretches_along(drawn, factor):
    layer, x, _ = drawn
    stretched = LayerNorm(layer.gain, layer.shift, layer.epsilon * factor**2)
    assert_close(stretched(x * factor)[0], layer(x)[0], 1e-9)


@given(layers_and_inputs())
def test_what_normalising_removes_does_not_come_back(drawn):
    """dx has no part along the constant vector, and along x̂ only ε's share of it."""
    layer, x, rng = drawn
    x = x - x.mean(axis=-1, keepdims=True)  # beside a large mean the digits of x̂ are lost, in both formulas
    dy = rng.normal(size=x.shape)
    _, dx = layer(x)[1](dy)
    x_hat = loops.layer_norm(x, np.ones(x.shape[-1]), np.zeros(x.shape[-1]), layer.epsilon)
    s = 1 / np.sqrt(x.var(axis=-1) + layer.epsilon)
    share = layer.epsilon * s**2  # 1 − mean(x̂²)
    size = max(1, np.abs(dx).max())
    assert_allclose(dx.sum(axis=-1), 0, atol=1e-12 * size)
    assert_allclose((dx * x_hat).sum(axis=-1), s * share * (layer.gain * dy * x_hat).sum(axis=-1), atol=1e-12 * size)


@given(layers_and_inputs(least=2))
def test_each_row_is_normalised_by_itself(drawn):
    layer, x, rng = drawn
    y, backward = layer(x)
    _, dx = backward(np.ones_like(x) * x[..., ::-1])
    for n in np.ndindex(x.shape[:-1]):
        alone, alone_backward = layer(x[n])
        assert_close(alone, y[n])
        assert_close(alone_backward(x[n][::-1])[1], dx[n])
    moved = x.copy()
    moved.reshape(-1, x.shape[-1])[0] *= -1  # x̂ turns round: another row of two numbers might be ±1 alike
    other = layer(moved)[0].reshape(-1, x.shape[-1])
    assert_array_equal(other[1:], y.reshape(-1, x.shape[-1])[1:])
    assert x.shape[-1] == 1 or not np.allclose(other[0], y.reshape(-1, x.shape[-1])[0])


# ── Numbers that break careless formulas ─────────────────────────────────────────────────────────

def test_a_constant_row_gives_the_shift():
    layer = LayerNorm(np.ones(4), np.arange(4.0))
    with np.errstate(all="raise"):
        y, backward = layer(np.full(4, 3.0))
        _, dx = backward(np.array([1.0, 0, 0, 0]))
    assert_array_equal(y, [0, 1, 2, 3])
    assert_allclose(dx, [237.17082451262843, -79.05694150420948, -79.05694150420948, -79.05694150420948], rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e4, -1e4, 5e-324, 0.1])
def test_any_constant_row_gives_the_shift(value):
    """0.1 and its like are not sums of powers of two: their mean may be off by one rounding, and no more."""
    layer = LayerNorm(np.array([2.0, -1, 3]), np.array([0.5, -0.25, 0]))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = layer(np.full((2, 3), value))
        gradient, dx = backward(np.ones((2, 3)))
    assert_allclose(y, [[0.5, -0.25, 0]] * 2, atol=1e-8)
    assert np.isfinite(dx).all() and np.isfinite(gradient.gain).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_numbers_are_normalised_quietly(dtype):
    x = np.array([[1e4, -1e4, 0.0, 1e4], [-1e4, -1e4, 1e4, -0.0]], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = LayerNorm.init(4, dtype=dtype)(x)
        backward(x)
    assert_close(y, loops.layer_norm(x.astype(float), np.ones(4), np.zeros(4)), 1e-6)


def test_a_large_offset_does_not_swallow_the_variance():
    """mean(x²) − μ² would lose every digit of a variance of 1.25 beside 10⁸; the mean of (x − μ)² loses none."""
    y, _ = plain(1e8 + 1, 1e8 + 2, 1e8 + 3, 1e8 + 4)
    assert_allclose(y, plain(1, 2, 3, 4)[0], rtol=1e-12)
    x = np.array([1, 2, 3, 4], np.float32)
    y, _ = LayerNorm.init(4)(x + np.float32(2**20))
    assert_allclose(y, plain(1, 2, 3, 4)[0], rtol=1e-6)


def test_width_one_leaves_nothing_but_the_shift():
    y, backward = LayerNorm(np.array([3.0]), np.array([0.5]))(np.array([[7.0], [-2.0]]))
    gradient, dx = backward(np.array([[1.0], [2.0]]))
    assert_array_equal(y, [[0.5], [0.5]])
    assert_array_equal(dx, [[0], [0]])
    assert_array_equal(gradient.gain, [0])
    assert_array_equal(gradient.shift, [3])


@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (3, 0, 4), (0, 0, 4)])
def test_no_rows(shape):
    with np.errstate(all="raise"):
        y, backward = randomised(LayerNorm.init(4), np.random.default_rng(3))(np.zeros(shape))
        gradient, dx = backward(np.zeros(shape))
    assert y.shape == dx.shape == shape
    assert_array_equal(gradient.gain, [0] * 4)
    assert_array_equal(gradient.shift, [0] * 4)


# ── Purity, memory, dtypes ───────────────────────────────────────────────────────────────────────

@given(layers_and_inputs())
def test_pure_and_linear(drawn):
    layer, x, rng = drawn
    assert_pure_and_linear(lambda layer, x: layer(x), layer, x, rng=rng)


@given(layers_and_inputs())
def test_memory_layout_does_not_matter(drawn):
    layer, x, rng = drawn
    x[..., 0] += 1  # rows made equal by broadcasting shall not be constant
    assert_same_for_layouts(lambda layer, x: layer(x), layer, x, rng=rng, tolerance=1e-10)


@given(rngs, st.sampled_from([(3,), (2, 5), (2, 3, 4)]), epsilons)
def test_dtype_is_kept(rng, shape, epsilon):
    layer = randomised(LayerNorm.init(shape[-1], epsilon=epsilon), rng)
    x = rng.permuted(np.arange(float(np.prod(shape)))).reshape(shape)  # no row nearly constant: all would be rounding
    assert_keeps_dtype(lambda layer, x: layer(x), layer, x, rng=rng, dtype=np.float32)
    assert_keeps_dtype(lambda layer, x: layer(x), layer, x, rng=rng, dtype=np.float64, near=0)


@given(hnp.arrays(np.int64, (3, 4), elements=st.integers(-9, 9)))
def test_integers_become_floats(x):
    layer = LayerNorm.init(4, dtype=np.float64)
    assert layer(x)[0].dtype == np.float64
    assert_array_equal(layer(x)[0], layer(x.astype(float))[0])
    assert_array_equal(layer(x.tolist())[0], layer(x.astype(float))[0])


# ── Construction and errors ──────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_starts_as_the_normalisation_alone(dtype):
    layer = LayerNorm.init(5, epsilon=1e-3, dtype=dtype)
    assert_array_equal(layer.gain, np.ones(5, dtype), strict=True)
    assert_array_equal(layer.shift, np.zeros(5, dtype), strict=True)
    assert layer.epsilon == 1e-3
    assert LayerNorm.init(5).gain.dtype == np.float32
    assert LayerNorm.init(5).epsilon == LayerNorm(np.ones(5), np.ones(5)).epsilon == 1e-5


def test_a_layer_is_itself_alone_and_cannot_be_changed():
    layer = LayerNorm.init(3)
    assert layer == layer != replace(layer) and len({layer, layer, replace(layer)}) == 2
    with pytest.raises(FrozenInstanceError):
        layer.gain = None


@pytest.mark.parametrize("x, message", [
    (np.ones((2, 3)), r"x has shape \(2, 3\): its last axis must be 4 wide"),
    (np.ones((4, 5)), r"x has shape \(4, 5\): its last axis must be 4 wide"),
    (np.ones((4, 1)), r"x has shape \(4, 1\): its last axis must be 4 wide"),
    (np.ones((2, 0)), r"x has shape \(2, 0\): its last axis must be 4 wide"),
    (3.0, r"x has shape \(\): its last axis must be 4 wide"),
])
def test_input_of_another_width_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        LayerNorm.init(4)(x)


@pytest.mark.parametrize("x", [np.ones(4, complex), np.array([*"abcd"]), np.array([None] * 4)], ids=lambda x: x.dtype.name)
def test_input_that_is_no_real_number_is_refused(x):
    with pytest.raises(TypeError, match=f"x must hold real numbers, not dtype {x.dtype}"):
        LayerNorm.init(4)(x)


@pytest.mark.parametrize("gain, shift, message", [
    (np.ones((2, 4)), np.ones(4), r"gain has shape \(2, 4\): expected \(width,\)"),
    (np.ones(()), np.ones(()), r"gain has shape \(\): expected \(width,\)"),
    (np.ones(4), np.ones(3), r"shift has shape \(3,\): expected \(4,\)"),
    (np.ones(4), np.ones((1, 4)), r"shift has shape \(1, 4\): expected \(4,\)"),
    (np.ones(4), np.ones(1), r"shift has shape \(1,\): expected \(4,\)"),
])
def test_misshapen_parameters_are_refused(gain, shift, message):
    with pytest.raises(ValueError, match=message):
        LayerNorm(gain, shift)


@pytest.mark.parametrize("epsilon", [0, 0.0, -1e-5, float("nan"), float("inf"), "1e-5", None], ids=repr)
def test_epsilon_must_be_positive(epsilon):
    for make in (lambda: LayerNorm(np.ones(4), np.ones(4), epsilon), lambda: LayerNorm.init(4, epsilon=epsilon)):
        with pytest.raises(ValueError, match=f"epsilon must be a number above 0, not {epsilon!r}"):
            make()


@pytest.mark.parametrize("width", [0, -1, 2.0, "4", None, True], ids=repr)
def test_width_must_be_a_positive_whole_number(width):
    with pytest.raises(ValueError, match=f"width must be a whole number of at least 1, not {width!r}"):
        LayerNorm.init(width)


@pytest.mark.parametrize("mean, std", [(0, 1), (200, 1), (0, 20), (0, 300)])
def test_float16_does_not_overflow(mean, std):
    x = np.random.default_rng(0).normal(mean, std, (2, 512)).astype(np.float16)
    y, backward = LayerNorm.init(512, dtype=np.float16)(x)
    expected, expected_backward = LayerNorm.init(512, dtype=np.float64)(x.astype(float))
    dy = np.random.default_rng(1).normal(size=x.shape).astype(np.float16)
    (gradient, dx), (_, expected_dx) = backward(dy), expected_backward(dy.astype(float))
    assert y.dtype == dx.dtype == gradient.gain.dtype == gradient.shift.dtype == np.float16
    assert_allclose(y, expected, atol=3e-3)
    assert_allclose(dx, expected_dx, atol=3e-3 * np.abs(expected_dx).max())
