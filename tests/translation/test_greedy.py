"""Greedy decoding: the likeliest word each time, for every sentence of a batch as if it were alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import loops
from numpy_transformer.foundations.parameters import map_tree, named_parameters
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.training.batches import pad_to_longest
from numpy_transformer.translation.greedy import greedy_decode
from strategies import read_only, talkative_model

PAD, START, END = 0, 1, 2
IDS = dict(start=START, end=END, pad=PAD)
SMALL = TransformerConfig(9, 6, width=6, heads=2, hidden=5, encoder_layers=1, decoder_layers=2, max_length=8,
                          tie_embeddings=False)

sources = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=1, max_size=4)
few = settings(max_examples=settings().max_examples // 3)  # whole models take their time


class Script:
    """A model that says what is written in `lines`, one line a sentence, and then 5 for ever; it notes what it is fed."""

    def __init__(self, *lines):
        self.lines, self.fed, self.read = lines, [], None

    def start(self, source, *, pad):
        self.read = (source, pad)
        return 0

    def step(self, ids, cache):
        assert cache == len(self.fed)  # each step is given the cache of the step before
        self.fed.append(ids.tolist())
        logits = np.zeros((len(ids), 7))
        for row, line in zip(logits, self.lines, strict=True):
            row[(*line, *[5] * 20)[cache]] = 1
        return logits, cache + 1


def a_model(config=SMALL, seed=0, dtype=np.float64):
    return talkative_model(config, END, seed, dtype)


# ── Scripted ─────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("lines, expected, fed", [
    pytest.param([[END], [3, 4, END]], [[END, PAD, PAD], [3, 4, END]],
                 [[START, START], [END, 3], [PAD, 4]], id="ragged"),
    pytest.param([[3, 4, END], [END]], [[3, 4, END], [END, PAD, PAD]],
                 [[START, START], [3, END], [4, PAD]], id="ragged the other way"),
    pytest.param([[3, END], [4, END]], [[3, END], [4, END]], [[START, START], [3, 4]], id="all at once"),
    pytest.param([[END]], [[END]], [[START]], id="nothing to say"),
    pytest.param([[3, PAD, 4, END]], [[3, PAD, 4, END]], [[START], [3], [PAD], [4]], id="padding is not the end"),
    pytest.param([], np.zeros((0, 0)), [], id="no sentence"),
])
def test_a_sentence_that_has_ended_waits_for_the_others(lines, expected, fed):
    model, source = Script(*lines), np.full((len(lines), 2), 7)
    ids = greedy_decode(model, source, **IDS, max_length=10)
    assert ids.dtype.kind == "i"
    assert_array_equal(ids, expected, strict=False)
    assert ids.shape == np.shape(expected)
    assert model.fed == fed


@pytest.mark.parametrize("max_length", [1, 2, 3, 7])
def test_what_has_no_end_is_cut_at_the_longest_length_allowed(max_length):
    model = Script([3, 4], [3, 3, 3, END])
    ids = greedy_decode(model, np.full((2, 1), 7), **IDS, max_length=max_length)
    full = np.array([[3, 4, 5, 5, 5, 5, 5], [3, 3, 3, END, PAD, PAD, PAD]])
    assert_array_equal(ids, full[:, :max_length], strict=True)
    assert len(model.fed) == max_length


def test_the_ids_may_be_any_and_the_model_is_told_the_padding():
    model, source = Script([6, 4], [4]), [[7, 7], [7, 3]]
    ids = greedy_decode(model, source, start=np.int64(2), end=4, pad=3, max_length=np.int32(9))
    assert ids.tolist() == [[6, 4], [4, 3]]
    assert model.fed == [[2, 2], [6, 4]]
    read, pad = model.read
    assert_array_equal(read, np.array(source), strict=True)
    assert pad == 3


def test_of_equally_likely_words_the_first_is_written():
    class Undecided(Script):
        def step(self, ids, cache):
            return np.zeros((len(ids), 4)) + [0, -1, 0, 0], super().step(ids, cache)[1]

    assert greedy_decode(Undecided([], []), np.ones((2, 1), int), start=1, end=2, pad=3, max_length=2).tolist() == [[0, 0]] * 2


# ── Real ─────────────────────────────────────────────────────────────────────────────────────────

def likeliest_by_whole_passes(model, sentence, max_length):
    """Greedy decoding of one sentence without a cache: the whole forward pass for every word"""
    def log_probabilities(prefix):
        logits, _ = model(np.array([sentence]), np.array([prefix]), pad=99)
        return logits[0, -1]  # the order is that of the probabilities

    return loops.greedy_search(log_probabilities, START, END, max_length)


@pytest.mark.parametrize("config", [
    SMALL, replace(SMALL, norm_first=False, final_norm=False), replace(SMALL, tie_embeddings=True, learned_positions=True)],
    ids=["pre-norm", "post-norm", "tied, learned positions"])
@few
@given(lists=sources, seed=st.integers(0, 50), max_length=st.integers(1, 8))
def test_with_a_cache_it_finds_what_whole_forward_passes_find(config, lists, seed, max_length):
    model = read_only(a_model(config, seed))
    ids = greedy_decode(model, pad_to_longest(lists), **IDS, max_length=max_length)
    expected = [likeliest_by_whole_passes(model, sentence, max_length) for sentence in lists]
    assert_array_equal(ids, pad_to_longest(expected, PAD), strict=True)


def test_the_models_above_end_some_sentences_and_not_others():
    found = [greedy_decode(a_model(seed=seed), [[3, 4]], **IDS, max_length=8)[0] for seed in range(30)]
    lengths = [len(ids) for ids in found]
    assert lengths.count(1) > 3 and lengths.count(8) > 3 and sum(1 < length < 8 for length in lengths) > 3
    assert sum(len(set(ids.tolist())) > 2 for ids in found) > 3


@few
@given(sources, st.integers(0, 50))
def test_each_sentence_of_a_batch_fares_as_it_does_alone(lists, seed):
    model = a_model(seed=seed)
    together = greedy_decode(model, pad_to_longest(lists), **IDS, max_length=8)
    alone = [greedy_decode(model, [sentence], **IDS, max_length=8)[0] for sentence in lists]
    assert_array_equal(together, pad_to_longest(alone), strict=True)


def test_decoding_changes_neither_the_model_nor_the_source():
    model, source = read_only(a_model()), read_only(np.array([[3, 4, 0], [5, 6, 7]]))
    kept = map_tree(np.copy, (model, source))
    first = greedy_decode(model, source, **IDS, max_length=8)
    assert_array_equal(greedy_decode(model, source, **IDS, max_length=8), first, strict=True)
    for name, array in named_parameters((model, source)).items():
        assert_array_equal(array, named_parameters(kept)[name], strict=True)


def test_an_empty_batch_gives_an_empty_batch():
    ids = greedy_decode(a_model(), np.zeros((0, 4), int), **IDS, max_length=5)
    assert ids.shape == (0, 0) and ids.dtype.kind == "i"


def test_an_empty_source_can_still_be_continued():
    ids = greedy_decode(a_model(dtype=np.float32), np.zeros((2, 0), int), **IDS, max_length=5)
    assert_array_equal(ids[0], ids[1])
    assert_array_equal(ids, greedy_decode(a_model(dtype=np.float32), [[PAD, PAD]] * 2, **IDS, max_length=5), strict=True)


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None, True, math.nan], ids=repr)
def test_the_longest_length_is_a_whole_number_of_at_least_one(value):
    model = Script([END])
    with pytest.raises(ValueError, match=rf"^max_length must be a whole number of at least 1, not {value!r}$"):
        greedy_decode(model, np.ones((1, 1), int), **IDS, max_length=value)
    assert model.fed == [] and model.read is None


@pytest.mark.parametrize("name", ["start", "end", "pad"])
@pytest.mark.parametrize("value", [-1, 2.0, "2", None, True], ids=repr)
def test_what_is_no_id_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least 0, not {value!r}$"):
        greedy_decode(Script([END]), np.ones((1, 1), int), **IDS | {name: value}, max_length=3)


@pytest.mark.parametrize("source", [3, [3, 4], [[[3, 4]]]], ids=str)
def test_a_source_is_a_batch_of_sentences(source):
    with pytest.raises(ValueError, match=rf"^source has shape \({', '.join(map(str, np.shape(source)))},?\): expected \(B, S\)"):
        greedy_decode(Script([END], [END]), source, **IDS, max_length=3)


@pytest.mark.parametrize("source, settings, error, message", [
    ([[3, 99]], {}, IndexError, r"source\[0, 1\] is 99, outside \[0, 9\)"),
    ([[3, -1]], {}, IndexError, r"source\[0, 1\] is -1, outside \[0, 9\)"),
    ([[3.0, 4.0]], {}, TypeError, "source must be integers, not dtype float64"),
    ([[3] * 9], {}, ValueError, "a sequence of length 9 does not fit the table of 8 positions"),
    ([[3]], {"start": 6}, IndexError, r"ids\[0\] is 6, outside \[0, 6\)"),
    ([[3]], {"end": 6, "max_length": 9}, ValueError, "a sequence of length 9 does not fit the table of 8 positions"),
])
def test_what_the_model_cannot_read_or_write_is_named(source, settings, error, message):
    with pytest.raises(error, match=message):
        greedy_decode(a_model(), source, **dict(IDS, max_length=3) | settings)


def test_as_many_words_as_there_are_positions_fit():
    assert greedy_decode(a_model(), [[3] * 8], **IDS | {"end": 6}, max_length=8).shape == (1, 8)
