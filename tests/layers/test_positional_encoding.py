"""Positions: the clocks of the paper, the learned table, and where a sequence ends."""

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import loops
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.parameters import named_parameters, parameter_count
from numpy_transformer.layers.positional_encoding import LearnedPositions, SinusoidalPositions, sinusoidal_positions
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same_for_layouts, letters, rngs)

widths = st.integers(1, 9)


@st.composite
def layers_and_inputs(draw, kinds=(SinusoidalPositions, LearnedPositions)):
    """A table longer than the sequence, a start inside it, and x (T, D), (B, T, D) or (2, B, T, D)"""
    n, rng, start = draw(letters("BTD")), draw(rngs), draw(st.integers(0, 3))
    length = start + n.T + draw(st.integers(0, 2))
    kind = draw(st.sampled_from(kinds))
    layer = SinusoidalPositions(length, n.D) if kind is SinusoidalPositions else kind(rng.normal(size=(length, n.D)))
    x_shape = draw(st.sampled_from([(n.T, n.D), (n.B, n.T, n.D), (2, n.B, n.T, n.D)]))
    return layer, rng.normal(size=x_shape), start, rng


def both_kinds(length=8, width=4):
    rng = np.random.default_rng(0)
    return SinusoidalPositions(length, width), LearnedPositions(rng.normal(size=(length, width)))


each_kind = pytest.mark.parametrize("layer", both_kinds(), ids=["sinusoids", "learned"])


# ── The sinusoids ────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("width, row", [
    (1, [0.8414709848078965]),
    (2, [0.8414709848078965, 0.5403023058681398]),
    (4, [0.8414709848078965, 0.5403023058681398, 0.009999833334166664, 0.9999500004166653]),
    (5, [0.8414709848078965, 0.5403023058681398, 0.0251162229097738, 0.9996845379152098, 0.000630957302615]),
])
def test_row_one(width, row):
    """Also of odd width. Base 100 000, or an exponent i instead of 2⌊i/2⌋, would give other digits."""
    assert_allclose(sinusoidal_positions(2, width)[1], row, rtol=1e-12)


@given(st.integers(1, 6), widths)
def test_counting_starts_at_zero(length, width):
    assert_array_equal(sinusoidal_positions(length, width)[0], [column % 2 for column in range(width)])


def test_the_small_table_of_base_100():
    table = sinusoidal_positions(4, 4, base=100)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 10), math.cos(p / 10)] for p in range(4)]
    assert_allclose(table, expected, rtol=1e-13, atol=1e-15)


@given(st.integers(0, 12), widths, st.sampled_from([10000.0, 100.0, 2.5]))
def test_agrees_with_loops(length, width, base):
    assert_close(sinusoidal_positions(length, width, base=base), loops.sinusoidal_positions(length, width, base))


def test_the_default_base_is_ten_thousand():
    """The slowest clock of width 1000 turns by 10000^(−998/1000) a step."""
    table = sinusoidal_positions(2, 1000)
    assert_allclose(table[1, 998], math.sin(10000**-0.998), rtol=1e-12)
    assert_array_equal(table, sinusoidal_positions(2, 1000, base=10000.0))


@given(st.integers(0, 40), st.integers(-20, 20), st.integers(1, 4), st.sampled_from([10000.0, 100.0]))
def test_moving_is_turning_each_clock(p, k, pairs, base):
    """PE(p + k) = R(k) PE(p) with one matrix R(k) for every p"""
    k = max(k, -p)
    width = 2 * pairs
    table = sinusoidal_positions(p + max(k, 0) + 1, width, base=base)
    R = np.zeros((width, width))
    for i in range(pairs):
        turn = k * base ** (-2 * i / width)
        R[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]
    assert_close(R @ table[p], table[p + k])


def test_the_rotation_written_out_for_width_four_and_base_100():
    table = sinusoidal_positions(8, 4, base=100)
    R = np.array([[math.cos(2), math.sin(2), 0, 0], [-math.sin(2), math.cos(2), 0, 0],
                  [0, 0, math.cos(0.2), math.sin(0.2)], [0, 0, -math.sin(0.2), math.cos(0.2)]])
    for p in range(6):
        assert_close(R @ table[p], table[p + 2])
        assert not np.allclose(R @ table[p], table[p + 1])


def test_no_two_positions_are_alike_and_their_product_depends_on_the_distance_alone():
    table = sinusoidal_positions(300, 16)
    products = table @ table.T
    for k in (0, 1, 7, 100):
        diagonal = np.diagonal(products, k)
        assert_close(diagonal, np.full(300 - k, diagonal[0]), 1e-11)
    assert_allclose(np.diagonal(products), 8, rtol=1e-12)
    assert products[~np.eye(300, dtype=bool)].max() < 8 - 1e-3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_of_the_table(dtype):
    table = sinusoidal_positions(200, 6, dtype=dtype)
    assert table.dtype == dtype and sinusoidal_positions(2, 3).dtype == np.float64
    assert_array_equal(table, sinusoidal_positions(200, 6).astype(dtype))  # computed in float64, rounded once


def test_no_positions():
    assert sinusoidal_positions(0, 3).shape == (0, 3)


@pytest.mark.parametrize("value", [-1, 2.0, "4", None, True], ids=repr)
def test_table_sizes_must_be_whole_numbers(value):
    with pytest.raises(ValueError, match=f"length must be a whole number of at least 0, not {value!r}"):
        sinusoidal_positions(value, 4)
    with pytest.raises(ValueError, match=f"width must be a whole number of at least 1, not {value!r}"):
        sinusoidal_positions(4, value)
    with pytest.raises(ValueError, match="width must be a whole number of at least 1, not 0"):
        sinusoidal_positions(4, 0)


@pytest.mark.parametrize("base", [0, -10000.0, float("nan"), float("inf"), "100", None], ids=repr)
def test_base_must_be_a_positive_number(base):
    with pytest.raises(ValueError, match=f"base must be a number above 0, not {base!r}"):
        sinusoidal_positions(2, 4, base=base)


# ── Adding them ──────────────────────────────────────────────────────────────────────────────────

@given(layers_and_inputs())
def test_each_position_of_every_sentence_gets_its_own_row(drawn):
    layer, x, start, rng = drawn
    y, _ = layer(x, start)
    for *b, t in np.ndindex(x.shape[:-1]):
        assert_close(y[(*b, t)] - x[(*b, t)], layer.table[start + t])


@given(layers_and_inputs())
def test_a_sequence_in_two_pieces_is_the_sequence(drawn):
    layer, x, start, _ = drawn
    whole, _ = layer(x, start)
    for cut in range(x.shape[-2] + 1):
        pieces = layer(x[..., :cut, :], start)[0], layer(x[..., cut:, :], start + cut)[0]
        assert_array_equal(np.concatenate(pieces, axis=-2), whole)
    assert_array_equal(layer(x)[0], layer(x, 0)[0])
    assert start == 0 or not np.allclose(layer(x)[0], whole)


@given(layers_and_inputs())
def test_gradients(drawn):
    layer, x, start, rng = drawn
    worst = check_gradients(lambda layer, x: layer(x, start), layer, x, rng=rng)
    assert set(worst) == ({"layer.table", "x"} if isinstance(layer, LearnedPositions) else {"x"})


@given(layers_and_inputs(kinds=[LearnedPositions]))
def test_a_learned_row_gathers_over_the_sentences(drawn):
    layer, x, start, rng = drawn
    dy = rng.normal(size=x.shape)
    gradient, dx = layer(x, start)[1](dy)
    expected = np.zeros(layer.table.shape)
    for *b, t in np.ndindex(x.shape[:-1]):
        expected[start + t] += dy[(*b, t)]
    assert_close(gradient.table, expected)
    assert_array_equal(dx, dy)


def test_learned_gradient_by_hand():
    layer = LearnedPositions(np.zeros((5, 2)))
    dy = np.array([[[1.0, 2], [3, 4]], [[10, 20], [30, 40]]])
    gradient, dx = layer(np.zeros((2, 2, 2)), 2)[1](dy)
    assert_array_equal(gradient.table, [[0, 0], [0, 0], [11, 22], [33, 44], [0, 0]])
    assert_array_equal(dx, dy)


def test_sinusoids_hold_nothing_to_learn():
    layer = SinusoidalPositions(8, 4, base=100.0)
    gradient, dx = layer(np.ones((2, 3, 4)))[1](np.full((2, 3, 4), 5.0))
    assert isinstance(gradient, SinusoidalPositions)
    assert (gradient.length, gradient.width, gradient.base) == (8, 4, 100.0)
    assert named_parameters(layer) == named_parameters(gradient) == {} and parameter_count(layer) == 0
    assert_array_equal(dx, np.full((2, 3, 4), 5.0))
    assert_array_equal(layer.table, sinusoidal_positions(8, 4, base=100.0))


def test_the_layer_has_the_papers_base():
    assert SinusoidalPositions(3, 4).base == 10000.0
    assert_array_equal(SinusoidalPositions(3, 4)(np.zeros((3, 4)))[0], sinusoidal_positions(3, 4))


@given(layers_and_inputs())
def test_pure_and_linear(drawn):
    layer, x, start, rng = drawn
    assert_pure_and_linear(lambda layer, x: layer(x, start), layer, x, rng=rng)


@given(layers_and_inputs())
def test_memory_layout_does_not_matter(drawn):
    layer, x, start, rng = drawn
    assert_same_for_layouts(lambda layer, x: layer(x, start), layer, x, rng=rng)


@given(layers_and_inputs())
def test_dtype_is_kept(drawn):
    layer, x, start, rng = drawn
    assert_keeps_dtype(lambda layer, x: layer(x, start), layer, x, rng=rng)
    assert_keeps_dtype(lambda layer, x: layer(x, start), layer, x, rng=rng, dtype=np.float64, near=0)


@each_kind
def test_integers_become_floats(layer):
    x = np.arange(12).reshape(3, 4)
    assert_array_equal(layer(x)[0], layer(x.astype(float))[0], strict=True)
    assert_array_equal(layer(x.tolist())[0], layer(x.astype(float))[0], strict=True)


def test_the_same_generator_gives_the_same_learned_table():
    one, same, other = (LearnedPositions.init(np.random.default_rng(seed), 6, 4).table for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert not np.isin(one, other).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_initial_learned_table(dtype):
    table = LearnedPositions.init(np.random.default_rng(1), 300, 40, dtype=dtype).table
    assert table.shape == (300, 40) and table.dtype == dtype
    assert LearnedPositions.init(np.random.default_rng(1), 3, 4).table.dtype == np.float32
    assert_allclose(table.var(), 1 / 40, rtol=0.03)
    assert abs(table.mean()) < 0.005


# ── Where a sequence ends ────────────────────────────────────────────────────────────────────────

@each_kind
def test_the_table_may_be_used_up_to_its_end(layer):
    x = np.ones((2, 8, 4))
    y, _ = layer(x)
    assert_allclose(y - x, np.broadcast_to(layer.table, x.shape), rtol=0, atol=1e-15)
    assert_array_equal(layer(x[:, :1], 7)[0], y[:, 7:])
    assert_array_equal(layer(x[:, :5], 3)[0], y[:, 3:])


@each_kind
@pytest.mark.parametrize("T, start, needed", [(9, 0, 9), (1, 8, 9), (6, 3, 9), (8, 1, 9), (20, 30, 50)])
def test_a_sequence_beyond_the_table_is_refused_by_both_lengths(layer, T, start, needed):
    with pytest.raises(ValueError, match=f"a sequence of length {needed} does not fit the table of 8 positions"):
        layer(np.zeros((2, T, 4)), start)


@each_kind
@pytest.mark.parametrize("start", [-1, -8, 1.0, 0.5, None, "0", True], ids=repr)
def test_start_must_be_a_whole_number_of_at_least_zero(layer, start):
    with pytest.raises(ValueError, match=f"start must be a whole number of at least 0, not {start!r}"):
        layer(np.zeros((2, 1, 4)), start)


@each_kind
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (0, 0, 4), (0, 4), (2, 0, 3, 4), (2, 3, 0, 4)])
@pytest.mark.parametrize("start", [0, 5])
def test_no_sentences_and_no_words(layer, shape, start):
    with np.errstate(all="raise"):
        y, backward = layer(np.zeros(shape), start)
        gradient, dx = backward(np.zeros(shape))
    assert y.shape == dx.shape == shape
    assert all(not array.any() and array.shape == (8, 4) for array in named_parameters(gradient).values())


@each_kind
def test_no_words_fit_at_the_very_end(layer):
    assert layer(np.zeros((2, 0, 4)), 8)[0].shape == (2, 0, 4)
    with pytest.raises(ValueError, match="a sequence of length 9 does not fit the table of 8 positions"):
        layer(np.zeros((2, 0, 4)), 9)


@each_kind
def test_sizes_of_one(layer):
    y, backward = layer(np.zeros((1, 1, 4)), 2)
    assert_array_equal(y, layer.table[None, 2:3])
    assert backward(y)[1].shape == (1, 1, 4)


@each_kind
@pytest.mark.parametrize("x, error, message", [
    (np.ones((2, 3, 5)), ValueError, r"x has shape \(2, 3, 5\): its last axis must be 4 wide"),
    (np.ones((2, 3, 1)), ValueError, r"x has shape \(2, 3, 1\): its last axis must be 4 wide"),
    (np.ones((4, 0)), ValueError, r"x has shape \(4, 0\): its last axis must be 4 wide"),
    (np.ones(4), ValueError, r"x has shape \(4,\): expected \(..., T, D\)"),
    (np.ones(()), ValueError, r"x has shape \(\): expected \(..., T, D\)"),
    (np.ones((3, 4), complex), TypeError, "x must hold real numbers, not dtype complex128"),
    ([["a"] * 4], TypeError, "x must hold real numbers, not dtype <U1"),
])
def test_bad_input_is_refused(layer, x, error, message):
    with pytest.raises(error, match=message):
        layer(x)


@each_kind
def test_a_layer_is_itself_alone_and_cannot_be_changed(layer):
    layer = replace(layer)
    assert layer == layer != replace(layer) and len({layer, layer, replace(layer)}) == 2
    with pytest.raises(FrozenInstanceError):
        layer.table = None


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 4)])
def test_a_learned_table_of_another_rank_is_refused(shape):
    with pytest.raises(ValueError, match=r"table has shape \(.*\): expected \(length, width\)") as error:
        LearnedPositions(np.ones(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", None, True], ids=repr)
def test_sizes_of_a_learned_table_must_be_positive_whole_numbers(value):
    with pytest.raises(ValueError, match=f"length must be a whole number of at least 1, not {value!r}"):
        LearnedPositions.init(np.random.default_rng(0), value, 3)
    with pytest.raises(ValueError, match=f"width must be a whole number of at least 1, not {value!r}"):
        LearnedPositions.init(np.random.default_rng(0), 3, value)


@pytest.mark.parametrize("settings, message", [
    ((-1, 4), "length must be a whole number of at least 1, not -1"),
    ((0, 4), "length must be a whole number of at least 1, not 0"),
    ((8.0, 4), "length must be a whole number of at least 1, not 8.0"),
    ((8, 0), "width must be a whole number of at least 1, not 0"),
    ((8, "4"), "width must be a whole number of at least 1, not '4'"),
    ((8, 4, 0.0), "base must be a number above 0, not 0.0"),
    ((8, 4, float("nan")), "base must be a number above 0, not nan"),
])
def test_bad_settings_of_the_sinusoids_are_refused_at_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        SinusoidalPositions(*settings)
