"""Generation: what each cut of the distribution leaves, that drawing follows it, and a GPT trained on a tiny text."""

import doctest
from dataclasses import FrozenInstanceError, replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from numpy_transformer.foundations.parameters import map_tree, to_vector
from numpy_transformer.training.adam import Adam
from numpy_transformer.training.clipping import clip_gradients
from numpy_transformer.training.cross_entropy import cross_entropy
from numpy_transformer.training.loop import Progress, TrainingConfig
from numpy_transformer.training.schedule import warmup_schedule
from numpy_transformer.translation.greedy import greedy_decode
from numpy_transformer.variations import generation as page
from numpy_transformer.variations.generation import (
    CharacterVocabulary, continuation, draw, generate, gpt_training_steps, next_word_weights, text_loss, text_windows)
from numpy_transformer.variations.gpt import GPT, GPTConfig
from strategies import assert_same, read_only, rngs

few = settings(max_examples=settings.default.max_examples // 4)
V, P = 7, 5
temperatures = st.floats(0.05, 20)


def seeded(seed=0):
    return np.random.default_rng(seed)


def make(seed=1, length=P, **choices):
    """A GPT whose words differ in what they call for: random matrices, and no biases that favour one of them"""
    config = GPTConfig(V, width=8, heads=2, hidden=5, layers=1, max_length=length, **choices)
    rng, gpt = seeded(seed), GPT.init(seeded(), config, dtype=np.float64)
    gpt = map_tree(lambda array: rng.normal(size=array.shape) if array.ndim == 2 else array, gpt)
    return replace(gpt, embedding=replace(gpt.embedding, table=gpt.embedding.table / 3))


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@st.composite
def rows(draw):
    """Logits (B, V) with many ties"""
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    return np.round(draw(rngs).normal(size=shape) * 3, draw(st.sampled_from([0, 6])))


# ── The weights ──────────────────────────────────────────────────────────────────────────────────

def test_the_examples_of_the_page():
    result = doctest.testmod(page)
    assert (result.failed, result.attempted) == (0, 4)


@given(rows(), temperatures)
def test_temperature(logits, temperature):
    weights = next_word_weights(logits, temperature=temperature)
    assert_allclose(weights, softmax(logits / temperature), rtol=0, atol=1e-12)
    assert_allclose(next_word_weights(logits), softmax(logits), rtol=0, atol=1e-12)


@given(rows(), st.integers(1, 10), temperatures)
def test_top_k_leaves_the_k_likeliest_and_of_equals_the_first(logits, k, temperature):
    weights = next_word_weights(logits, top_k=k, temperature=temperature)
    for z, w in zip(logits, weights):
        kept = sorted(range(len(z)), key=lambda v: (-z[v], v))[:k]
        assert set(np.flatnonzero(w)) == set(kept)
        assert_allclose(w[kept], softmax(z[kept] / temperature), rtol=0, atol=1e-12)


@given(rows(), st.floats(0.01, 0.99))
def test_top_p_leaves_the_fewest_that_weigh_p(logits, top_p):
    weights = next_word_weights(logits, top_p=top_p)
    for z, w in zip(logits, weights):
        p, kept = softmax(z), np.flatnonzero(w)
        ranked = sorted(range(len(z)), key=lambda v: (-z[v], v))
        assert set(kept) == set(ranked[: len(kept)])
        last = ranked[len(kept) - 1]
        assert p[kept].sum() >= top_p - 1e-12 and p[kept].sum() - p[last] < top_p + 1e-12
        assert_allclose(w[kept], p[kept] / p[kept].sum(), rtol=0, atol=1e-12)


def test_top_p_at_its_limit():
    z = np.log([0.25, 0.5, 0.25])
    for top_p, expected in ((0.5, [0, 1, 0]), (0.51, [1 / 3, 2 / 3, 0]), (0.76, [0.25, 0.5, 0.25])):
        assert_allclose(next_word_weights(z, top_p=top_p), expected, rtol=0, atol=1e-12)


@given(rows(), temperatures, st.integers(1, 9), st.floats(0.1, 1))
def test_the_three_cuts_follow_each_other(logits, temperature, top_k, top_p):
    weights = next_word_weights(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert weights.shape == logits.shape and weights.dtype == np.float64
    assert_allclose(weights.sum(axis=-1), 1, rtol=0, atol=1e-12)
    with np.errstate(divide="ignore"):
        after_top_k = np.log(next_word_weights(logits, temperature=temperature, top_k=top_k))
    assert_allclose(weights, next_word_weights(after_top_k, top_p=top_p), rtol=0, atol=1e-12)


@given(rows())
def test_nothing_is_cut_by_the_whole_vocabulary_or_the_whole_weight(logits):
    logits = logits * 15  # often the likeliest weighs 1 after rounding; the others stay possible
    uncut = next_word_weights(logits, top_k=logits.shape[-1], top_p=1.0)
    assert (uncut > 0).all()
    assert_allclose(uncut, next_word_weights(logits), rtol=1e-12, atol=0)


@given(rows())
def test_the_limits_of_temperature(logits):
    likeliest = logits == logits.max(axis=-1, keepdims=True)
    first = np.eye(logits.shape[-1])[logits.argmax(axis=-1)]
    for greedy in (dict(temperature=0), dict(temperature=0, top_k=3, top_p=0.5), dict(temperature=0.0), dict(top_k=1)):
        assert_array_equal(next_word_weights(logits, **greedy), first)
    for tiny in (1e-9, 1e-300, 5e-324):
        shared = likeliest / likeliest.sum(axis=-1, keepdims=True)
        assert_allclose(next_word_weights(logits, temperature=tiny), shared, rtol=0, atol=1e-12)
    assert_allclose(next_word_weights(logits, temperature=1e300), np.full(logits.shape, 1 / logits.shape[-1]), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_logits_of_every_dtype(dtype):
    logits = read_only(np.array([[1, 3, 2], [0, 0, 0]], dtype))
    weights = next_word_weights(logits, top_k=2)
    assert weights.dtype == np.float64
    assert_allclose(weights, [[0, 1 / (1 + np.exp(-1)), 1 / (1 + np.e)], [0.5, 0.5, 0]], rtol=0, atol=1e-12)


def test_large_logits_hidden_words_and_higher_ranks():
    weights = next_word_weights(np.array([1e4, 1e4 - 1, -1e4]))
    assert_allclose(weights, [0.7310585786300049, 0.2689414213699951, 0], rtol=0, atol=1e-15)
    assert_array_equal(next_word_weights(np.array([-np.inf, 0.0, -np.inf]), temperature=3, top_k=2), [0, 1, 0])
    logits = seeded().normal(size=(2, 3, 4))
    assert_array_equal(next_word_weights(logits, top_p=0.7)[1, 2], next_word_weights(logits[1, 2], top_p=0.7))
    assert next_word_weights(np.zeros((0, 4)), top_k=2).shape == (0, 4)


@pytest.mark.parametrize("choices, message", [
    (dict(temperature=-0.1), "^temperature must be a number at least 0, not -0.1$"),
    (dict(temperature=float("nan")), "^temperature must be a number at least 0, not nan$"),
    (dict(temperature=float("inf")), "^temperature must be a number at least 0, not inf$"),
    (dict(temperature=None), "^temperature must be a number at least 0, not None$"),
    (dict(top_k=0), "^top_k must be a whole number of at least 1, not 0$"),
    (dict(top_k=2.0), "^top_k must be a whole number of at least 1, not 2.0$"),
    (dict(top_p=0), "^top_p must be a number above 0 and at most 1, not 0$"),
    (dict(top_p=1.1), "^top_p must be a number above 0 and at most 1, not 1.1$"),
    (dict(top_p=None), "^top_p must be a number above 0 and at most 1, not None$"),
])
def test_choices_that_make_no_sense(choices, message):
    with pytest.raises(ValueError, match=message):
        next_word_weights(np.zeros((2, 3)), **choices)
    with pytest.raises(ValueError, match=message):
        generate(make(), [[1]], count=1, rng=seeded(), **choices)


@pytest.mark.parametrize("logits, error, message", [
    (np.array([[0.0, np.nan]]), ValueError, r"^logits of shape \(1, 2\) holds NaN, \+inf or a row of nothing but -inf$"),
    (np.array([[0.0, 1.0], [0.0, np.inf]]), ValueError, r"^logits of shape \(2, 2\) holds"),
    (np.array([[0.0, 1.0], [-np.inf, -np.inf]]), ValueError, r"^logits of shape \(2, 2\) holds"),
    (np.array(1.0), ValueError, r"^logits has shape \(\): expected \(\.\.\., V\)$"),
    (np.array(["a"]), TypeError, "^logits must hold real numbers"),
])
def test_logits_that_make_no_sense(logits, error, message):
    with pytest.raises(error, match=message):
        next_word_weights(logits)


# ── Drawing ──────────────────────────────────────────────────────────────────────────────────────

class Always:
    """A generator that draws one number for ever"""

    def __init__(self, number):
        self.number = number

    def random(self, shape):
        return np.full(shape, self.number)


@given(rngs, st.integers(1, 6))
def test_no_word_of_weight_zero_is_ever_drawn(rng, width):
    weights = rng.random((3, width)) * (rng.random((3, width)) < 0.5)
    weights[:, rng.integers(width)] = 0.1
    for number in (0.0, 1 - 2.0**-53, rng.random()):
        words = draw(weights, Always(number))
        assert words.shape == (3,) and (np.take_along_axis(weights, words[:, None], axis=1) > 0).all()


def test_words_are_drawn_as_often_as_they_weigh():
    weights = np.array([0.1, 0.0, 0.6, 0.3])
    words = draw(np.broadcast_to(weights, (20000, 4)), seeded())
    assert_allclose(np.bincount(words, minlength=4) / 20000, weights, rtol=0, atol=0.015)
    assert_array_equal(draw(weights[None], Always(0.0999)), [0])
    assert_array_equal(draw(weights[None], Always(0.1001)), [2])


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────

def written_without_cache(gpt, prompt, count, choose):
    """The same text by whole forward passes over the window, as the page describes it"""
    length = len(gpt.positions.table)
    window, text = prompt[:, -length:], []
    for _ in range(count):
        if window.shape[1] > length:
            window = window[:, -((length + 1) // 2):]
        words = choose(gpt(window)[0][:, -1])
        text.append(words)
        window = np.concatenate([window, words[:, None]], axis=1)
    return np.stack(text, axis=1)


@pytest.mark.parametrize("length", [1, 2, 4, 5])
@pytest.mark.parametrize("prompt_length", [1, 4, 5, 8])
def test_greedy_writing_equals_whole_forward_passes(length, prompt_length):
    gpt, prompt = make(length=length), seeded(3).integers(V, size=(2, prompt_length))
    expected = written_without_cache(gpt, prompt, 13, lambda logits: logits.argmax(axis=-1))
    written = generate(gpt, prompt, count=13, temperature=0)
    assert_array_equal(written, expected)
    assert length < 4 or len(np.unique(written)) > 2
    assert_array_equal(generate(gpt, prompt, count=13, top_k=1, rng=seeded()), expected)


@few
@given(rngs, st.integers(0, 99), st.floats(0.3, 3), st.integers(2, V), st.floats(0.3, 1))
def test_drawn_writing_equals_whole_forward_passes(rng, seed, temperature, top_k, top_p):
    gpt, prompt, choices = make(), rng.integers(V, size=(3, 2)), dict(temperature=temperature, top_k=top_k, top_p=top_p)
    own = seeded(seed)
    expected = written_without_cache(gpt, prompt, 9, lambda logits: draw(next_word_weights(logits, **choices), own))
    assert_array_equal(generate(gpt, prompt, count=9, rng=seeded(seed), **choices), expected)


def test_the_window_holds_at_least_half_the_table():
    gpt, seen = make(length=6), []

    class Counted(GPT):
        def step(self, ids, cache):
            logits, cache = super().step(ids, cache)
            seen.append(cache.length)
            return logits, cache

    counted = Counted(gpt.embedding, gpt.positions, gpt.blocks)
    generate(counted, [[1, 2]], count=10, temperature=0)
    assert seen == [2, 3, 4, 5, 6, 3, 4, 5, 6, 3]


def test_writing_is_a_function_of_the_seed():
    gpt, prompt = make(), read_only(np.array([[1, 2], [3, 4]]))
    texts = [generate(gpt, prompt, count=12, rng=seeded(seed)) for seed in (1, 1, 2)]
    assert_array_equal(texts[0], texts[1])
    assert not np.array_equal(texts[0], texts[2])
    before = np.random.get_state()[1].copy()
    generate(gpt, prompt, count=3, rng=seeded())
    assert_array_equal(np.random.get_state()[1], before)


def test_a_longer_text_begins_with_the_shorter_one_and_never_ends():
    gpt, prompt = make(), [[1, 2]]
    text = generate(gpt, prompt, count=12, rng=seeded(1))
    assert text.shape == (1, 12)
    assert_array_equal(generate(gpt, prompt, count=7, rng=seeded(1)), text[:, :7])
    assert_array_equal(np.stack(list(islice(continuation(gpt, prompt, rng=seeded(1)), 12)), axis=1), text)
    assert generate(gpt, prompt, count=0).shape == (1, 0)


def test_dropout_is_off_while_writing():
    assert_array_equal(generate(make(dropout_rate=0.5, attention_dropout_rate=0.5), [[1]], count=9, temperature=0),
                       generate(make(), [[1]], count=9, temperature=0))


def test_greedy_writing_is_greedy_decoding():
    gpt, prompt = make(length=12), np.array([[1, 2], [1, 4]])

    class Reader:
        start = staticmethod(lambda source, *, pad: gpt.start(source))
        step = staticmethod(gpt.step)

    decoded = greedy_decode(Reader, prompt, start=5, end=99, pad=0, max_length=9)
    assert_array_equal(generate(gpt, np.append(prompt, [[5], [5]], axis=1), count=9, temperature=0), decoded)


@pytest.mark.parametrize("prompt, choices, error, message", [
    ([1, 2], {}, ValueError, r"^prompt has shape \(2,\): expected \(B, T\) with at least one word to begin from$"),
    (np.zeros((2, 0), int), {}, ValueError, r"^prompt has shape \(2, 0\): expected"),
    ([[1, V]], {}, IndexError, rf"^prompt\[0, 1\] is {V}, outside"),
    ([[0.5]], {}, TypeError, "^prompt must be integers"),
    ([[1]], dict(rng=None), ValueError, "^rng is None, but temperature 1.0 draws at random$"),
    ([[1]], dict(count=-1), ValueError, "^count must be a whole number of at least 0, not -1$"),
])
def test_prompts_that_cannot_be_continued(prompt, choices, error, message):
    with pytest.raises(error, match=message):
        generate(make(), prompt, **(dict(count=1, rng=seeded()) | choices))


# ── Characters ───────────────────────────────────────────────────────────────────────────────────

@given(st.text(min_size=1))
def test_characters_there_and_back(text):
    vocabulary = CharacterVocabulary.build(text)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text
    assert ids.shape == (len(text),) and set(ids) == set(range(len(vocabulary)))
    assert list(vocabulary.characters) == sorted(set(text))
    assert CharacterVocabulary(vocabulary.characters) == vocabulary


def test_characters_by_hand():
    vocabulary = CharacterVocabulary.build("hello\n")
    assert vocabulary.characters == "\nehlo" and len(vocabulary) == 5
    assert_array_equal(vocabulary.encode("hole"), [2, 4, 3, 1])
    assert vocabulary.decode(np.array([2, 1, 3, 4, 0], np.uint8)) == "helo\n"
    assert vocabulary.encode("").shape == (0,) and vocabulary.encode("").dtype.kind == "i" and vocabulary.decode([]) == ""
    with pytest.raises(FrozenInstanceError):
        vocabulary.characters = "a"


@pytest.mark.parametrize("call, error, message", [
    (lambda: CharacterVocabulary("aba"), ValueError, "^characters must be a text in which each occurs once, not 'aba'$"),
    (lambda: CharacterVocabulary(""), ValueError, "^characters must be"),
    (lambda: CharacterVocabulary.build(""), ValueError, "^characters must be"),
    (lambda: CharacterVocabulary(("a", "b")), ValueError, "^characters must be"),
    (lambda: CharacterVocabulary("ab").encode("abc"), ValueError, r"^text\[2\] is 'c', which the vocabulary does not have$"),
    (lambda: CharacterVocabulary("ab").decode([0, 2]), IndexError, r"^ids\[1\] is 2, outside \[0, 2\)$"),
    (lambda: CharacterVocabulary("ab").decode([-1]), IndexError, r"^ids\[0\] is -1, outside"),
    (lambda: CharacterVocabulary("ab").decode([1.0]), TypeError, "^ids must be integers"),
])
def test_characters_that_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


# ── Training ─────────────────────────────────────────────────────────────────────────────────────

@given(rngs, st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_windows(rng, length, batch_size, more):
    text = read_only(np.arange(100, 100 + length + more))
    inputs, targets = text_windows(text, length, batch_size, rng)
    assert inputs.shape == targets.shape == (batch_size, length)
    assert_array_equal(targets, inputs + 1)
    assert_array_equal(inputs, inputs[:, :1] + np.arange(length))
    assert inputs.min() >= 100 and targets.max() < 100 + len(text)


def test_every_place_of_the_text_may_be_cut_out():
    inputs, _ = text_windows(np.arange(6), 3, 200, seeded())
    assert_array_equal(np.unique(inputs[:, 0]), [0, 1, 2])
    assert_array_equal(text_windows(np.arange(6), 3, 4, seeded(1))[0], text_windows(np.arange(6), 3, 4, seeded(1))[0])


@pytest.mark.parametrize("ids, length, batch_size, message", [
    (np.arange(3), 3, 1, r"^ids has shape \(3,\): expected a text of more than 3 words, \(N,\)$"),
    (np.zeros((4, 4), int), 3, 1, r"^ids has shape \(4, 4\): expected a text"),
    (np.arange(3), 0, 1, "^length must be a whole number of at least 1, not 0$"),
    (np.arange(3), 2, 0, "^batch_size must be a whole number of at least 1, not 0$"),
])
def test_windows_that_cannot_be_cut(ids, length, batch_size, message):
    with pytest.raises(ValueError, match=message):
        text_windows(ids, length, batch_size, seeded())


TEXT = "one two three four five six seven "
VOCABULARY = CharacterVocabulary.build(TEXT)
IDS = VOCABULARY.encode(TEXT * 4)
TRAINING = TrainingConfig(steps=70, batch_size=8, warmup_steps=10, rate_factor=0.2, label_smoothing=0.0)


def beginning(**choices):
    config = GPTConfig(len(VOCABULARY), width=32, heads=2, hidden=64, layers=1, max_length=24, **choices)
    gpt = GPT.init(seeded(), config)
    return Progress(gpt, Adam(0.0).init(gpt))


def kept(progress):
    """A copy: what is yielded will be stepped on"""
    return map_tree(np.copy, progress)


def test_a_tiny_text_is_learned_and_written():
    run = list(gpt_training_steps(beginning(), IDS, TRAINING))
    assert [progress.step for progress in run] == list(range(1, 71))
    assert run[0].loss == pytest.approx(np.log(len(VOCABULARY)), abs=0.1)
    assert run[-1].loss < 0.25 and text_loss(run[-1].model, IDS) < 0.25
    written = generate(run[-1].model, VOCABULARY.encode("one two ")[None], count=60, temperature=0)
    assert ("one two " + VOCABULARY.decode(written[0]))[:68] == (TEXT * 3)[:68]


SHORT = replace(TRAINING, steps=4, batch_size=2)


def test_a_run_taken_up_again_goes_on_as_if_never_stopped():
    start = beginning(dropout_rate=0.1, attention_dropout_rate=0.1)
    run = list(map(kept, gpt_training_steps(start, IDS, SHORT)))
    again = list(map(kept, gpt_training_steps(run[1], IDS, SHORT)))
    assert [progress.step for progress in again] == [3, 4]
    for one, other in zip(run[2:], again, strict=True):
        assert one.loss == other.loss
        assert_same(one.model, other.model)
    assert list(gpt_training_steps(run[-1], IDS, SHORT)) == []
    other_seed = list(map(kept, gpt_training_steps(start, IDS, replace(SHORT, seed=1))))
    assert not np.array_equal(to_vector(other_seed[0].model), to_vector(run[0].model))
    assert len({progress.loss for progress in run}) == 4


def test_the_model_yielded_is_stepped_in_place_and_the_one_given_is_not():
    start = beginning()
    tables = [progress.model.embedding.table for progress in gpt_training_steps(start, IDS, SHORT)]
    assert all(table is tables[0] for table in tables) and tables[0] is not start.model.embedding.table


@pytest.mark.parametrize("window, length", [(None, 24), (9, 9)])
def test_a_step_by_hand(window, length):
    start = beginning(dropout_rate=0.2)
    config = TrainingConfig(steps=2, batch_size=3, warmup_steps=5, rate_factor=0.7, label_smoothing=0.2, max_norm=0.01,
                            weight_decay=0.3, cooldown_steps=3, seed=6)
    model, state = start.model, start.optimiser
    run = list(map(kept, gpt_training_steps(read_only(start), read_only(IDS), config, window=window)))
    for step, progress in enumerate(run, start=1):
        inputs, targets = text_windows(IDS, length, 3, seeded([6, 0, step]))
        logits, backward = model(inputs, seeded([6, 1, step]))
        loss, loss_backward = cross_entropy(logits, targets, label_smoothing=0.2)
        gradient, norm = clip_gradients(backward(loss_backward()), 0.01)
        assert norm > 0.01
        rate = 0.7 * warmup_schedule(step, 32, 5) * ((3 - step) / 3)
        model, state = Adam(0.0, weight_decay=0.3).update(model, gradient, state, rate)
        assert (progress.loss, progress.tokens) == (loss, 3 * length)
        assert_same(progress.model, model)


def test_a_window_is_no_longer_than_the_text_allows():
    run = list(gpt_training_steps(beginning(), IDS[:11], SHORT))
    assert [progress.tokens for progress in run] == 4 * [2 * 10]
    with pytest.raises(ValueError, match=r"^ids has shape \(11,\): expected a text of more than 11 words"):
        next(gpt_training_steps(beginning(), IDS[:11], SHORT, window=11))
    with pytest.raises(ValueError, match="^length must be a whole number of at least 1, not 0$"):
        next(gpt_training_steps(beginning(), IDS[:1], SHORT))
    with pytest.raises(ValueError, match="^length must be a whole number of at least 1, not 0$"):
        next(gpt_training_steps(beginning(), IDS, SHORT, window=0))
    with pytest.raises(ValueError, match="^a sequence of length 25 does not fit the table of 24 positions$"):
        next(gpt_training_steps(beginning(), IDS, SHORT, window=25))
    with pytest.raises(IndexError, match=r"^ids\[0\] is 99, outside"):
        next(gpt_training_steps(beginning(), [99] * 30, SHORT))


@pytest.mark.parametrize("count", [2, 5, 6, 7, 11, 12])
def test_the_loss_of_a_text_counts_every_word_but_the_first(count):
    gpt, ids = make(), seeded(2).integers(V, size=count)
    expected = []
    for place in range(1, count):
        first = (place - 1) // P * P
        expected.append(-np.log(softmax(gpt(ids[None, first:place])[0][0, -1])[ids[place]]))
    assert text_loss(gpt, ids) == pytest.approx(np.mean(expected), abs=1e-12)
    assert text_loss(gpt, list(ids)) == text_loss(gpt, ids)


def test_the_loss_of_a_text_without_a_second_word():
    assert text_loss(make(), [1]) == text_loss(make(), []) == 0.0


@pytest.mark.parametrize("length", range(8))
def test_a_text_is_read_once_and_no_window_is_empty(length):
    read = []

    class Reader:
        positions = make().positions

        def __call__(self, ids):
            read.append(ids.tolist()[0])
            return make()(ids)

    text_loss(Reader(), np.arange(length) % 3)
    assert sum(read, []) == [i % 3 for i in range(length - 1)] and all(read)


def test_the_loss_of_a_text_is_without_dropout():
    make = lambda **c: GPT.init(np.random.default_rng(0), GPTConfig(7, 8, 2, 5, 1, 5, **c), dtype=np.float64)
    ids = np.random.default_rng(2).integers(7, size=13)
    assert text_loss(make(dropout_rate=0.9, attention_dropout_rate=0.9), ids) == text_loss(make(), ids)
