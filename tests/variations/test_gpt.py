"""A GPT against scalar loops, difference quotients, its own future and its own cache, and under GPT-2's names."""

import math
import re
from dataclasses import FrozenInstanceError, fields, replace

import loops
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.parameters import (
    from_vector, map_tree, named_parameters, parameter_count, replace_parameters, to_vector)
from numpy_transformer.layers.feed_forward import gelu_tanh
from numpy_transformer.model.encoder import Encoder
from numpy_transformer.training.cross_entropy import cross_entropy
from numpy_transformer.variations.gpt import GPT, GPTConfig, from_gpt2
from numpy_transformer.variations.grouped_query_attention import GroupedQueryAttention
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, randomised, rates, read_only, rngs)

few = settings(max_examples=settings.default.max_examples // 4)
V, D, H, F, P = 7, 6, 3, 5, 8
SMALL = GPTConfig(V, width=D, heads=H, hidden=F, layers=2, max_length=P)


def seeded(seed=0):
    return np.random.default_rng(seed)


def make(seed=0, dtype=np.float64, **choices):
    """A GPT of random parameters, none as it was at the start"""
    gpt = GPT.init(seeded(seed), replace(SMALL, **choices), dtype=dtype)
    return map_tree(lambda a: a / 2, randomised(gpt, seeded(seed), dtype))


def texts(B=2, T=5, seed=9):
    return seeded(seed).integers(V, size=(B, T))


def under(ids, seed=None):
    return lambda gpt: gpt(ids, None if seed is None else seeded(seed))


@st.composite
def gpts_and_texts(draw):
    rng, (B, T, heads) = draw(rngs), draw(st.permutations([1, 2, 3]))
    config = GPTConfig(5, width=2 * heads, heads=heads, hidden=draw(st.integers(1, 4)), layers=draw(st.integers(0, 2)),
                       max_length=draw(st.integers(T, T + 2)), dropout_rate=draw(rates), attention_dropout_rate=draw(rates))
    return randomised(GPT.init(rng, config), rng), rng.integers(5, size=(B, T)), rng


# ── Both passes ──────────────────────────────────────────────────────────────────────────────────

def to_gpt2(gpt, prefix=""):
    """The GPT's arrays, or its gradient's, under GPT-2's names"""
    arrays = {"wte.weight": gpt.embedding.table, "wpe.weight": gpt.positions.table}
    norms = {"ln_f": gpt.blocks.norm}
    for i, block in enumerate(gpt.blocks.layers):
        three = [getattr(block.attention, part) for part in ("query", "key", "value")]
        norms |= {f"h.{i}.ln_1": block.attention_norm, f"h.{i}.ln_2": block.feed_forward_norm}
        arrays[f"h.{i}.attn.c_attn.weight"] = np.concatenate([linear.weight for linear in three], axis=1)
        arrays[f"h.{i}.attn.c_attn.bias"] = np.concatenate([linear.bias for linear in three])
        for name, linear in (("attn.c_proj", block.attention.output), ("mlp.c_fc", block.feed_forward.expand),
                             ("mlp.c_proj", block.feed_forward.contract)):
            arrays |= {f"h.{i}.{name}.weight": linear.weight, f"h.{i}.{name}.bias": linear.bias}
    for name, norm in norms.items():
        arrays |= {f"{name}.weight": norm.gain, f"{name}.bias": norm.shift}
    return {prefix + name: array for name, array in arrays.items()}


def gpt2_in_loops(arrays, ids, heads):
    """GPT-2 read off its names, one number at a time"""
    def linear(x, name):
        return loops.linear(x, arrays[f"{name}.weight"], arrays[f"{name}.bias"])

    def norm(x, name):
        return loops.layer_norm(x, arrays[f"{name}.weight"], arrays[f"{name}.bias"], 1e-5)

    B, T = ids.shape
    x = np.array([[arrays["wte.weight"][ids[b, t]] + arrays["wpe.weight"][t] for t in range(T)] for b in range(B)])
    for i in range(sum(name.endswith("ln_1.bias") for name in arrays)):
        fused = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")
        q, k, v = ([fused[..., part + h * K : part + (h + 1) * K] for h in range(heads)]
                   for K in [x.shape[-1] // heads] for part in (0, x.shape[-1], 2 * x.shape[-1]))
        head = [loops.attention(*three, loops.causal_mask(T)) for three in zip(q, k, v)]
        x = x + linear(np.concatenate(head, axis=-1), f"h.{i}.attn.c_proj")
        wide = loops.gelu_tanh(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + linear(wide, f"h.{i}.mlp.c_proj")
    return loops.linear(norm(x, "ln_f"), arrays["wte.weight"].T, np.zeros(len(arrays["wte.weight"])))


@few
@given(gpts_and_texts())
def test_agrees_with_loops(drawn):
    gpt, ids, _ = drawn
    heads = gpt.blocks.layers[0].attention.heads if gpt.blocks.layers else 1
    assert_close(gpt(ids)[0], gpt2_in_loops(to_gpt2(gpt), ids, heads), 1e-11)


@few
@given(gpts_and_texts())
def test_gradient_of_all_parameters_at_once(drawn):
    gpt, ids, rng = drawn

    def f(vector):
        logits, backward = from_vector(gpt, vector)(ids, seeded(3))
        return logits, lambda d_logits: to_vector(backward(d_logits))

    check_gradients(f, to_vector(gpt), rng=rng, tolerance=1e-6)


def test_gradient_of_every_parameter():
    gpt, ids = make(layers=1, dropout_rate=0.3, attention_dropout_rate=0.2), np.array([[2, 5, 2], [0, 2, 6]])
    worst = check_gradients(under(ids, 1), gpt, rng=seeded(), coordinates=6, directions=1)
    assert [name.removeprefix("gpt.") for name in worst] == list(named_parameters(gpt))


def test_the_embedding_receives_both_of_its_gradients():
    gpt, ids = make(), np.array([[2, 5, 2]])  # the words 0, 1, 3, 4 and 6 are scored, but not looked up
    logits, backward = gpt(ids)
    d_logits = np.zeros_like(logits)
    d_logits[..., 3] = 1.0
    gradient = backward(d_logits).embedding.table
    hidden, _ = gpt.blocks(gpt.positions(gpt.embedding(ids)[0])[0], np.tri(3, dtype=bool))
    assert_close(gradient[3], hidden.sum(axis=(0, 1)))  # the scoring alone
    assert gradient[2].all() and gradient[5].all()      # the rows looked up alone
    assert not gradient[[0, 1, 4, 6]].any()


@few
@given(gpts_and_texts(), st.none() | st.just(1))
def test_pure_and_linear(drawn, seed):
    gpt, ids, rng = drawn
    assert_pure_and_linear(under(read_only(ids), seed), gpt, rng=rng)


def test_float32_stays_float32():
    assert_keeps_dtype(under(texts(), 1), make(dropout_rate=0.3, attention_dropout_rate=0.3), rng=seeded(), near=1e-3)


@pytest.mark.parametrize("B, T", [(0, 3), (2, 0), (1, 1)])
def test_empty_and_single(B, T):
    gpt = make()
    logits, backward = gpt(np.zeros((B, T), int))
    assert logits.shape == (B, T, V)
    assert_same(map_tree(np.zeros_like, backward(np.ones_like(logits))), map_tree(np.zeros_like, gpt))
    assert gpt.start(np.zeros((B, T), int)).length == T


def test_dropout_needs_a_generator_and_a_rate():
    ids, gpt = texts(), make(dropout_rate=0.3)
    assert_array_equal(gpt(ids)[0], make()(ids)[0])
    assert_array_equal(gpt(ids, seeded(1))[0], gpt(ids, seeded(1))[0])
    assert not np.allclose(gpt(ids, seeded(1))[0], gpt(ids, seeded(2))[0])
    for name in ("dropout_rate", "attention_dropout_rate"):
        assert not np.allclose(make(**{name: 0.3})(ids, seeded(1))[0], make()(ids)[0])
    assert not replace(gpt, dropout_rate=1.0)._embed(ids, 0, seeded())[0].any()


# ── Past and future ──────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("changed", range(5))
def test_no_word_sees_a_later_one(changed, seed):
    ids = texts()
    other = ids.copy()
    other[:, changed] = (ids[:, changed] + 1) % V
    gpt = make(dropout_rate=0.3, attention_dropout_rate=0.3)
    before, after = under(ids, seed)(gpt)[0], under(other, seed)(gpt)[0]
    assert_allclose(after[:, :changed], before[:, :changed], rtol=0, atol=1e-12)
    assert (np.abs(after[:, changed:] - before[:, changed:]).max(axis=-1) > 1e-6).all()


def test_equal_words_at_different_places_are_told_apart():
    logits = make()(np.full((1, 5), 3))[0][0]
    assert (np.abs(logits[1:] - logits[0]).max(axis=-1) > 1e-6).all()


def reading(gpt, ids, first):
    """The logits that `step` gives after each word from `first` on, and every cache on the way"""
    caches, rows = [gpt.start(ids[:, :first])], []
    for word in ids[:, first:].T:
        row, cache = gpt.step(word, caches[-1])
        rows.append(row)
        caches.append(cache)
    return np.stack(rows, axis=1), caches


@pytest.mark.parametrize("first", range(P))
def test_the_cache_gives_what_the_whole_text_gives(first):
    gpt, ids = make(dropout_rate=0.5, attention_dropout_rate=0.5), texts(T=P)
    expected = gpt(ids)[0]
    rows, caches = reading(gpt, ids, first)
    assert_allclose(rows, expected[:, first:], rtol=0, atol=1e-10)
    assert [cache.length for cache in caches] == list(range(first, P + 1))
    for cache in caches:
        for keys, values in cache.layers:
            assert keys.shape == values.shape == (2, H, cache.length, D // H)


def test_a_cache_is_never_changed():
    gpt, ids = make(), texts(T=P)
    _, caches = reading(gpt, ids, 2)
    kept = map_tree(np.copy, tuple(caches))
    one, two = gpt.step(ids[:, 3], caches[1])[0], gpt.step((ids[:, 3] + 1) % V, caches[1])[0]
    assert not np.allclose(one, two)
    assert_array_equal(gpt.step(ids[:, 3], caches[1])[0], one)
    assert_same(tuple(caches), kept)


def test_float32_stays_float32_in_the_cache():
    gpt = make(dtype=np.float32)
    rows, caches = reading(gpt, texts(), 2)
    assert rows.dtype == np.float32
    assert {array.dtype for array in named_parameters(tuple(caches)).values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("groups", [1, H])
def test_other_blocks_can_be_cached_too(norm_first, groups):
    """Shared keys; and norms that come last, as in the first GPT, with none behind the last block"""
    gpt = make()
    narrow = GroupedQueryAttention.init(seeded(3), D, H, groups=groups, dtype=np.float64)
    blocks = tuple(replace(block, attention=narrow, norm_first=norm_first) for block in gpt.blocks.layers)
    gpt = replace(gpt, blocks=Encoder(blocks, gpt.blocks.norm if norm_first else None))
    rows, caches = reading(gpt, texts(), 2)
    assert_allclose(rows, gpt(texts())[0][:, 2:], rtol=0, atol=1e-10)
    assert caches[-1].layers[1][0].shape == (2, groups, 5, D // H)


# ── The beginning ────────────────────────────────────────────────────────────────────────────────

def test_init():
    config = GPTConfig(300, width=80, heads=4, hidden=250, layers=8, max_length=200, dropout_rate=0.1,
                       attention_dropout_rate=0.2, epsilon=1e-3)
    gpt = GPT.init(seeded(), config)
    for name, array in named_parameters(gpt).items():
        assert array.dtype == np.float32
        if array.ndim == 1:
            assert_array_equal(array, np.full(array.shape, name.endswith("gain")), err_msg=name)
        else:
            expected = 0.02 / 4 if name.endswith(("output.weight", "contract.weight")) else 0.02
            assert abs(array.std() / expected - 1) < 5 / math.sqrt(2 * array.size), name
            assert abs(array.mean() / expected) < 5 / math.sqrt(array.size), name
    assert gpt.embedding.table.shape == (300, 80) and gpt.positions.table.shape == (200, 80)
    assert len(gpt.blocks.layers) == 8 and gpt.blocks.norm.epsilon == 1e-3
    for block in gpt.blocks.layers:
        assert (block.attention.heads, block.feed_forward.expand.weight.shape) == (4, (80, 250))
        assert (block.dropout_rate, block.attention.dropout_rate, block.feed_forward.dropout_rate) == (0.1, 0.2, 0.0)
        assert block.norm_first and block.attention_norm.epsilon == block.feed_forward_norm.epsilon == 1e-3
        assert block.feed_forward.activation is gelu_tanh
    assert gpt.dropout_rate == 0.1
    assert_same(GPT.init(seeded(), config), gpt)
    assert not np.array_equal(GPT.init(seeded(1), config).embedding.table, gpt.embedding.table)


def test_init_in_float64_and_without_layers():
    gpt = GPT.init(seeded(), replace(SMALL, layers=0), dtype=np.float64)
    assert gpt.blocks.layers == () and gpt(texts())[0].dtype == np.float64


def test_at_first_every_word_is_equally_likely():
    ids = texts(B=8, T=P)
    logits, _ = GPT.init(seeded(), SMALL)(ids[:, :-1])
    assert cross_entropy(logits, ids[:, 1:])[0] == pytest.approx(math.log(V), abs=0.02)


def test_the_defaults_are_a_small_model_without_dropout():
    config = GPTConfig(11)
    assert {field.name: getattr(config, field.name) for field in fields(config)} == dict(
        vocabulary=11, width=128, heads=4, hidden=512, layers=4, max_length=128, dropout_rate=0.0,
        attention_dropout_rate=0.0, epsilon=1e-5)


@pytest.mark.parametrize("name, value, message", [
    *((name, value, rf"^{name} must be a whole number of at least 1, not {value!r}$")
      for name in ("vocabulary", "width", "heads", "hidden", "max_length") for value in (0, 2.0, True)),
    ("layers", -1, "^layers must be a whole number of at least 0, not -1$"),
    *((name, value, rf"^{name} must be a number at least 0 and at most 1, not {value!r}$")
      for name in ("dropout_rate", "attention_dropout_rate") for value in (-0.1, 1.1, "0.1")),
    ("epsilon", 0, "^epsilon must be a number above 0, not 0$"),
    ("heads", 4, "^width 6 is not divisible by heads 4$"),
])
def test_a_configuration_that_cannot_be_built(name, value, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **{name: value})


def test_models_and_caches_and_configurations_are_values():
    gpt = make()
    for value, name in ((gpt, "dropout_rate"), (gpt.start(texts()), "length"), (SMALL, "width")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 1)
    assert SMALL == replace(SMALL)  # equal settings are equal; arrays are compared by nobody
    cache = gpt.start(texts())
    assert gpt != replace(gpt) and cache != replace(cache)


def test_the_limits_of_a_configuration():
    assert replace(SMALL, width=1, heads=1, vocabulary=1, hidden=1, max_length=1, layers=0, dropout_rate=1,
                   attention_dropout_rate=1).layers == 0


@pytest.mark.parametrize("ids, error, message", [
    ([1, 2], ValueError, r"^ids has shape \(2,\): expected \(B, T\)$"),
    ([[[1]]], ValueError, r"^ids has shape \(1, 1, 1\): expected \(B, T\)$"),
    ([[1, V]], IndexError, rf"^ids\[0, 1\] is {V}, outside \[0, {V}\)$"),
    ([[-1, 0]], IndexError, r"^ids\[0, 0\] is -1, outside"),
    ([[1.0]], TypeError, "^ids must be integers, not dtype float64, for example "),
    ([[0] * (P + 1)], ValueError, f"^a sequence of length {P + 1} does not fit the table of {P} positions$"),
])
def test_ids_that_do_not_fit(ids, error, message):
    for read in (make(), make().start):
        with pytest.raises(error, match=message):
            read(np.array(ids))


@pytest.mark.parametrize("ids, length, error, message", [
    ([[1], [2]], 3, ValueError, r"^ids has shape \(2, 1\): expected \(B,\)$"),
    (1, 3, ValueError, r"^ids has shape \(\): expected \(B,\)$"),
    ([1, V], 3, IndexError, rf"is {V}, outside"),
    ([1, 2], P, ValueError, f"^a sequence of length {P + 1} does not fit the table of {P} positions$"),
])
def test_a_step_that_cannot_be_taken(ids, length, error, message):
    gpt = make()
    with pytest.raises(error, match=message):
        gpt.step(ids, gpt.start(texts(T=length)))


# ── GPT-2's names ────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_arrays_of_a_gpt2_become_the_same_gpt(prefix):
    gpt = make()
    arrays = to_gpt2(gpt, prefix)
    for i in range(2):
        arrays |= {f"{prefix}h.{i}.attn.bias": np.ones((1, 1, P, P), bool)}
        arrays |= {f"{prefix}h.{i}.attn.masked_bias": np.array("no number")}
    assert_same(from_gpt2(arrays, heads=H), gpt)
    assert_same(from_gpt2(arrays | {"lm_head.weight": gpt.embedding.table.copy()}, heads=H), gpt)
    assert_array_equal(from_gpt2(arrays, heads=H)(texts())[0], gpt(texts())[0])
    assert len(arrays) == 4 + 2 * 14  # and nothing was taken out of the caller's mapping


def test_float32_arrays_give_a_float32_gpt():
    gpt = from_gpt2(to_gpt2(make(dtype=np.float32)), heads=H)
    assert {array.dtype for array in named_parameters(gpt).values()} == {np.dtype(np.float32)}
    assert gpt.dropout_rate == 0 and gpt.blocks.layers[0].norm_first and gpt.blocks.layers[0].attention_norm.epsilon == 1e-5


def test_the_smallest_gpt2_has_as_many_parameters_as_the_page_says():
    config = GPTConfig(50257, width=768, heads=12, hidden=3072, layers=12, max_length=1024)
    assert "of 124,439,808 parameters," in " ".join(GPTConfig.__doc__.split())
    small = to_gpt2(make(layers=12))
    sizes = {V: 50257, P: 1024, D: 768, 3 * D: 3 * 768, F: 3072}
    arrays = {name: np.broadcast_to(np.float32(0), tuple(sizes[n] for n in array.shape)) for name, array in small.items()}
    gpt = from_gpt2(arrays, heads=config.heads)
    assert parameter_count(gpt) == 124_439_808 and len(arrays) == 4 + 12 * 12
    assert gpt.blocks.layers[11].attention.heads == 12


@pytest.mark.parametrize("name", to_gpt2(make()))
def test_a_missing_array_is_named(name):
    arrays = to_gpt2(make())
    del arrays[name]
    with pytest.raises(ValueError, match=rf"^'{name}' is missing$"):
        from_gpt2(arrays, heads=H)


@pytest.mark.parametrize("name, array", to_gpt2(make()).items())
def test_a_misshapen_array_is_named(name, array):
    wrong = array[None] if name in ("wte.weight", "wpe.weight") else np.concatenate([array, array[:1]])
    with pytest.raises(ValueError, match="^" + re.escape(f"'{name}' has shape {wrong.shape}: expected ")):
        from_gpt2(to_gpt2(make()) | {name: wrong}, heads=H)


@pytest.mark.parametrize("extra, heads, message", [
    ({"h.0.attn.rotary.weight": np.zeros(3)}, H, "^'h.0.attn.rotary.weight' belongs to no place in a GPT-2 of 2 layers$"),
    ({"ln_0.bias": np.zeros(D)}, H, "^'ln_0.bias' belongs to no place"),
    ({"h.x.bias": np.zeros(D)}, H, "^'h.x.bias' belongs to no place"),
    ({"h.3.ln_1.bias": np.zeros(D)}, H, "^'h.2.attn.c_attn.weight' is missing$"),
    ({"lm_head.weight": np.zeros((V, D))}, H, "^'lm_head.weight' differs from 'wte.weight'"),
    ({"lm_head.weight": np.zeros((V + 1, D))}, H, "^'lm_head.weight' differs from 'wte.weight'"),
    ({"transformer.ln_f.bias": np.zeros(D)}, H, "^arrays has a name both with and without 'transformer.' before it$"),
    ({"wpe.weight": np.zeros((P, D + 1))}, H, r"^'wpe.weight' has shape \(8, 7\): expected \(any, 6\)$"),
    ({"h.1.mlp.c_fc.weight": np.zeros((D, F + 1))}, H, r"^'h.1.mlp.c_fc.bias' has shape \(5,\): expected \(6,\)$"),
    ({}, 4, "^query is 6 wide, which 4 heads do not divide$"),
    ({}, 0, "^heads must be a whole number of at least 1, not 0$"),
])
def test_arrays_that_are_no_gpt2(extra, heads, message):
    with pytest.raises(ValueError, match=message):
        from_gpt2(to_gpt2(make()) | extra, heads=heads)


def test_an_array_of_text_is_named():
    with pytest.raises(TypeError, match="^ln_f.bias must hold real numbers"):
        from_gpt2(to_gpt2(make()) | {"ln_f.bias": np.full(D, "a")}, heads=H)


def test_arrays_by_name_are_the_arrays_of_the_gpt():
    gpt = make()
    named = named_parameters(gpt)
    assert_same(replace_parameters(gpt, {name: array.copy() for name, array in named.items()}), gpt)
    assert "blocks.layers.1.attention.query.weight" in named and "embedding.table" in named
