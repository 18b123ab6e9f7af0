"""The residual connection: where the norm stands, what dropout touches, and the straight way back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from numpy.testing import assert_array_equal

import loops
from numpy_transformer.attention.multi_head import MultiHeadAttention
from numpy_transformer.foundations.dropout import dropout
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import map_tree, named_parameters
from numpy_transformer.layers.feed_forward import FeedForward, gelu
from numpy_transformer.layers.layer_norm import LayerNorm
from numpy_transformer.layers.residual import residual
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, letters, masks,
    randomised, rates, rngs)

few = settings(max_examples=settings.default.max_examples // 4)  # where an example is long
both_placements = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])


@st.composite
def parts(draw):
    """A norm, a smooth feed-forward network as sublayer, and x"""
    n, rng = draw(letters("BTDF")), draw(rngs)
    norm = randomised(LayerNorm.init(n.D, epsilon=draw(st.sampled_from([1e-5, 0.1]))), rng)
    sublayer = randomised(FeedForward.init(rng, n.D, n.F, activation=gelu), rng)
    x_shape = draw(st.sampled_from([(n.D,), (n.T, n.D), (n.B, n.T, n.D)]))
    return norm, sublayer, rng.normal(0, 2, x_shape), rng


def some_parts(seed=0, width=4):
    rng = np.random.default_rng(seed)
    norm, sublayer = LayerNorm.init(width), FeedForward.init(rng, width, 7, activation=gelu)
    return randomised(norm, rng), randomised(sublayer, rng), rng.normal(size=(2, 3, width)), rng


def silent(sublayer):
    """The sublayer with a last layer of zeros: its answer is 0 whatever it is asked."""
    return replace(sublayer, contract=map_tree(np.zeros_like, sublayer.contract))


# ── The two wirings ──────────────────────────────────────────────────────────────────────────────

@given(parts(), rates, st.integers(0, 99))
def test_pre_norm_by_definition(drawn, rate, seed):
    norm, sublayer, x, _ = drawn
    y, _ = residual(sublayer, norm, x, dropout_rate=rate, rng=np.random.default_rng(seed))
    branch, _ = sublayer(norm(x)[0])
    assert_array_equal(y, x + dropout(branch, rate, np.random.default_rng(seed))[0])


@given(parts(), rates, st.integers(0, 99))
def test_post_norm_by_definition(drawn, rate, seed):
    norm, sublayer, x, _ = drawn
    y, _ = residual(sublayer, norm, x, norm_first=False, dropout_rate=rate, rng=np.random.default_rng(seed))
    branch, _ = sublayer(x)
    assert_array_equal(y, norm(x + dropout(branch, rate, np.random.default_rng(seed))[0])[0])


@given(parts(), st.booleans())
def test_agrees_with_loops(drawn, norm_first):
    norm, sublayer, x, _ = drawn
    weights = tuple(named_parameters(sublayer).values())
    y, _ = residual(sublayer, norm, x, norm_first=norm_first)
    expected = loops.residual(x, lambda u: loops.feed_forward(u, *weights, loops.gelu), (norm.gain, norm.shift),
                              norm_first, norm.epsilon)
    assert_close(y, expected)


def test_by_hand():
    """A sublayer that doubles, a norm whose ε = 3 makes (−½, ½) of (0, 2): first (−1, 3), last LN(0, 6) = ∓½√3."""
    double = Linear(2 * np.eye(2), np.zeros(2))
    norm, x = LayerNorm(np.ones(2), np.zeros(2), epsilon=3.0), np.array([0.0, 2.0])
    assert_array_equal(residual(double, norm, x)[0], [-1, 3])
    y, _ = residual(double, norm, x, norm_first=False)
    assert_close(y, [-np.sqrt(3) / 2, np.sqrt(3) / 2])


def test_the_norm_comes_first_unless_told_otherwise():
    norm, sublayer, x, _ = some_parts()
    default, _ = residual(sublayer, norm, x)
    assert_array_equal(default, residual(sublayer, norm, x, norm_first=True)[0])
    assert not np.allclose(default, residual(sublayer, norm, x, norm_first=False)[0])


# ── Gradients ────────────────────────────────────────────────────────────────────────────────────

@both_placements
@given(drawn=parts(), rate=st.just(0.0) | rates, seed=st.integers(0, 99))
def test_gradients(norm_first, drawn, rate, seed):
    norm, sublayer, x, rng = drawn

    def f(sublayer, norm, x):
        return residual(sublayer, norm, x, norm_first=norm_first, dropout_rate=rate, rng=np.random.default_rng(seed))

    summed = x + dropout(sublayer(x)[0], rate, np.random.default_rng(seed))[0]
    assume(all((z.std(axis=-1) > 0.3).all() for z in (x, summed)))  # of a row that all but agrees x̂ is half rounding
    worst = check_gradients(f, sublayer, norm, x, rng=rng, coordinates=0)
    assert len(worst) == 7


@both_placements
@few
@given(n=letters("BTSK"), rng=rngs, rate=rates, seed=st.integers(0, 99), data=st.data())
def test_gradients_of_whatever_else_the_sublayer_was_given(norm_first, n, rng, rate, seed, data):
    """A sublayer over a memory: its pullback's third gradient comes out fourth."""
    D, mask = 2 * n.K, data.draw(masks((n.B, 2, n.T, n.S)))
    norm, sublayer = LayerNorm.init(D), MultiHeadAttention.init(rng, D, 2)
    x, memory = rng.normal(size=(n.B, n.T, D)), rng.normal(size=(n.B, n.S, D))

    def f(sublayer, norm, x, memory):
        return residual(lambda x: sublayer(x, memory, mask), norm, x, norm_first=norm_first, dropout_rate=rate,
                        rng=np.random.default_rng(seed))

    worst = check_gradients(f, randomised(sublayer, rng), randomised(norm, rng), x, memory, rng=rng,
                            coordinates=0, directions=1)
    assert len(worst) == 12


def test_every_further_gradient_is_handed_on_in_order():
    def sublayer(x):
        return 2 * x, lambda dy: ("gradient", 2 * dy, "first", "second")

    norm, _, x, _ = some_parts()
    for norm_first in (True, False):
        _, backward = residual(sublayer, norm, x, norm_first=norm_first)
        gradient, norm_gradient, dx, *others = backward(x)
        assert isinstance(norm_gradient, LayerNorm) and gradient == "gradient" and others == ["first", "second"]
        assert dx.shape == x.shape


# ── The straight way ─────────────────────────────────────────────────────────────────────────────

def test_a_silent_sublayer_leaves_x_and_its_gradient_exactly():
    norm, sublayer, x, rng = some_parts()
    dy = rng.normal(size=x.shape)
    y, backward = residual(silent(sublayer), norm, x)
    _, _, dx = backward(dy)
    assert_array_equal(y, x)
    assert_array_equal(dx, dy)
    y, backward = residual(sublayer, norm, x)
    assert not np.allclose(y, x) and not np.allclose(backward(dy)[2], dy)


def test_three_silent_blocks_leave_x_and_its_gradient_exactly():
    norm, sublayer, x, rng = some_parts()
    dx = dy = rng.normal(size=x.shape)
    y, pullbacks = x, []
    for _ in range(3):
        y, backward = residual(silent(sublayer), norm, y)
        pullbacks.append(backward)
    for backward in reversed(pullbacks):
        _, _, dx = backward(dx)
    assert_array_equal(y, x)
    assert_array_equal(dx, dy)


def test_post_norm_of_a_silent_sublayer_is_the_norm():
    norm, sublayer, x, rng = some_parts()
    dy = rng.normal(size=x.shape)
    y, backward = residual(silent(sublayer), norm, x, norm_first=False)
    _, norm_gradient, dx = backward(dy)
    expected, norm_backward = norm(x)
    assert_array_equal(y, expected)
    assert_same((norm_gradient, dx), norm_backward(dy))
    assert not np.allclose(y, x)


@both_placements
def test_the_straight_way_is_there_beside_the_branch(norm_first):
    """With the straight way cut off, dx would be the branch's share alone."""
    norm, sublayer, x, rng = some_parts()
    dy = rng.normal(size=x.shape)
    _, backward = residual(sublayer, norm, x, norm_first=norm_first)
    _, _, dx = backward(dy)
    if norm_first:
        normed, norm_backward = norm(x)
        through = norm_backward(sublayer(normed)[1](dy)[1])[1]
        straight = dy
    else:
        branch, sublayer_backward = sublayer(x)
        straight = norm(x + branch)[1](dy)[1]
        through = sublayer_backward(straight)[1]
    assert_close(dx, straight + through)
    assert np.abs(straight).max() > 0.1 and np.abs(through).max() > 0.1


# ── Dropout ──────────────────────────────────────────────────────────────────────────────────────

@both_placements
def test_dropout_of_everything_silences_the_branch_and_nothing_else(norm_first):
    norm, sublayer, x, rng = some_parts()
    dy = rng.normal(size=x.shape)
    y, backward = residual(sublayer, norm, x, norm_first=norm_first, dropout_rate=1.0, rng=rng)
    quiet, quiet_backward = residual(silent(sublayer), norm, x, norm_first=norm_first)
    assert_array_equal(y, quiet)
    gradient, norm_gradient, dx = backward(dy)
    assert_array_equal(dx, quiet_backward(dy)[2])
    assert all(not array.any() for array in named_parameters(gradient).values())
    assert norm_first != norm_gradient.gain.any()  # before the branch the norm is silenced with it


@both_placements
def test_dropout_only_with_a_generator_and_a_rate(norm_first):
    norm, sublayer, x, _ = some_parts()

    def y(**choices):
        return residual(sublayer, norm, x, norm_first=norm_first, **choices)[0]

    plain = y()
    assert_array_equal(y(dropout_rate=0.7), plain)
    assert_array_equal(y(rng=np.random.default_rng(0)), plain)
    one, same, other = (y(dropout_rate=0.3, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert not np.allclose(one, plain) and not np.allclose(one, other)


@both_placements
@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), "0.1", None], ids=repr)
def test_a_rate_outside_zero_to_one_is_refused(norm_first, rate):
    norm, sublayer, x, rng = some_parts()
    with pytest.raises(ValueError, match=f"rate must be a number at least 0 and at most 1, not {rate!r}"):
        residual(sublayer, norm, x, norm_first=norm_first, dropout_rate=rate, rng=rng)


# ── Purity, memory, dtypes, sizes ────────────────────────────────────────────────────────────────

@both_placements
@given(drawn=parts(), rate=rates, seed=st.integers(0, 99))
def test_pure_and_linear(norm_first, drawn, rate, seed):
    norm, sublayer, x, rng = drawn

    def f(norm, sublayer, x):
        return residual(sublayer, norm, x, norm_first=norm_first, dropout_rate=rate, rng=np.random.default_rng(seed))

    assert_pure_and_linear(f, norm, sublayer, x, rng=rng)


@both_placements
def test_memory_layout_and_dtype(norm_first):
    norm, sublayer, x, rng = some_parts()

    def f(norm, sublayer, x):
        return residual(sublayer, norm, x, norm_first=norm_first, dropout_rate=0.3, rng=np.random.default_rng(0))

    assert_same_for_layouts(f, norm, sublayer, x, rng=rng)
    assert_keeps_dtype(f, norm, sublayer, x, rng=rng)
    assert_keeps_dtype(f, norm, sublayer, x, rng=rng, dtype=np.float64, near=0)


@both_placements
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (1, 1, 4), (0, 4), (4,)])
def test_sizes_of_zero_and_one(norm_first, shape):
    norm, sublayer, _, rng = some_parts()
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = residual(sublayer, norm, np.zeros(shape), norm_first=norm_first, dropout_rate=0.3, rng=rng)
        _, _, dx = backward(np.zeros(shape))
    assert y.shape == dx.shape == shape


@both_placements
def test_input_of_another_width_is_refused(norm_first):
    norm, sublayer, _, _ = some_parts()
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 5\): its last axis must be 4 wide"):
        residual(sublayer, norm, np.ones((2, 3, 5)), norm_first=norm_first)


@both_placements
def test_the_sublayers_answer_stays_as_it_was(norm_first):
    norm, _, x, _ = some_parts()
    answer = np.ones_like(x)
    residual(lambda x: (answer, None), norm, x, norm_first=norm_first)
    assert_array_equal(answer, np.ones_like(x))
