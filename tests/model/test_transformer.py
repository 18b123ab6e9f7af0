"""The whole model: every gradient in every configuration, no look ahead, and one answer from all ways of running it."""

import itertools
import math
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import loops
from numpy_transformer.attention import scaled_dot_product
from numpy_transformer.attention.masks import causal_mask, padding_mask
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import (
    add_trees, from_vector, map_tree, named_parameters, parameter_count, to_vector)
from numpy_transformer.layers import feed_forward, residual
from numpy_transformer.layers.embedding import Embedding
from numpy_transformer.layers.feed_forward import gelu
from numpy_transformer.layers.positional_encoding import LearnedPositions, SinusoidalPositions, sinusoidal_positions
from numpy_transformer.model import transformer
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.model.transformer import Cache, Transformer
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, letters, randomised,
    rates, read_only, rngs)

PAD = 0
B, H, K, T, S, F, V, D = 2, 3, 4, 5, 6, 7, 9, 12
RATES = dict(dropout_rate=0.2, attention_dropout_rate=0.3, feed_forward_dropout_rate=0.4)

SWITCHES = ("norm_first", "final_norm", "learned_positions", "tie_embeddings", "share_vocabulary")
CHOICES = [dict(zip((*SWITCHES, "activation"), row))
           for row in itertools.product(*[[True, False]] * len(SWITCHES), ["relu", "gelu", "gelu_tanh"])]
SOME = [CHOICES[0], CHOICES[-1], dict(share_vocabulary=True), dict(tie_embeddings=False, learned_positions=True),
        dict(norm_first=False, final_norm=False, activation="gelu"),
        dict(norm_first=False, tie_embeddings=False, share_vocabulary=True)]


def name_of(choices):
    return ", ".join(f"{name}={value}" for name, value in choices.items()) or "defaults"


some_configurations = pytest.mark.parametrize("choices", SOME, ids=name_of)


def make(seed=0, dtype=np.float64, scale=0.4, **choices):
    """A model of random parameters, none as it was at the start"""
    sizes = dict(source_vocabulary=V if choices.get("share_vocabulary") else 11, target_vocabulary=V, width=D, heads=H,
                 hidden=F, encoder_layers=2, decoder_layers=2, max_length=8)
    rng = np.random.default_rng(seed)
    model = Transformer.init(rng, TransformerConfig(**(sizes | choices)), dtype=np.float64)
    return map_tree(lambda array: (scale * rng.normal(size=array.shape)).astype(dtype), model)


def sentences(lengths, vocabulary, seed=1, left=False, width=None):
    """Random ids in a batch, padded to the longest or to `width`; no id inside a sentence is PAD"""
    ids = np.full((len(lengths), width or max(lengths)), PAD)
    rng = np.random.default_rng(seed)
    for row, length in zip(ids, lengths):
        row[-length if left else 0 : len(row) if left else length] = rng.integers(1, vocabulary, length)
    return ids


SOURCE, TARGET = sentences([S, 4], 9, seed=1), sentences([3, T], V, seed=2)
WHOLE_SOURCE, WHOLE_TARGET = sentences([S, S], 9, seed=3), sentences([T, T], V, seed=4)


def upstream(logits, seed=5):
    return np.random.default_rng(seed).normal(size=logits.shape)


def gradient_of(model, source, target, d_logits=None, **options):
    logits, backward = model(source, target, pad=PAD, **options)
    return backward(upstream(logits) if d_logits is None else d_logits)


# ── Every gradient ───────────────────────────────────────────────────────────────────────────────

def check_along_one_direction(model, source, target, rng, seed=None):
    """All parameters as one vector, moved along one direction"""
    def f(vector):
        logits, backward = from_vector(model, vector)(
            source, target, pad=PAD, rng=None if seed is None else np.random.default_rng(seed))
        return logits, lambda d_logits: to_vector(backward(d_logits))

    return check_gradients(f, to_vector(model), rng=rng, tolerance=1e-6, coordinates=0, directions=1)


@pytest.mark.parametrize("first", range(0, len(CHOICES), 24))
def test_gradient_in_every_configuration(first):
    """96 of them, with and without all three kinds of dropout, padding left and right, the target shorter and longer"""
    for number, choices in enumerate(CHOICES[first : first + 24], first):
        rng = np.random.default_rng(number)
        left, dropout, longer_target = rng.random(3) < 0.5
        layers = dict(encoder_layers=1 + (number % 8 == 0), decoder_layers=1 + (number % 8 == 1))
        model = make(number, **choices, **layers, **(RATES if dropout else {}))
        lengths = ([3, 5], [7, 4]) if longer_target else ([6, 2], [3, 4])
        source, target = (sentences(own, 9, number, left) for own in lengths)
        check_along_one_direction(model, source, target, rng, 7 if dropout else None)


@given(st.sampled_from(CHOICES), letters("BTSHKF"), rngs, st.tuples(rates, rates, rates), st.data())
def test_gradient_for_any_sizes_and_rates(choices, n, rng, three, data):
    """Also of sentences that are padding altogether"""
    config = TransformerConfig(
        11 if choices["share_vocabulary"] else 9, 11, width=n.H * n.K, heads=n.H, hidden=n.F, encoder_layers=1,
        decoder_layers=1, max_length=9, dropout_rate=three[0], attention_dropout_rate=three[1],
        feed_forward_dropout_rate=three[2], **choices)
    model = map_tree(lambda array: array / 2, randomised(Transformer.init(rng, config), rng))
    source, target = rng.integers(0, 9, (n.B, n.S)), rng.integers(0, 9, (n.B, n.T))
    for ids in (source, target):
        ids[rng.random(ids.shape) < data.draw(st.sampled_from([0, 0.3]))] = PAD
        if data.draw(st.booleans()):
            ids[data.draw(st.integers(0, n.B - 1))] = PAD
    check_along_one_direction(model, source, target, rng, data.draw(st.none() | st.integers(0, 99)))


@pytest.mark.parametrize("choices", [
    dict(tie_embeddings=False, activation="gelu", **RATES),
    dict(share_vocabulary=True, norm_first=False, final_norm=False, activation="gelu_tanh")], ids=name_of)
def test_gradients_of_every_leaf(choices):
    model = make(**choices, learned_positions=True, encoder_layers=1, decoder_layers=1)

    def f(model):
        return model(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(7))

    worst = check_gradients(f, model, rng=np.random.default_rng(8), coordinates=0, directions=1)
    assert set(worst) == {f"model.{name}" for name in named_parameters(model)}


@some_configurations
def test_the_gradient_is_a_transformer_of_the_same_form(choices):
    model = make(**choices, **RATES)
    gradient = gradient_of(model, SOURCE, TARGET)
    names = list(named_parameters(model))
    assert list(named_parameters(gradient)) == names
    assert gradient.dropout_rate == model.dropout_rate
    assert (gradient.output is None) == choices.get("tie_embeddings", True)
    assert (gradient.target_embedding is None) == choices.get("share_vocabulary", False)

    def settings_of(tree):
        if isinstance(tree, tuple):
            return [settings_of(part) for part in tree]
        if is_dataclass(tree):
            return [type(tree), *(settings_of(getattr(tree, field.name)) for field in fields(tree))]
        return None if isinstance(tree, np.ndarray) else tree

    assert settings_of(gradient) == settings_of(model)
    assert all(array.any() for name, array in named_parameters(gradient).items() if not name.endswith("key.bias"))


# ── The forward pass by other means ──────────────────────────────────────────────────────────────

@some_configurations
def test_agrees_with_loops(choices):
    model = make(**choices)

    def leaves(*parts):
        return [tuple(named_parameters(part).values()) for part in parts]

    target_table = (model.target_embedding or model.source_embedding).table
    expected = loops.transformer_forward(
        SOURCE, TARGET, loops.padding_mask(SOURCE, PAD), loops.causal_mask(T) & loops.padding_mask(TARGET, PAD),
        model.source_embedding.table, target_table,
        model.source_positions.table if not choices.get("learned_positions") else np.zeros((8, D)),
        [leaves(x.attention, x.feed_forward, x.attention_norm, x.feed_forward_norm) for x in model.encoder.layers],
        [leaves(x.self_attention, x.cross_attention, x.feed_forward, x.self_attention_norm, x.cross_attention_norm,
                x.feed_forward_norm) for x in model.decoder.layers],
        *[norm and tuple(named_parameters(norm).values()) for norm in (model.encoder.norm, model.decoder.norm)],
        leaves(model.output)[0] if model.output else (target_table.T, np.zeros(V)), H,
        norm_first=choices.get("norm_first", True), activation=getattr(loops, choices.get("activation", "relu")))
    if choices.get("learned_positions"):  # the loops know one table for both sides
        nowhere = LearnedPositions(np.zeros((8, D)))
        model = replace(model, source_positions=nowhere, target_positions=nowhere)
    assert_close(model(SOURCE, TARGET, pad=PAD)[0], expected, 1e-11)


@pytest.mark.parametrize("learned", [False, True], ids=["sinusoids", "learned positions"])
def test_without_layers_the_logits_are_table_products(learned):
    """logits = (√D E[id] + P[t]) Eᵀ, the positions not scaled along"""
    model = make(encoder_layers=0, decoder_layers=0, final_norm=False, learned_positions=learned)
    E, P = model.target_embedding.table, model.target_positions.table[:T]
    assert learned or np.array_equal(P, sinusoidal_positions(8, D)[:T])
    logits, _ = model(SOURCE, TARGET, pad=PAD)
    assert_close(logits, (math.sqrt(D) * E[TARGET] + P) @ E.T)


def test_encoder_and_decoder_have_positions_of_their_own():
    model, zeros = make(learned_positions=True), LearnedPositions(np.zeros((8, D)))
    memory, _ = model.encode(SOURCE, pad=PAD)
    assert_array_equal(replace(model, target_positions=zeros).encode(SOURCE, pad=PAD)[0], memory)
    assert not np.allclose(replace(model, source_positions=zeros).encode(SOURCE, pad=PAD)[0], memory)
    hidden, _ = model.decode(TARGET, memory, pad=PAD)
    assert_array_equal(replace(model, source_positions=zeros).decode(TARGET, memory, pad=PAD)[0], hidden)
    assert not np.allclose(replace(model, target_positions=zeros).decode(TARGET, memory, pad=PAD)[0], hidden)


@some_configurations
def test_encode_decode_and_score_are_the_model(choices):
    model = make(**choices, **RATES)

    def in_parts(rng=None):
        memory, encode_backward = model.encode(SOURCE, pad=PAD, rng=rng)
        hidden, decode_backward = model.decode(TARGET, memory, padding_mask(SOURCE, PAD), pad=PAD, rng=rng)
        logits, score_backward = model.score(hidden)

        def backward(d_logits):
            output, tied_embedding, d_hidden = score_backward(d_logits)
            target_embedding, target_positions, decoder, d_memory = decode_backward(d_hidden)
            source_embedding, source_positions, encoder = encode_backward(d_memory)
            assert d_memory.shape == memory.shape and d_hidden.shape == hidden.shape
            assert (output is None) == (model.output is None) != (tied_embedding is None)
            if tied_embedding is not None:
                target_embedding = add_trees(target_embedding, tied_embedding)
            if model.target_embedding is None:
                source_embedding, target_embedding = add_trees(source_embedding, target_embedding), None
            return Transformer(source_embedding, target_embedding, source_positions, target_positions, encoder, decoder,
                               output, model.dropout_rate)

        return logits, backward

    for seed in (None, 3):
        logits, backward = model(SOURCE, TARGET, pad=PAD, rng=seed and np.random.default_rng(seed))
        in_turn, in_turn_backward = in_parts(seed and np.random.default_rng(seed))
        assert_array_equal(logits, in_turn)
        assert_same(backward(upstream(logits)), in_turn_backward(upstream(logits)))


def test_the_sources_padding_is_hidden_from_cross_attention_only_if_the_decoder_is_told():
    model = make()
    memory, _ = model.encode(SOURCE, pad=PAD)
    told, _ = model.decode(TARGET, memory, padding_mask(SOURCE, PAD), pad=PAD)
    untold, _ = model.decode(TARGET, memory, pad=PAD)
    assert_array_equal(model.score(told)[0], model(SOURCE, TARGET, pad=PAD)[0])
    assert_array_equal(told[0], untold[0])  # the first source is whole
    assert not np.allclose(told[1], untold[1])


# ── One weight in two places ─────────────────────────────────────────────────────────────────────

def untied(model):
    """The same function with a weight of its own in every place"""
    target_embedding = model.target_embedding or Embedding(model.source_embedding.table.copy())
    output = model.output or Linear(target_embedding.table.T.copy(), np.zeros(V))
    return replace(model, target_embedding=target_embedding, output=output)


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "not shared"])
def test_a_weight_in_several_places_receives_the_sum(tie, share):
    model = make(tie_embeddings=tie, share_vocabulary=share, **RATES)
    twin = untied(model)
    logits, backward = model(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(1))
    twin_logits, twin_backward = twin(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(1))
    assert_close(logits, twin_logits)
    gradient, parts = backward(upstream(logits)), twin_backward(upstream(logits))
    source, target = parts.source_embedding.table, parts.target_embedding.table
    scored = parts.output.weight.T if tie else 0
    assert_close((gradient.source_embedding if share else gradient.target_embedding).table,
                 source + target + scored if share else target + scored, 1e-11)
    if not share:
        assert_close(gradient.source_embedding.table, source, 1e-11)
    for part in ("source_positions", "target_positions", "encoder", "decoder"):
        assert_same(getattr(gradient, part), getattr(parts, part), rtol=1e-8, atol=1e-10)
    assert min(np.abs(parts.output.weight).max(), np.abs(source).max(), np.abs(target).max()) > 1e-3


def test_tied_scores_by_hand():
    """W = [[1, 2], [3, 4], [5, 6]], ids 0 and 2, logits W[ids] Wᵀ, loss Σ C ⊙ logits with C = [[1, 0, 0], [0, 1, 0]]"""
    W, C = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([[1.0, 0, 0], [0, 1, 0]])
    model = replace(make(width=2, heads=1), target_embedding=Embedding(W))
    hidden, embedding_backward = model.target_embedding(np.array([0, 2]))
    logits, score_backward = model.score(hidden)
    assert (C * logits).sum() == 44
    output, tied, d_hidden = score_backward(C)
    assert output is None
    assert_array_equal(add_trees(tied, embedding_backward(d_hidden)).table, [[2, 4], [5, 6], [3, 4]])


def test_what_is_shared_is_stored_once():
    tied, both = make(), make(share_vocabulary=True)
    assert tied.output is None and tied.target_embedding is not None
    assert both.output is None and both.target_embedding is None
    assert make(tie_embeddings=False).output.weight.shape == (D, V)
    assert make(tie_embeddings=False, share_vocabulary=True).target_embedding is None
    assert parameter_count(make(tie_embeddings=False)) == parameter_count(tied) + D * V + V
    assert parameter_count(both) == parameter_count(tied) - 11 * D
    changed = replace(both, source_embedding=Embedding(both.source_embedding.table + np.arange(D) / 7))
    memory = both.encode(SOURCE, pad=PAD)[0]
    for change in (changed.encode(SOURCE, pad=PAD)[0] - memory, changed.score(memory)[0] - both.score(memory)[0],
                   changed.decode(TARGET, memory, pad=PAD)[0] - both.decode(TARGET, memory, pad=PAD)[0]):
        assert np.abs(change).max() > 1e-3


# ── What must stay hidden ────────────────────────────────────────────────────────────────────────

def other_word(word, vocabulary=V):
    return word % (vocabulary - 1) + 1  # another one, and not PAD


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dropout", [False, True], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("padding", ["", "left", "right"])
@pytest.mark.parametrize("choices", [{}, dict(norm_first=False, final_norm=False, learned_positions=True)], ids=name_of)
def test_no_look_into_the_future(choices, padding, dropout, batch):
    model = make(**choices, **RATES)
    lengths = [T - 2, T - 1][:batch] if padding else [T, T][:batch]
    source, target = WHOLE_SOURCE[:batch], sentences(lengths, V, 6, padding == "left", width=T)

    def run(target):
        return model(source, target, pad=PAD, rng=np.random.default_rng(1) if dropout else None)[0]

    logits = run(target)
    for t in range(T):
        changed = target.copy()
        changed[:, t] = np.where(target[:, t] == PAD, PAD, other_word(target[:, t]))
        other = run(changed)
        words = target[:, t] != PAD
        assert_allclose(other[:, :t], logits[:, :t], rtol=0, atol=1e-12)
        assert (np.abs(other - logits)[words, t].max(axis=-1, initial=0) > 1e-6).all()
        assert_allclose(other[~words], logits[~words], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [False, True], ids=["no dropout", "dropout"])
def test_the_future_has_no_gradient_either(dropout):
    """A loss at place t alone reaches the words up to t, and no learned position behind it."""
    model = make(learned_positions=True, tie_embeddings=False)
    for t in range(T):
        logits, backward = model(WHOLE_SOURCE, WHOLE_TARGET, pad=PAD, rng=np.random.default_rng(1) if dropout else None)
        d_logits = upstream(logits)
        d_logits[:, np.arange(T) != t] = 0
        rows = np.abs(backward(d_logits).target_positions.table).max(axis=1) > 0
        assert_array_equal(rows, np.arange(8) <= t)


@some_configurations
def test_every_source_word_is_seen_from_every_place(choices):
    model = make(**choices)
    logits, _ = model(WHOLE_SOURCE, WHOLE_TARGET, pad=PAD)
    for s in range(S):
        changed = WHOLE_SOURCE.copy()
        changed[:, s] = other_word(changed[:, s])
        assert (np.abs(model(changed, WHOLE_TARGET, pad=PAD)[0] - logits).max(axis=-1) > 1e-7).all()


@some_configurations
def test_padding_changes_nothing(choices):
    """A padded batch is its sentences one by one: logits, the loss-like sum, every gradient."""
    model = make(**choices)
    source_lengths, target_lengths = [3, 6, 1], [5, 2, 4]
    source, target = sentences(source_lengths, 9, 7, width=8), sentences(target_lengths, V, 8, width=7)
    logits, backward = model(source, target, pad=PAD)
    counts = target != PAD
    d_logits = upstream(logits) * counts[..., None]
    gradient = backward(d_logits)
    singles, total = [], 0.0
    for b, (s, t) in enumerate(zip(source_lengths, target_lengths)):
        alone, alone_backward = model(source[b : b + 1, :s], target[b : b + 1, :t], pad=PAD)
        assert_allclose(alone[0], logits[b, :t], rtol=0, atol=1e-12)
        total += (alone * d_logits[b : b + 1, :t]).sum()
        singles.append(alone_backward(d_logits[b : b + 1, :t]))
    assert_allclose((logits * d_logits).sum(), total, rtol=1e-12)
    assert_same(gradient, map_tree(lambda *parts: sum(parts), *singles), rtol=1e-9, atol=1e-10)


def test_the_vector_of_padding_has_no_gradient_and_no_say():
    model = make(tie_embeddings=False)
    logits, backward = model(SOURCE, TARGET, pad=PAD)
    gradient = backward(upstream(logits) * (TARGET != PAD)[..., None])
    for embedding in (gradient.source_embedding, gradient.target_embedding):
        assert_array_equal(embedding.table[PAD], np.zeros(D))
        assert embedding.table[1:].any()

    def with_other_pad(embedding):
        table = embedding.table.copy()
        table[PAD] += np.arange(D) / 7
        return Embedding(table)

    changed = replace(model, source_embedding=with_other_pad(model.source_embedding),
                      target_embedding=with_other_pad(model.target_embedding))
    other, _ = changed(SOURCE, TARGET, pad=PAD)
    assert_array_equal(other[TARGET != PAD], logits[TARGET != PAD])
    assert not np.allclose(other[TARGET == PAD], logits[TARGET == PAD])
    assert not np.allclose(changed(SOURCE, TARGET, pad=7)[0][TARGET != PAD], logits[TARGET != PAD])


def test_any_id_can_be_the_padding():
    """Exchange ids 0 and 8 in the tables and the sentences, and 8 is the padding."""
    model, order = make(tie_embeddings=False), np.array([8, 1, 2, 3, 4, 5, 6, 7, 0, 9, 10])
    moved = replace(model, source_embedding=Embedding(model.source_embedding.table[order]),
                    target_embedding=Embedding(model.target_embedding.table[order[:V]]))
    logits, _ = model(SOURCE, TARGET, pad=0)
    assert_array_equal(moved(order[SOURCE], order[TARGET], pad=8)[0], logits)
    assert not np.allclose(moved(order[SOURCE], order[TARGET], pad=0)[0], logits)


def test_sentences_of_a_batch_do_not_meet():
    model = make(norm_first=False)
    logits, _ = model(SOURCE, TARGET, pad=PAD)
    for b in range(B):
        source, target = SOURCE.copy(), TARGET.copy()
        source[b], target[b] = other_word(source[b]), other_word(target[b])
        other, _ = model(source, target, pad=PAD)
        assert_array_equal(other[1 - b], logits[1 - b])
        assert not np.allclose(other[b], logits[b])


# ── Word by word ─────────────────────────────────────────────────────────────────────────────────

def in_steps(model, source, target):
    """Logits after each word of the target, and the caches before the first and after each"""
    cache, rows, history = model.start(source, pad=PAD), [], []
    history.append(cache)
    for t in range(target.shape[1]):
        logits, cache = model.step(target[:, t], cache)
        rows.append(logits)
        history.append(cache)
    return rows, history


@pytest.mark.parametrize("choices", CHOICES[::5], ids=name_of)
def test_step_by_step_gives_the_rows_of_the_whole(choices):
    """Positions 0 to 6, a padded source; dropout is at work in training only."""
    model, target = make(**choices, **RATES), sentences([7, 7], V, seed=9)
    logits, _ = model(SOURCE, target, pad=PAD)
    rows, history = in_steps(model, SOURCE, target)
    for t, row in enumerate(rows):
        assert row.shape == (B, V)
        assert_allclose(row, logits[:, t], rtol=0, atol=1e-10)
    assert [cache.length for cache in history] == [*range(8)]
    for t, cache in enumerate(history):
        assert isinstance(cache, Cache) and len(cache.layers) == 2
        assert_array_equal(cache.memory_mask, padding_mask(SOURCE, PAD), strict=True)
        assert all(layer.keys.shape == (B, H, t, K) for layer in cache.layers)
        assert all(layer.memory_keys.shape == (B, H, S, K) for layer in cache.layers)


@some_configurations
def test_an_earlier_cache_stays_as_it_was(choices):
    """Two continuations of one beginning, the second from the same cache as the first"""
    model = make(**choices)
    one, other = WHOLE_TARGET, WHOLE_TARGET.copy()
    other[:, 2:] = other_word(other[:, 2:])
    _, history = in_steps(model, SOURCE, one[:, :2])
    branch_point = read_only(history[-1])
    before = map_tree(np.copy, branch_point)
    for target in (one, other, one):
        cache, whole = branch_point, model(SOURCE, target, pad=PAD)[0]
        for t in range(2, T):
            logits, cache = model.step(target[:, t], cache)
            assert_allclose(logits, whole[:, t], rtol=0, atol=1e-10)
        assert_same(branch_point, before)
        assert branch_point.length == 2 and cache.length == T
    assert not np.allclose(model(SOURCE, one, pad=PAD)[0][:, 2:], model(SOURCE, other, pad=PAD)[0][:, 2:])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_step_answers_to_its_own_word_and_to_all_before(batch):
    model, source, target = make(), SOURCE[-batch:], WHOLE_TARGET[-batch:]
    rows, _ = in_steps(model, source, target)
    for t in range(T):
        changed = target.copy()
        changed[:, t] = other_word(changed[:, t])
        others, _ = in_steps(model, source, changed)
        for s in range(T):
            apart = np.abs(others[s] - rows[s]).max(axis=-1)
            assert (apart <= 1e-12).all() if s < t else (apart > 1e-7).all()


def test_the_rows_of_a_cache_are_its_sentences():
    """Taken in another order, or twice, they go on as they would have: what a search with several hypotheses does."""
    model, rows = make(), [1, 1, 0]
    _, history = in_steps(model, SOURCE, WHOLE_TARGET[:, :3])
    expected, _ = model.step(WHOLE_TARGET[:, 3], history[-1])
    logits, cache = model.step(WHOLE_TARGET[rows, 3], map_tree(lambda array: array[rows], history[-1]))
    assert_close(logits, expected[rows])
    assert cache.length == 4 and not np.allclose(expected[0], expected[1])


def test_the_beginning_is_the_encoded_source():
    model = make(**RATES)
    cache = model.start(SOURCE, pad=PAD)
    memory, _ = model.encode(SOURCE, pad=PAD)
    assert cache.length == 0
    for layer, start in zip(model.decoder.layers, cache.layers, strict=True):
        assert_same(start, layer.start(memory))


def test_steps_keep_the_dtype():
    rows, history = in_steps(make(dtype=np.float32), SOURCE, TARGET)
    assert all(row.dtype == np.float32 for row in rows)
    assert all(a.dtype == np.float32 for cache in history for a in named_parameters(cache.layers).values())


def test_a_step_beyond_the_table_of_positions_is_refused():
    for learned in (False, True):
        model = make(learned_positions=learned, max_length=S)
        _, history = in_steps(model, SOURCE, sentences([6, 6], V))
        with pytest.raises(ValueError, match="a sequence of length 7 does not fit the table of 6 positions"):
            model.step(np.array([1, 2]), history[-1])


@pytest.mark.parametrize("ids, error, message", [
    (np.array([1, 2, 3]), ValueError, r"ids has shape \(3,\): expected \(2,\)"),
    (np.array([1]), ValueError, r"ids has shape \(1,\): expected \(2,\)"),
    (np.array([[1], [2]]), ValueError, r"ids has shape \(2, 1\): expected \(2,\)"),
    (1, ValueError, r"ids has shape \(\): expected \(2,\)"),
    (np.array([1.0, 2.0]), TypeError, "ids must be integers, not dtype float64"),
    (np.array([True, False]), TypeError, "ids must be integers, not dtype bool"),
    (np.array([1, V]), IndexError, rf"ids\[1\] is {V}, outside \[0, {V}\)"),
    (np.array([-1, 1]), IndexError, rf"ids\[0\] is -1, outside \[0, {V}\)"),
])
def test_bad_ids_for_a_step_are_refused(ids, error, message):
    model = make()
    with pytest.raises(error, match=message):
        model.step(ids, model.start(SOURCE, pad=PAD))


# ── Dropout ──────────────────────────────────────────────────────────────────────────────────────

def test_dropout_has_its_places_its_rates_and_everywhere_its_own_holes(monkeypatch):
    true_dropout, places = feed_forward.dropout, []

    def noting(x, rate, rng):
        y, backward = true_dropout(x, rate, rng)
        if rng is not None:
            places.append((rate, backward(np.ones_like(x)) != 0))
        return y, backward

    for page in (scaled_dot_product, feed_forward, residual, transformer):
        monkeypatch.setattr(page, "dropout", noting)
    model = make(**RATES, hidden=8)
    model(WHOLE_SOURCE, WHOLE_TARGET, pad=PAD, rng=np.random.default_rng(1))
    answer, attention, inside = RATES.values()
    of_source = [((B, S, D), answer)] + 2 * [
        ((B, H, S, S), attention), ((B, S, D), answer), ((B, S, 8), inside), ((B, S, D), answer)]
    of_target = [((B, T, D), answer)] + 2 * [
        ((B, H, T, T), attention), ((B, T, D), answer), ((B, H, T, S), attention), ((B, T, D), answer),
        ((B, T, 8), inside), ((B, T, D), answer)]
    assert [(kept.shape, rate) for rate, kept in places] == of_source + of_target
    for i, (rate, kept) in enumerate(places):
        assert 0.5 * (1 - rate) < kept.mean() < 1 - 0.4 * rate
        for other_rate, other in places[:i]:
            if other.shape == kept.shape:
                alike = rate * other_rate + (1 - rate) * (1 - other_rate)
                assert abs((kept == other).mean() - alike) < 0.2
    places.clear()
    model(WHOLE_SOURCE, WHOLE_TARGET, pad=PAD)
    assert places == []


def test_at_rate_one_the_embeddings_and_all_answers_are_silent():
    """What is left of a pre-norm model is the shift of its last norm, whatever was read."""
    model = make(dropout_rate=1.0)
    logits, backward = model(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(0))
    assert_close(logits, np.broadcast_to(model.decoder.norm.shift @ model.target_embedding.table.T, (B, T, V)))
    gradient = backward(upstream(logits))
    silenced = (gradient.source_embedding, gradient.encoder, gradient.decoder.layers)
    assert not any(array.any() for array in named_parameters(silenced).values())
    assert not np.allclose(model(SOURCE, TARGET, pad=PAD)[0], logits)


def test_dropout_falls_on_words_and_positions_together():
    model = make(encoder_layers=0, decoder_layers=0, final_norm=False, tie_embeddings=False, dropout_rate=0.3)
    identity = replace(model, output=Linear(np.eye(D), np.zeros(D)))
    logits, _ = identity(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(2))
    plain, _ = identity(SOURCE, TARGET, pad=PAD)
    kept = logits != 0
    assert 0.5 < kept.mean() < 0.85
    assert_allclose(logits[kept], plain[kept] / 0.7, rtol=1e-4)


@some_configurations
def test_same_seed_same_holes_and_no_generator_no_holes(choices):
    model, plain = make(**choices, **RATES), make(**choices)
    one, same, other = (model(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert_array_equal(one[0], same[0])
    assert_same(one[1](upstream(one[0])), same[1](upstream(one[0])))
    assert not np.allclose(one[0], other[0])
    without, _ = model(SOURCE, TARGET, pad=PAD)
    assert_array_equal(without, plain(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(0))[0])
    assert not np.allclose(without, one[0])


def test_numpys_global_generator_is_left_alone():
    np.random.seed(123)
    before = np.random.get_state()
    model = make(**RATES, learned_positions=True)
    Transformer.init(np.random.default_rng(0), TransformerConfig(5, 5, width=4, heads=2, hidden=6))
    gradient_of(model, SOURCE, TARGET, rng=np.random.default_rng(0))
    in_steps(model, SOURCE, TARGET)
    after = np.random.get_state()
    assert_array_equal(after[1], before[1])
    assert after[2:] == before[2:]


# ── Attention maps ───────────────────────────────────────────────────────────────────────────────

@some_configurations
def test_attention_maps_are_weights_with_the_names_of_their_attentions(choices):
    model = make(**choices, **RATES)
    before = map_tree(np.copy, model)
    maps = model.attention_maps(SOURCE, TARGET, pad=PAD)
    shapes = {"encoder.layers.{}.attention": (B, H, S, S), "decoder.layers.{}.self_attention": (B, H, T, T),
              "decoder.layers.{}.cross_attention": (B, H, T, S)}
    assert {name: weights.shape for name, weights in maps.items()} == {
        name.format(layer): shape for name, shape in shapes.items() for layer in range(2)}
    assert all(any(leaf.startswith(f"{name}.query") for leaf in named_parameters(model)) for name in maps)
    for name, weights in maps.items():
        assert_close(weights.sum(axis=-1), np.ones(weights.shape[:-1]))
        assert (weights >= 0).all()
        padding = padding_mask(TARGET if "self" in name else SOURCE, PAD)
        visible = np.broadcast_to(padding & causal_mask(T) if "self" in name else padding, weights.shape)
        assert not weights[~visible].any() and (weights[visible] > 0).all()
    assert_same(model, before)
    for one, other in itertools.combinations(maps.values(), 2):
        assert one.shape != other.shape or not np.allclose(one, other)


@some_configurations
def test_attention_maps_are_what_attention_uses(choices, monkeypatch):
    """Noted where the weights meet the values, while the model runs"""
    model, used = make(**choices, **RATES), []
    true_dropout = scaled_dot_product.dropout

    def noting(weights, rate, rng):
        used.append(weights.copy())
        return true_dropout(weights, rate, rng)

    with monkeypatch.context() as patch:
        patch.setattr(scaled_dot_product, "dropout", noting)
        model(SOURCE, TARGET, pad=PAD)
    maps = model.attention_maps(SOURCE, TARGET, pad=PAD)
    assert len(used) == len(maps) == 6
    for weights, (name, shown) in zip(used, maps.items()):
        assert_array_equal(weights, shown, err_msg=name)


def test_the_first_attention_maps_by_other_means():
    model = make()
    maps = model.attention_maps(SOURCE, TARGET, pad=PAD)
    x = loops.embed(SOURCE, model.source_embedding.table, model.source_positions.table)
    layer = model.encoder.layers[0]
    x = loops.layer_norm(x, layer.attention_norm.gain, layer.attention_norm.shift)
    q, k = (loops.project_heads(x, part.weight, part.bias, H) for part in (layer.attention.query, layer.attention.key))
    assert_close(maps["encoder.layers.0.attention"], loops.attention_weights(q, k, padding_mask(SOURCE, PAD)))


def test_a_sentence_of_padding_alone_has_maps_of_zeros():
    maps = make().attention_maps(np.array([[PAD, PAD], [1, 2]]), np.array([[PAD, PAD, PAD], [1, 2, 3]]), pad=PAD)
    for weights in maps.values():
        assert not weights[0].any()
        assert_close(weights[1].sum(axis=-1), np.ones(weights.shape[1:3]))


# ── Purity, memory, dtypes, sizes ────────────────────────────────────────────────────────────────

@some_configurations
def test_pure_and_linear(choices):
    model, (source, target) = make(**choices, **RATES), read_only((SOURCE, TARGET))
    assert_pure_and_linear(lambda model: model(source, target, pad=PAD, rng=np.random.default_rng(3)), model,
                           rng=np.random.default_rng(0))
    assert_array_equal(source, SOURCE)
    assert_array_equal(target, TARGET)


def test_reading_only_never_writes():
    model, (source, target) = read_only((make(**RATES), (SOURCE, TARGET)))
    before = map_tree(np.copy, model)
    in_steps(model, source, target)
    model.attention_maps(source, target, pad=PAD)
    assert_same(model, before)


@some_configurations
def test_memory_layout_and_dtype(choices):
    model, rng = make(**choices, **RATES), np.random.default_rng(0)

    def f(model):
        return model(SOURCE, TARGET, pad=PAD, rng=np.random.default_rng(0))

    assert_same_for_layouts(f, make(**choices | {"activation": "gelu"}, **RATES), rng=rng, tolerance=1e-9)
    assert_keeps_dtype(f, model, rng=rng, near=1e-2)
    assert_keeps_dtype(f, model, rng=rng, dtype=np.float64, near=0)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint64, list])
def test_ids_of_every_kind(dtype):
    model = make()
    source, target = (ids.tolist() if dtype is list else ids.astype(dtype) for ids in (SOURCE, TARGET))
    assert_array_equal(model(source, target, pad=PAD)[0], model(SOURCE, TARGET, pad=PAD)[0])
    assert_same(gradient_of(model, source, target), gradient_of(model, SOURCE, TARGET))
    assert_array_equal(in_steps(model, source, TARGET)[0], in_steps(model, SOURCE, TARGET)[0])
    wide = np.repeat(SOURCE, 2, axis=1)[:, ::2]
    assert_array_equal(model(wide, np.asfortranarray(TARGET), pad=PAD)[0], model(SOURCE, TARGET, pad=PAD)[0])


def assert_fits(gradient, model):
    shapes = [{name: array.shape for name, array in named_parameters(tree).items()} for tree in (gradient, model)]
    assert shapes[0] == shapes[1] and np.isfinite(to_vector(gradient)).all()


@some_configurations
@pytest.mark.parametrize("batch, S, T", [(0, 6, 5), (2, 6, 0), (2, 0, 5), (2, 0, 0), (0, 0, 0), (1, 1, 1)])
def test_sizes_of_zero_and_one(choices, batch, S, T):
    model = make(**choices, **RATES)
    source, target = np.ones((batch, S), int), np.ones((batch, T), int)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for seed in (None, 3):
            logits, backward = model(source, target, pad=PAD, rng=seed and np.random.default_rng(seed))
            gradient = backward(np.ones((batch, T, V)))
            assert logits.shape == (batch, T, V) and np.isfinite(logits).all()
            assert_fits(gradient, model)
            assert to_vector(gradient).any() == (0 not in (batch, T))
        rows, _ = in_steps(model, source, target)
        assert len(rows) == T and all(row.shape == (batch, V) for row in rows)
        maps = model.attention_maps(source, target, pad=PAD)
    assert maps["decoder.layers.1.cross_attention"].shape == (batch, H, T, S)


def test_widths_of_one():
    model = make(width=1, heads=1, hidden=1, learned_positions=True)
    logits, backward = model(SOURCE, TARGET, pad=PAD)
    assert logits.shape == (B, T, V)
    assert_fits(backward(logits), model)


@pytest.mark.parametrize("heads", [1, D])
def test_one_head_and_as_many_heads_as_numbers(heads):
    model = make(heads=heads)
    check_along_one_direction(model, SOURCE, TARGET, np.random.default_rng(0))
    assert model.attention_maps(SOURCE, TARGET, pad=PAD)["encoder.layers.0.attention"].shape == (B, heads, S, S)


# ── Counting ─────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("choices", CHOICES[::7], ids=name_of)
def test_parameter_count(choices):
    model, P = make(**choices), 8
    attention, network, norm = 4 * (D * D + D), D * F + F + F * D + D, 2 * D
    encoder, decoder = 2 * (attention + network + 2 * norm), 2 * (2 * attention + network + 3 * norm)
    layers = encoder + decoder + 2 * norm * choices["final_norm"]
    output = 0 if choices["tie_embeddings"] else D * V + V
    tables = (V * D if choices["share_vocabulary"] else (11 + V) * D) + 2 * P * D * choices["learned_positions"]
    assert model.parameter_count() == model.parameter_count(embeddings=True) == layers + output + tables
    assert model.parameter_count(embeddings=False) == layers + output
    assert model.parameter_count() == sum(array.size for array in named_parameters(model).values())


# ── Construction and errors ──────────────────────────────────────────────────────────────────────

CONFIG = TransformerConfig(500, 300, width=32, heads=4, hidden=96, encoder_layers=2, decoder_layers=3, max_length=77,
                           learned_positions=True, tie_embeddings=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_initial_model(dtype):
    parameters = named_parameters(Transformer.init(np.random.default_rng(0), CONFIG, dtype=dtype))
    assert len(parameters) == 4 + 2 * 16 + 3 * 26 + 2 * 2 + 2
    for name, array in parameters.items():
        assert array.dtype == dtype, name
        if name.endswith("table"):
            assert_allclose(array.var(), 1 / 32, rtol=0.1, err_msg=name)
        elif name.endswith("weight"):
            limit = np.sqrt(6 / sum(array.shape))
            assert 0.97 * limit < np.abs(array).max() <= limit * (1 + 1e-6), name
            assert_allclose(array.var(), limit**2 / 3, rtol=0.1, err_msg=name)
            assert abs(array.mean()) < 4 * limit / np.sqrt(3 * array.size), name
        else:
            assert_array_equal(array, np.full(array.shape, name.endswith("gain")), err_msg=name)
    tables = ("source_embedding.table", "target_embedding.table", "source_positions.table", "target_positions.table")
    assert [parameters[name].shape for name in tables] == [(500, 32), (300, 32), (77, 32), (77, 32)]
    assert parameters["output.weight"].shape == (32, 300)
    random = [array.ravel() for name, array in parameters.items() if name.endswith(("table", "weight"))]
    for one, other in itertools.combinations(random, 2):
        assert np.isin(one[:300], other[:300]).mean() < 0.02


def test_same_seed_same_model():
    one, same, other = (Transformer.init(np.random.default_rng(seed), CONFIG) for seed in (0, 0, 1))
    assert_same(one, same)
    for name, array in named_parameters(one).items():
        if name.endswith(("table", "weight")):
            assert np.isin(array, named_parameters(other)[name]).mean() < 0.01, name
        assert array.dtype == np.float32


@pytest.mark.parametrize("choices", CHOICES[::11], ids=name_of)
def test_the_configuration_reaches_every_part(choices):
    config = TransformerConfig(9, 9, width=6, heads=2, hidden=8, encoder_layers=3, decoder_layers=1, max_length=5,
                               epsilon=0.01, **choices, **RATES)
    model = Transformer.init(np.random.default_rng(0), config)
    assert len(model.encoder.layers) == 3 and len(model.decoder.layers) == 1 and model.dropout_rate == 0.2
    layers = model.encoder.layers + model.decoder.layers
    parts = [part for layer in layers for part in vars(layer).values()]
    attentions, norms = ([part for part in parts if hasattr(part, setting)] for setting in ("heads", "epsilon"))
    assert len(attentions) == 3 + 2 and len(norms) == 3 * 2 + 3
    assert all((a.heads, a.dropout_rate) == (2, 0.3) for a in attentions)
    for layer in layers:
        assert layer.norm_first == choices["norm_first"] and layer.dropout_rate == 0.2
        assert layer.feed_forward.dropout_rate == 0.4
        assert layer.feed_forward.activation.__name__ == choices["activation"]
        assert layer.feed_forward.expand.weight.shape == (6, 8)
    for stack in (model.encoder, model.decoder):
        assert (stack.norm is not None) == choices["final_norm"]
        norms += [stack.norm] * choices["final_norm"]
    assert all(norm.epsilon == 0.01 for norm in norms)
    for positions in (model.source_positions, model.target_positions):
        assert type(positions) is (LearnedPositions if choices["learned_positions"] else SinusoidalPositions)
        assert positions.table.shape == (5, 6)
    assert (model.output is None) == choices["tie_embeddings"]
    assert (model.target_embedding is None) == choices["share_vocabulary"]


@pytest.mark.parametrize("part", [make(), make().start(SOURCE, pad=PAD)], ids=["model", "cache"])
def test_a_model_is_itself_alone_and_cannot_be_changed(part):
    assert part == part != replace(part) and len({part, part, replace(part)}) == 2
    with pytest.raises(FrozenInstanceError):
        part.length = 5


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), "0.1", None], ids=repr)
def test_a_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(ValueError, match=f"dropout_rate must be a number at least 0 and at most 1, not {rate!r}"):
        replace(make(), dropout_rate=rate)


OK = np.array([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("source, target, error, message", [
    (OK[0], OK, ValueError, r"source has shape \(3,\): expected \(B, S\)"),
    (OK[None], OK, ValueError, r"source has shape \(1, 2, 3\): expected \(B, S\)"),
    (3, OK, ValueError, r"source has shape \(\): expected \(B, S\)"),
    (OK, OK[0], ValueError, r"target_input has shape \(3,\): expected \(B, T\)"),
    (OK, OK[None], ValueError, r"target_input has shape \(1, 2, 3\): expected \(B, T\)"),
    (OK, 3, ValueError, r"target_input has shape \(\): expected \(B, T\)"),
    (OK, OK[:1], ValueError, r"has shape \(1, 3, .*\(2, 3, "),
    (OK[:1], OK, ValueError, r"has shape \(2, 3, .*\(1, 3, "),
    (OK / 1, OK, TypeError, "source must be integers, not dtype float64, for example .*1.0"),
    (OK, OK + 0.5, TypeError, "target_input must be integers, not dtype float64, for example .*1.5"),
    (OK > 0, OK, TypeError, "source must be integers, not dtype bool"),
    (OK, OK.astype(str), TypeError, "target_input must be integers, not dtype <U"),
    (OK + 6, OK, IndexError, r"source\[1, 1\] is 11, outside \[0, 11\)"),
    (OK - 3, OK, IndexError, r"source\[0, 0\] is -2, outside \[0, 11\)"),
    (OK, OK + 3, IndexError, r"target_input\[1, 2\] is 9, outside \[0, 9\)"),
    (OK, -OK, IndexError, r"target_input\[0, 0\] is -1, outside \[0, 9\)"),
    (np.ones((2, 9), int), OK, ValueError, "a sequence of length 9 does not fit the table of 8 positions"),
    (OK, np.ones((2, 10), int), ValueError, "a sequence of length 10 does not fit the table of 8 positions"),
])
@pytest.mark.parametrize("learned", [False, True], ids=["sinusoids", "learned positions"])
def test_bad_input_is_refused(learned, source, target, error, message):
    model = make(learned_positions=learned)
    for run in (model, model.attention_maps):
        with pytest.raises(error, match=message):
            run(source, target, pad=PAD)
    if "source" in message:
        with pytest.raises(error, match=message):
            model.start(source, pad=PAD)


@pytest.mark.parametrize("pad", [None, "0", 0.0, 1.5, True], ids=repr)
def test_padding_that_is_no_id_is_refused(pad):
    """Compared with the ids it would be unequal to all of them, and would hide nothing."""
    for run in (lambda model: model(OK, OK, pad=pad), lambda model: model.start(OK, pad=pad)):
        with pytest.raises((TypeError, ValueError), match="^pad must be .*, not "):
            run(make())


def test_padding_has_to_be_named():
    for run in (lambda: make()(OK, OK), lambda: make().start(OK), lambda: make()(OK, OK, PAD)):
        with pytest.raises(TypeError, match="pad|positional"):
            run()
