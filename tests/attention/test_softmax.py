import loops
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, rngs, shapes,
)

from numpy_transformer.attention.softmax import softmax
from numpy_transformer.foundations.gradient_check import check_gradients

QUIET = dict(over="raise", invalid="raise", divide="raise")


@st.composite
def finite_scores(draw):
    """Any finite scores of any floating type, the extremes and subnormals often among them"""
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    info = np.finfo(dtype)
    smallest = info.smallest_subnormal
    extremes = st.sampled_from([info.max, info.min, info.max / 2, info.tiny, smallest, -smallest, 0.0, -0.0])
    elements = st.floats(allow_nan=False, allow_infinity=False, width=info.bits) | extremes.map(float)
    return draw(hnp.arrays(dtype, shapes(most=3), elements=elements))


@given(finite_scores(), rngs)
def test_any_finite_scores_give_weights_without_a_warning(x, rng):
    dy = rng.uniform(-1, 1, x.shape).astype(x.dtype)
    with np.errstate(**QUIET):
        y, backward = softmax(x)
        dx = backward(dy)
    assert y.dtype == dx.dtype == x.dtype and y.shape == dx.shape == x.shape
    assert (y >= 0).all() and (y <= 1).all()
    rounding = 4 * np.finfo(x.dtype).eps
    assert_allclose(y.sum(axis=-1, dtype=np.float64), 1, atol=rounding)
    assert_allclose(dx.sum(axis=-1, dtype=np.float64), 0, atol=2 * rounding)
    smaller = x[..., :, None] < x[..., None, :]
    assert (y[..., :, None] <= y[..., None, :])[smaller].all()
    equal = x[..., :, None] == x[..., None, :]
    assert (y[..., :, None] == y[..., None, :])[equal].all()
    with np.errstate(over="ignore"):
        assert_allclose(y, loops.softmax(x.astype(np.float64)), atol=rounding)


@given(finite_scores(), st.data())
def test_minus_infinity_hides_an_entry(x, data):
    hidden = data.draw(hnp.arrays(bool, x.shape))
    with np.errstate(**QUIET):
        y, backward = softmax(np.where(hidden, -np.inf, x).astype(x.dtype))
        dx = backward(np.ones_like(x))
    assert y.dtype == x.dtype
    assert_array_equal(y[hidden], 0)
    assert_array_equal(dx[hidden], 0)
    assert_allclose(y.sum(axis=-1, dtype=np.float64), ~hidden.all(axis=-1), atol=4 * np.finfo(x.dtype).eps)
    for row in np.ndindex(x.shape[:-1]):
        seen = ~hidden[row]
        assert_allclose(y[row][seen], softmax(x[row][seen])[0], rtol=4 * np.finfo(x.dtype).eps)


@given(rngs, shapes(), st.sampled_from([0.1, 1.0, 10.0]))
def test_gradient_and_scalar_loops(rng, shape, spread):
    x = spread * rng.normal(size=shape)
    check_gradients(softmax, x, rng=rng)
    x[rng.random(shape) < 0.3] = -np.inf
    y, backward = softmax(x)
    dy = rng.normal(size=shape)
    assert_close(y, loops.softmax(x))
    assert_close(backward(dy), loops.softmax_backward(x, dy))


@given(rngs, shapes())
def test_manners(rng, shape):
    x = rng.normal(size=shape)
    assert_pure_and_linear(softmax, x, rng=rng)
    assert_same_for_layouts(softmax, x, rng=rng)
    assert_keeps_dtype(softmax, x, rng=rng)
    assert_keeps_dtype(softmax, x, rng=rng, dtype=np.float16, near=1e-2)


@given(rngs, shapes())
def test_the_jacobian(rng, shape):
    *_, N = shape
    p, backward = softmax(rng.normal(size=N))
    jacobian = np.array([backward(row) for row in np.eye(N)])
    assert_close(np.diag(jacobian), p * (1 - p), 1e-15)
    assert_close(jacobian, np.diag(p) - np.outer(p, p), 1e-15)


eighths = hnp.arrays(np.float64, shapes(most=3), elements=st.integers(-80, 80).map(lambda n: n / 8))


@given(eighths, st.sampled_from([1e4, -1e4, 1e9]))
def test_a_shift_of_all_scores_changes_nothing(x, shift):
    assert_same(softmax(x + shift)[0], softmax(x)[0])  # eighths: x + shift is exact


@given(eighths, st.integers(0, 4), st.sampled_from([0.5, 2.0, 3.0]))
def test_a_shift_of_one_score_changes_every_weight(x, position, shift):
    assume(x.shape[-1] > 1)
    other = x.copy()
    other[..., position % x.shape[-1]] += shift
    change = softmax(other)[0] - softmax(x)[0]
    assert (change != 0).all()
    assert (np.sign(change).sum(axis=-1) == 2 - x.shape[-1]).all()  # one grows, all others shrink


@given(rngs, shapes(), st.data())
def test_permuted_scores_give_permuted_weights(rng, shape, data):
    x, dy = rng.normal(size=(2, *shape))
    order = data.draw(st.permutations(range(shape[-1])))
    (y, backward), (permuted, permuted_backward) = softmax(x), softmax(x[..., order])
    assert_close(permuted, y[..., order], 1e-15)
    assert_close(permuted_backward(dy[..., order]), backward(dy)[..., order], 1e-14)


@given(rngs, shapes(least=2))
def test_a_row_does_not_depend_on_the_others(rng, shape):
    x, dy = rng.normal(size=(2, *shape))
    y, backward = softmax(x)
    dx = backward(dy)
    for row in np.ndindex(shape[:-1]):
        alone, alone_backward = softmax(x[row])
        assert_close(y[row], alone, 1e-15)
        assert_close(dx[row], alone_backward(dy[row]), 1e-15)


# ── Values ───────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("scores, weights", [
    ([1e4, 1e4 - 1, -1e4], [0.7310585786300049, 0.2689414213699951, 0]),
    ([-1e4] * 3, [1 / 3] * 3),
    ([1, 2, 3], [0.0900305731703805, 0.2447284710547976, 0.6652409557748218]),
    ([[0, np.log(3)], [np.log(3), 0], [0, 0]], [[0.25, 0.75], [0.75, 0.25], [0.5, 0.5]]),
    ([True, False], [0.7310585786300049, 0.2689414213699951]),
    ([-np.inf, 0.0, -np.inf], [0, 1, 0]),
    ([[-np.inf, -np.inf], [0, 0]], [[0, 0], [0.5, 0.5]]),
])
def test_values(scores, weights):
    with np.errstate(**QUIET):
        y, _ = softmax(np.array(scores))
    assert y.dtype == np.float64
    assert_close(y, weights, 1e-15)


def test_values_of_the_backward_pass():
    _, backward = softmax(np.array([1e4, 1e4 - 1, -1e4]))
    assert_close(backward(np.array([1.0, 0, 0])), [0.1966119332414819, -0.1966119332414819, 0], 1e-15)


def test_close_scores_share_and_distant_scores_do_not():
    assert_array_equal(softmax(np.array([2.0, 0, -1]))[0].round(2), [0.84, 0.11, 0.04])
    assert_array_equal(softmax(np.array([50.0, 0, -20]))[0].round(2), [1, 0, 0])


def test_an_upstream_gradient_of_ones_vanishes_and_another_does_not():
    _, backward = softmax(np.array([0.3, -0.2, 1.0]))
    assert_close(backward(np.ones(3)), np.zeros(3), 1e-16)
    assert (np.abs(backward(np.array([1.0, 0, 0]))) > 0.04).all()


def test_float16_is_computed_in_float32():
    x = np.random.default_rng(0).normal(size=(5, 300)).astype(np.float16)
    assert_same(softmax(x)[0], softmax(x.astype(np.float32))[0].astype(np.float16))
    many = softmax(np.zeros(70_000, np.float16))[0]  # their sum is beyond float16
    assert_allclose(many.astype(np.float64), 1 / 70_000, rtol=0.01)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 0)])
def test_no_entries(shape):
    with np.errstate(all="raise"):
        y, backward = softmax(np.zeros(shape))
        dx = backward(np.zeros(shape))
    assert y.shape == dx.shape == shape


@pytest.mark.parametrize("score", [0.0, -3e8, 1e300, np.finfo(float).max, np.finfo(float).min])
def test_one_entry_gets_all(score):
    y, backward = softmax(np.full((2, 1), score))
    assert_array_equal(y, [[1], [1]])
    assert_array_equal(backward(np.array([[3.0], [-2.0]])), [[0], [0]])


@pytest.mark.parametrize("x, error, message", [
    ([1.0, np.nan], ValueError, r"^x of shape \(2,\) holds NaN or \+inf"),
    ([[0.0, 1.0], [-np.inf, np.nan]], ValueError, r"^x of shape \(2, 2\) holds NaN or \+inf"),
    ([np.inf, 0.0], ValueError, r"^x of shape \(2,\) holds NaN or \+inf"),
    ([[np.inf], [0.0], [0.0]], ValueError, r"^x of shape \(3, 1\)"),
    (np.array([np.inf, 0], np.float16), ValueError, r"^x of shape \(2,\)"),
    (3.0, ValueError, r"^x has shape \(\): expected \(\.\.\., N\)"),
    (7, ValueError, r"^x has shape \(\)"),
    ([1j], TypeError, r"^x must hold real numbers, not dtype complex128"),
    (["a"], TypeError, r"^x must hold real numbers, not dtype <U1"),
    ([None], TypeError, r"^x must hold real numbers, not dtype object"),
])
def test_refused(x, error, message):
    with pytest.raises(error, match=message):
        softmax(x)
