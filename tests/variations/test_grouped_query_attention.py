"""Grouped queries: what MultiHeadAttention computes with each key and value repeated for the heads of its group."""

import doctest
import re
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.testing import assert_array_equal

from numpy_transformer.attention.masks import causal_mask
from numpy_transformer.attention.multi_head import MultiHeadAttention
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import named_parameters, parameter_count
from numpy_transformer.layers.feed_forward import FeedForward
from numpy_transformer.layers.layer_norm import LayerNorm
from numpy_transformer.model.encoder import EncoderLayer
from numpy_transformer.variations import grouped_query_attention as page
from numpy_transformer.variations.grouped_query_attention import GroupedQueryAttention
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, letters, masks,
    randomised, rates, rngs)

few = settings(max_examples=settings.default.max_examples // 2)
LEAVES = [f"{part}.{leaf}" for part in ("query", "key", "value", "output") for leaf in ("weight", "bias")]


def seeded(seed=0):
    return np.random.default_rng(seed)


def square(width=12, heads=6, groups=3, seed=0, rate=0.0):
    return randomised(GroupedQueryAttention.init(seeded(seed), width, heads, groups=groups, dropout_rate=rate), seeded(seed))


def under(mask, seed=None):
    """The layer as a function of its parameters and inputs alone: the same draw at every call"""
    return lambda layer, x, memory: layer(x, memory, mask, None if seed is None else seeded(seed))


@st.composite
def cases(draw):
    """A generator, a layer with all sizes different, x, a memory, a mask or None"""
    rng, (B, T, S) = draw(rngs), draw(st.permutations([2, 3, 4]))
    G, R = draw(st.sampled_from([(1, 1), (1, 3), (3, 1), (2, 3), (3, 2)]))
    K, M, width, memory_width, out = draw(st.permutations([1, 2, 3, 4, 5]))
    sizes = (width, G * R * K), (memory_width, G * K), (memory_width, G * M), (G * R * M, out)
    layers = (Linear(rng.normal(size=size) / 2, rng.normal(size=size[1])) for size in sizes)
    mask = draw(st.none() | masks((B, G * R, T, S)))
    layer = GroupedQueryAttention(*layers, G * R, draw(rates), groups=G)
    return rng, layer, rng.normal(size=(B, T, width)), rng.normal(size=(B, S, memory_width)), mask


def repeated(layer):
    """The ordinary layer: the columns of W^K and W^V once for every head of the group"""
    def every_head(linear):
        R = layer.heads // layer.groups

        def columns(array):
            return np.repeat(array.reshape(*array.shape[:-1], layer.groups, -1), R, axis=-2).reshape(*array.shape[:-1], -1)

        return Linear(columns(linear.weight), columns(linear.bias))

    return MultiHeadAttention(
        layer.query, every_head(layer.key), every_head(layer.value), layer.output, layer.heads, layer.dropout_rate)


def summed(gradient, layer):
    """The gradient of `repeated(layer)` as one of the layer: the heads of a group add up."""
    def every_group(linear):
        G, R = layer.groups, layer.heads // layer.groups

        def columns(array):
            return array.reshape(*array.shape[:-1], G, R, -1).sum(axis=-2).reshape(*array.shape[:-1], -1)

        return Linear(columns(linear.weight), columns(linear.bias))

    return GroupedQueryAttention(gradient.query, every_group(gradient.key), every_group(gradient.value), gradient.output,
                                 layer.heads, layer.dropout_rate, groups=layer.groups)


# ── The same numbers as ordinary attention ───────────────────────────────────────────────────────

@given(cases(), st.none() | st.integers(0, 9))
def test_equals_attention_with_repeated_keys_and_values(case, seed):
    rng, layer, x, memory, mask = case
    y, backward = under(mask, seed)(layer, x, memory)
    expected, expected_backward = under(mask, seed)(repeated(layer), x, memory)
    assert_close(y, expected)
    dy = rng.normal(size=y.shape)
    (gradient, dx, d_memory), (wide, *d_inputs) = backward(dy), expected_backward(dy)
    assert_same(gradient, summed(wide, layer), atol=1e-11)
    assert_close(dx, d_inputs[0], 1e-11)
    assert_close(d_memory, d_inputs[1], 1e-11)


def test_equals_attention_when_every_head_is_a_group():
    layer, x, memory = square(12, 6, 6, rate=0.3), seeded(1).normal(size=(2, 3, 12)), seeded(2).normal(size=(2, 4, 12))
    ordinary = MultiHeadAttention(layer.query, layer.key, layer.value, layer.output, 6, 0.3)
    y, backward = layer(x, memory, causal_mask(3, 4), seeded(5))
    expected, expected_backward = ordinary(x, memory, causal_mask(3, 4), seeded(5))
    assert_close(y, expected)
    for mine, other in zip(*(named_parameters(f(np.cos(y))).items() for f in (backward, expected_backward)), strict=True):
        assert mine[0] == other[0]
        assert_close(mine[1], other[1])


@few
@given(cases())
def test_weights_keys_values_and_attend_are_parts_of_the_whole(case):
    _, layer, x, memory, mask = case
    weights = layer.weights(x, memory, mask)
    assert_close(weights, repeated(layer).weights(x, memory, mask))
    k, v = layer.keys_and_values(memory)
    assert k.flags.c_contiguous and v.flags.c_contiguous  # they will be read many times
    assert k.shape == (len(memory), layer.groups, memory.shape[1], len(layer.key.bias) // layer.groups)
    assert v.shape == (len(memory), layer.groups, memory.shape[1], len(layer.value.bias) // layer.groups)
    assert_same(layer.attend(x, k, v, mask), layer(x, memory, mask)[0], atol=1e-13)


def test_one_mask_for_each_head():
    layer, x, memory = square(), seeded(1).normal(size=(2, 4, 12)), seeded(2).normal(size=(2, 5, 12))
    mask = seeded(3).random((2, 6, 4, 5)) < 0.6
    weights = layer.weights(x, memory, mask)
    assert (weights[~mask] == 0).all() and (weights[mask] > 0).all()
    for small in (mask[:, :1], mask[:1], mask[0, 0], mask[:1, :, :1], mask[:, :, :, :1]):
        assert_close(layer.weights(x, memory, small), repeated(layer).weights(x, memory, small))


# ── Gradients and demands ────────────────────────────────────────────────────────────────────────

@few
@given(cases(), st.none() | st.just(1))
def test_gradients(case, seed):
    rng, layer, x, memory, mask = case
    worst = check_gradients(under(mask, seed), layer, x, memory, rng=rng, coordinates=6, directions=1)
    assert list(worst) == [*(f"layer.{name}" for name in LEAVES), "x", "memory"]


@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_self_attention(groups):
    layer, x, mask = square(8, 4, groups), seeded(1).normal(size=(2, 3, 8)), causal_mask(3)
    f = lambda layer, x: layer.self_attention(x, mask)
    check_gradients(f, layer, x, rng=seeded(), coordinates=16)
    assert_same(f(layer, x)[0], layer(x, x, mask)[0])


@few
@given(cases(), st.none() | st.just(1))
def test_pure_and_linear(case, seed):
    rng, layer, x, memory, mask = case
    assert_pure_and_linear(under(mask, seed), layer, x, memory, rng=rng)


def test_memory_layout_and_dtype():
    x, memory, mask = seeded(1).normal(size=(2, 3, 12)), seeded(2).normal(size=(2, 4, 12)), causal_mask(3, 4)
    assert_same_for_layouts(under(mask), square(), x, memory, rng=seeded())
    assert_keeps_dtype(under(mask, 1), square(rate=0.3), x / 9, memory / 9, rng=seeded())


@pytest.mark.parametrize("B, T, S", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (1, 1, 1)])
def test_empty_and_single(B, T, S):
    layer, x, memory = square(), seeded(1).normal(size=(B, T, 12)), seeded(2).normal(size=(B, S, 12))
    for mask in (None, np.ones((T, S), bool)):
        y, backward = layer(x, memory, mask)
        gradient, dx, d_memory = backward(np.ones_like(y))
        assert (y.shape, dx.shape, d_memory.shape) == (x.shape, x.shape, memory.shape)
        assert layer.weights(x, memory, mask).shape == (B, 6, T, S)
    if S == 0:
        assert_array_equal(y, np.broadcast_to(layer.output.bias, y.shape))


def test_a_query_that_may_see_no_key():
    layer, x = square(), seeded(1).normal(size=(1, 2, 12))
    y, backward = layer(x, x, np.array([[True, True], [False, False]]))
    assert_array_equal(y[0, 1], layer.output.bias)
    gradient, dx, d_memory = backward(np.array([[[0.0] * 12, [1.0] * 12]]))
    assert not dx.any() and not d_memory.any() and not gradient.key.weight.any()


# ── In the place of MultiHeadAttention ───────────────────────────────────────────────────────────

def test_an_encoder_layer_takes_it():
    rng = seeded(4)
    rest = (FeedForward.init(rng, 12, 5), LayerNorm.init(12), LayerNorm.init(12))
    narrow = randomised(EncoderLayer(square(), *rest), rng)
    x, dy, mask = rng.normal(size=(2, 4, 12)), rng.normal(size=(2, 4, 12)), causal_mask(4)
    y, backward = narrow(x, mask)
    expected, expected_backward = replace(narrow, attention=repeated(narrow.attention))(x, mask)
    assert_close(y, expected)
    (gradient, dx), (wide, expected_dx) = backward(dy), expected_backward(dy)
    assert_close(dx, expected_dx, 1e-11)
    assert_same(gradient.attention, summed(wide.attention, narrow.attention), atol=1e-11)


# ── The page's prose ─────────────────────────────────────────────────────────────────────────────

def test_what_cannot_be_cannot_be():
    assert doctest.testmod(page).failed == 0
    assert doctest.testmod(page).attempted == 1
    one_wide_key = GroupedQueryAttention.init(seeded(), 512, 8, groups=1)
    with pytest.raises(ValueError, match="^query gives 64 numbers to a head, key 512: there is no dot product of the two$"):
        replace(one_wide_key, key=Linear.init(seeded(), 512, 512))
    q_width, k_width = len(one_wide_key.query.bias) // 8, len(one_wide_key.key.bias)
    assert q_width == k_width == 64


def test_the_table_of_sizes():
    rows = {name: [int(n.replace(",", "")) for n in numbers.split()] for name, numbers in
            re.findall(r"^ {4}(G|parameters|numbers kept for each word) +([\d, ]+)$", page.__doc__, re.M)}
    assert rows["G"] == [8, 4, 2, 1]
    for groups, parameters, kept in zip(*rows.values()):
        layer = GroupedQueryAttention.init(seeded(), 512, 8, groups=groups)
        assert parameter_count(layer) == parameters
        assert sum(a.size for a in layer.keys_and_values(np.zeros((1, 1, 512), np.float32))) == kept
    assert parameter_count(MultiHeadAttention.init(seeded(), 512, 8)) == rows["parameters"][0]


# ── Building ─────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_init(dtype):
    layer = GroupedQueryAttention.init(seeded(5), 12, 6, groups=2, dropout_rate=0.1, dtype=dtype)
    shapes = {name: array.shape for name, array in named_parameters(layer).items()}
    assert shapes == {"query.weight": (12, 12), "query.bias": (12,), "key.weight": (12, 4), "key.bias": (4,),
                      "value.weight": (12, 4), "value.bias": (4,), "output.weight": (12, 12), "output.bias": (12,)}
    assert all(array.dtype == dtype for array in named_parameters(layer).values())
    assert (layer.heads, layer.groups, layer.dropout_rate) == (6, 2, 0.1)
    ordinary = MultiHeadAttention.init(seeded(5), 12, 6, dtype=dtype)
    assert_array_equal(GroupedQueryAttention.init(seeded(5), 12, 6, groups=6, dtype=dtype).key.weight, ordinary.key.weight)
    assert GroupedQueryAttention.init(seeded(5), 12, 6, groups=6).dropout_rate == square().dropout_rate == 0.0
    parts = (layer.query, layer.key, layer.value, layer.output)
    assert GroupedQueryAttention(*parts, 6, groups=2).dropout_rate == 0
    assert GroupedQueryAttention.init(seeded(5), 12, 6, groups=6).query.weight.dtype == np.float32


@pytest.mark.parametrize("change, message", [
    (dict(heads=0), "^heads must be a whole number of at least 1, not 0$"),
    (dict(groups=0), "^groups must be a whole number of at least 1, not 0$"),
    (dict(groups=2.0), "^groups must be a whole number of at least 1, not 2.0$"),
    (dict(groups=4), "^heads is 6, which 4 groups do not divide$"),
    (dict(groups=12), "^heads is 6, which 12 groups do not divide$"),
    (dict(heads=9), "^query is 12 wide, which 9 heads do not divide$"),
    (dict(key=Linear.init(seeded(), 12, 7)), "^key is 7 wide, which 3 groups do not divide$"),
    (dict(value=Linear.init(seeded(), 12, 8)), "^value is 8 wide, which 3 groups do not divide$"),
    (dict(key=Linear.init(seeded(), 12, 9)), "^query gives 2 numbers to a head, key 3: there is no dot product of the two$"),
    (dict(dropout_rate=1.5), "^dropout_rate must be a number at least 0 and at most 1, not 1.5$"),
])
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(square(), **change)


def test_a_layer_is_a_value():
    layer = square()
    with pytest.raises(FrozenInstanceError):
        layer.heads = 3
    assert layer != replace(layer)  # arrays are compared by nobody


@pytest.mark.parametrize("width, heads, groups, message", [
    (12, 5, 1, "^width 12 is not divisible by heads 5$"),
    (12, 0, 1, "^heads must be a whole number of at least 1, not 0$"),
    (12, 4, 0, "^groups must be a whole number of at least 1, not 0$"),
    (12, 4, 3, "^heads is 4, which 3 groups do not divide$"),
])
def test_init_refuses_what_does_not_divide(width, heads, groups, message):
    with pytest.raises(ValueError, match=message):
        GroupedQueryAttention.init(seeded(), width, heads, groups=groups)


@pytest.mark.parametrize("x, memory, mask, error, message", [
    ((3, 12), (2, 4, 12), None, ValueError, r"^x has shape \(3, 12\), memory \(2, 4, 12\): expected \(B, T, D\)"),
    ((2, 3, 12), (4, 12), None, ValueError, r"^x has shape \(2, 3, 12\), memory \(4, 12\): expected"),
    ((3, 3, 12), (2, 4, 12), None, ValueError, r"^x has shape \(3, 3, 12\), memory \(2, 4, 12\): expected"),
    ((2, 3, 11), (2, 4, 12), None, ValueError, r"^x has shape \(2, 3, 11\): its last axis must be 12 wide$"),
    ((2, 3, 12), (2, 4, 12), np.ones((3, 5), bool), ValueError, r"^mask has shape \(3, 5\), .* \(2, 6, 3, 4\)$"),
    ((2, 3, 12), (2, 4, 12), np.ones((2, 3, 3, 4), bool), ValueError, r"^mask has shape \(2, 3, 3, 4\), .* \(2, 6, 3, 4\)$"),
    ((2, 3, 12), (2, 4, 12), np.ones((3, 4)), TypeError, "^mask must be a boolean array"),
])
def test_inputs_that_do_not_fit(x, memory, mask, error, message):
    with pytest.raises(error, match=message):
        square()(np.zeros(x), np.zeros(memory), mask)


def test_text_is_no_input():
    with pytest.raises(TypeError, match="^x must hold real numbers"):
        square()(np.full((2, 3, 12), "a"), np.zeros((2, 4, 12)))
    with pytest.raises(TypeError, match="^memory must hold real numbers"):
        square()(np.zeros((2, 3, 12)), np.full((2, 4, 12), "a"))
    assert square()(np.ones((2, 3, 12), int), np.ones((2, 4, 12), bool))[0].dtype == np.float64
