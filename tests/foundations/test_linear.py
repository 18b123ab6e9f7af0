import loops
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from strategies import (
    assert_close, assert_keeps_dtype, assert_plain_data, assert_pure_and_linear, assert_same, assert_same_for_layouts,
    rngs, shapes,
)

from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear


def call(layer, x):
    return layer(x)


@st.composite
def cases(draw):
    """A generator, a random layer and rows for it"""
    rng = draw(rngs)
    *leading, inputs = draw(shapes())
    outputs = draw(st.integers(1, 5).filter(lambda n: n != inputs))
    layer = Linear(rng.normal(size=(inputs, outputs)), rng.normal(size=outputs))
    return rng, layer, rng.normal(size=(*leading, inputs))


@given(cases())
def test_gradients(case):
    rng, layer, x = case
    worst = check_gradients(call, layer, x, rng=rng)
    assert list(worst) == ["layer.weight", "layer.bias", "x"]


@given(cases())
def test_scalar_loops_agree(case):
    rng, layer, x = case
    y, backward = layer(x)
    dy = rng.normal(size=y.shape)
    gradient, dx = backward(dy)
    assert type(gradient) is Linear
    assert_close(y, loops.linear(x, layer.weight, layer.bias))
    for found, expected in zip((gradient.weight, gradient.bias, dx), loops.linear_backward(x, layer.weight, dy)):
        assert_close(found, expected)


@given(cases())
def test_manners(case):
    rng, layer, x = case
    assert_pure_and_linear(call, layer, x, rng=rng)
    assert_same_for_layouts(call, layer, x, rng=rng)
    assert_keeps_dtype(call, layer, x, rng=rng)


def test_worked_by_hand():
    layer = Linear(np.array([[1.0, 2, 3], [4, 5, 6]]), np.array([10.0, 20, 30]))
    y, backward = layer(np.array([[1.0, -1], [2, 0]]))
    assert_array_equal(y, [[7, 17, 27], [12, 24, 36]])
    gradient, dx = backward(np.array([[1.0, 0, 0], [0, 0, 2]]))
    assert_array_equal(gradient.weight, [[1, 0, 4], [-1, 0, 0]])
    assert_array_equal(gradient.bias, [1, 0, 2])
    assert_array_equal(dx, [[1, 4], [6, 12]])


def test_integers_and_lists_are_computed_in_float64():
    layer = Linear(np.array([[0.5], [0.25]]), np.array([1.0]))
    for x in ([[1, 2]], np.array([[1, 2]], np.int8), np.array([[1, 2]], np.uint64)):
        y, backward = layer(x)
        gradient, dx = backward(np.ones((1, 1)))
        assert y.dtype == gradient.weight.dtype == dx.dtype == np.float64
        assert_array_equal(y, [[2.0]])
        assert_array_equal(gradient.weight, [[1], [2]])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (0, 0, 3)])
def test_no_rows(shape):
    layer = Linear(np.ones((3, 2)), np.ones(2))
    y, backward = layer(np.ones(shape))
    gradient, dx = backward(np.ones(y.shape))
    assert y.shape == (*shape[:-1], 2) and dx.shape == shape
    assert_array_equal(gradient.weight, np.zeros((3, 2)))
    assert_array_equal(gradient.bias, np.zeros(2))


def test_one_row_without_a_batch_and_width_one():
    y, backward = Linear(np.array([[3.0]]), np.array([0.5]))(np.array([2.0]))
    gradient, dx = backward(np.array([10.0]))
    assert_array_equal(y, [6.5])
    assert_array_equal(gradient.weight, [[20]])
    assert_array_equal(gradient.bias, [10])
    assert_array_equal(dx, [30])


def test_a_row_does_not_depend_on_its_batch():
    rng = np.random.default_rng(0)
    layer, x = Linear(rng.normal(size=(4, 5)), rng.normal(size=5)), rng.normal(size=(2, 3, 4))
    for b, t in np.ndindex(2, 3):
        assert_close(layer(x)[0][b, t], layer(x[b, t])[0])


# ── Initial values ───────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("inputs, outputs", [(300, 500), (500, 300), (7, 20_000)])
def test_glorot_weights(inputs, outputs):
    layer = Linear.init(np.random.default_rng(0), inputs, outputs, dtype=np.float64)
    limit, n = np.sqrt(6 / (inputs + outputs)), inputs * outputs
    assert layer.weight.shape == (inputs, outputs)
    assert 0.999 * limit < np.abs(layer.weight).max() <= limit
    # A uniform variable of variance σ² has kurtosis 9/5: its sampled variance scatters by σ² √(0.8 / n).
    variance = 2 / (inputs + outputs)
    assert abs(layer.weight.mean()) < 5 * np.sqrt(variance / n)
    assert abs(layer.weight.var() / variance - 1) < 5 * np.sqrt(0.8 / n)
    assert_array_equal(layer.bias, np.zeros(outputs))


def test_initial_dtype():
    rng = np.random.default_rng(0)
    for layer, dtype in ((Linear.init(rng, 2, 3), np.float32), (Linear.init(rng, 2, 3, dtype=np.float64), np.float64),
                         (Linear.init(rng, 2, 3, dtype=np.float16), np.float16)):
        assert layer.weight.dtype == layer.bias.dtype == dtype


def test_the_seed_decides():
    state = np.random.get_state()[1].copy()
    one, again, other = (Linear.init(np.random.default_rng(seed), 4, 3) for seed in (5, 5, 6))
    assert_same(one, again)
    assert (one.weight != other.weight).all()
    assert_array_equal(np.random.get_state()[1], state)


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────

W, b = np.ones((3, 2)), np.ones(2)


@pytest.mark.parametrize("attempt, error, message", [
    (lambda: Linear(np.ones(3), b), ValueError, r"^weight has shape \(3,\): expected \(inputs, outputs\)"),
    (lambda: Linear(np.ones((1, 3, 2)), b), ValueError, r"^weight has shape \(1, 3, 2\)"),
    (lambda: Linear(W, np.ones(3)), ValueError, r"^bias has shape \(3,\): expected \(2,\)"),
    (lambda: Linear(W, np.ones((1, 2))), ValueError, r"^bias has shape \(1, 2\)"),
    (lambda: Linear(W, np.ones(())), ValueError, r"^bias has shape \(\)"),
    (lambda: Linear(W, b)(np.ones((3, 2))), ValueError, r"^x has shape \(3, 2\): its last axis must be 3 wide"),
    (lambda: Linear(W, b)(np.ones(())), ValueError, r"^x has shape \(\)"),
    (lambda: Linear(W, b)(np.ones((4, 1))), ValueError, r"^x has shape \(4, 1\)"),
    (lambda: Linear(W, b)(np.ones((4, 3), complex)), TypeError, r"^x must hold real numbers, not dtype complex128"),
    (lambda: Linear(W, b)([["a", "b", "c"]]), TypeError, r"^x must hold real numbers"),
    (lambda: Linear.init(np.random.default_rng(0), 0, 3), ValueError, r"^inputs must be a whole number.* not 0"),
    (lambda: Linear.init(np.random.default_rng(0), True, 3), ValueError, r"^inputs must .* not True"),
    (lambda: Linear.init(np.random.default_rng(0), 3, -1), ValueError, r"^outputs must .* not -1"),
    (lambda: Linear.init(np.random.default_rng(0), 3, 2.0), ValueError, r"^outputs must .* not 2\.0"),
])
def test_refused(attempt, error, message):
    with pytest.raises(error, match=message):
        attempt()


def test_a_layer_is_plain_data():
    assert_plain_data(Linear(W, b))


def test_a_gradient_without_its_bias_cannot_be_built():
    with pytest.raises(TypeError, match="bias"):
        Linear(W)
