"""Batches: what is padding, what the decoder is shown and asked for, and which sentences share a batch."""

import math
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_transformer.training import batches
from numpy_transformer.training.batches import BOS, EOS, PAD, epoch, make_batch, pad_to_longest
from numpy_transformer.training.cross_entropy import cross_entropy
from strategies import assert_same

words = st.lists(st.integers(3, 9), max_size=6)
examples = st.lists(st.tuples(words, words), min_size=1, max_size=9)


def numbered(rng, count, longest=12):
    """Examples of random lengths, each with a number of its own at the head of its source"""
    return [([n + 3, *rng.integers(3, 9, rng.integers(longest))], [*rng.integers(3, 9, rng.integers(longest))])
            for n in range(count)]


def rows(batch):
    """The examples of a batch, without padding, <bos> and <eos>"""
    return [([int(i) for i in source if i not in (PAD, EOS)], [int(i) for i in output if i not in (PAD, EOS)])
            for source, output in zip(batch.source, batch.target_output)]


def padding(batches):
    return sum(int((array == PAD).sum()) for batch in batches for array in (batch.source, batch.target_output))


# ── One batch ────────────────────────────────────────────────────────────────────────────────────

@given(st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=5), st.sampled_from([0, 7, -1]))
def test_short_rows_are_filled_up_on_the_right(lists, pad):
    ids = pad_to_longest(lists, pad)
    longest = max(map(len, lists), default=0)
    assert ids.shape == (len(lists), longest)
    assert ids.dtype.kind == "i" or not ids.size
    assert ids.tolist() == [row + [pad] * (longest - len(row)) for row in lists]
    assert_same(pad_to_longest(lists), pad_to_longest(lists, 0))


def test_the_special_ids():
    assert (PAD, BOS, EOS) == (0, 1, 2)


def test_the_decoder_is_shown_the_target_one_place_late():
    batch = make_batch([([8], [5, 6]), ([7, 9, 7], [4, 5, 6, 7])])
    assert batch.source.tolist() == [[8, EOS, PAD, PAD], [7, 9, 7, EOS]]
    assert batch.target_input.tolist() == [[BOS, 5, 6, PAD, PAD], [BOS, 4, 5, 6, 7]]
    assert batch.target_output.tolist() == [[5, 6, EOS, PAD, PAD], [4, 5, 6, 7, EOS]]
    assert batch.tokens == 3 + 5


@given(examples)
def test_input_and_output_are_one_sequence_one_place_apart(drawn):
    batch = make_batch(drawn)
    assert batch.target_input.shape == batch.target_output.shape
    for (source, target), s, i, o in zip(drawn, batch.source, batch.target_input, batch.target_output, strict=True):
        assert [int(n) for n in s[s != PAD]] == [*source, EOS]
        assert [int(n) for n in i[i != PAD]] == [BOS, *target]
        assert [int(n) for n in o[o != PAD]] == [*target, EOS]
        assert i[1:len(target) + 1].tolist() == o[:len(target)].tolist() == target
    assert type(batch.tokens) is int
    assert batch.tokens == sum(len(target) + 1 for _, target in drawn)


def test_a_model_that_copies_what_it_is_shown_scores_badly_and_one_that_looks_ahead_well():
    batch = make_batch([([3], [5, 6, 7, 5]), ([3], [8, 4])])
    copied, _ = cross_entropy(20 * np.eye(9)[batch.target_input], batch.target_output, ignore_index=PAD)
    known, _ = cross_entropy(20 * np.eye(9)[batch.target_output], batch.target_output, ignore_index=PAD)
    assert copied == pytest.approx(20, abs=1e-6)
    assert known < 1e-6


def test_empty_sentences_are_an_end_and_nothing_before_it():
    batch = make_batch([([], []), ([], [])])
    assert (batch.source.tolist(), batch.target_input.tolist(), batch.target_output.tolist()) == (
        [[EOS]] * 2, [[BOS]] * 2, [[EOS]] * 2)
    assert batch.tokens == 2
    nothing = make_batch([])
    assert nothing.source.shape == nothing.target_input.shape == nothing.target_output.shape == (0, 0)
    assert nothing.tokens == 0


@pytest.mark.parametrize("row", [[1.5, 2.0], [3.0], ["word"]], ids=str)
def test_ids_that_are_no_integers_are_refused_and_not_rounded(row):
    with pytest.raises(TypeError, match="rows must hold integers, not dtype "):
        make_batch([([4, 5, 6], [7]), (row, [8])])


# ── One epoch ────────────────────────────────────────────────────────────────────────────────────

@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 2**32))
def test_every_example_comes_once_in_batches_of_the_size_asked_for(count, batch_size, seed):
    drawn = numbered(np.random.default_rng(seed), count)
    found = list(epoch(drawn, batch_size, np.random.default_rng(seed)))
    together = sorted(row for batch in found for row in rows(batch))
    assert together == sorted(([*map(int, source)], [*map(int, target)]) for source, target in drawn)
    sizes = Counter(len(batch.source) for batch in found)
    expected = Counter([batch_size] * (count // batch_size) + [count % batch_size] * (count % batch_size > 0))
    assert sizes == expected


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 2**32))
def test_the_batches_of_a_bucket_are_cut_from_one_sorted_row(count, batch_size, seed):
    drawn = numbered(np.random.default_rng(seed), count)
    with patch.object(batches, "BUCKET", 60):
        found = epoch(drawn, batch_size, np.random.default_rng(seed))
        lengths = sorted([(len(s), len(t)) for s, t in rows(batch)] for batch in found)
    together = [pair for batch in lengths for pair in batch]
    assert together == sorted(together) == sorted((len(source), len(target)) for source, target in drawn)


@pytest.mark.parametrize("count", [63, 64, 65, 127, 129, 200])
def test_every_example_comes_once_however_many_buckets(count):
    examples = [([4 + i], [5]) for i in range(count)]
    found = [row[0] for batch in epoch(examples, 2, np.random.default_rng(0)) for row in batch.source.tolist()]
    assert sorted(found) == [4 + i for i in range(count)]


@pytest.mark.parametrize("count, one_bucket", [(2 * 32, True), (2 * 33, False)])
def test_a_bucket_holds_32_batches(count, one_bucket):
    drawn = [([3] * n, [3]) for n in range(count)]
    found = list(epoch(drawn, 2, np.random.default_rng(0)))
    neighbours = all((batch.source != PAD).sum() % 4 == 3 for batch in found)  # n + 1 and n + 2 words, n even
    assert neighbours == one_bucket
    assert padding(found) > count / 2 or one_bucket


def test_sorting_saves_most_of_the_padding(rng=np.random.default_rng(1)):
    drawn = numbered(rng, 400, longest=30)
    unsorted = [make_batch(drawn[i : i + 8]) for i in range(0, 400, 8)]
    assert padding(epoch(drawn, 8, rng)) < 0.6 * padding(unsorted)


def test_the_order_is_a_function_of_the_generator_alone():
    drawn = numbered(np.random.default_rng(2), 23)

    def order(seed, examples=drawn):
        return [rows(batch) for batch in epoch(examples, 4, np.random.default_rng(seed))]

    state = np.random.get_state()
    assert order(5) == order(5) == order(5, tuple(drawn))
    after = np.random.get_state()
    assert state[0] == after[0] and state[1].tobytes() == after[1].tobytes() and state[2:] == after[2:]
    assert order(5) != order(6)


def test_batches_come_in_random_order_and_not_from_short_to_long():
    drawn = numbered(np.random.default_rng(3), 39)
    firsts, shorts = set(), set()
    for seed in range(20):
        found = list(epoch(drawn, 4, np.random.default_rng(seed)))
        widths = [batch.source.shape[1] for batch in found]
        firsts.add(widths.index(min(widths)))
        shorts.add([len(batch.source) for batch in found].index(3))
    assert len(firsts) > 3 and len(shorts) > 3


def test_sentences_of_equal_length_meet_others_in_the_next_epoch():
    drawn = [([n + 3], [n + 3]) for n in range(12)]
    groups = {frozenset(frozenset(batch.source[:, 0].tolist()) for batch in epoch(drawn, 3, np.random.default_rng(seed)))
              for seed in range(10)}
    assert len(groups) == 10


def test_no_examples_make_no_batches():
    assert list(epoch([], 4, np.random.default_rng(0))) == []


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None, True, math.nan], ids=repr)
def test_a_batch_size_is_a_whole_number_of_at_least_one(value):
    with pytest.raises(ValueError, match=rf"^batch_size must be a whole number of at least 1, not {value!r}$"):
        list(epoch([([3], [4])], value, np.random.default_rng(0)))
