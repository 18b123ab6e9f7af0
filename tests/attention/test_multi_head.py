from dataclasses import replace

import loops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from strategies import (
    assert_close, assert_keeps_dtype, assert_plain_data, assert_pure_and_linear, assert_same, assert_same_for_layouts,
    letters, masks, randomised, rates, rngs,
)

from numpy_transformer.attention.masks import causal_mask, padding_mask
from numpy_transformer.attention.multi_head import MultiHeadAttention, merge_heads, split_heads
from numpy_transformer.attention.scaled_dot_product import scaled_dot_product_attention
from numpy_transformer.foundations.dropout import dropout
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import map_tree, named_parameters

LEAVES = [f"{part}.{leaf}" for part in ("query", "key", "value", "output") for leaf in ("weight", "bias")]


def seeded(seed=0):
    return np.random.default_rng(seed)


def random_layer(rng, width, memory_width, H, K, M, out, rate=0.0):
    """Heads whose keys are K and whose values are M wide, from inputs of two widths to a third"""
    sizes = (width, H * K), (memory_width, H * K), (memory_width, H * M), (H * M, out)
    return MultiHeadAttention(*(Linear(rng.normal(size=s) / 2, rng.normal(size=s[1])) for s in sizes), H, rate)


def square_layer(rng, width, heads, rate=0.0):
    return randomised(MultiHeadAttention.init(rng, width, heads, dropout_rate=rate), rng)


@st.composite
def cases(draw):
    """A generator, a layer with all sizes different, x, a memory, and a mask or None"""
    n, rng = draw(letters("BHTSK")), draw(rngs)
    M, width, memory_width, out = draw(st.permutations([1, 2, 3, 5]))
    layer = random_layer(rng, width, memory_width, n.H, n.K, M, out, draw(rates))
    mask = draw(st.none() | masks((n.B, n.H, n.T, n.S)))
    return rng, layer, rng.normal(size=(n.B, n.T, width)), rng.normal(size=(n.B, n.S, memory_width)), mask


def under(mask, seed=None):
    """The layer as a function of its parameters and inputs alone: the same draw at every call"""
    return lambda layer, x, memory: layer(x, memory, mask, None if seed is None else seeded(seed))


def arrays(layer):
    return list(named_parameters(layer).values())


# ── Cutting into heads ───────────────────────────────────────────────────────────────────────────

def test_heads_by_hand():
    x = np.arange(12).reshape(1, 3, 4)  # three words, width 4
    heads = split_heads(x, 2)
    assert_array_equal(heads, [[[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]])
    assert_array_equal(merge_heads(heads), x)


@given(letters("BTHK"), rngs)
def test_split_and_merge(n, rng):
    x = rng.normal(size=(n.B, n.T, n.H * n.K))
    heads = split_heads(x, n.H)
    assert heads.shape == (n.B, n.H, n.T, n.K)
    for b, h, t, c in np.ndindex(*heads.shape):
        assert heads[b, h, t, c] == x[b, t, h * n.K + c]
    assert_same(merge_heads(heads), x)
    other = rng.normal(size=heads.shape)
    assert_same(split_heads(merge_heads(other), n.H), other)


@pytest.mark.parametrize("heads, width", [(1, 1), (4, 1), (1, 4)])
def test_one_head_and_heads_of_width_one(heads, width):
    x = seeded().normal(size=(2, 3, heads * width))
    assert split_heads(x, heads).shape == (2, heads, 3, width)
    assert_same(merge_heads(split_heads(x, heads)), x)
    layer, memory = square_layer(seeded(1), x.shape[-1], heads), seeded(2).normal(size=(2, 5, x.shape[-1]))
    check_gradients(under(None), layer, x, memory, rng=seeded(), coordinates=12)
    assert_close(layer(x, memory)[0], loops.multi_head(x, memory, None, *arrays(layer), heads))


# ── Gradients and second opinions ────────────────────────────────────────────────────────────────

@settings(max_examples=10)
@given(cases(), st.none() | st.just(1))
def test_gradients(case, seed):
    rng, layer, x, memory, mask = case
    worst = check_gradients(under(mask, seed), layer, x, memory, rng=rng, coordinates=12)
    assert list(worst) == [*(f"layer.{name}" for name in LEAVES), "x", "memory"]


@pytest.mark.parametrize("mask", [None, causal_mask(2, 3)])
def test_every_entry_of_every_gradient(mask):
    rng = seeded()
    layer, x, memory = square_layer(rng, 4, 2), rng.normal(size=(1, 2, 4)), rng.normal(size=(1, 3, 4))
    check_gradients(under(mask), layer, x, memory, rng=rng)


@st.composite
def self_cases(draw):
    """A generator, a layer with all sizes different, x and a mask or None"""
    n, rng = draw(letters("BTHKM")), draw(rngs)
    width = draw(st.sampled_from([1, 4, 7]))
    layer = random_layer(rng, width, width, n.H, n.K, n.M, 3, draw(rates))
    return rng, layer, rng.normal(size=(n.B, n.T, width)), draw(st.none() | masks((n.B, n.H, n.T, n.T)))


def self_under(mask, seed=None):
    return lambda layer, x: layer.self_attention(x, mask, None if seed is None else seeded(seed))


@settings(max_examples=10)
@given(self_cases(), st.none() | st.just(1))
def test_self_attention_is_attention_to_itself(case, seed):
    rng, layer, x, mask = case
    y, backward = self_under(mask, seed)(layer, x)
    expected, both_backward = under(mask, seed)(layer, x, x)
    dy = rng.normal(size=y.shape)
    gradient, dx, d_memory = both_backward(dy)
    assert_same((y, backward(dy)), (expected, (gradient, dx + d_memory)), rtol=1e-12, atol=1e-12)


@settings(max_examples=8)
@given(self_cases(), st.none() | st.just(1))
def test_gradients_and_manners_of_self_attention(case, seed):
    rng, layer, x, mask = case
    f = self_under(mask, seed)
    worst = check_gradients(f, layer, x, rng=rng, coordinates=6)
    assert list(worst) == [*(f"layer.{name}" for name in LEAVES), "x"]
    assert_pure_and_linear(f, layer, x, rng=rng)
    assert_same_for_layouts(f, layer, x, rng=rng)
    assert_keeps_dtype(f, layer, x, rng=rng)


@pytest.mark.parametrize("own", [np.float32, np.float64])
@pytest.mark.parametrize("upstream", [np.int64, np.float16, np.float32, np.float64])
def test_the_dtypes_of_self_attention_are_those_of_attention_to_itself(own, upstream):
    rng = seeded()
    layer = map_tree(lambda array: array.astype(own), square_layer(rng, 6, 3))
    x, dy = rng.normal(size=(2, 4, 6)).astype(own), (3 * rng.normal(size=(2, 4, 6))).astype(upstream)
    _, backward = layer.self_attention(x)
    _, both_backward = layer(x, x)
    gradient, dx, d_memory = both_backward(dy)
    tolerance = 1e-12 if np.result_type(own, upstream) == np.float64 else 1e-5
    assert_same(backward(dy), (gradient, dx + d_memory), rtol=tolerance, atol=10 * tolerance)


def test_parameters_changed_in_place_count_from_the_next_call_on():
    layer, x = square_layer(seeded(), 4, 2), seeded(1).normal(size=(1, 3, 4))
    layer.self_attention(x)
    layer.query.weight[...] *= -3
    assert_close(layer.self_attention(x)[0], layer(x, x)[0])


@settings(max_examples=10)
@given(cases(), st.none() | st.just(1))
def test_scalar_loops_agree(case, seed):
    rng, layer, x, memory, mask = case
    keep_scale = None
    if seed is not None:
        shape = len(x), layer.heads, x.shape[1], memory.shape[1]
        keep_scale, _ = dropout(np.ones(shape), layer.dropout_rate, seeded(seed))
    y, backward = under(mask, seed)(layer, x, memory)
    dy = rng.normal(size=y.shape)
    gradient, dx, d_memory = backward(dy)
    assert type(gradient) is MultiHeadAttention and gradient.heads == layer.heads
    assert_close(y, loops.multi_head(x, memory, mask, *arrays(layer), layer.heads, keep_scale))
    expected = loops.multi_head_backward(x, memory, mask, *arrays(layer), layer.heads, dy, keep_scale)
    for found, second_opinion in zip((*arrays(gradient), dx, d_memory), expected, strict=True):
        assert_close(found, second_opinion)


@settings(max_examples=8)
@given(cases(), st.none() | st.just(1))
def test_manners(case, seed):
    rng, layer, x, memory, mask = case
    assert_pure_and_linear(under(mask, seed), layer, x, memory, rng=rng)
    assert_same_for_layouts(under(mask, seed), layer, x, memory, rng=rng)
    assert_keeps_dtype(under(mask, seed), layer, x, memory, rng=rng)


# ── Properties ───────────────────────────────────────────────────────────────────────────────────

@given(cases())
def test_one_product_is_a_loop_over_heads(case):
    rng, layer, x, memory, mask = case
    full = np.broadcast_to(True if mask is None else mask, (len(x), layer.heads, x.shape[1], memory.shape[1]))
    parts = []
    for h in range(layer.heads):
        projected = []
        for part, source in ((layer.query, x), (layer.key, memory), (layer.value, memory)):
            own = np.split(np.arange(len(part.bias)), layer.heads)[h]
            projected.append(source @ part.weight[:, own] + part.bias[own])
        parts.append(scaled_dot_product_attention(*projected, full[:, h])[0])
    y = np.concatenate(parts, axis=-1) @ layer.output.weight + layer.output.bias
    assert_close(layer(x, memory, mask)[0], y)


@given(cases())
def test_the_ways_to_attend_agree(case):
    _, layer, x, memory, mask = case
    y, _ = layer(x, memory, mask)
    k, v = layer.keys_and_values(memory)
    assert k.flags.c_contiguous and v.flags.c_contiguous  # they will be read many times
    assert_close(layer.attend(x, k, v, mask), y)
    assert_close(k, loops.project_heads(memory, layer.key.weight, layer.key.bias, layer.heads))
    assert_close(v, loops.project_heads(memory, layer.value.weight, layer.value.bias, layer.heads))
    weights = layer.weights(x, memory, mask)
    q = loops.project_heads(x, layer.query.weight, layer.query.bias, layer.heads)
    assert_close(weights, loops.attention_weights(q, k, mask))
    assert_close(layer.output(merge_heads(weights @ v))[0], y)


@given(cases(), st.data())
def test_order_of_memory_and_of_queries(case, data):
    _, layer, x, memory, mask = case
    T, S = x.shape[1], memory.shape[1]
    keys, queries = data.draw(st.permutations(range(S))), data.draw(st.permutations(range(T)))
    full = np.array(np.broadcast_to(True if mask is None else mask, (len(x), layer.heads, T, S)))
    y, _ = layer(x, memory, full)
    assert_close(layer(x[:, queries], memory[:, keys], full[:, :, queries][..., keys])[0], y[:, queries])


@given(cases())
def test_a_shift_of_all_keys_changes_nothing(case):
    """It adds q·b to all scores of a query; so the key's bias has no gradient, but the value's has."""
    rng, layer, x, memory, mask = case
    y, backward = layer(x, memory, mask)
    shifted = replace(layer, key=replace(layer.key, bias=layer.key.bias + 1.5))
    assert_close(shifted(x, memory, mask)[0], y, 1e-11)
    gradient, _, _ = backward(rng.normal(size=y.shape))
    assert_close(gradient.key.bias, np.zeros(layer.key.bias.shape), 1e-11)
    if mask is None:
        shifted = replace(layer, value=replace(layer.value, bias=layer.value.bias + 1.5))
        assert_close(shifted(x, memory)[0], y + 1.5 * layer.output.weight.sum(axis=0))
        assert gradient.value.bias.any()


@given(cases())
def test_a_sample_does_not_depend_on_its_batch(case):
    rng, layer, x, memory, mask = case
    full = np.broadcast_to(True if mask is None else mask, (len(x), layer.heads, x.shape[1], memory.shape[1]))
    y, backward = layer(x, memory, full)
    dy = rng.normal(size=y.shape)
    gradient, dx, d_memory = backward(dy)
    total = [0.0] * len(LEAVES)
    for b in range(len(x)):
        alone, alone_backward = layer(x[b:b + 1], memory[b:b + 1], full[b:b + 1])
        one, one_dx, one_d_memory = alone_backward(dy[b:b + 1])
        assert_close(alone[0], y[b])
        assert_close(one_dx[0], dx[b])
        assert_close(one_d_memory[0], d_memory[b])
        total = [t + g for t, g in zip(total, arrays(one))]
    for found, expected in zip(arrays(gradient), total):
        assert_close(found, expected)


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_no_word_sees_the_future(B, seed, padded):
    T, D = 5, 6
    rng = seeded(1)
    layer, x = square_layer(rng, D, 2, 0.3), rng.normal(size=(B, T, D))
    mask = causal_mask(T)
    if padded:
        mask = mask & padding_mask(np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]])[:B], 0)

    def run(x):
        return layer.self_attention(x, mask, None if seed is None else seeded(seed))

    before, backward = run(x)
    for t in range(T):
        other = x.copy()
        other[:, t] = rng.normal(size=(B, D))
        after, _ = run(other)
        assert_close(after[:, :t], before[:, :t])
        assert (after[:, t] != before[:, t]).any()
        dy = np.zeros(before.shape)
        dy[:, t] = rng.normal(size=(B, D))
        _, dx = backward(dy)
        assert_array_equal(dx[:, t + 1:], 0)
        assert dx[:, t].any()


@given(rngs, st.integers(1, 4))
def test_one_word_at_a_time_with_stored_keys(rng, step):
    B, T, D, H = 2, 7, 6, 3
    layer, x = square_layer(rng, D, H), rng.normal(size=(B, T, D))
    y, _ = layer.self_attention(x, causal_mask(T))
    k, v = np.zeros((2, B, H, 0, D // H))
    for start in range(0, T, step):
        words = x[:, start:start + step]
        new_k, new_v = layer.keys_and_values(words)
        k, v = np.concatenate([k, new_k], axis=2), np.concatenate([v, new_v], axis=2)
        found = layer.attend(words, k, v, causal_mask(words.shape[1], k.shape[2]))
        assert_close(found, y[:, start:start + step])


def test_no_generator_means_no_dropout():
    rng = seeded()
    layer, x, memory = square_layer(rng, 6, 3, 0.4), rng.normal(size=(2, 4, 6)), rng.normal(size=(2, 5, 6))
    plain, _ = replace(layer, dropout_rate=0.0)(x, memory)
    assert_same(layer(x, memory)[0], plain)
    assert_close(layer.attend(x, *layer.keys_and_values(memory)), plain)
    assert (layer(x, memory, None, seeded(1))[0] != plain).any()
    assert_same(layer(x, memory, None, seeded(1))[0], layer(x, memory, None, seeded(1))[0])
    assert (layer(x, memory, None, seeded(2))[0] != layer(x, memory, None, seeded(1))[0]).any()
    assert (layer.self_attention(x, None, seeded(1))[0] != layer.self_attention(x)[0]).any()


def test_all_weights_dropped_leave_the_output_bias():
    rng = seeded()
    layer, x = square_layer(rng, 6, 3, 1.0), rng.normal(size=(2, 4, 6))
    y, backward = layer.self_attention(x, None, rng)
    assert_same(y, np.broadcast_to(layer.output.bias, x.shape))
    gradient, dx = backward(np.ones(x.shape))
    assert_array_equal(dx, np.zeros(x.shape))
    assert_array_equal(gradient.output.bias, [8] * 6)


# ── Values ───────────────────────────────────────────────────────────────────────────────────────

def identity(width, heads):
    return MultiHeadAttention(*(Linear(np.eye(width), np.zeros(width)) for _ in range(4)), heads)


@pytest.mark.parametrize("T, S", [(2, 5), (5, 2), (1, 3), (3, 1)])
def test_more_keys_than_queries_and_fewer(T, S):
    rng = seeded()
    layer, x, memory = square_layer(rng, 4, 2), rng.normal(size=(3, T, 4)), rng.normal(size=(3, S, 4))
    y, _ = layer(x, memory)
    assert y.shape == (3, T, 4) and layer.weights(x, memory).shape == (3, 2, T, S)
    check_gradients(under(None), layer, x, memory, rng=rng, coordinates=12)
    blind = replace(layer, query=Linear(np.zeros((4, 4)), np.zeros(4)))  # q = 0: every key counts the same
    mean = layer.output(layer.value(memory)[0].mean(axis=1, keepdims=True))[0]
    assert_close(blind(x, memory)[0], np.broadcast_to(mean, (3, T, 4)))


def test_scores_are_scaled_by_the_width_of_a_head():
    x, memory = np.ones((1, 1, 8)), np.stack([np.ones(8), np.zeros(8)])[None]
    weights = identity(8, 2).weights(x, memory)
    assert_close(weights, [[[[0.8807970779778823, 0.1192029220221177]]] * 2])
    assert_close(identity(8, 2)(x, memory)[0], np.full((1, 1, 8), 0.8807970779778823))


def test_keys_and_values_come_from_the_memory_and_queries_from_x():
    layer = identity(2, 1)
    x, memory = np.array([[[30.0, 0.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0]]])
    assert_close(layer(x, memory)[0], [[[1, 0]]], 1e-8)
    assert_close(layer(-x, memory)[0], [[[0, 1]]], 1e-8)


@pytest.mark.parametrize("B, T, S", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_to_attend(B, T, S):
    layer = square_layer(seeded(), 6, 3)
    x, memory = np.ones((B, T, 6)), np.ones((B, S, 6))
    with np.errstate(all="raise"):
        y, backward = layer(x, memory)
        gradient, dx, d_memory = backward(np.ones(y.shape))
    assert_same(y, np.broadcast_to(layer.output.bias, (B, T, 6)))
    assert_array_equal(dx, np.zeros(x.shape))
    assert_array_equal(d_memory, np.zeros(memory.shape))
    assert_array_equal(gradient.output.bias, [B * T] * 6)
    assert not gradient.query.weight.any() and gradient.query.weight.shape == (6, 6)
    assert layer.weights(x, memory).shape == (B, 3, T, S)


def test_one_word():
    rng = seeded()
    layer, x, memory, dy = square_layer(rng, 6, 3), *rng.normal(size=(3, 1, 1, 6))
    y, backward = layer(x, memory)
    assert_array_equal(layer.weights(x, memory), np.ones((1, 3, 1, 1)))
    assert_close(y, layer.output(layer.value(memory)[0])[0])
    gradient, dx, d_memory = backward(dy)
    assert_array_equal(dx, np.zeros(x.shape))
    assert_close(d_memory, dy @ layer.output.weight.T @ layer.value.weight.T)
    assert not gradient.query.weight.any() and not gradient.key.weight.any() and gradient.value.weight.any()


def test_a_word_that_may_see_nothing_gets_the_output_bias():
    rng = seeded()
    layer, x = square_layer(rng, 6, 3), rng.normal(size=(2, 4, 6))
    mask = np.ones((2, 1, 4, 4), bool)
    mask[1, :, 2] = False
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = layer(x, x, mask)
        _, dx, _ = backward(rng.normal(size=y.shape))
    assert_same(y[1, 2], layer.output.bias)
    assert_array_equal(dx[1, 2], 0)
    assert (y[1, 1] != layer.output.bias).all() and dx[1, 1].any()


def test_integers_are_computed_in_float64():
    y, backward = identity(4, 2)([[[1, 2, 3, 4]]], np.array([[[4, 3, 2, 1], [0, 0, 0, 1]]], np.int32))
    _, dx, d_memory = backward(np.ones(y.shape))
    assert y.dtype == dx.dtype == d_memory.dtype == np.float64


# ── Initial values, and what is refused ──────────────────────────────────────────────────────────

def test_initial_layer():
    layer = MultiHeadAttention.init(seeded(5), 6, 3, dropout_rate=0.2)
    assert list(named_parameters(layer)) == LEAVES
    assert (layer.heads, layer.dropout_rate) == (3, 0.2)
    assert MultiHeadAttention.init(seeded(), 6, 2).dropout_rate == 0.0
    weights = [array for array in arrays(layer) if array.ndim == 2]
    assert {array.shape for array in weights} == {(6, 6)}
    assert len({array[0, 0] for array in weights}) == 4  # four draws, not one four times
    assert not any(array.any() for array in arrays(layer) if array.ndim == 1)
    assert_same(MultiHeadAttention.init(seeded(5), 6, 3, dropout_rate=0.2), layer)
    assert (MultiHeadAttention.init(seeded(6), 6, 3).query.weight != layer.query.weight).all()
    exact = MultiHeadAttention.init(seeded(), 6, 3, dtype=np.float64)
    for tree, dtype in ((layer, np.float32), (exact, np.float64)):
        assert {array.dtype for array in arrays(tree)} == {np.dtype(dtype)}


def test_a_layer_is_plain_data():
    assert_plain_data(square_layer(seeded(), 6, 3))


def with_widths(query, key, value, output):
    """Three heads, the projections this wide, and the width that the output layer takes"""
    sizes = (6, query), (6, key), (6, value), (output, 6)
    return MultiHeadAttention(*(Linear(np.ones(size), np.ones(size[1])) for size in sizes), 3)


SQUARE = [Linear(np.ones((6, 6)), np.ones(6))] * 4


@pytest.mark.parametrize("attempt, error, message", [
    (lambda: MultiHeadAttention.init(seeded(), 10, 3), ValueError, "^query is 10 wide, which 3 heads do not divide"),
    (lambda: with_widths(6, 8, 6, 6), ValueError, "^key is 8 wide, which 3 heads do not divide"),
    (lambda: with_widths(6, 6, 4, 4), ValueError, "^value is 4 wide, which 3 heads do not divide"),
    (lambda: with_widths(6, 9, 6, 6), ValueError, "^query is 6 wide, key 9"),
    (lambda: with_widths(6, 6, 9, 6), ValueError, "^value is 9 wide, output takes 6"),
    (lambda: MultiHeadAttention(*SQUARE, 0), ValueError, "^heads must be a whole number of at least 1, not 0"),
    (lambda: MultiHeadAttention(*SQUARE, -2), ValueError, "^heads must .* not -2"),
    (lambda: MultiHeadAttention(*SQUARE, 2.0), ValueError, r"^heads must .* not 2\.0"),
    (lambda: MultiHeadAttention(*SQUARE, True), ValueError, "^heads must .* not True"),
    (lambda: MultiHeadAttention(*SQUARE, 2, 1.1), ValueError, r"^dropout_rate must be .* not 1\.1"),
    (lambda: MultiHeadAttention(*SQUARE, 2, -0.1), ValueError, r"^dropout_rate must be .* not -0\.1"),
    (lambda: MultiHeadAttention(*SQUARE, 2, np.nan), ValueError, "^dropout_rate must be .* not nan"),
    (lambda: MultiHeadAttention.init(seeded(), 0, 1), ValueError, "must be a whole number of at least 1, not 0"),
    (lambda: MultiHeadAttention.init(seeded(), 4, 2, dropout_rate=2), ValueError, "^dropout_rate must be .* not 2"),
])
def test_layers_that_cannot_be(attempt, error, message):
    with pytest.raises(error, match=message):
        attempt()


@pytest.mark.parametrize("x, memory, mask, error, message", [
    ((2, 6), (2, 4, 6), None, ValueError, r"^x has shape \(2, 6\), memory \(2, 4, 6\): expected \(B, T, D\) and"),
    ((2, 3, 6), (4, 6), None, ValueError, r"^x has shape \(2, 3, 6\), memory \(4, 6\)"),
    ((2, 3, 6), (5, 4, 6), None, ValueError, r"^x has shape \(2, 3, 6\), memory \(5, 4, 6\)"),
    ((2, 3, 6), (1, 4, 6), None, ValueError, r"^x has shape \(2, 3, 6\), memory \(1, 4, 6\)"),
    ((1, 2, 3, 6), (1, 2, 4, 6), None, ValueError, r"^x has shape \(1, 2, 3, 6\), memory"),
    ((2, 3, 6), (1, 2, 4, 6), None, ValueError, r"memory \(1, 2, 4, 6\)"),
    ((2, 3, 5), (2, 4, 6), None, ValueError, r"^x has shape \(2, 3, 5\): its last axis must be 6 wide"),
    ((2, 3, 6), (2, 4, 5), None, ValueError, r"^memory has shape \(2, 4, 5\): its last axis must be 6 wide"),
    ((2, 3, 6), (2, 4, 6), np.ones((3, 5), bool), ValueError, r"^mask has shape \(3, 5\), .* \(2, 3, 3, 4\)"),
    ((2, 3, 6), (2, 4, 6), np.ones((2, 1, 4), bool), ValueError, r"^mask has shape \(2, 1, 4\)"),
    ((2, 3, 6), (2, 4, 6), np.ones((3, 4)), TypeError, "^mask must be a boolean array"),
])
def test_inputs_that_do_not_fit(x, memory, mask, error, message):
    layer = MultiHeadAttention(*SQUARE, 3)
    with pytest.raises(error, match=message):
        layer(np.ones(x), np.ones(memory), mask)


@pytest.mark.parametrize("shape, message", [
    ((2, 6), r"^x has shape \(2, 6\): expected \(B, T, D\)$"),
    ((1, 2, 3, 6), r"^x has shape \(1, 2, 3, 6\): expected \(B, T, D\)$"),
    ((2, 3, 5), r"^x has shape \(2, 3, 5\): its last axis must be 6 wide$"),
])
def test_self_attention_of_what_does_not_fit(shape, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(*SQUARE, 3).self_attention(np.ones(shape))


@pytest.mark.parametrize("x, memory, message", [
    (np.ones((2, 3, 6), complex), np.ones((2, 4, 6)), "^x must hold real numbers, not dtype complex128"),
    (np.ones((2, 3, 6)), np.full((2, 4, 6), "a"), "^memory must hold real numbers, not dtype <U1"),
])
def test_inputs_that_are_no_numbers(x, memory, message):
    with pytest.raises(TypeError, match=message):
        MultiHeadAttention(*SQUARE, 3)(x, memory)
