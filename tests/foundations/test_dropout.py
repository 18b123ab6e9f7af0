import loops
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, rates, rngs, shapes,
)

from numpy_transformer.foundations.dropout import dropout
from numpy_transformer.foundations.gradient_check import check_gradients

seeds = st.integers(0, 2**32 - 1)


def seeded(seed):
    return np.random.default_rng(seed)


def with_seed(seed, rate):
    """Dropout as a function of x alone: the same draw at every call"""
    return lambda x: dropout(x, rate, seeded(seed))


@given(rngs, shapes(), rates, seeds)
def test_gradient(rng, shape, rate, seed):
    check_gradients(with_seed(seed, rate), rng.normal(size=shape), rng=rng, coordinates=20)


@given(rngs, shapes(), rates, seeds)
def test_scalar_loops_agree(rng, shape, rate, seed):
    x, dy = rng.normal(size=(2, *shape))
    y, backward = dropout(x, rate, seeded(seed))
    keep = y != 0
    assert_close(y, loops.dropout(x, keep, rate))
    assert_close(backward(dy), loops.dropout(dy, keep, rate))
    assert_array_equal(backward(dy) == 0, ~keep)  # the gradient passes through the same holes


@given(rngs, shapes(), rates, seeds)
def test_manners(rng, shape, rate, seed):
    f, x = with_seed(seed, rate), rng.normal(size=shape)
    assert_pure_and_linear(f, x, rng=rng)
    assert_same_for_layouts(f, x, rng=rng)
    assert_keeps_dtype(f, x, rng=rng)


@given(rngs, shapes(), st.sampled_from([(0, True), (0.0, True), (1e-6, True), (0.3, False), (1.0, False)]))
def test_off_means_the_input_itself(rng, shape, setting):
    rate, training = setting
    x, dy = rng.normal(size=(2, *shape))
    y, backward = dropout(x, rate, rng if training else None)
    assert y is x
    assert_same(backward(dy), dy)


@given(rngs, shapes(), st.sampled_from([1, 1.0, 1 - 1e-9]))
def test_rate_one_gives_zeros(rng, shape, rate):
    x, dy = rng.normal(size=(2, *shape))
    with np.errstate(all="raise"):
        y, backward = dropout(x, rate, rng)
        dx = backward(dy)
    assert_same(y, np.zeros(shape))
    assert_same(dx, np.zeros(shape))


def test_half_of_ones():
    y, _ = dropout(np.ones(1000), 0.5, seeded(0))
    assert_array_equal(np.unique(y), [0, 2])


@pytest.mark.parametrize("rate", [0.1, 0.37, 0.5, 0.9])
def test_how_many_are_kept_and_the_mean(rate):
    n = 100_000
    y, _ = dropout(np.ones(n), rate, seeded(0))
    kept = np.count_nonzero(y) / n
    assert abs(kept - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / n)
    assert_array_equal(np.unique(y)[:1], [0])
    np.testing.assert_allclose(np.unique(y)[1:], [1 / (1 - rate)], rtol=1e-4)  # the rate is rounded to 1/65536
    assert abs(y.mean() - 1) < 5 * np.sqrt(rate / (1 - rate) / n)
    if rate == 0.1:
        assert abs(y.mean() - 1) < 0.006


def test_each_entry_is_drawn_by_itself():
    y, _ = dropout(np.ones((40, 50, 60)), 0.3, seeded(1))
    kept = y != 0
    for axis in range(3):
        means = kept.mean(axis=axis)
        assert 0.02 < means.std() < 0.1  # neither whole rows nor one mask repeated along an axis
        one, two = (np.take(kept, range(start, kept.shape[axis] - 1 + start), axis).ravel() for start in (0, 1))
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(one.size)


class EveryNumberOnce(np.random.Generator):
    """A generator that deals each number below `high` once"""

    def integers(self, high, size, dtype):
        assert size == (high,)
        return np.arange(high).astype(dtype)


@pytest.mark.parametrize("dropped", [1, 2, 19_661, 32_768, 65_534, 65_535, 65_536])
def test_the_rate_is_met_exactly(dropped):
    y, _ = dropout(np.ones(65_536), dropped / 65_536, EveryNumberOnce(np.random.PCG64(0)))
    assert np.count_nonzero(y) == 65_536 - dropped
    assert y.sum() == pytest.approx(65_536 if dropped < 65_536 else 0, rel=1e-12)


def test_every_call_draws_anew_and_the_seed_decides():
    x = np.ones(200)
    state = np.random.get_state()[1].copy()
    rng = seeded(3)
    first, second = dropout(x, 0.4, rng)[0], dropout(x, 0.4, rng)[0]
    assert (first != second).any()
    assert_same(dropout(x, 0.4, seeded(3))[0], first)
    assert (dropout(x, 0.4, seeded(4))[0] != first).any()
    assert_array_equal(np.random.get_state()[1], state)


def test_dtypes():
    for dtype in (np.float16, np.float32, np.float64):
        y, backward = dropout(np.ones(50, dtype), 0.3, seeded(0))
        assert y.dtype == backward(np.ones(50, dtype)).dtype == dtype
    for x in ([3, 0, -2], np.array([3, 0, -2], np.int32)):
        assert dropout(x, 0.3, seeded(0))[0].dtype == np.float64
        assert_same(dropout(x, 0.3, None)[0], np.array([3.0, 0, -2]))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 1)])
def test_sizes_of_none_and_one(shape):
    y, backward = dropout(np.full(shape, 3.0), 0.25, seeded(0))
    assert y.shape == backward(np.ones(shape)).shape == shape
    assert np.isin(y, [0, 4]).all()


@pytest.mark.parametrize("x, rate, error, message", [
    (np.ones(2), -0.1, ValueError, r"^rate must be a number at least 0 and at most 1, not -0\.1"),
    (np.ones(2), 1.1, ValueError, r"^rate .* not 1\.1"),
    (np.ones(2), np.nan, ValueError, r"^rate .* not nan"),
    (np.ones(2), -np.inf, ValueError, r"^rate .* not -inf"),
    (np.ones(2), None, ValueError, r"^rate .* not None"),
    (np.ones(2), "0.1", ValueError, r"^rate .* not '0\.1'"),
    (np.ones(2), np.array([0.1]), ValueError, r"^rate .* not array"),
    (np.ones(2, complex), 0.1, TypeError, r"^x must hold real numbers, not dtype complex128"),
    (["a"], 0.1, TypeError, r"^x must hold real numbers"),
])
def test_refused(x, rate, error, message):
    for rng in (None, seeded(0)):
        with pytest.raises(error, match=message):
            dropout(x, rate, rng)
