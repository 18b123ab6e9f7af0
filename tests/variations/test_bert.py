"""BERT's encoder: what Hugging Face's BertModel gives, right gradients, and no word that padding could change."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from numpy_transformer.attention.masks import padding_mask
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.parameters import from_vector, map_tree, named_parameters, to_vector
from numpy_transformer.layers.feed_forward import gelu, relu
from numpy_transformer.variations.bert import Bert, from_bert, to_bert
from strategies import (assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, letters,
                        randomised, read_only, rngs)
from variations.waves import filled, projection, wave

V, D, H, F, P, G = 11, 8, 2, 6, 5, 2  # words, width, heads, hidden, positions, segments
IDS, SEGMENTS = np.array([[2, 7, 3, 9], [2, 5, 0, 0]]), np.array([[0, 0, 1, 1], [0, 1, 0, 0]])
MASK = padding_mask(IDS, 0)

few = settings(max_examples=settings.default.max_examples // 4)  # whole models take their time


def bert_shapes(layers=2):
    """The names and shapes of a BertModel of these sizes, as its state_dict() lists them"""
    shapes = {"embeddings.word_embeddings.weight": (V, D), "embeddings.position_embeddings.weight": (P, D),
              "embeddings.token_type_embeddings.weight": (G, D), "embeddings.LayerNorm.weight": (D,), "embeddings.LayerNorm.bias": (D,),
              "pooler.dense.weight": (D, D), "pooler.dense.bias": (D,)}
    for number in range(layers):
        linears = {f"attention.self.{name}": (D, D) for name in ("query", "key", "value")}
        linears |= {"attention.output.dense": (D, D), "intermediate.dense": (F, D), "output.dense": (D, F)}
        for name, shape in linears.items():
            shapes |= {f"encoder.layer.{number}.{name}.weight": shape, f"encoder.layer.{number}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"encoder.layer.{number}.{name}.{leaf}": (D,) for leaf in ("weight", "bias")}
    return shapes


def make(rng=None, layers=2, **choices):
    rng = rng or np.random.default_rng(0)
    return randomised(Bert.init(rng, V, D, H, F, layers, **dict(max_length=P) | choices), rng)


def both(ids, mask=None, segments=None, rng=None, pool=True):
    """model → hidden, and pooled beside it where asked, with a pullback that returns the whole model's gradient."""
    def f(model):
        hidden, backward = model(ids, mask, segments, None if rng is None else np.random.default_rng(rng))
        if not pool:
            return hidden, backward
        pooled, pool_backward = model.pool(hidden)

        def both_backward(dy):
            d_hidden, d_pooled = dy[:, 1:], dy[:, 0]
            pooler, d_hidden_from_pool = pool_backward(d_pooled)
            return replace(backward(d_hidden + d_hidden_from_pool), pooler=pooler)

        return np.concatenate([pooled[:, None], hidden], axis=1), both_backward

    return f


# ── What the published code gives ────────────────────────────────────────────────────────────────

def test_bertmodel_gives_the_same_numbers():
    model = from_bert(filled(bert_shapes()), heads=H)
    hidden, backward = model(IDS, MASK, SEGMENTS)
    pooled, pool_backward = model.pool(hidden)
    d_hidden = wave("upstream", hidden.shape) * (IDS != 0)[..., None]  # torch keeps the padding's own vector as it is
    d_pooled = wave("pooled upstream", pooled.shape)
    pooler, d_hidden_from_pool = pool_backward(d_pooled)
    gradient = replace(backward(d_hidden + d_hidden_from_pool), pooler=pooler)
    found = [hidden[0, 3, 5], hidden[1, 1, 2], np.sum(hidden * d_hidden), np.sum(pooled * d_pooled), projection(to_bert(gradient))]
    expected = [0.49906131274353016, -0.5872210497901993, -0.3814301922861758, -1.0402337983009207, -6.363947366787196]
    assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("layers", [1, 2, 12])
def test_names_and_shapes_are_those_of_bertmodel(layers):
    assert {name: array.shape for name, array in to_bert(make(layers=layers)).items()} == bert_shapes(layers)


@given(letters("VDFPG"), st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from([np.float32, np.float64]), rngs)
@few
def test_there_and_back_is_exact(n, layers, pooler, prefix, dtype, rng):
    model = randomised(Bert.init(rng, n.V, n.D, 1, n.F, layers, max_length=n.P, segment_count=n.G, pooler=pooler), rng, dtype)
    state = {"bert." * prefix + name: array for name, array in to_bert(read_only(model)).items()}
    assert ("pooler.dense.weight" in to_bert(model)) == pooler
    back = from_bert(state | {"bert." * prefix + "embeddings.position_ids": np.arange(n.P)[None]}, heads=1)
    assert_same(back, model)
    ids = rng.integers(0, n.V, (2, 2))
    assert_array_equal(back(ids)[0], model(ids)[0])


def test_what_the_arrays_do_not_tell_is_told():
    state = to_bert(make())
    model = from_bert(state, heads=4, activation=relu, epsilon=1e-5, dropout_rate=0.25)
    assert model.dropout_rate == 0.25 and model.norm.epsilon == 1e-5
    usual = from_bert(state, heads=4)
    assert usual.dropout_rate == 0 and usual.norm.epsilon == 1e-12
    for layer, usual_layer in zip(model.encoder.layers, usual.encoder.layers):
        assert (layer.attention.heads, layer.feed_forward.activation, layer.attention_norm.epsilon) == (4, relu, 1e-5)
        assert (usual_layer.attention.heads, usual_layer.feed_forward.activation, usual_layer.feed_forward_norm.epsilon) == (4, gelu, 1e-12)


@pytest.mark.parametrize("name", sorted(bert_shapes(1)))
def test_a_missing_extra_or_misshapen_array_is_named(name):
    state = filled(bert_shapes(1))
    with pytest.raises(ValueError, match=name.rpartition(".")[0]):
        from_bert({key: array for key, array in state.items() if key != name}, heads=H)
    with pytest.raises(ValueError, match=f"^unknown in the state: {name}2$"):
        from_bert(state | {f"{name}2": state[name]}, heads=H)
    with pytest.raises(ValueError, match="has shape .*: expected"):
        from_bert(state | {name: state[name][None]}, heads=H)


def test_a_missing_layer_and_heads_that_do_not_divide_are_refused():
    state = filled(bert_shapes(3))
    with pytest.raises(ValueError, match=r"missing in the state: encoder\.layer\.1\..*unknown.*encoder\.layer\.2"):
        from_bert({name: array for name, array in state.items() if "layer.1." not in name}, heads=H)
    with pytest.raises(ValueError, match="8 wide, which 3 heads do not divide"):
        from_bert(state, heads=3)


def test_a_name_with_and_without_its_prefix_is_one_too_many():
    state = filled(bert_shapes(1))
    with pytest.raises(ValueError, match="^arrays has a name both with and without 'bert.' before it$"):
        from_bert(state | {"bert.embeddings.LayerNorm.bias": np.zeros(D)}, heads=H)


# ── Form ─────────────────────────────────────────────────────────────────────────────────────────

def test_the_layers_are_berts():
    model = Bert.init(np.random.default_rng(0), V, D, H, F, 3, dropout_rate=0.25)
    assert model.positions.table.shape == (512, D) and model.segment_embedding.table.shape == (2, D)
    assert len(model.encoder.layers) == 3 and model.encoder.norm is None and model.norm.epsilon == 1e-12
    assert {array.dtype for array in named_parameters(model).values()} == {np.dtype(np.float32)}
    assert model.dropout_rate == 0.25 and Bert.init(np.random.default_rng(0), V, D, H, F, 0).dropout_rate == 0
    for layer in model.encoder.layers:
        assert not layer.norm_first and layer.feed_forward.activation is gelu and layer.attention.heads == H
        assert layer.attention_norm.epsilon == layer.feed_forward_norm.epsilon == 1e-12
        assert layer.dropout_rate == layer.attention.dropout_rate == 0.25 and layer.feed_forward.dropout_rate == 0
    for one, other in zip(model.encoder.layers, model.encoder.layers[1:]):
        assert not np.array_equal(one.attention.query.weight, other.attention.query.weight)
    assert {array.dtype for array in named_parameters(Bert.init(np.random.default_rng(0), V, D, H, F, 1, dtype=np.float64)).values()} == {np.dtype(float)}
    assert Bert.init(np.random.default_rng(0), V, D, H, F, 1, pooler=False).pooler is None
    with pytest.raises(FrozenInstanceError):
        model.pooler = None


def test_without_layers_the_equation_can_be_read_off():
    model = make(layers=0)
    hidden, _ = model(IDS, MASK, SEGMENTS)
    x = model.word_embedding.table[IDS] + model.segment_embedding.table[SEGMENTS] + model.positions.table[:4]
    x_hat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    assert_close(hidden, x_hat * model.norm.gain + model.norm.shift, 1e-13)
    pooled, _ = model.pool(hidden)
    assert_close(pooled, np.tanh(hidden[:, 0] @ model.pooler.weight + model.pooler.bias), 1e-13)


def test_no_segments_are_segment_zero_and_no_mask_hides_nothing():
    model = make()
    assert_array_equal(model(IDS, MASK)[0], model(IDS, MASK, np.zeros_like(IDS))[0])
    assert not np.allclose(model(IDS, MASK)[0], model(IDS, MASK, SEGMENTS)[0])
    assert_array_equal(model(IDS)[0], model(IDS, np.ones((1, 1, 1, 4), bool))[0])
    assert not np.allclose(model(IDS)[0], model(IDS, MASK)[0])


def test_order_matters_and_every_word_sees_both_sides():
    model = make()
    hidden, _ = model(IDS[:1])
    assert not np.allclose(model(IDS[:1, ::-1])[0][:, ::-1], hidden)
    for place in range(4):
        changed = IDS[:1].copy()
        changed[0, place] = 4
        assert (np.abs(model(changed)[0] - hidden).max(axis=-1) > 1e-6).all()


@given(st.integers(1, 3), st.integers(0, 2), rngs)
@few
def test_padding_is_invisible(words, padding, rng):
    model = make(rng)
    ids, segments = rng.integers(1, V, (2, words)), rng.integers(0, G, (2, words))
    hidden, backward = model(ids, padding_mask(ids, 0), segments)
    longer = np.pad(ids, ((0, 0), (0, padding)))
    long_segments = np.pad(segments, ((0, 0), (0, padding)), constant_values=1)
    long_hidden, long_backward = model(longer, padding_mask(longer, 0), long_segments)
    assert_close(long_hidden[:, :words], hidden, 1e-11)
    assert_close(model.pool(long_hidden)[0], model.pool(hidden)[0], 1e-11)
    d_hidden = rng.normal(size=hidden.shape)
    d_long = np.pad(d_hidden, ((0, 0), (0, padding), (0, 0)))
    expected = to_vector(backward(d_hidden))
    assert_close(to_vector(long_backward(d_long)) / np.abs(expected).max(), expected / np.abs(expected).max(), 1e-9)


@given(rngs)
@few
def test_a_text_does_not_depend_on_the_others_of_its_batch(rng):
    model = make(rng)
    hidden, _ = model(IDS, MASK, SEGMENTS)
    for row in range(2):
        one = slice(row, row + 1)
        assert_close(model(IDS[one], MASK[one], SEGMENTS[one])[0], hidden[one], 1e-12)


def test_empty_batches_and_texts_have_empty_answers():
    model = make()
    for shape in ((0, 3),):
        hidden, backward = model(np.zeros(shape, int))
        assert hidden.shape == (*shape, D)
        assert not to_vector(backward(hidden)).any()


# ── Dropout ──────────────────────────────────────────────────────────────────────────────────────

def test_dropout_acts_on_the_embeddings_while_training_only():
    model = replace(make(layers=0), dropout_rate=0.75)
    plain = model(IDS)[0]
    assert_array_equal(plain, make(layers=0)(IDS)[0])
    dropped = model(IDS, rng=np.random.default_rng(0))[0]
    kept = dropped != 0
    assert 0 < kept.mean() < 0.5
    assert_close(dropped[kept], 4 * plain[kept])


def test_dropout_reaches_the_layers_with_the_callers_generator():
    model = replace(make(dropout_rate=0.25), dropout_rate=0.0)
    runs = [model(IDS, rng=np.random.default_rng(seed))[0] for seed in (1, 1, 2)]
    assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2]) and not np.allclose(runs[0], model(IDS)[0])


# ── Gradients ────────────────────────────────────────────────────────────────────────────────────

def test_every_leafs_gradient_is_right():
    rng = np.random.default_rng(7)
    worst = check_gradients(both(IDS, MASK, SEGMENTS), make(rng, layers=1), rng=rng, coordinates=0)
    assert len(worst) == 5 + 16 + 2


@given(rngs, st.sampled_from([relu, gelu]), st.sampled_from([0.0, 0.25]), st.booleans())
@few
def test_the_whole_gradient_is_right(rng, activation, rate, pool):
    model = make(rng, activation=activation, dropout_rate=rate)

    def f(vector):
        y, backward = both(IDS, MASK, SEGMENTS, rng=3, pool=pool)(from_vector(model, vector))
        return y, lambda dy: to_vector(backward(dy))

    check_gradients(f, to_vector(model), rng=rng, directions=4)


@given(rngs)
@few
def test_the_poolers_gradient_is_right(rng):
    model, hidden = make(rng, layers=0), rng.normal(size=(2, 3, D))
    check_gradients(lambda pooler, hidden: replace(model, pooler=pooler).pool(hidden), model.pooler, hidden, rng=rng)


def test_the_poolers_gradient_is_zero_where_nothing_was_pooled():
    gradient = make()(IDS)[1](np.ones((2, 4, D)))
    assert not gradient.pooler.weight.any() and not gradient.pooler.bias.any()
    assert make(pooler=False)(IDS)[1](np.ones((2, 4, D))).pooler is None


@given(rngs)
@few
def test_pure_linear_and_of_one_dtype(rng):
    model = make(rng, layers=1)
    f = both(read_only(IDS), read_only(MASK), read_only(SEGMENTS))
    assert_pure_and_linear(f, model, rng=rng)
    assert_keeps_dtype(f, model, rng=rng, near=1e-3)


@given(rngs)
@few
def test_the_pooler_is_pure_linear_and_of_one_dtype(rng):
    model, hidden = make(rng, layers=0), rng.normal(size=(2, 3, D))
    pool = lambda pooler, hidden: replace(model, pooler=pooler).pool(hidden)
    assert_pure_and_linear(pool, model.pooler, hidden, rng=rng)
    assert_same_for_layouts(pool, model.pooler, hidden, rng=rng)
    assert_keeps_dtype(pool, model.pooler, hidden, rng=rng)


# ── Bad input ────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("arguments, error, message", [
    ((IDS[0],), ValueError, r"^ids has shape \(4,\): expected \(B, S\)$"),
    ((IDS[None],), ValueError, r"^ids has shape \(1, 2, 4\): expected \(B, S\)$"),
    ((IDS * 1.0,), TypeError, "^ids must be integers, not dtype float64, for example"),
    (([[2, V]],), IndexError, r"^ids\[0, 1\] is 11, outside \[0, 11\)$"),
    (([[-1]],), IndexError, r"^ids\[0, 0\] is -1, outside \[0, 11\)$"),
    ((IDS, None, SEGMENTS[:1]), ValueError, r"^segments has shape \(1, 4\): expected \(2, 4\)$"),
    ((IDS, None, SEGMENTS + 1), IndexError, r"^segments\[0, 2\] is 2, outside \[0, 2\)$"),
    ((IDS, None, SEGMENTS * 1.0), TypeError, "^segments must be integers"),
    ((IDS, MASK.astype(int)), TypeError, "^mask must be a boolean array"),
    ((IDS, MASK[..., 1:]), ValueError, "^mask has shape"),
    ((np.ones((1, P + 1), int),), ValueError, "length 6 does not fit the table of 5 positions")], ids=str)
def test_bad_input_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        make()(*arguments)


@pytest.mark.parametrize("shape", [(2, D), (2, 0, D), (D,), (1, 2, 3, D)], ids=str)
def test_pool_wants_a_batch_of_texts_with_a_first_word(shape):
    with pytest.raises(ValueError, match=r"^hidden has shape .* expected \(B, S, D\) with a first word$"):
        make().pool(np.ones(shape))


def test_a_model_without_a_pooler_says_so():
    with pytest.raises(ValueError, match="^this model has no pooler$"):
        make(pooler=False).pool(np.ones((2, 3, D)))
    assert make().pool(np.ones((2, 3, D), int))[0].dtype == np.float64


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), None], ids=str)
def test_a_rate_is_a_rate(rate):
    with pytest.raises(ValueError, match=r"^dropout_rate must be a number at least 0 and at most 1"):
        replace(make(), dropout_rate=rate)
    assert replace(make(), dropout_rate=1).dropout_rate == 1


@pytest.mark.parametrize("layers", [-1, 1.5, None], ids=str)
def test_the_number_of_layers_is_a_count(layers):
    with pytest.raises(ValueError, match="^layers must be a whole number of at least 0"):
        Bert.init(np.random.default_rng(0), V, D, H, F, layers)


def test_a_sentence_of_no_words():
    model = make()
    hidden, backward = model(np.zeros((2, 0), int))
    assert hidden.shape == (2, 0, D)
    assert not any(array.any() for array in named_parameters(backward(np.zeros((2, 0, D)))).values())


def test_a_model_is_equal_to_itself_alone():
    model = make()
    assert model == model and model != replace(model)
