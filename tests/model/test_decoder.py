"""The decoder: which side asks and which answers, what stays hidden, and decoding with stored keys."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import loops
from numpy_transformer.attention.masks import causal_mask
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import from_vector, map_tree, named_parameters, to_vector
from numpy_transformer.layers.feed_forward import gelu, gelu_tanh, relu
from numpy_transformer.layers.layer_norm import LayerNorm
from numpy_transformer.model.decoder import Decoder, DecoderLayer, LayerCache
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, letters, masks,
    randomised, rates, read_only, rngs)

both_placements = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
few = settings(max_examples=settings.default.max_examples // 4)  # where an example is long
LOOPS_OF = {relu: loops.relu, gelu: loops.gelu, gelu_tanh: loops.gelu_tanh}
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
RATES = dict(dropout_rate=0.2, attention_dropout_rate=0.3, feed_forward_dropout_rate=0.4)
B, T, S, H, D, F = 2, 4, 5, 3, 6, 7


def make(seed=0, **choices):
    """A layer of random parameters, none as it was at the start"""
    rng = np.random.default_rng(seed)
    return randomised(DecoderLayer.init(rng, D, H, F, **choices), rng)


def stack(layers=2, seed=0, norm=True, **choices):
    last = randomised(LayerNorm.init(D), np.random.default_rng(seed)) if norm else None
    return Decoder(tuple(make(seed + i, **choices) for i in range(layers)), last)


def target(seed=8, batch=B):
    return np.random.default_rng(seed).normal(size=(batch, T, D))


def source(seed=9, batch=B):
    return np.random.default_rng(seed).normal(size=(batch, S, D))


def hide(length, *places):
    """A padding mask (B, 1, 1, length) that hides these places of each sentence"""
    mask = np.ones((len(places), 1, 1, length), bool)
    for row, hidden in zip(mask, places):
        row[..., list(hidden)] = False
    return mask


def answering(layer, **answers):
    """The layer with sublayers that give the same answer whatever they are asked: by name, the others 0"""
    def constant(linear, answer):
        return Linear(np.zeros_like(linear.weight), np.full_like(linear.bias, answer))

    for name in SUBLAYERS:
        sublayer, last = getattr(layer, name), "contract" if name == "feed_forward" else "output"
        sublayer = replace(sublayer, **{last: constant(getattr(sublayer, last), answers.get(name, 0))})
        layer = replace(layer, **{name: sublayer})
    return layer


def without_weights(layer, *names):
    """The layer with the last weight of these sublayers 0, so that only their biases answer"""
    for name in names:
        sublayer, last = getattr(layer, name), "contract" if name == "feed_forward" else "output"
        linear = getattr(sublayer, last)
        sublayer = replace(sublayer, **{last: replace(linear, weight=np.zeros_like(linear.weight))})
        layer = replace(layer, **{name: sublayer})
    return layer


def for_loops(layer):
    """The layer's parameters in the order that loops.decoder_layer takes them"""
    parts = (layer.self_attention, layer.cross_attention, layer.feed_forward,
             layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm)
    return [tuple(named_parameters(part).values()) for part in parts]


@st.composite
def layers_and_inputs(draw, with_dropout=True):
    n, rng = draw(letters("BTSHKF").filter(lambda n: n.H * n.K > 7)), draw(rngs)  # D differs as well
    three = [draw(rates) if with_dropout and draw(st.booleans()) else 0.0 for _ in range(3)]
    D = n.H * n.K
    layer = DecoderLayer.init(
        rng, D, n.H, n.F, norm_first=draw(st.booleans()), activation=draw(st.sampled_from([*LOOPS_OF])),
        epsilon=draw(st.sampled_from([1e-5, 0.1])), dropout_rate=three[0], attention_dropout_rate=three[1],
        feed_forward_dropout_rate=three[2])
    mask, memory_mask = draw(st.none() | masks((n.B, n.H, n.T, n.T))), draw(st.none() | masks((n.B, n.H, n.T, n.S)))
    x, memory = rng.normal(size=(n.B, n.T, D)), rng.normal(size=(n.B, n.S, D))
    return randomised(layer, rng), x, memory, mask, memory_mask, rng


# ── Both passes ──────────────────────────────────────────────────────────────────────────────────

@few
@given(layers_and_inputs(with_dropout=False))
def test_agrees_with_loops(drawn):
    layer, x, memory, mask, memory_mask, _ = drawn
    expected = loops.decoder_layer(
        x, memory, mask, memory_mask, *for_loops(layer), layer.self_attention.heads, norm_first=layer.norm_first,
        activation=LOOPS_OF[layer.feed_forward.activation], epsilon=layer.feed_forward_norm.epsilon)
    assert_close(layer(x, memory, mask, memory_mask)[0], expected, 1e-11)


@both_placements
def test_a_stack_agrees_with_loops(norm_first):
    decoder, memory = stack(norm_first=norm_first), source()
    mask, memory_mask = causal_mask(T) & hide(T, [], [3]), hide(S, [0], [3, 4])
    y = target()
    for layer in decoder.layers:
        y = loops.decoder_layer(y, memory, mask, memory_mask, *for_loops(layer), H, norm_first=norm_first)
    expected = loops.layer_norm(y, decoder.norm.gain, decoder.norm.shift)
    assert_close(decoder(target(), memory, mask, memory_mask)[0], expected, 1e-11)


@given(layers_and_inputs(), st.integers(0, 99))
def test_layer_gradients(drawn, seed):
    """All parameters as one vector, moved along one direction"""
    layer, x, memory, mask, memory_mask, rng = drawn

    def f(vector, x, memory):
        y, backward = from_vector(layer, vector)(x, memory, mask, memory_mask, np.random.default_rng(seed))

        def reverse(dy):
            gradient, dx, d_memory = backward(dy)
            return to_vector(gradient), dx, d_memory

        return y, reverse

    check_gradients(f, to_vector(layer), x, memory, rng=rng, tolerance=1e-6, coordinates=0, directions=1)


@pytest.mark.parametrize("layers, norm_first", [(1, True), (2, False)], ids=["pre-norm", "post-norm"])
def test_gradients_of_every_leaf_of_a_stack(layers, norm_first):
    """Pre-norm with a final norm, post-norm without"""
    decoder = stack(layers, norm_first=norm_first, norm=norm_first, activation=gelu, **RATES)
    mask, memory_mask = causal_mask(T) & hide(T, [3], [0, 1]), hide(S, [0], [3, 4])

    def f(decoder, x, memory):
        return decoder(x, memory, mask, memory_mask, np.random.default_rng(3))

    worst = check_gradients(f, decoder, target(), source(), rng=np.random.default_rng(1), coordinates=0, directions=1)
    assert len(worst) == layers * 26 + 2 * norm_first + 2


@pytest.mark.parametrize("length", [T, 2], ids=["T = S", "T > S"])
def test_gradients_when_the_source_is_not_longer(length):
    layer, x, memory = make(dropout_rate=0.3, activation=gelu), target(), source()[:, :length]

    def f(x, memory):
        y, backward = layer(x, memory, causal_mask(T), None, np.random.default_rng(1))
        return y, lambda dy: backward(dy)[1:]

    assert set(check_gradients(f, x, memory, rng=np.random.default_rng(0), coordinates=0)) == {"x", "memory"}


def test_the_gradient_is_a_decoder_of_the_same_settings():
    decoder, x = stack(2, norm_first=False, dropout_rate=0.3), target()
    gradient, _, _ = decoder(x, source())[1](x)
    assert isinstance(gradient, Decoder) and list(named_parameters(gradient)) == list(named_parameters(decoder))
    for layer in gradient.layers:
        assert isinstance(layer, DecoderLayer) and not layer.norm_first and layer.dropout_rate == 0.3
    assert stack(2, norm=False)(x, source())[1](x)[0].norm is None


def test_layers_run_in_order_and_the_memory_adds_up_their_gradients():
    one, two, x, memory = make(1), make(2), target(), source()
    middle, one_backward = one(x, memory)
    y, two_backward = two(middle, memory)
    stacked, backward = Decoder((one, two), None)(x, memory)
    assert_array_equal(stacked, y)
    two_gradient, d_middle, d_memory_of_two = two_backward(x)
    one_gradient, dx, d_memory_of_one = one_backward(d_middle)
    gradient, dx_of_stack, d_memory = backward(x)
    assert_same((gradient, dx_of_stack), (Decoder((one_gradient, two_gradient), None), dx))
    assert_close(d_memory, d_memory_of_one + d_memory_of_two)
    assert np.abs(d_memory_of_one).max() > 1e-3 and np.abs(d_memory_of_two).max() > 1e-3
    assert not np.allclose(Decoder((two, one), None)(x, memory)[0], y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stack_of_nothing(dtype):
    x, memory = target().astype(dtype), source().astype(dtype)
    norm = randomised(LayerNorm.init(D), np.random.default_rng(1), dtype)
    y, backward = Decoder((), None)(x, memory)
    gradient, dx, d_memory = backward(2 * x)
    assert_array_equal(y, x)
    assert_array_equal(dx, 2 * x)
    assert_array_equal(d_memory, np.zeros_like(memory), strict=True)
    assert gradient.layers == () and gradient.norm is None
    y, backward = Decoder((), norm)(x, memory)
    gradient, dx, d_memory = backward(2 * x)
    expected, norm_backward = norm(x)
    assert_array_equal(y, expected)
    assert_same((gradient.norm, dx), norm_backward(2 * x))
    assert_array_equal(d_memory, np.zeros_like(memory), strict=True)


# ── Who asks, and who answers ────────────────────────────────────────────────────────────────────

def test_the_target_asks_and_the_source_answers():
    """Queries of the target find their keys in the source, and fetch from there; not the other way round."""
    wide = 40.0  # far apart, so that softmax gives all weight to one key
    layer = answering(make())
    cross = replace(layer.cross_attention, heads=1,
                    query=Linear(wide * np.eye(D), np.zeros(D)), key=Linear(np.eye(D), np.zeros(D)),
                    value=Linear(np.roll(np.eye(D), 1, axis=1), np.zeros(D)), output=Linear(np.eye(D), np.zeros(D)))
    norm = LayerNorm(np.ones(D), np.zeros(D))
    layer = replace(layer, cross_attention=cross, cross_attention_norm=norm)
    x, memory = np.eye(D)[None, [3, 1, 1, 4]], np.eye(D)[None, :5]
    y, _ = layer(x, memory)
    assert_close(y - x, np.eye(D)[None, [4, 2, 2, 5]], 1e-6)


@both_placements
def test_words_of_one_source_all_alike_leave_nothing_to_ask(norm_first):
    """The weighted mean of equal values is that value: then neither query nor key matter, but the value does."""
    layer, x = make(norm_first=norm_first), target()
    alike, mixed = np.repeat(source()[:, :1], S, axis=1), source()

    def without(part):
        cross = replace(layer.cross_attention, **{part: map_tree(np.zeros_like, getattr(layer.cross_attention, part))})
        return replace(layer, cross_attention=cross)

    y = layer(x, alike)[0]
    for part in ("query", "key"):
        assert_close(without(part)(x, alike)[0], y)
        assert not np.allclose(without(part)(x, mixed)[0], layer(x, mixed)[0])
    assert not np.allclose(without("value")(x, alike)[0], y)


def test_self_attention_looks_at_the_target_and_cross_attention_at_the_source():
    layer, x, memory = make(), target(), source()
    other = source(seed=10)
    deaf = replace(layer, cross_attention=answering(layer).cross_attention)
    assert_array_equal(deaf(x, memory)[0], deaf(x, other)[0])
    assert not deaf(x, memory)[1](x)[2].any()
    y, z = layer(x, memory)[0], layer(x, other)[0]
    assert (np.abs(y - z).max(axis=-1) > 1e-6).all()


def test_the_source_may_be_read_in_any_order():
    decoder, x, memory, mask, order = stack(), target(), source(), hide(S, [0], [3, 4]), [3, 0, 4, 2, 1]
    y, backward = decoder(x, memory, causal_mask(T), mask)
    moved, moved_backward = decoder(x, memory[:, order], causal_mask(T), mask[..., order])
    assert_close(moved, y, 1e-11)
    assert_close(moved_backward(x)[2], backward(x)[2][:, order], 1e-10)


# ── What stays hidden ────────────────────────────────────────────────────────────────────────────

@both_placements
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_a_causal_mask_hides_the_future(norm_first, batch, dropout, padding):
    decoder, x, memory = stack(norm_first=norm_first, **RATES), target(batch=batch), source(batch=batch)
    mask = causal_mask(T) & hide(T, *([[0], [2]][:batch] if padding else [[]] * batch))

    def run(x):
        return decoder(x, memory, mask, hide(S, *[[1, 2]] * batch), np.random.default_rng(1) if dropout else None)[0]

    y = run(x)
    for t in range(T):
        changed = x.copy()
        changed[:, t] += np.arange(D) - 1.3
        other = run(changed)
        assert_allclose(other[:, :t], y[:, :t], rtol=0, atol=1e-12)
        assert (np.abs(other - y)[:, t].max(axis=-1) > 1e-6).all()
        if not padding:
            assert (np.abs(other - y)[:, t:].max(axis=-1) > 1e-9).all()


@both_placements
def test_a_hidden_word_of_the_source_changes_nothing(norm_first):
    decoder, x, memory, mask = stack(norm_first=norm_first), target(), source(), hide(S, [4], [1, 2])
    seen = mask[:, 0, 0]
    changed = np.where(seen[..., None], memory, memory + np.arange(D) - 1.3)
    y, backward = decoder(x, memory, None, mask)
    assert_array_equal(decoder(x, changed, None, mask)[0], y)
    assert not np.allclose(decoder(x, changed)[0], decoder(x, memory)[0])
    _, _, d_memory = backward(np.random.default_rng(1).normal(size=x.shape))
    assert_array_equal(d_memory[~seen], np.zeros_like(memory)[~seen])
    assert (np.abs(d_memory).max(axis=-1) > 1e-9)[seen].all()


def test_the_two_masks_are_for_two_attentions():
    decoder, x, memory = stack(), target(), source()
    plain = decoder(x, memory)[0]
    masked = [decoder(x, memory, *pair)[0] for pair in (
        (hide(T, [1], [2]), None), (None, hide(S, [1], [2])), (hide(T, [1], [2]), hide(S, [1], [2])))]
    for i, one in enumerate(masked):
        assert not np.allclose(one, plain)
        assert all(not np.allclose(one, other) for other in masked[:i])


def test_sentences_of_a_batch_do_not_meet():
    decoder, x, memory, mask = stack(norm_first=False), target(batch=3), source(batch=3), hide(S, [4], [], [0, 2])
    y, backward = decoder(x, memory, causal_mask(T), mask)
    gradient, dx, d_memory = backward(x)
    alone = [decoder(x[b : b + 1], memory[b : b + 1], causal_mask(T), mask[b : b + 1]) for b in range(3)]
    assert_close(np.concatenate([y for y, _ in alone]), y)
    back = [backward(x[b : b + 1]) for b, (_, backward) in enumerate(alone)]
    assert_close(np.concatenate([dx for _, dx, _ in back]), dx, 1e-11)
    assert_close(np.concatenate([d_memory for _, _, d_memory in back]), d_memory, 1e-11)
    total = map_tree(lambda *parts: sum(parts), *(gradient for gradient, _, _ in back))
    assert_same(gradient, total, rtol=1e-9, atol=1e-9)


def test_a_source_that_is_hidden_altogether():
    """Cross-attention answers with its last bias alone; nothing is divided by zero."""
    layer, x, memory = make(), target(), source()
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = layer(x, memory, causal_mask(T), hide(S, range(S), []))
        _, dx, d_memory = backward(x)
    assert_array_equal(y[0], without_weights(layer, "cross_attention")(x, memory, causal_mask(T))[0][0])
    assert not d_memory[0].any() and d_memory[1].any() and np.isfinite(dx).all()


# ── Norms and straight ways ──────────────────────────────────────────────────────────────────────

def test_pre_norm_layers_without_answers_and_a_final_norm_normalise_once():
    norm, x = LayerNorm.init(D, dtype=np.float64), 3 * target()
    decoder = Decoder(tuple(answering(make(i)) for i in range(3)), norm)
    assert_array_equal(decoder(x, source())[0], norm(x)[0])


def test_post_norm_layers_without_answers_normalise_as_often_as_there_are_sublayers():
    norm, x = LayerNorm.init(D, epsilon=0.5, dtype=np.float64), target()
    layer = replace(answering(make(norm_first=False)), **{f"{name}_norm": norm for name in SUBLAYERS})
    expected = x
    for _ in range(6):
        expected, _ = norm(expected)
    y, _ = Decoder((layer,) * 2, None)(x, source())
    assert_array_equal(y, expected)
    assert not np.allclose(norm(y)[0], y)  # with this ε one norm more or less would show


def test_each_sublayer_has_its_own_norm_and_place():
    norms = [randomised(LayerNorm.init(D), np.random.default_rng(i)) for i in (1, 2, 3)]
    layer, x = answering(make(norm_first=False), self_attention=1, cross_attention=2, feed_forward=4), target()
    layer = replace(layer, self_attention_norm=norms[0], cross_attention_norm=norms[1], feed_forward_norm=norms[2])
    expected = x
    for norm, answer in zip(norms, (1, 2, 4)):
        expected, _ = norm(expected + answer)
    assert_array_equal(layer(x, source())[0], expected)


@pytest.mark.parametrize("layers", [1, 3])
def test_pre_norm_layers_without_answers_hand_the_gradient_through_untouched(layers):
    decoder, x = Decoder(tuple(answering(make(i)) for i in range(layers)), None), target()
    dy = np.random.default_rng(2).normal(size=x.shape)
    y, backward = decoder(x, source())
    _, dx, d_memory = backward(dy)
    assert_array_equal(y, x)
    assert_array_equal(dx, dy)
    assert not d_memory.any()
    y, backward = stack(layers, norm=False)(x, source())
    _, dx, d_memory = backward(dy)
    assert not np.allclose(y, x) and not np.allclose(dx, dy) and d_memory.any()


# ── Dropout ──────────────────────────────────────────────────────────────────────────────────────

@both_placements
@pytest.mark.parametrize("rate, silenced", [
    ("dropout_rate", answering),
    ("attention_dropout_rate", lambda layer: without_weights(layer, "self_attention", "cross_attention")),
    ("feed_forward_dropout_rate", lambda layer: without_weights(layer, "feed_forward")),
], ids=["sublayers", "attentions", "feed-forward"])
def test_each_rate_falls_in_its_own_place(norm_first, rate, silenced):
    """At rate 1 the place is silent; every other place is as it was."""
    arguments = target(), source(), causal_mask(T), hide(S, [1], [])
    layer, plain = make(norm_first=norm_first, **{rate: 1.0}), make(norm_first=norm_first)
    assert_array_equal(layer(*arguments, np.random.default_rng(0))[0], silenced(plain)(*arguments)[0])
    assert_array_equal(layer(*arguments)[0], plain(*arguments)[0])
    assert not np.allclose(silenced(plain)(*arguments)[0], plain(*arguments)[0])


def test_the_sublayers_and_layers_draw_different_holes():
    """One answer is ones and all others 0, so that y − x shows the holes of its place."""
    x, memory, nothing = np.zeros((7, T, D)), np.zeros((7, S, D)), answering(make(dropout_rate=0.4))
    layers = [answering(make(dropout_rate=0.4), **{name: 1}) for name in SUBLAYERS]
    stacks = [(layer, nothing) for layer in layers] + [(nothing, layer) for layer in layers]
    holes = [Decoder(layers, None)(x, memory, None, None, np.random.default_rng(5))[0] == 0 for layers in stacks]
    for i, one in enumerate(holes):
        assert 0.25 < one.mean() < 0.55
        for axis in range(3):
            assert np.unique(one, axis=axis).shape[axis] > 1
        for two in holes[:i]:
            assert 0.3 < (one == two).mean() < 0.7


@both_placements
def test_same_seed_same_holes_and_no_generator_no_holes(norm_first):
    decoder, x, memory = stack(norm_first=norm_first, **RATES), target(), source()
    one, same, other = (decoder(x, memory, None, None, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert_array_equal(one[0], same[0])
    assert_same(one[1](x), same[1](x))
    assert not np.allclose(one[0], other[0])
    plain = stack(norm_first=norm_first)
    assert_array_equal(decoder(x, memory)[0], plain(x, memory, None, None, np.random.default_rng(0))[0])
    assert not np.allclose(decoder(x, memory)[0], one[0])


# ── One word at a time ───────────────────────────────────────────────────────────────────────────

def start(decoder, memory):
    return tuple(layer.start(memory) for layer in decoder.layers)


def in_steps(decoder, x, memory, memory_mask=None):
    """All words of x one after the other: each word's y, and the caches before the first and after each"""
    caches, rows = [start(decoder, memory)], []
    for t in range(x.shape[1]):
        y, grown = decoder.step(x[:, t : t + 1], caches[-1], memory_mask)
        rows.append(y)
        caches.append(grown)
    return rows, caches


@both_placements
@pytest.mark.parametrize("norm", [True, False], ids=["final norm", "no final norm"])
@pytest.mark.parametrize("hidden", [None, ([1], [0, 4])], ids=["whole source", "padded source"])
def test_step_by_step_gives_the_rows_of_the_whole(norm_first, norm, hidden):
    """Also with dropout rates: whoever writes word by word does not train."""
    decoder = stack(norm_first=norm_first, norm=norm, **RATES)
    x, memory, memory_mask = np.random.default_rng(3).normal(size=(B, 7, D)), source(), hidden and hide(S, *hidden)
    whole, _ = decoder(x, memory, causal_mask(7), memory_mask)
    rows, _ = in_steps(decoder, x, memory, memory_mask)
    for t, row in enumerate(rows):
        assert row.shape == (B, 1, D)
        assert_allclose(row, whole[:, t : t + 1], rtol=0, atol=1e-10)
    if hidden:
        assert not np.allclose(in_steps(decoder, x, memory)[0][0], rows[0])


def test_a_cache_grows_by_one_word_and_keeps_the_source():
    decoder, memory = stack(), source()
    _, history = in_steps(decoder, target(), memory)
    for t, caches in enumerate(history):
        assert isinstance(caches, tuple) and len(caches) == 2
        for layer, cache in zip(decoder.layers, caches):
            assert isinstance(cache, LayerCache)
            assert cache.keys.shape == cache.values.shape == (B, H, t, D // H)
            k, v = layer.cross_attention.keys_and_values(memory)
            assert_array_equal(cache.memory_keys, k, strict=True)
            assert_array_equal(cache.memory_values, v, strict=True)
            assert not np.allclose(k, v)


def test_the_first_layers_cache_holds_the_keys_and_values_of_the_words_so_far():
    decoder, x = stack(norm_first=False), target()
    _, history = in_steps(decoder, x, source())
    k, v = decoder.layers[0].self_attention.keys_and_values(x)
    assert_close(history[-1][0].keys, k)
    assert_close(history[-1][0].values, v)
    assert not np.allclose(k, v)


@both_placements
def test_an_earlier_cache_stays_as_it_was(norm_first):
    """Two continuations of one beginning, the second from the same cache as the first"""
    decoder, memory, x = stack(norm_first=norm_first), source(), target()
    other = x.copy()
    other[:, 2:] = target(seed=20)[:, 2:]
    _, history = in_steps(decoder, x[:, :2], memory)
    branch_point = read_only(history[-1])
    before = map_tree(np.copy, branch_point)
    for continuation in (x, other, x):
        caches, whole = branch_point, decoder(continuation, memory, causal_mask(T))[0]
        for t in (2, 3):
            y, caches = decoder.step(continuation[:, t : t + 1], caches)
            assert_allclose(y, whole[:, t : t + 1], rtol=0, atol=1e-10)
        assert_same(branch_point, before)
    one, two = (decoder(words, memory, causal_mask(T))[0] for words in (x, other))
    assert not np.allclose(one[:, 2:], two[:, 2:])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_step_answers_to_its_own_word_and_to_all_before(batch):
    decoder, x, memory = stack(), target(batch=batch), source(batch=batch)
    rows, _ = in_steps(decoder, x, memory)
    for t in range(T):
        changed = x.copy()
        changed[:, t] += np.arange(D) - 1.3
        others, _ = in_steps(decoder, changed, memory)
        for s in range(T):
            assert np.allclose(others[s], rows[s], rtol=0, atol=1e-12) == (s < t)


def test_steps_keep_the_dtype():
    decoder = map_tree(lambda a: a.astype(np.float32), stack(dropout_rate=0.3))
    rows, history = in_steps(decoder, target().astype(np.float32), source().astype(np.float32))
    assert all(row.dtype == np.float32 for row in rows)
    assert all(array.dtype == np.float32 for array in named_parameters(tuple(history)).values())


@pytest.mark.parametrize("batch, length", [(0, S), (B, 0), (1, 1)])
def test_steps_over_sizes_of_zero_and_one(batch, length):
    x, memory, mask = np.ones((batch, 1, D)), np.ones((batch, length, D)), np.ones((batch, 1, 1, length), bool)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        rows, history = in_steps(stack(), x, memory, mask)
    assert rows[0].shape == (batch, 1, D) and history[-1][0].memory_keys.shape == (batch, H, length, D // H)


@pytest.mark.parametrize("shape", [(B, 2, D), (3, 1, D), (1, 1, D), (B, D), (B, 1, 5), (B, 0, D)], ids=str)
def test_a_step_takes_one_word_of_each_sentence(shape):
    """Two at once would see each other: there is no mask between them."""
    decoder = stack()
    with pytest.raises(ValueError, match=r"x has shape \(.*\): expected \(2, 1, 6\)") as error:
        decoder.step(np.ones(shape), start(decoder, source()))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_step_needs_a_cache_for_every_layer(count):
    decoder = stack()
    with pytest.raises(ValueError, match="argument 2 is (shorter|longer)"):
        decoder.step(np.ones((B, 1, D)), start(stack(3), source())[:count])


# ── Purity, memory, dtypes, sizes ────────────────────────────────────────────────────────────────

@few
@given(layers_and_inputs(), st.integers(0, 99))
def test_pure_and_linear(drawn, seed):
    layer, x, memory, mask, memory_mask, rng = drawn
    for m in (mask, memory_mask):
        if m is not None:
            m.flags.writeable = False
    decoder = Decoder((layer, randomised(layer, rng)), randomised(layer.feed_forward_norm, rng))

    def f(decoder, x, memory):
        return decoder(x, memory, mask, memory_mask, np.random.default_rng(seed))

    assert_pure_and_linear(f, decoder, x, memory, rng=rng)


def test_one_array_may_be_target_and_source():
    decoder, (x,) = stack(), read_only((target(),))
    y, backward = decoder(x, x, causal_mask(T))
    expected, expected_backward = decoder(x.copy(), x.copy(), causal_mask(T))
    assert_array_equal(y, expected)
    assert_same(backward(x), expected_backward(x))


@both_placements
def test_memory_layout_and_dtype(norm_first):
    rng, mask, memory_mask = np.random.default_rng(0), causal_mask(T), hide(S, [1], [3, 4])

    def f(decoder, x, memory):
        return decoder(x, memory, mask, memory_mask, np.random.default_rng(0))

    decoder = stack(norm_first=norm_first, activation=gelu, dropout_rate=0.3)
    assert_same_for_layouts(f, decoder, target(), source(), rng=rng, tolerance=1e-9)
    decoder = map_tree(lambda a: a / 2, decoder)
    assert_keeps_dtype(f, decoder, target(), source(), rng=rng, near=1e-3)
    assert_keeps_dtype(f, decoder, target(), source(), rng=rng, dtype=np.float64, near=0)


@both_placements
@pytest.mark.parametrize("batch, T, S", [(0, 4, 5), (2, 0, 5), (2, 4, 0), (2, 0, 0), (0, 0, 0), (1, 1, 1)])
def test_sizes_of_zero_and_one(norm_first, batch, T, S):
    decoder = stack(norm_first=norm_first, dropout_rate=0.3)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = decoder(np.ones((batch, T, D)), np.ones((batch, S, D)), causal_mask(T),
                              np.ones((batch, 1, 1, S), bool), np.random.default_rng(0))
        gradient, dx, d_memory = backward(np.ones((batch, T, D)))
    assert y.shape == dx.shape == (batch, T, D) and d_memory.shape == (batch, S, D)
    if 0 in (batch, T):
        assert all(not array.any() for array in named_parameters(gradient).values())


def test_integers_become_floats():
    decoder = stack()
    x, memory = np.arange(B * T * D).reshape(B, T, D) % 7, np.arange(B * S * D).reshape(B, S, D) % 5
    y, backward = decoder(x, memory)
    expected, expected_backward = decoder(x.astype(float), memory.astype(float))
    assert_array_equal(y, expected, strict=True)
    assert_same(backward(y), expected_backward(y))
    assert_array_equal(decoder(x.tolist(), memory.tolist())[0], y)


# ── Construction and errors ──────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_initial_layer(dtype):
    layer = DecoderLayer.init(np.random.default_rng(0), 48, 4, 90, norm_first=False, dropout_rate=0.1, epsilon=1e-3,
                              attention_dropout_rate=0.2, feed_forward_dropout_rate=0.3, activation=gelu, dtype=dtype)
    attentions, norms = (layer.self_attention, layer.cross_attention), for_loops(layer)[3:]
    assert (layer.norm_first, layer.dropout_rate, layer.feed_forward.dropout_rate) == (False, 0.1, 0.3)
    assert all((a.heads, a.dropout_rate) == (4, 0.2) for a in attentions)
    assert layer.feed_forward.activation is gelu
    for norm in (layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm):
        assert norm.epsilon == 1e-3
    parameters = named_parameters(layer)
    assert len(parameters) == 26 and len(norms) == 3
    assert {name: array.shape for name, array in parameters.items()} == {
        **{f"{attention}.{part}.{kind}": shape for attention in ("self_attention", "cross_attention")
           for part in ("query", "key", "value", "output") for kind, shape in (("weight", (48, 48)), ("bias", (48,)))},
        "feed_forward.expand.weight": (48, 90), "feed_forward.expand.bias": (90,),
        "feed_forward.contract.weight": (90, 48), "feed_forward.contract.bias": (48,),
        **{f"{name}_norm.{kind}": (48,) for name in SUBLAYERS for kind in ("gain", "shift")}}
    for name, array in parameters.items():
        assert array.dtype == dtype
        if name.endswith("weight"):
            limit = np.sqrt(6 / sum(array.shape))
            assert 0.97 * limit < np.abs(array).max() <= limit * (1 + 1e-6)
            assert_allclose(array.var(), limit**2 / 3, rtol=0.1)
        else:
            assert_array_equal(array, np.full(array.shape, name.endswith("gain")))
    weights = [array for name, array in parameters.items() if name.endswith("weight")]
    for i, one in enumerate(weights):
        assert all(np.isin(one, other).mean() < 0.01 for other in weights[:i])


def test_the_defaults_of_a_layer():
    layer = DecoderLayer.init(np.random.default_rng(0), 4, 2, 6)
    assert layer.norm_first and layer.feed_forward.activation is relu
    assert layer.dropout_rate == layer.feed_forward.dropout_rate == 0
    assert layer.self_attention.dropout_rate == layer.cross_attention.dropout_rate == 0
    parts = [layer.self_attention, layer.cross_attention, layer.feed_forward]
    norms = [layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm]
    assert all(norm.epsilon == 1e-5 for norm in norms)
    bare = DecoderLayer(*parts, *norms)
    assert bare.norm_first and bare.dropout_rate == 0
    assert all(array.dtype == np.float32 for array in named_parameters(layer).values())


def test_same_seed_same_layer():
    one, same, other = (DecoderLayer.init(np.random.default_rng(seed), 4, 2, 6) for seed in (0, 0, 1))
    assert_same(one, same)
    assert not np.isin(one.cross_attention.key.weight, other.cross_attention.key.weight).any()


@pytest.mark.parametrize("part", [make(), stack(), make().start(source())], ids=["layer", "stack", "cache"])
def test_a_part_is_itself_alone_and_cannot_be_changed(part):
    assert part == part != replace(part) and len({part, part, replace(part)}) == 2
    with pytest.raises(FrozenInstanceError):
        part.keys = None


@pytest.mark.parametrize("name", ["dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"])
@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), "0.1", None], ids=repr)
def test_a_rate_outside_zero_to_one_is_refused(name, rate):
    with pytest.raises(ValueError, match=f"dropout_rate must be a number at least 0 and at most 1, not {rate!r}"):
        DecoderLayer.init(np.random.default_rng(0), 4, 2, 6, **{name: rate})


@pytest.mark.parametrize("sizes, message", [
    ((10, 3, 6), "query is 10 wide, which 3 heads do not divide"),
    ((4, 0, 6), "heads must be a whole number of at least 1, not 0"),
    ((0, 1, 6), "must be a whole number of at least 1, not 0"),
    ((4, 2, 2.5), "must be a whole number of at least 1, not 2.5"),
])
def test_sizes_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        DecoderLayer.init(np.random.default_rng(0), *sizes)


ones = np.ones


@pytest.mark.parametrize("x, memory, mask, memory_mask, error, message", [
    (ones((B, T, 5)), source(), None, None, ValueError, r"x has shape \(2, 4, 5\): its last axis must be 6 wide"),
    (target(), ones((B, S, 5)), None, None, ValueError, r"has shape \(2, 5, 5\): its last axis must be 6 wide"),
    (target(), ones((3, S, D)), None, None, ValueError, r"x has shape \(2, 4, 6\), memory \(3, 5, 6\)"),
    (target(), ones((S, D)), None, None, ValueError, r"x has shape \(2, 4, 6\), memory \(5, 6\)"),
    (ones((T, D)), source(), None, None, ValueError, r"x has shape \(4, 6\)"),
    (target(), ones((B, S, D), complex), None, None, TypeError, "memory must hold real numbers, not dtype complex128"),
    (ones((B, T, D), complex), source(), None, None, TypeError, "x must hold real numbers, not dtype complex128"),
    (target(), source(), ones((T, T)), None, TypeError, "mask must be a boolean array.*not float64"),
    (target(), source(), None, ones((B, 1, 1, S), int), TypeError, "mask must be a boolean array.*not int64"),
    (target(), source(), ones((S, S), bool), None, ValueError, r"mask has shape \(5, 5\).*\(2, 3, 4, 4\)"),
    (target(), source(), None, ones((T, T), bool), ValueError, r"mask has shape \(4, 4\).*\(2, 3, 4, 5\)"),
    (target(), source(), None, ones((3, 1, 1, S), bool), ValueError, r"mask has shape \(3, 1, 1, 5\).*\(2, 3, 4, 5\)"),
])
@both_placements
def test_bad_input_is_refused(norm_first, x, memory, mask, memory_mask, error, message):
    with pytest.raises(error, match=message):
        stack(norm_first=norm_first)(x, memory, mask, memory_mask)


def test_layers_in_a_list_are_refused():
    """A list would be passed over by everything that walks a tree of parameters: nothing in it would learn."""
    with pytest.raises(TypeError, match="layers must be a tuple, not list"):
        Decoder([make()], None)
