"""The training loop: every step is the step it says, a resumed run is the unbroken one, and it learns."""

import math
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import loops
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.parameters import from_vector, map_tree, named_parameters, to_vector
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.model.transformer import Transformer
from numpy_transformer.training import loop
from numpy_transformer.training.adam import Adam
from numpy_transformer.training.batches import BOS, EOS, PAD, epoch, make_batch
from numpy_transformer.training.checkpoint import load, save
from numpy_transformer.training.clipping import clip_gradients
from numpy_transformer.training.cross_entropy import cross_entropy
from numpy_transformer.training.loop import Progress, TrainingConfig, loss_and_gradient, mean_loss, training_steps
from numpy_transformer.translation.greedy import greedy_decode
from strategies import assert_close, assert_same, randomised, read_only, rngs

SMALL = TransformerConfig(
    7, 8, width=6, heads=2, hidden=5, encoder_layers=1, decoder_layers=1, max_length=9,
    dropout_rate=0.1, attention_dropout_rate=0.2, feed_forward_dropout_rate=0.3)
STEADY = replace(SMALL, dropout_rate=0.0, attention_dropout_rate=0.0, feed_forward_dropout_rate=0.0)
TRAINING = TrainingConfig(steps=7, batch_size=2, warmup_steps=3, cooldown_steps=3, label_smoothing=0.2, max_norm=0.5,
                          weight_decay=0.1, seed=3)
COOLING = (1, 1, 1, 1, 1, 2 / 3, 1 / 3)  # of those seven steps
EXAMPLES = [([3, 4], [5, 6, 7]), ([5], [3]), ([6, 6, 3], [7, 4]), ([4], [4, 4, 3, 6]), ([3, 6, 5, 4], [6])]

sentences = st.lists(st.integers(3, 6), max_size=5)
few = settings(max_examples=settings().max_examples // 3)  # whole models take their time


def a_model(config=SMALL, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return randomised(Transformer.init(rng, config), rng, dtype)


def beginning(model):
    return Progress(model, Adam(0.0).init(model))


def kept(progress):
    """A copy of a progress, whose model is going to be stepped in place"""
    return replace(progress, **{part: map_tree(np.copy, getattr(progress, part)) for part in ("model", "optimiser")})


def run(config=TRAINING, model=None, examples=EXAMPLES):
    return [kept(progress) for progress in training_steps(beginning(model or a_model()), examples, config)]


def assert_same_progress(found, expected):
    assert (found.step, found.tokens) == (expected.step, expected.tokens)
    assert found.loss == expected.loss or math.isnan(found.loss) and math.isnan(expected.loss)
    assert_same((found.model, found.optimiser), (expected.model, expected.optimiser))


# ── One step ─────────────────────────────────────────────────────────────────────────────────────

@few
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=5), st.sampled_from([0.0, 0.3]), rngs)
def test_a_padded_batch_is_the_mean_of_its_sentences_weighted_by_their_tokens(examples, smoothing, rng):
    model = a_model(STEADY, dtype=np.float64)
    batch = make_batch(examples)
    loss, gradient = loss_and_gradient(model, batch, label_smoothing=smoothing)
    parts = [loss_and_gradient(model, make_batch([example]), label_smoothing=smoothing) for example in examples]
    weights = [(len(target) + 1) / batch.tokens for _, target in examples]
    assert_close(loss, sum(weight * part for weight, (part, _) in zip(weights, parts)))
    expected = map_tree(lambda *arrays: sum(w * a for w, a in zip(weights, arrays)), *(part for _, part in parts))
    for name, array in named_parameters(gradient).items():
        assert_close(array, named_parameters(expected)[name], 1e-12)


@pytest.mark.parametrize("share_vocabulary, tie_embeddings", [(True, True), (False, False)])
def test_the_gradient_of_the_loss_agrees_with_difference_quotients(share_vocabulary, tie_embeddings):
    config = replace(STEADY, source_vocabulary=8, share_vocabulary=share_vocabulary, tie_embeddings=tie_embeddings,
                     learned_positions=True, activation="gelu")
    model, batch = a_model(config, dtype=np.float64), make_batch(EXAMPLES[:3])

    def loss_at(parameters):
        loss, gradient = loss_and_gradient(from_vector(model, parameters), batch, label_smoothing=0.2)
        return np.asarray(loss), lambda d_loss: d_loss * to_vector(gradient)

    check_gradients(loss_at, to_vector(model), rng=np.random.default_rng(0), directions=8)


def test_the_loss_is_the_models_own_and_without_a_generator_nothing_is_dropped():
    batch = make_batch(EXAMPLES)
    logits, _ = a_model()(batch.source, batch.target_input, pad=PAD)
    expected = loops.cross_entropy(logits.astype(float), batch.target_output, PAD, 0.2)
    loss, gradient = loss_and_gradient(a_model(), batch, label_smoothing=0.2)
    assert_close(loss, expected, 1e-5)
    assert_same(loss_and_gradient(a_model(STEADY), batch, label_smoothing=0.2)[1].encoder.layers[0].attention.query,
                gradient.encoder.layers[0].attention.query)
    assert loss_and_gradient(a_model(), batch)[0] != loss
    assert loss_and_gradient(a_model(), batch, label_smoothing=0.2, rng=np.random.default_rng(0))[0] != loss


# ── Every step ───────────────────────────────────────────────────────────────────────────────────

def test_each_step_is_what_it_says():
    model, adam = a_model(), Adam(9.0, weight_decay=0.1)
    state, found = adam.init(model), run()
    order = [batch for number in range(3) for batch in epoch(EXAMPLES, 2, np.random.default_rng([3, 0, number]))]
    for step, (progress, batch) in enumerate(zip(found, order), start=1):
        logits, backward = model(batch.source, batch.target_input, pad=PAD, rng=np.random.default_rng([3, 1, step]))
        loss, loss_backward = cross_entropy(logits, batch.target_output, ignore_index=PAD, label_smoothing=0.2)
        gradient, norm = clip_gradients(backward(loss_backward()), 0.5)
        assert norm > 0.5  # clipping has something to do
        rate = loops.warmup_schedule(step, width=6, warmup_steps=3) * COOLING[step - 1]
        model, state = adam.update(model, gradient, state, rate)
        assert_same_progress(progress, Progress(model, state, loss, batch.tokens))
        assert progress.step == step
    assert len(found) == 7


@pytest.mark.parametrize("rate_factor", [1.0, 0.25, 0.0])
def test_the_learning_rate_follows_the_schedule(monkeypatch, rate_factor):
    rates, update = [], Adam.update

    def spy(self, model, gradient, state, learning_rate=None, **settings):
        rates.append(learning_rate)
        return update(self, model, gradient, state, learning_rate, **settings)

    monkeypatch.setattr(Adam, "update", spy)
    run(replace(TRAINING, rate_factor=rate_factor))
    expected = [rate_factor * loops.warmup_schedule(step, 6, 3) for step in range(1, 8)]
    assert_close(rates, np.multiply(expected, COOLING), 1e-15)
    rates.clear()
    run(replace(TRAINING, rate_factor=rate_factor, cooldown_steps=0))
    assert_close(rates, expected, 1e-15)


def test_each_step_drops_out_anew_and_without_dropout_nothing_differs():
    config = replace(TRAINING, rate_factor=0.0, steps=6)
    one_example = EXAMPLES[:1]
    assert len({progress.loss for progress in run(config, examples=one_example)}) == 6
    assert len({progress.loss for progress in run(config, a_model(STEADY), one_example)}) == 1


def test_every_epoch_shows_every_example_in_an_order_of_its_own(monkeypatch):
    seen, really = [], loop.loss_and_gradient

    def spy(model, batch, **settings):
        seen.append(batch.source.tolist())
        return really(model, batch, **settings)

    monkeypatch.setattr(loop, "loss_and_gradient", spy)
    examples = [([n], [n]) for n in (3, 4, 5, 6)]
    run(replace(TRAINING, steps=20), examples=examples)
    epochs = [[row[0] for batch in seen[i : i + 2] for row in batch] for i in range(0, 20, 2)]
    assert all(sorted(words) == [3, 4, 5, 6] for words in epochs)
    assert len({tuple(words) for words in epochs}) > 5


def test_what_was_given_stays_as_it_was_and_every_parameter_moves():
    start = beginning(read_only(a_model()))
    before = kept(start)
    *_, end = training_steps(start, EXAMPLES, TRAINING)
    assert_same_progress(start, before)
    assert (start.step, end.step) == (0, 7)
    for (name, old), new in zip(named_parameters(start.model).items(), named_parameters(end.model).values()):
        assert new.dtype == np.float32
        assert (new != old).any(), name
        assert not np.shares_memory(new, old)


def test_a_kept_copy_of_earlier_progress_can_be_gone_on_from():
    steps = training_steps(beginning(a_model()), EXAMPLES, TRAINING)
    first = kept(next(steps))
    copy = kept(first)
    *_, end = steps
    assert_same((first.model, first.optimiser), (copy.model, copy.optimiser))
    *_, other_end = training_steps(first, EXAMPLES, TRAINING)
    assert_same_progress(other_end, end)


def test_a_model_of_any_layout_in_memory_can_be_trained():
    model = map_tree(np.asfortranarray, a_model())
    assert not model.source_embedding.table.flags.c_contiguous
    *_, end = run(model=model)
    assert_same_progress(end, run()[-1])


# ── Reproducible and resumable ───────────────────────────────────────────────────────────────────

def test_one_seed_gives_one_run_and_another_seed_another():
    state = np.random.get_state()
    first, again, other = run(), run(), run(replace(TRAINING, seed=4))
    after = np.random.get_state()
    assert state[0] == after[0] and state[1].tobytes() == after[1].tobytes() and state[2:] == after[2:]
    for one, two in zip(first, again, strict=True):
        assert_same_progress(one, two)
    assert all(one.loss != two.loss for one, two in zip(first, other, strict=True))
    assert (to_vector(first[-1].model) != to_vector(other[-1].model)).any()


@cache
def unbroken_run(dtype):
    return beginning(a_model(dtype=dtype)), *run(model=a_model(dtype=dtype))


@few
@given(st.integers(0, 7), st.sampled_from([np.float32, np.float64]))
def test_a_run_resumed_from_any_step_is_the_unbroken_run(tmp_path_factory, k, dtype):
    path, unbroken = tmp_path_factory.getbasetemp() / "resumed", unbroken_run(dtype)
    save(path, unbroken[k].model, SMALL, optimiser=unbroken[k].optimiser)
    loaded = load(path)
    resumed = [kept(progress) for progress in training_steps(Progress(loaded.model, loaded.optimiser), EXAMPLES, TRAINING)]
    assert [progress.step for progress in resumed] == list(range(k + 1, 8))
    for found, expected in zip(resumed, unbroken[k + 1 :], strict=True):
        assert_same_progress(found, expected)


@pytest.mark.parametrize("steps", [0, 6, 7])
def test_a_run_that_has_reached_its_end_takes_no_step(steps):
    *_, end = run()
    assert list(training_steps(end, EXAMPLES, replace(TRAINING, steps=steps))) == []
    assert len(list(training_steps(end, EXAMPLES, replace(TRAINING, steps=9)))) == 2


def test_the_beginning_has_no_loss_yet():
    start = beginning(a_model())
    assert start.step == 0 and math.isnan(start.loss) and start.tokens == 0


# ── It learns ────────────────────────────────────────────────────────────────────────────────────

def test_it_learns_to_reverse_sentences_that_it_has_not_seen():
    every = [list(words) for words in product(range(3, 9), repeat=3)]
    pairs = [(every[i], every[i][::-1]) for i in np.random.default_rng(0).permutation(len(every))]
    seen, unseen = pairs[:162], pairs[162:]
    config = TransformerConfig(9, 9, width=24, heads=2, hidden=24, encoder_layers=1, decoder_layers=1, max_length=5)
    start = beginning(Transformer.init(np.random.default_rng(0), config))
    settings = TrainingConfig(steps=120, batch_size=24, warmup_steps=30, rate_factor=0.4, label_smoothing=0.0)
    *_, end = training_steps(start, seen, settings)
    assert mean_loss(start.model, unseen) > 2
    assert mean_loss(end.model, unseen) < 0.3
    ids = greedy_decode(end.model, make_batch(unseen).source, start=BOS, end=EOS, pad=PAD, max_length=5)
    right = [row.tolist()[:4] == [*target, EOS] for row, (_, target) in zip(ids, unseen)]
    assert np.mean(right) > 0.7


# ── The loss of what is only looked at ───────────────────────────────────────────────────────────

@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_the_mean_loss_weighs_tokens_alike_and_not_batches(batch_size):
    model = a_model(dtype=np.float64)
    parts = [loss_and_gradient(model, make_batch([example]))[0] for example in EXAMPLES]
    tokens = [len(target) + 1 for _, target in EXAMPLES]
    expected = sum(part * count for part, count in zip(parts, tokens)) / sum(tokens)
    found = mean_loss(model, EXAMPLES, batch_size)
    assert type(found) is float
    assert_close(found, expected)
    assert abs(np.mean(parts) - expected) > 1e-3


def test_the_mean_loss_is_without_dropout():
    assert mean_loss(a_model(), EXAMPLES) == mean_loss(a_model(), EXAMPLES) == mean_loss(a_model(STEADY), EXAMPLES)


def test_the_mean_loss_of_a_single_token_and_of_none():
    assert mean_loss(a_model(), [([3], [])]) == loss_and_gradient(a_model(), make_batch([([3], [])]))[0] != 0
    assert mean_loss(a_model(), []) == 0.0


def test_decoding_is_without_dropout():
    source = make_batch(EXAMPLES).source
    settings = dict(start=BOS, end=EOS, pad=PAD, max_length=8)
    heavy = replace(SMALL, dropout_rate=0.9, attention_dropout_rate=0.9, feed_forward_dropout_rate=0.9)
    assert_array_equal(greedy_decode(a_model(heavy), source, **settings), greedy_decode(a_model(STEADY), source, **settings))


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────

def test_no_examples_are_nothing_to_train_on():
    with pytest.raises(ValueError, match="^examples is empty"):
        next(training_steps(beginning(a_model()), [], TRAINING))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_stops_the_training(monkeypatch, value):
    really = loop.loss_and_gradient

    def spoiled(model, batch, **settings):
        loss, gradient = really(model, batch, **settings)
        gradient.decoder.norm.gain[2] = value
        return loss, gradient

    steps = training_steps(beginning(a_model()), EXAMPLES, TRAINING)
    next(steps)
    monkeypatch.setattr(loop, "loss_and_gradient", spoiled)
    with pytest.raises(ValueError, match=f"^the gradient of decoder.norm.gain holds {value}$"):
        next(steps)


def test_a_model_that_is_not_finite_is_not_trained():
    model = a_model()
    model.decoder.norm.shift[1] = np.nan
    with pytest.raises(ValueError, match="holds? NaN"):
        run(model=model)


def test_the_settings_unless_given():
    assert TrainingConfig() == TrainingConfig(
        steps=1000, batch_size=64, warmup_steps=150, cooldown_steps=0, rate_factor=1.0, label_smoothing=0.1, max_norm=1.0,
        weight_decay=0.0, seed=0)


@pytest.mark.parametrize("name, value, limits", [
    *((name, value, f"whole number of at least {least}") for name, least in
      (("steps", 0), ("batch_size", 1), ("warmup_steps", 1), ("cooldown_steps", 0), ("seed", 0)) for value in (least - 1, 1.5, "2", None, True)),
    ("rate_factor", -0.1, "number at least 0"), ("rate_factor", math.nan, "number at least 0"),
    ("label_smoothing", -0.1, "number at least 0 and at most 1"), ("label_smoothing", 1.1, "number at least 0 and at most 1"),
    ("max_norm", 0, "number above 0"), ("max_norm", -1.0, "number above 0"), ("max_norm", math.inf, "number above 0"),
    ("weight_decay", -0.1, "number at least 0"), ("weight_decay", None, "number at least 0"),
])
def test_a_setting_out_of_bounds_is_named(name, value, limits):
    with pytest.raises(ValueError, match=rf"^{name} must be a {limits}, not {value!r}$"):
        TrainingConfig(**{name: value})


def test_the_bounds_of_the_settings_are_allowed():
    least = TrainingConfig(steps=0, batch_size=1, warmup_steps=1, cooldown_steps=0, rate_factor=0, label_smoothing=0, max_norm=5e-324,
                           weight_decay=0, seed=0)
    assert least.steps == 0 and replace(least, label_smoothing=1).label_smoothing == 1
