"""The feed-forward network and the three bends that it may have."""

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

import loops
from numpy_transformer.foundations.dropout import dropout
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import named_parameters
from numpy_transformer.layers.feed_forward import FeedForward, gelu, gelu_tanh, relu
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, letters, randomised,
    rates, rngs, shapes)

ACTIVATIONS = [relu, gelu, gelu_tanh]
each_activation = pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda f: f.__name__)
SECOND_OPINION = {relu: (loops.relu, loops.relu_backward), gelu: (loops.gelu, loops.gelu_backward),
                  gelu_tanh: (loops.gelu_tanh, loops.gelu_tanh_backward)}


@st.composite
def layers_and_inputs(draw, activations=st.sampled_from(ACTIVATIONS), rates=st.just(0.0)):
    n, rng = draw(letters("BTDF")), draw(rngs)
    layer = FeedForward.init(rng, n.D, n.F, activation=draw(activations), dropout_rate=draw(rates))
    x_shape = draw(st.sampled_from([(n.D,), (n.T, n.D), (n.B, n.T, n.D), (2, n.B, n.T, n.D)]))
    return randomised(layer, rng), rng.normal(size=x_shape), rng


# ── The bends ────────────────────────────────────────────────────────────────────────────────────

def test_relu_by_hand():
    y, backward = relu(np.array([-1.0, 0.0, 1.0, -0.0, 2.5]))
    assert_array_equal(y, [0, 0, 1, 0, 2.5])
    assert_array_equal(backward(np.array([1.0, 1.0, 1.0, 1.0, -3.0])), [0, 0, 1, 0, -3])


@pytest.mark.parametrize("x, y, slope", [
    (0.0, 0.0, 0.5),
    (1.0, 0.8413447460685429, 1.0833154705876864),
    (-1.0, -0.15865525393145707, -0.08331547058768632),
    (2.0, 1.9544997361036416, 1.0852318010781966),
    (-10.0, -7.619853024160527e-23, -7.618400096464813e-22),
])
def test_gelu_by_hand(x, y, slope):
    """xΦ(x) with Φ(1) = 0.8413…; Φ(−10) = 7.6·10⁻²⁴ has all its digits, which 1 + erf(−10/√2) would have lost."""
    value, backward = gelu(np.array([x]))
    assert_allclose(value, [y], rtol=1e-14)
    assert_allclose(backward(np.array([1.0])), [slope], rtol=1e-13)


@pytest.mark.parametrize("x, y, slope", [
    (0.0, 0.0, 0.5),
    (1.0, 0.8411919906082768, 1.0829640838457826),
    (-1.0, -0.15880800939172324, -0.0829640838457826),
    (3.0, 2.996362607918227, 1.0115841666309695),
])
def test_gelu_tanh_by_hand(x, y, slope):
    value, backward = gelu_tanh(np.array([x]))
    assert_allclose(value, [y], rtol=1e-14)
    assert_allclose(backward(np.array([1.0])), [slope], rtol=1e-13)


def test_the_two_forms_of_gelu_are_near_but_not_the_same():
    x = np.linspace(-5, 5, 1001)
    apart = np.abs(gelu(x)[0] - gelu_tanh(x)[0]).max()
    assert 4e-4 < apart < 5e-4


@each_activation
@given(x=shapes(least=0).flatmap(lambda s: hnp.arrays(np.float64, s, elements=st.floats(-30, 30))), rng=rngs)
def test_bend_agrees_with_loops(activation, x, rng):
    forward, reverse = SECOND_OPINION[activation]
    y, backward = activation(x)
    dy = rng.normal(size=x.shape)
    assert_allclose(y, forward(x), rtol=1e-12, atol=1e-14)
    assert_allclose(backward(dy), reverse(x, dy), rtol=1e-12, atol=1e-14)


@each_activation
@given(shape=shapes(), rng=rngs)
def test_bend_gradient(activation, shape, rng):
    check_gradients(lambda x: activation(x), rng.normal(0, 2, shape), rng=rng)


@each_activation
@given(shape=shapes(), rng=rngs)
def test_bend_is_pure_and_keeps_memory_and_dtype(activation, shape, rng):
    def f(x):
        return activation(x)

    x = rng.normal(0, 2, shape)
    assert_pure_and_linear(f, x, rng=rng)
    assert_same_for_layouts(f, x, rng=rng)
    assert_keeps_dtype(f, x, rng=rng)
    assert_keeps_dtype(f, x, rng=rng, dtype=np.float64, near=0)


@each_activation
def test_bend_acts_on_each_number_alone(activation):
    x = np.random.default_rng(4).normal(size=(3, 4))
    y, backward = activation(x)
    for n in np.ndindex(x.shape):
        alone, alone_backward = activation(x[n])
        assert alone == y[n] and np.shape(alone) == ()
        assert alone_backward(2.0) == backward(np.full((3, 4), 2.0))[n]


@each_activation
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bend_of_extreme_numbers_is_quiet(activation, dtype):
    x = np.array([1e4, -1e4, 100, -100, 0.0, -0.0, 1e-30, -1e-30], dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = activation(x)
        dx = backward(np.ones_like(x))
    half = 0.5 if activation is not relu else 1.0
    assert_allclose(y, [1e4, 0, 100, 0, 0, 0, half * 1e-30, -1e-30 * (1 - half)], atol=0, rtol=1e-6)
    assert_allclose(dx[:4], [1, 0, 1, 0], atol=0)
    assert_allclose(dx[4:], [0.5] * 4 if activation is not relu else [0, 0, 1, 0], atol=0)


@each_activation
def test_bend_of_integers(activation):
    y, backward = activation([[-2, 0], [1, 3]])
    assert y.dtype == np.float64
    assert_array_equal(y, activation(np.array([[-2.0, 0], [1, 3]]))[0])
    assert backward(np.ones((2, 2))).shape == (2, 2)


@each_activation
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_bend_of_nothing(activation, shape):
    y, backward = activation(np.zeros(shape, np.float32))
    assert y.shape == backward(y).shape == shape
    assert y.dtype == backward(y).dtype == np.float32


@each_activation
@pytest.mark.parametrize("x", [np.ones(2, complex), np.array(["a"]), np.array([None])], ids=lambda x: x.dtype.name)
def test_bend_of_what_is_no_number_is_refused(activation, x):
    with pytest.raises(TypeError, match=f"x must hold real numbers, not dtype {x.dtype}"):
        activation(x)


# ── The network ──────────────────────────────────────────────────────────────────────────────────

def test_two_words_by_hand():
    """Word (1, 2): hidden (1·1 + 2·0 − 2, 1·(−1) + 2·1 + 1) = (−1, 2), bent (0, 2), out 2·(3, −1) + (10, 20)."""
    layer = FeedForward(Linear(np.array([[1.0, -1], [0, 1]]), np.array([-2.0, 1])),
                        Linear(np.array([[5.0, 7], [3, -1]]), np.array([10.0, 20])))
    y, backward = layer(np.array([[1.0, 2.0], [4.0, 1.0]]))
    assert_array_equal(y, [[16, 18], [20, 34]])
    gradient, dx = backward(np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert_array_equal(dx, [[-2, 2], [0, 0]])
    assert_array_equal(gradient.expand.weight, [[0, 2], [0, 4]])
    assert_array_equal(gradient.expand.bias, [0, 2])
    assert_array_equal(gradient.contract.weight, [[0, 0], [2, 2]])
    assert_array_equal(gradient.contract.bias, [1, 1])


@given(layers_and_inputs())
def test_agrees_with_loops(drawn):
    layer, x, rng = drawn
    forward, reverse = SECOND_OPINION[layer.activation]
    parameters = (layer.expand.weight, layer.expand.bias, layer.contract.weight, layer.contract.bias)
    y, backward = layer(x)
    assert_close(y, loops.feed_forward(x, *parameters, forward))
    dy = rng.normal(size=x.shape)
    gradient, dx = backward(dy)
    *expected, dx_of_loops = loops.feed_forward_backward(x, *parameters, dy, forward, reverse)
    assert_close(dx, dx_of_loops)
    for claimed, right in zip(named_parameters(gradient).values(), expected, strict=True):
        assert_close(claimed, right)


@given(layers_and_inputs(rates=rates), st.integers(0, 99))
def test_gradients(drawn, seed):
    layer, x, rng = drawn
    worst = check_gradients(lambda layer, x: layer(x, np.random.default_rng(seed)), layer, x, rng=rng,
                            coordinates=12)
    parameters = {f"layer.{name}" for name in named_parameters(layer)}
    assert set(worst) == parameters | {"x"} and len(parameters) == 4


@given(layers_and_inputs(rates=rates), st.integers(0, 99))
def test_dropout_falls_on_the_bent_numbers(drawn, seed):
    """For gelu and relu alike dropout follows the bend: before it, the scale would be bent as well."""
    layer, x, _ = drawn
    bent, _ = layer.activation(layer.expand(x)[0])
    kept, _ = dropout(bent, layer.dropout_rate, np.random.default_rng(seed))
    assert_array_equal(layer(x, np.random.default_rng(seed))[0], layer.contract(kept)[0])


def test_dropout_is_drawn_for_each_number_apart():
    layer = FeedForward(Linear(np.zeros((4, 5)), np.ones(5)), Linear(np.eye(5)[:, :4], np.zeros(4)), dropout_rate=0.3)
    y, _ = layer(np.zeros((6, 7, 4)), np.random.default_rng(5))
    assert_allclose(np.unique(y), [0, 1 / 0.7], rtol=1e-4)
    for axis in range(3):
        assert np.unique(y, axis=axis).shape[axis] > 2


@given(layers_and_inputs(rates=rates), st.integers(0, 99))
def test_same_seed_same_holes_and_no_generator_no_holes(drawn, seed):
    layer, x, rng = drawn
    one, one_backward = layer(x, np.random.default_rng(seed))
    two, two_backward = layer(x, np.random.default_rng(seed))
    assert_array_equal(one, two)
    dy = rng.normal(size=x.shape)
    assert_same(one_backward(dy), two_backward(dy))
    without = FeedForward(layer.expand, layer.contract, layer.activation)
    assert_array_equal(layer(x)[0], without(x, np.random.default_rng(seed))[0])
    assert_array_equal(layer(x)[1](dy)[1], without(x)[1](dy)[1])


def test_another_seed_makes_other_holes():
    rng = np.random.default_rng(6)
    layer = randomised(FeedForward.init(rng, 4, 50, dropout_rate=0.4), rng)
    x = rng.normal(size=(3, 4))
    results = [layer(x, generator)[0] for generator in (None, *map(np.random.default_rng, (0, 1)))]
    for one in range(3):
        for two in range(one):
            assert not np.allclose(results[one], results[two])


def test_dropout_of_everything_leaves_the_last_bias():
    rng = np.random.default_rng(7)
    layer = randomised(FeedForward.init(rng, 3, 5, dropout_rate=1.0), rng)
    y, backward = layer(rng.normal(size=(2, 3)), rng)
    assert_array_equal(y, np.broadcast_to(layer.contract.bias, (2, 3)))
    gradient, dx = backward(np.ones((2, 3)))
    assert_array_equal(dx, np.zeros((2, 3)))
    assert_array_equal(gradient.contract.bias, [2, 2, 2])
    for part in (gradient.expand.weight, gradient.expand.bias, gradient.contract.weight):
        assert not part.any()


@given(layers_and_inputs())
def test_the_same_network_at_every_position(drawn):
    layer, x, rng = drawn
    y, backward = layer(x)
    dy = rng.normal(size=x.shape)
    _, dx = backward(dy)
    for n in np.ndindex(x.shape[:-1]):
        alone, alone_backward = layer(x[n])
        assert_close(alone, y[n])
        assert_close(alone_backward(dy[n])[1], dx[n])


def test_any_function_with_a_pullback_will_do_as_bend():
    def cube(x):
        return x**3, lambda dy: 3 * dy * x**2

    rng = np.random.default_rng(8)
    layer = randomised(FeedForward.init(rng, 3, 4, activation=cube), rng)
    x = rng.normal(size=(2, 3))
    assert_close(layer(x)[0], layer.contract(layer.expand(x)[0] ** 3)[0])
    check_gradients(lambda layer, x: layer(x), layer, x, rng=rng)


def test_relu_is_the_bend_when_none_is_named():
    expand, contract = Linear(np.ones((2, 3)), np.ones(3)), Linear(np.ones((3, 2)), np.ones(2))
    layer = FeedForward(expand, contract)
    assert layer.activation is FeedForward.init(np.random.default_rng(0), 2, 3).activation is relu
    assert layer.dropout_rate == FeedForward.init(np.random.default_rng(0), 2, 3).dropout_rate == 0


@given(layers_and_inputs(rates=rates), st.integers(0, 99))
def test_pure_and_linear(drawn, seed):
    layer, x, rng = drawn
    assert_pure_and_linear(lambda layer, x: layer(x, np.random.default_rng(seed)), layer, x, rng=rng)


@given(layers_and_inputs(activations=st.sampled_from([gelu, gelu_tanh])))
def test_memory_layout_does_not_matter(drawn):
    layer, x, rng = drawn
    assert_same_for_layouts(lambda layer, x: layer(x), layer, x, rng=rng, tolerance=1e-10)


@each_activation
def test_dtype_is_kept(activation):
    rng = np.random.default_rng(9)
    layer = randomised(FeedForward.init(rng, 3, 5, activation=activation, dropout_rate=0.3), rng)
    for generator in (lambda: None, lambda: np.random.default_rng(0)):
        f = lambda layer, x: layer(x, generator())
        assert_keeps_dtype(f, layer, rng.normal(size=(2, 4, 3)), rng=rng)
        assert_keeps_dtype(f, layer, rng.normal(size=(2, 4, 3)), rng=rng, dtype=np.float64, near=0)


@pytest.mark.parametrize("shape", [(0, 3), (0, 2, 3), (2, 0, 3)])
def test_no_words(shape):
    rng = np.random.default_rng(10)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = FeedForward.init(rng, 3, 5, dropout_rate=0.3, dtype=np.float64)(np.zeros(shape), rng)
        gradient, dx = backward(np.zeros(shape))
    assert y.shape == dx.shape == shape
    assert all(not array.any() for array in named_parameters(gradient).values())


# ── Construction and errors ──────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_initial_weights(dtype):
    layer = FeedForward.init(np.random.default_rng(11), 60, 200, activation=gelu, dropout_rate=0.3, dtype=dtype)
    assert layer.activation is gelu and layer.dropout_rate == 0.3
    assert layer.expand.weight.shape == (60, 200) and layer.contract.weight.shape == (200, 60)
    assert_array_equal(layer.expand.bias, np.zeros(200, dtype), strict=True)
    assert_array_equal(layer.contract.bias, np.zeros(60, dtype), strict=True)
    limit = math.sqrt(6 / 260)
    for weight in (layer.expand.weight, layer.contract.weight):
        assert weight.dtype == dtype
        assert 0.99 * limit < np.abs(weight).max() <= limit
        assert_allclose(weight.var(), 2 / 260, rtol=0.03)
        assert abs(weight.mean()) < 0.003
    assert np.isin(layer.expand.weight, layer.contract.weight).mean() < 0.01


def test_same_seed_same_weights():
    one, same, other = (FeedForward.init(np.random.default_rng(seed), 3, 5) for seed in (0, 0, 1))
    assert_same(one, same)
    assert not np.isin(one.expand.weight, other.expand.weight).any()
    assert one.expand.weight.dtype == np.float32


def test_a_layer_is_itself_alone_and_cannot_be_changed():
    layer = FeedForward.init(np.random.default_rng(0), 2, 3)
    assert layer == layer != replace(layer) and len({layer, layer, replace(layer)}) == 2
    with pytest.raises(FrozenInstanceError):
        layer.expand = None


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), float("inf"), "0.1", None], ids=repr)
def test_a_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(ValueError, match=f"dropout_rate must be a number at least 0 and at most 1, not {rate!r}"):
        FeedForward.init(np.random.default_rng(0), 2, 3, dropout_rate=rate)


def test_parts_that_do_not_fit_are_refused():
    expand, contract = Linear(np.ones((2, 3)), np.ones(3)), Linear(np.ones((4, 2)), np.ones(2))
    with pytest.raises(ValueError, match="expand gives 3 numbers, contract takes 4"):
        FeedForward(expand, contract)


@pytest.mark.parametrize("width, hidden, message", [
    (0, 3, "inputs .*, not 0"), (2, 0, "outputs .*, not 0"),
    (2.5, 3, "inputs .*, not 2.5"), (2, "3", "outputs .*, not '3'")])
def test_sizes_must_be_positive_whole_numbers(width, hidden, message):
    with pytest.raises(ValueError, match=message.replace(".*", "must be a whole number of at least 1")):
        FeedForward.init(np.random.default_rng(0), width, hidden)


@pytest.mark.parametrize("x, error, message", [
    (np.ones((2, 4)), ValueError, r"x has shape \(2, 4\): its last axis must be 3 wide"),
    (np.ones((3, 1)), ValueError, r"x has shape \(3, 1\): its last axis must be 3 wide"),
    (np.ones((3, 0)), ValueError, r"x has shape \(3, 0\): its last axis must be 3 wide"),
    (1.0, ValueError, r"x has shape \(\): its last axis must be 3 wide"),
    (np.ones(3, complex), TypeError, "x must hold real numbers, not dtype complex128"),
    (["a", "b", "c"], TypeError, "x must hold real numbers, not dtype <U1"),
])
def test_bad_input_is_refused(x, error, message):
    with pytest.raises(error, match=message):
        FeedForward.init(np.random.default_rng(0), 3, 5)(x)


@pytest.mark.parametrize("activation", [relu, gelu, gelu_tanh])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_numbers_bend_without_overflow(activation, dtype):
    top = np.finfo(dtype).max
    y, backward = activation(np.array([-top, -100, 100, top], dtype))
    assert_array_equal(y, np.array([0, 0, 100, top], dtype))
    assert_array_equal(backward(np.ones(4, dtype)), np.array([0, 0, 1, 1], dtype))
