"""The encoder: its layer against loops and difference quotients, what a mask hides, and where the norms stand."""

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
from numpy_transformer.model.encoder import Encoder, EncoderLayer
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, letters, masks,
    randomised, rates, rngs)

both_placements = pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
few = settings(max_examples=settings.default.max_examples // 4)  # where an example is long
LOOPS_OF = {relu: loops.relu, gelu: loops.gelu, gelu_tanh: loops.gelu_tanh}
RATES = dict(dropout_rate=0.2, attention_dropout_rate=0.3, feed_forward_dropout_rate=0.4)
B, S, H, D, F = 2, 5, 3, 6, 7


def make(seed=0, **choices):
    """A layer of random parameters, none as it was at the start"""
    rng = np.random.default_rng(seed)
    return randomised(EncoderLayer.init(rng, D, H, F, **choices), rng)


def stack(layers=2, seed=0, norm=True, **choices):
    last = randomised(LayerNorm.init(D), np.random.default_rng(seed)) if norm else None
    return Encoder(tuple(make(seed + i, **choices) for i in range(layers)), last)


def sentences(seed=9, batch=B):
    return np.random.default_rng(seed).normal(size=(batch, S, D))


def hide(*places):
    """A padding mask (B, 1, 1, S) that hides these places of each sentence"""
    mask = np.ones((len(places), 1, 1, S), bool)
    for row, hidden in zip(mask, places):
        row[..., list(hidden)] = False
    return mask


def answering(layer, **answers):
    """The layer with sublayers that give the same answer whatever they are asked: by name, the others 0"""
    def constant(linear, answer):
        return Linear(np.zeros_like(linear.weight), np.full_like(linear.bias, answer))

    output = constant(layer.attention.output, answers.get("attention", 0))
    contract = constant(layer.feed_forward.contract, answers.get("feed_forward", 0))
    return replace(layer, attention=replace(layer.attention, output=output),
                   feed_forward=replace(layer.feed_forward, contract=contract))


def without_weight(layer, name):
    """The layer with one sublayer's last weight 0, so that only its bias answers"""
    sublayer, last = getattr(layer, name), "contract" if name == "feed_forward" else "output"
    linear = getattr(sublayer, last)
    return replace(layer, **{name: replace(sublayer, **{last: replace(linear, weight=np.zeros_like(linear.weight))})})


def for_loops(layer):
    """The layer's parameters in the order that loops.encoder_layer takes them"""
    parts = (layer.attention, layer.feed_forward, layer.attention_norm, layer.feed_forward_norm)
    return [tuple(named_parameters(part).values()) for part in parts]


@st.composite
def layers_and_inputs(draw, with_dropout=True):
    n, rng = draw(letters("BSHKF").filter(lambda n: n.H * n.K > 6)), draw(rngs)  # D differs as well
    three = [draw(rates) if with_dropout and draw(st.booleans()) else 0.0 for _ in range(3)]
    layer = EncoderLayer.init(
        rng, n.H * n.K, n.H, n.F, norm_first=draw(st.booleans()), activation=draw(st.sampled_from([*LOOPS_OF])),
        epsilon=draw(st.sampled_from([1e-5, 0.1])), dropout_rate=three[0], attention_dropout_rate=three[1],
        feed_forward_dropout_rate=three[2])
    x = rng.normal(size=(n.B, n.S, n.H * n.K))
    return randomised(layer, rng), x, draw(st.none() | masks((n.B, n.H, n.S, n.S))), rng


# ── Both passes ──────────────────────────────────────────────────────────────────────────────────

@few
@given(layers_and_inputs(with_dropout=False))
def test_agrees_with_loops(drawn):
    layer, x, mask, _ = drawn
    expected = loops.encoder_layer(
        x, mask, *for_loops(layer), layer.attention.heads, norm_first=layer.norm_first,
        activation=LOOPS_OF[layer.feed_forward.activation], epsilon=layer.attention_norm.epsilon)
    assert_close(layer(x, mask)[0], expected, 1e-11)


@both_placements
def test_a_stack_agrees_with_loops(norm_first):
    encoder, x, mask = stack(norm_first=norm_first), sentences(), hide([0], [3, 4])
    y = x
    for layer in encoder.layers:
        y = loops.encoder_layer(y, mask, *for_loops(layer), H, norm_first=norm_first)
    assert_close(encoder(x, mask)[0], loops.layer_norm(y, encoder.norm.gain, encoder.norm.shift), 1e-11)


@given(layers_and_inputs(), st.integers(0, 99))
def test_layer_gradients(drawn, seed):
    """All parameters as one vector, moved along one direction"""
    layer, x, mask, rng = drawn

    def f(vector, x):
        y, backward = from_vector(layer, vector)(x, mask, np.random.default_rng(seed))

        def reverse(dy):
            gradient, dx = backward(dy)
            return to_vector(gradient), dx

        return y, reverse

    check_gradients(f, to_vector(layer), x, rng=rng, tolerance=1e-6, coordinates=0, directions=1)


@pytest.mark.parametrize("layers, norm_first", [(1, True), (2, False)], ids=["pre-norm", "post-norm"])
def test_gradients_of_every_leaf_of_a_stack(layers, norm_first):
    """Pre-norm with a final norm, post-norm without"""
    encoder = stack(layers, norm_first=norm_first, norm=norm_first, activation=gelu, **RATES)
    mask = hide([4], [0, 1])
    worst = check_gradients(lambda encoder, x: encoder(x, mask, np.random.default_rng(3)), encoder, sentences(),
                            rng=np.random.default_rng(1), coordinates=0, directions=1)
    assert len(worst) == layers * 16 + 2 * norm_first + 1


def test_the_gradient_is_an_encoder_of_the_same_settings():
    encoder, x = stack(2, norm_first=False, dropout_rate=0.3), sentences()
    gradient, _ = encoder(x)[1](x)
    assert isinstance(gradient, Encoder) and list(named_parameters(gradient)) == list(named_parameters(encoder))
    for layer in gradient.layers:
        assert isinstance(layer, EncoderLayer) and not layer.norm_first and layer.dropout_rate == 0.3
    assert stack(2, norm=False)(x)[1](x)[0].norm is None


def test_layers_run_in_order_and_their_gradients_come_back_in_order():
    one, two, x = make(1), make(2), sentences()
    middle, one_backward = one(x)
    y, two_backward = two(middle)
    stacked, backward = Encoder((one, two), None)(x)
    assert_array_equal(stacked, y)
    two_gradient, d_middle = two_backward(x)
    one_gradient, dx = one_backward(d_middle)
    assert_same(backward(x), (Encoder((one_gradient, two_gradient), None), dx))
    assert not np.allclose(Encoder((two, one), None)(x)[0], y)


def test_a_stack_of_nothing():
    x, norm = sentences(), randomised(LayerNorm.init(D), np.random.default_rng(1))
    y, backward = Encoder((), None)(x)
    gradient, dx = backward(2 * x)
    assert_array_equal(y, x)
    assert_array_equal(dx, 2 * x)
    assert gradient.layers == () and gradient.norm is None
    y, backward = Encoder((), norm)(x)
    gradient, dx = backward(2 * x)
    expected, norm_backward = norm(x)
    assert_array_equal(y, expected)
    assert_same((gradient.norm, dx), norm_backward(2 * x))


# ── What a word may know ─────────────────────────────────────────────────────────────────────────

@both_placements
def test_reordering_the_words_reorders_the_answers(norm_first):
    """Without positions an encoder knows no order, and a mask goes along with its words."""
    encoder, x, mask, order = stack(norm_first=norm_first), sentences(), hide([0], [3, 4]), [3, 0, 4, 2, 1]
    y, backward = encoder(x, mask)
    moved, moved_backward = encoder(x[:, order], mask[..., order])
    assert_close(moved, y[:, order], 1e-11)
    assert_close(moved_backward(x[:, order])[1], backward(x)[1][:, order], 1e-10)
    assert not np.allclose(encoder(x, mask[..., order])[0], y)


@both_placements
def test_every_word_sees_every_other(norm_first):
    encoder, x = stack(1, norm_first=norm_first), sentences()
    y, _ = encoder(x)
    for s in range(S):
        changed = x.copy()
        changed[:, s] += np.arange(D) - 1.3
        other, _ = encoder(changed)
        assert (np.abs(other - y).max(axis=-1) > 1e-6).all()


@both_placements
def test_hidden_words_change_no_other_word(norm_first):
    encoder, x, mask = stack(norm_first=norm_first), sentences(), hide([4], [1, 2])
    changed = x.copy()
    changed[0, 4] += np.arange(D) - 1.3
    changed[1, 1:3] += np.arange(D) - 1.7
    y, backward = encoder(x, mask)
    other, _ = encoder(changed, mask)
    seen = mask[:, 0, 0]
    assert_array_equal(other[seen], y[seen])
    assert (np.abs(other - y).max(axis=-1) > 1e-6)[~seen].all()
    assert (np.abs(encoder(changed)[0] - encoder(x)[0]).max(axis=-1) > 1e-6).all()
    _, dx = backward(np.random.default_rng(1).normal(size=x.shape) * seen[..., None])
    assert_array_equal(dx[~seen], np.zeros_like(x)[~seen])
    assert (np.abs(dx).max(axis=-1) > 1e-9)[seen].all()


@both_placements
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dropout", [False, True])
def test_a_causal_mask_hides_the_future(norm_first, batch, dropout):
    encoder, x = stack(norm_first=norm_first, dropout_rate=0.2, attention_dropout_rate=0.2), sentences(batch=batch)

    def run(x):
        return encoder(x, causal_mask(S), np.random.default_rng(1) if dropout else None)[0]

    y = run(x)
    for t in range(S):
        changed = x.copy()
        changed[:, t] += np.arange(D) - 1.3
        other = run(changed)
        assert_allclose(other[:, :t], y[:, :t], rtol=0, atol=1e-12)
        assert (np.abs(other - y)[:, t].max(axis=-1) > 1e-6).all()


def test_sentences_of_a_batch_do_not_meet():
    encoder, x, mask = stack(norm_first=False), sentences(batch=3), hide([4], [], [0, 2])
    y, backward = encoder(x, mask)
    gradient, dx = backward(x)
    alone = [encoder(x[b : b + 1], mask[b : b + 1]) for b in range(3)]
    assert_close(np.concatenate([y for y, _ in alone]), y)
    back = [backward(x[b : b + 1]) for b, (_, backward) in enumerate(alone)]
    assert_close(np.concatenate([dx for _, dx in back]), dx, 1e-11)
    total = map_tree(lambda *parts: sum(parts), *(gradient for gradient, _ in back))
    assert_same(gradient, total, rtol=1e-9, atol=1e-9)


@both_placements
def test_a_sentence_that_is_hidden_altogether(norm_first):
    """Attention answers with its last bias alone; nothing is divided by zero."""
    layer, x = make(norm_first=norm_first), sentences()
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = layer(x, hide(range(S), []))
        gradient, dx = backward(x)
    assert np.isfinite(y).all() and np.isfinite(dx).all()
    assert_array_equal(y[0], without_weight(layer, "attention")(x)[0][0])
    assert_close(y[1], layer(x)[0][1])


# ── Norms and straight ways ──────────────────────────────────────────────────────────────────────

def test_pre_norm_layers_without_answers_and_a_final_norm_normalise_once():
    norm, x = LayerNorm.init(D, dtype=np.float64), 3 * sentences()
    encoder = Encoder(tuple(answering(make(i)) for i in range(3)), norm)
    assert_array_equal(encoder(x)[0], norm(x)[0])


def test_post_norm_layers_without_answers_normalise_as_often_as_there_are_sublayers():
    norm, x = LayerNorm.init(D, epsilon=0.5, dtype=np.float64), sentences()
    layer = replace(answering(make(norm_first=False)), attention_norm=norm, feed_forward_norm=norm)
    expected = x
    for _ in range(6):
        expected, _ = norm(expected)
    y, _ = Encoder((layer,) * 3, None)(x)
    assert_array_equal(y, expected)
    assert not np.allclose(norm(y)[0], y)  # with this ε one norm more or less would show


def test_each_sublayer_has_its_own_norm():
    attention_norm, feed_forward_norm = (randomised(LayerNorm.init(D), np.random.default_rng(i)) for i in (1, 2))
    layer, x = answering(make(norm_first=False)), sentences()
    layer = replace(layer, attention_norm=attention_norm, feed_forward_norm=feed_forward_norm)
    assert_array_equal(layer(x)[0], feed_forward_norm(attention_norm(x)[0])[0])


@pytest.mark.parametrize("layers", [1, 3])
def test_pre_norm_layers_without_answers_hand_the_gradient_through_untouched(layers):
    encoder, x = Encoder(tuple(answering(make(i)) for i in range(layers)), None), sentences()
    dy = np.random.default_rng(2).normal(size=x.shape)
    y, backward = encoder(x)
    assert_array_equal(y, x)
    assert_array_equal(backward(dy)[1], dy)
    y, backward = stack(layers, norm=False)(x)
    assert not np.allclose(y, x) and not np.allclose(backward(dy)[1], dy)


# ── Dropout ──────────────────────────────────────────────────────────────────────────────────────

@both_placements
@pytest.mark.parametrize("rate, silenced", [
    ("dropout_rate", answering),
    ("attention_dropout_rate", lambda layer: without_weight(layer, "attention")),
    ("feed_forward_dropout_rate", lambda layer: without_weight(layer, "feed_forward")),
], ids=["sublayers", "attention", "feed-forward"])
def test_each_rate_falls_in_its_own_place(norm_first, rate, silenced):
    """At rate 1 the place is silent; every other place is as it was."""
    x, mask = sentences(), hide([2], [])
    layer, plain = make(norm_first=norm_first, **{rate: 1.0}), make(norm_first=norm_first)
    assert_array_equal(layer(x, mask, np.random.default_rng(0))[0], silenced(plain)(x, mask)[0])
    assert_array_equal(layer(x, mask)[0], plain(x, mask)[0])
    assert not np.allclose(silenced(plain)(x, mask)[0], plain(x, mask)[0])


def test_the_two_sublayers_and_two_layers_draw_different_holes():
    """One answer is ones and all others 0, so that y − x shows the holes of its place."""
    x, nothing = np.zeros((7, S, D)), answering(make(dropout_rate=0.4))
    layers = [answering(make(dropout_rate=0.4), **{name: 1}) for name in ("attention", "feed_forward")]
    stacks = [(layer, nothing) for layer in layers] + [(nothing, layer) for layer in layers]
    holes = [Encoder(layers, None)(x, None, np.random.default_rng(5))[0] == 0 for layers in stacks]
    for i, one in enumerate(holes):
        assert 0.25 < one.mean() < 0.55
        for axis in range(3):  # no two words, sentences or columns share their holes
            assert np.unique(one, axis=axis).shape[axis] == one.shape[axis]
        for two in holes[:i]:
            assert 0.3 < (one == two).mean() < 0.7


@both_placements
def test_same_seed_same_holes_and_no_generator_no_holes(norm_first):
    encoder, x = stack(norm_first=norm_first, **RATES), sentences()
    one, same, other = (encoder(x, None, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert_array_equal(one[0], same[0])
    assert_same(one[1](x), same[1](x))
    assert not np.allclose(one[0], other[0])
    plain = stack(norm_first=norm_first)
    assert_array_equal(encoder(x)[0], plain(x, None, np.random.default_rng(0))[0])
    assert not np.allclose(encoder(x)[0], one[0])


# ── Purity, memory, dtypes, sizes ────────────────────────────────────────────────────────────────

@few
@given(layers_and_inputs(), st.integers(0, 99))
def test_pure_and_linear(drawn, seed):
    layer, x, mask, rng = drawn
    if mask is not None:
        mask.flags.writeable = False
    encoder = Encoder((layer, randomised(layer, rng)), randomised(layer.attention_norm, rng))
    assert_pure_and_linear(lambda encoder, x: encoder(x, mask, np.random.default_rng(seed)), encoder, x, rng=rng)


@both_placements
def test_memory_layout_and_dtype(norm_first):
    rng, mask = np.random.default_rng(0), hide([1], [3, 4])

    def f(encoder, x):
        return encoder(x, mask, np.random.default_rng(0))

    encoder = stack(norm_first=norm_first, activation=gelu, dropout_rate=0.3)
    assert_same_for_layouts(f, encoder, sentences(), rng=rng, tolerance=1e-9)
    encoder = map_tree(lambda a: a / 2, encoder)
    assert_keeps_dtype(f, encoder, sentences(), rng=rng, near=1e-3)
    assert_keeps_dtype(f, encoder, sentences(), rng=rng, dtype=np.float64, near=0)


@both_placements
@pytest.mark.parametrize("shape", [(0, 5, D), (2, 0, D), (0, 0, D), (1, 1, D)])
def test_sizes_of_zero_and_one(norm_first, shape):
    encoder = stack(norm_first=norm_first, dropout_rate=0.3)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        y, backward = encoder(np.ones(shape), np.ones((shape[0], 1, 1, shape[1]), bool), np.random.default_rng(0))
        gradient, dx = backward(np.ones(shape))
    assert y.shape == dx.shape == shape
    if 0 in shape:
        assert all(not array.any() for array in named_parameters(gradient).values())


def test_integers_become_floats():
    encoder, x = stack(), np.arange(B * S * D).reshape(B, S, D) % 7
    assert_array_equal(encoder(x)[0], encoder(x.astype(float))[0], strict=True)


# ── Construction and errors ──────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_initial_layer(dtype):
    layer = EncoderLayer.init(np.random.default_rng(0), 48, 4, 90, norm_first=False, dropout_rate=0.1, epsilon=1e-3,
                              attention_dropout_rate=0.2, feed_forward_dropout_rate=0.3, activation=gelu, dtype=dtype)
    assert (layer.norm_first, layer.dropout_rate, layer.attention.heads) == (False, 0.1, 4)
    assert (layer.attention.dropout_rate, layer.feed_forward.dropout_rate) == (0.2, 0.3)
    assert layer.feed_forward.activation is gelu
    assert layer.attention_norm.epsilon == layer.feed_forward_norm.epsilon == 1e-3
    parameters = named_parameters(layer)
    assert {name: array.shape for name, array in parameters.items()} == {
        **{f"attention.{part}.{kind}": shape for part in ("query", "key", "value", "output")
           for kind, shape in (("weight", (48, 48)), ("bias", (48,)))},
        "feed_forward.expand.weight": (48, 90), "feed_forward.expand.bias": (90,),
        "feed_forward.contract.weight": (90, 48), "feed_forward.contract.bias": (48,),
        "attention_norm.gain": (48,), "attention_norm.shift": (48,),
        "feed_forward_norm.gain": (48,), "feed_forward_norm.shift": (48,)}
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
    layer = EncoderLayer.init(np.random.default_rng(0), 4, 2, 6)
    assert layer.norm_first and layer.feed_forward.activation is relu
    assert layer.dropout_rate == layer.attention.dropout_rate == layer.feed_forward.dropout_rate == 0
    assert layer.attention_norm.epsilon == layer.feed_forward_norm.epsilon == 1e-5
    bare = EncoderLayer(layer.attention, layer.feed_forward, layer.attention_norm, layer.feed_forward_norm)
    assert bare.norm_first and bare.dropout_rate == 0
    assert all(array.dtype == np.float32 for array in named_parameters(layer).values())


def test_same_seed_same_layer():
    one, same, other = (EncoderLayer.init(np.random.default_rng(seed), 4, 2, 6) for seed in (0, 0, 1))
    assert_same(one, same)
    assert not np.isin(one.attention.query.weight, other.attention.query.weight).any()


@pytest.mark.parametrize("part", [make(), stack()], ids=["layer", "stack"])
def test_a_part_is_itself_alone_and_cannot_be_changed(part):
    assert part == part != replace(part) and len({part, part, replace(part)}) == 2
    with pytest.raises(FrozenInstanceError):
        part.norm_first = None


@pytest.mark.parametrize("name", ["dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"])
@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), "0.1", None], ids=repr)
def test_a_rate_outside_zero_to_one_is_refused(name, rate):
    with pytest.raises(ValueError, match=f"dropout_rate must be a number at least 0 and at most 1, not {rate!r}"):
        EncoderLayer.init(np.random.default_rng(0), 4, 2, 6, **{name: rate})


@pytest.mark.parametrize("sizes, message", [
    ((10, 3, 6), "query is 10 wide, which 3 heads do not divide"),
    ((4, 0, 6), "heads must be a whole number of at least 1, not 0"),
    ((4, 2.0, 6), "heads must be a whole number of at least 1, not 2.0"),
    ((0, 1, 6), "must be a whole number of at least 1, not 0"),
    ((4, 2, -6), "must be a whole number of at least 1, not -6"),
])
def test_sizes_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        EncoderLayer.init(np.random.default_rng(0), *sizes)


@pytest.mark.parametrize("x, mask, error, message", [
    (np.ones((B, S, 5)), None, ValueError, r"x has shape \(2, 5, 5\): its last axis must be 6 wide"),
    (np.ones((S, D)), None, ValueError, r"x has shape \(5, 6\)"),
    (np.ones((2, B, S, D)), None, ValueError, r"x has shape \(2, 2, 5, 6\)"),
    (np.ones((B, S, D), complex), None, TypeError, "x must hold real numbers, not dtype complex128"),
    (np.ones((B, S, D)), np.ones((B, 1, 1, S)), TypeError, "mask must be a boolean array.*not float64"),
    (np.ones((B, S, D)), np.ones((B, 1, 1, S), int), TypeError, "mask must be a boolean array.*not int64"),
    (np.ones((B, S, D)), np.ones((B, 1, 1, 4), bool), ValueError, r"mask has shape \(2, 1, 1, 4\).*\(2, 3, 5, 5\)"),
    (np.ones((B, S, D)), np.ones((3, 1, 1, S), bool), ValueError, r"mask has shape \(3, 1, 1, 5\).*\(2, 3, 5, 5\)"),
    (np.ones((B, S, D)), np.ones((B, S), bool), ValueError, r"mask has shape \(2, 5\).*\(2, 3, 5, 5\)"),
    (np.ones((B, S, D)), [[True]], TypeError, "mask must be a boolean array.*not list"),
])
@both_placements
def test_bad_input_is_refused(norm_first, x, mask, error, message):
    with pytest.raises(error, match=message):
        stack(norm_first=norm_first)(x, mask)


def test_layers_in_a_list_are_refused():
    """A list would be passed over by everything that walks a tree of parameters: nothing in it would learn."""
    with pytest.raises(TypeError, match="layers must be a tuple, not list"):
        Encoder([make()], None)
