"""The loss: scalar loops, difference quotients and the known values of its hard cases agree with it."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loops
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.training.cross_entropy import cross_entropy
from strategies import assert_close, assert_pure_and_linear, assert_same, layouts, read_only, rngs, shapes

quiet = partial(np.errstate, over="raise", invalid="raise", divide="raise")


@st.composite
def cases(draw, least=0):
    """logits (..., V), targets (...) and settings: any rank, any ignored number or none, any smoothing"""
    leading, V, rng = draw(shapes(least, 3)), draw(st.integers(1, 6)), draw(rngs)
    logits = rng.normal(scale=3, size=(*leading, V))
    targets = np.asarray(rng.integers(V, size=leading))
    ignore_index = draw(st.none() | st.sampled_from([-100, -1, V, V + 93]) | st.integers(0, V - 1))
    if ignore_index is not None:
        targets = np.where(rng.random(leading) < draw(st.sampled_from([0.0, 0.3, 1.0])), ignore_index, targets)
    smoothing = draw(st.sampled_from([0.0, 0.1, 1.0]) | st.floats(0, 1))
    return logits, targets, dict(ignore_index=ignore_index, label_smoothing=smoothing)


def of_logits(targets, settings):
    """cross_entropy as a function of the logits alone"""
    def f(logits):
        loss, backward = cross_entropy(logits, targets, **settings)
        return np.asarray(loss), backward

    return f


# ── Right ────────────────────────────────────────────────────────────────────────────────────────

@given(cases())
def test_loss_and_gradient_agree_with_scalar_loops(case):
    logits, targets, settings = case
    loss, backward = cross_entropy(logits, targets, **settings)
    assert type(loss) is float
    assert_close(loss, loops.cross_entropy(logits, targets, **settings))
    assert_close(backward(), loops.cross_entropy_backward(logits, targets, **settings))


@given(cases(), rngs)
def test_gradient_agrees_with_difference_quotients(case, rng):
    logits, targets, settings = case
    check_gradients(of_logits(targets, settings), logits, rng=rng)


@given(cases(), rngs)
def test_it_is_pure_and_its_gradient_linear_in_the_upstream_number(case, rng):
    logits, targets, settings = case
    targets = read_only(targets)
    kept = targets.copy()
    assert_pure_and_linear(of_logits(targets, settings), logits, rng=rng)
    assert_same(targets, kept)


@given(cases(), st.floats(-5, 5))
def test_the_upstream_number_is_a_factor_and_is_one_unless_given(case, d_loss):
    logits, targets, settings = case
    _, backward = cross_entropy(logits, targets, **settings)
    assert_same(backward(1.0), backward())
    assert_close(backward(d_loss), d_loss * backward(), 1e-14)


@given(cases(least=1))
def test_any_layout_in_memory_gives_the_same(case):
    logits, targets, settings = case
    loss, backward = cross_entropy(logits, targets, **settings)
    every_second = np.repeat(targets, 2, axis=-1)[..., ::2]
    for variant in layouts(logits):
        other_loss, other_backward = cross_entropy(variant, every_second, **settings)
        assert_close(other_loss, loss)
        assert_close(other_backward(), backward())


@given(cases(), st.sampled_from([-1e4, 1e4]))
def test_adding_one_number_to_all_logits_of_a_row_changes_nothing(case, shift):
    logits, targets, settings = case
    loss, backward = cross_entropy(logits, targets, **settings)
    shifted_loss, shifted_backward = cross_entropy(logits + shift, targets, **settings)
    assert_close(shifted_loss, loss, 1e-10)
    assert_close(shifted_backward(), backward(), 1e-10)


# ── Known values ─────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("logits, target, loss, gradient", [
    ([1000, 0], 1, 1000, [1, -1]),
    ([1000, 0], 0, 0, [0, 0]),
    ([1e4, -1e4, 0], 1, 20000, [1, -1, 0]),
    ([-1e4, -1e4, -1e4], 2, math.log(3), [1 / 3, 1 / 3, -2 / 3]),
    ([0, 0], 0, 0.6931471805599453, [-0.5, 0.5]),
])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_logits(logits, target, loss, gradient, dtype):
    with quiet():
        found, backward = cross_entropy(np.array([logits], dtype), np.array([target]))
        assert_close(found, loss, 1e-7 if dtype == np.float32 else 1e-15)
        assert_close(backward(), [gradient], 1e-7 if dtype == np.float32 else 1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_logits_of_a_dtype_are_quiet(dtype):
    largest = np.finfo(dtype).max
    logits = np.array([[largest, -largest, 0], [0, -largest, largest]], dtype)
    with quiet():
        loss, backward = cross_entropy(logits, np.array([0, 2]))
        assert loss == 0
        assert_same(backward(), np.zeros((2, 3), dtype))
        _, backward = cross_entropy(logits, np.array([1, 0]))
        assert_same(backward(), np.array([[0.5, -0.5, 0], [-0.5, 0, 0.5]], dtype))


def test_the_loss_of_large_float16_logits_is_not_held_to_the_range_of_float16():
    loss, _ = cross_entropy(np.array([[6e4, -6e4]], np.float16), np.array([1]))
    assert loss == 2 * float(np.float16(6e4))


def test_a_class_whose_logit_is_minus_infinity_has_probability_zero():
    with quiet():
        loss, backward = cross_entropy(np.array([[-np.inf, 2.0, 2.0]]), np.array([1]))
        assert_close(loss, math.log(2))
        assert_close(backward(), [[0, -0.5, 0.5]])


def test_label_smoothing():
    logits = np.array([[2.0, 1, 0, -1, -2], [9, 9, 9, 9, -9]])
    loss, backward = cross_entropy(logits, np.array([0, -1]), ignore_index=-1, label_smoothing=0.1)
    assert_close(loss, 0.6519143959375934, 1e-15)
    gradient = [-0.2835913534411693, 0.2141216572527366, 0.0661285444362687, 0.0116849207961243, -0.0083437690439604]
    assert_close(backward(), [gradient, [0] * 5], 1e-15)


def test_all_the_smoothing_there_is_leaves_nothing_of_the_target():
    logits = np.array([[2.0, 1, 0]])
    losses = {cross_entropy(logits, np.array([target]), label_smoothing=1)[0] for target in range(3)}
    assert len(losses) == 1
    assert_close(losses.pop(), math.log(sum(map(math.exp, [2, 1, 0]))) - 1)


# ── What is not counted ──────────────────────────────────────────────────────────────────────────

def test_an_ignored_token_is_not_part_of_the_mean():
    loss, backward = cross_entropy(np.zeros((2, 2)), np.array([0, -1]), ignore_index=-1)
    assert_close(loss, 0.6931471805599453, 1e-15)
    assert_close(backward(), [[-0.5, 0.5], [0, 0]], 1e-15)
    loss, backward = cross_entropy(np.zeros((2, 2)), np.array([0, 1]), ignore_index=-1)
    assert_close(loss, 0.6931471805599453, 1e-15)
    assert_close(backward(), [[-0.25, 0.25], [0.25, -0.25]], 1e-15)


@pytest.mark.parametrize("label_smoothing", [0.1, 1.0])
def test_smoothing_towards_an_impossible_class_costs_infinitely_much(label_smoothing):
    loss, _ = cross_entropy(np.array([[-np.inf, 2.0, 2.0]]), np.array([0]), label_smoothing=label_smoothing)
    assert loss == np.inf


@given(cases(least=1), st.sampled_from([1e4, np.nan, np.inf, -np.inf]))
def test_whatever_an_ignored_row_holds_the_rest_is_as_if_it_were_not_there(case, content):
    logits, targets, settings = case
    ignored = targets == settings["ignore_index"]
    settings = settings | {"ignore_index": -7}
    alone, alone_backward = cross_entropy(logits[~ignored], targets[~ignored], **settings)
    logits = np.where(ignored[..., None], content, logits)
    with quiet():
        loss, backward = cross_entropy(logits, np.where(ignored, -7, targets), **settings)
        gradient = backward(1.5)
    assert_close(loss, alone)
    assert_close(gradient[~ignored], alone_backward(1.5))
    assert not gradient[ignored].any()


def test_an_ignored_class_inside_the_vocabulary_is_ignored_and_without_ignore_index_it_counts():
    logits, targets = np.array([[2.0, 0, 1], [0, 1, 0], [3, 0, 0]]), np.array([1, 0, 2])
    without, _ = cross_entropy(logits[[0, 2]], targets[[0, 2]])
    assert_close(cross_entropy(logits, targets, ignore_index=0)[0], without)
    assert abs(cross_entropy(logits, targets)[0] - without) > 0.1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("leading", [(), (0,), (4,), (0, 3), (3, 0), (2, 3)], ids=str)
def test_no_counted_token_gives_zero_and_zeros(leading, dtype):
    logits = np.full((*leading, 5), 3, dtype)
    with quiet():
        loss, backward = cross_entropy(logits, np.full(leading, 2), ignore_index=2, label_smoothing=0.1)
        assert loss == 0.0
        assert_same(backward(7.0), np.zeros((*leading, 5), dtype))


def test_an_empty_list_of_targets_fits_no_rows():
    loss, backward = cross_entropy(np.zeros((0, 5)), [])
    assert loss == 0.0
    assert backward().shape == (0, 5)


# ── Dtypes ───────────────────────────────────────────────────────────────────────────────────────

@given(cases())
def test_the_gradient_has_the_dtype_of_the_logits(case):
    logits, targets, settings = case
    for dtype, near in ((np.float16, 1e-3), (np.float32, 1e-6)):
        rounded = logits.astype(dtype)
        loss, backward = cross_entropy(rounded, targets, **settings)
        exact, exact_backward = cross_entropy(rounded.astype(np.float64), targets, **settings)
        assert_close(loss, exact, near)
        for d_loss in (1.5, np.float64(1.5), np.array(1.5)):
            assert backward(d_loss).dtype == dtype
            assert_close(backward(d_loss), exact_backward(1.5), near)


@pytest.mark.parametrize("count, smoothing", [(300, 0.0), (5000, 0.1)])
def test_many_float16_logits_are_summed_in_more_than_float16(count, smoothing):
    logits = np.linspace(-1, 1, count).astype(np.float16)[None]
    loss, backward = cross_entropy(logits, np.array([7]), label_smoothing=smoothing)
    exact, exact_backward = cross_entropy(logits.astype(np.float64), np.array([7]), label_smoothing=smoothing)
    assert_close(loss, exact, 1e-6)
    np.testing.assert_allclose(backward(), exact_backward(), rtol=1e-3, atol=6e-8)


def test_integer_logits_are_numbers_like_others():
    loss, backward = cross_entropy(np.array([[1, 2, 3]]), np.array([2]))
    assert_close(loss, -math.log(0.6652409557748218))
    assert_close(backward(), [[0.0900305731703805, 0.2447284710547976, 0.6652409557748218 - 1]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_targets_may_be_integers_of_any_size(dtype):
    logits = np.array([[2.0, 0, 1], [0, 1, 0], [3, 0, 0]])
    expected, _ = cross_entropy(logits, [1, 0, 2], ignore_index=2)
    assert cross_entropy(logits, np.array([1, 0, 2], dtype), ignore_index=2)[0] == expected
    assert cross_entropy(logits, np.array([1, 0, 2], dtype), ignore_index=-100)[0] != expected


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────

ZEROS = np.zeros((2, 5))


@pytest.mark.parametrize("logits, targets, settings, error, message", [
    (np.float64(3), np.array(0), {}, ValueError, r"logits has shape \(\): expected \(\.\.\., V\)"),
    (ZEROS + 1j, [0, 1], {}, TypeError, "logits must hold real numbers, not dtype complex128"),
    (ZEROS, [0, 1, 2], {}, ValueError, r"targets has shape \(3,\): expected \(2,\)"),
    (ZEROS, np.eye(5, dtype=int)[:2], {}, ValueError, r"targets has shape \(2, 5\): expected \(2,\)"),
    (ZEROS, 0, {}, ValueError, r"targets has shape \(\): expected \(2,\)"),
    (ZEROS, [[0], [1]], {}, ValueError, r"targets has shape \(2, 1\): expected \(2,\)"),
    (ZEROS, [0, 5], {}, IndexError, r"targets\[1\] is 5, outside \[0, 5\)"),
    (ZEROS, [-1, 0], {}, IndexError, r"targets\[0\] is -1, outside \[0, 5\)"),
    (ZEROS, [-1, -2], {"ignore_index": -1}, IndexError, r"targets\[1\] is -2, outside \[0, 5\)"),
    (ZEROS, np.array([255, 0], np.uint8), {"ignore_index": -1}, IndexError, r"targets\[0\] is 255, outside"),
    (np.zeros((2, 3, 5)), [[0, 1, 2], [3, 9, 4]], {}, IndexError, r"targets\[1, 1\] is 9, outside \[0, 5\)"),
    (ZEROS, [0.0, 1.0], {}, TypeError, r"targets must be integers, not dtype float64, for example .*0\.0"),
    (ZEROS, [True, False], {}, TypeError, "targets must be integers, not dtype bool"),
    (ZEROS, ["a", "b"], {}, TypeError, "targets must be integers, not dtype <U1"),
    (ZEROS, [0, None], {}, TypeError, "targets must be integers, not dtype object"),
    (ZEROS, [0, 1], {"label_smoothing": -0.1}, ValueError, "label_smoothing must be a number .* not -0.1"),
    (ZEROS, [0, 1], {"label_smoothing": 1.1}, ValueError, "label_smoothing must be a number .* at most 1, not 1.1"),
    (ZEROS, [0, 1], {"label_smoothing": math.nan}, ValueError, "label_smoothing must be a number .* not nan"),
    (ZEROS, [0, 1], {"label_smoothing": "0.1"}, ValueError, "label_smoothing must be a number .* not '0.1'"),
    (ZEROS + [[0], [np.nan]], [0, 1], {}, ValueError, r"logits of shape \(2, 5\) hold NaN"),
    (np.diag([np.inf, 1.0]), [1, 1], {}, ValueError, r"logits of shape \(2, 2\) hold NaN, \+inf"),
    (np.full((2, 5), -np.inf), [0, 1], {}, ValueError, r"logits of shape \(2, 5\) hold NaN, \+inf or a row of -inf"),
])
def test_what_does_not_fit_is_named(logits, targets, settings, error, message):
    with pytest.raises(error, match=message):
        cross_entropy(logits, targets, **settings)


def test_the_mean_of_equal_losses_is_each_of_them():
    row = np.random.default_rng(0).normal(size=(1, 7)).astype(np.float32)
    one, _ = cross_entropy(row, np.array([3]))
    for n in (3, 5, 7, 11, 1000):
        assert cross_entropy(np.repeat(row, n, axis=0), np.full(n, 3))[0] == pytest.approx(one, rel=1e-12)
