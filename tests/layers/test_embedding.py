"""The embedding: rows looked up by number, and gradients that add up where a number occurs again."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

import loops
from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.layers.embedding import Embedding
from strategies import (
    assert_close, assert_keeps_dtype, assert_pure_and_linear, assert_same, assert_same_for_layouts, read_only, rngs)

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@st.composite
def tables_and_ids(draw, least=0):
    """A table of few words, and ids of any rank, so that words occur often, once, or never"""
    V, D, rng = draw(st.integers(1, 7)), draw(st.integers(1, 4)), draw(rngs)
    shape = draw(hnp.array_shapes(min_dims=least, max_dims=3, min_side=least, max_side=5))
    ids = draw(hnp.arrays(draw(st.sampled_from(INTEGERS)), shape, elements=st.integers(0, V - 1)))
    return Embedding(rng.normal(size=(V, D))), ids, rng


# ── Looking up ───────────────────────────────────────────────────────────────────────────────────

def test_rows_by_hand():
    layer = Embedding(np.array([[1.0, 2], [3, 4], [5, 6]]))
    y, backward = layer(np.array([[2, 0], [2, 1]]))
    assert_array_equal(y, [[[5, 6], [1, 2]], [[5, 6], [3, 4]]])
    gradient = backward(np.array([[[1.0, 10], [2, 20]], [[3, 30], [4, 40]]]))
    assert_array_equal(gradient.table, [[2, 20], [4, 40], [4, 40]])


def test_repeated_ids_add_up():
    """What `table[ids] += dy` gets wrong: of several places with one id it keeps the last."""
    _, backward = Embedding(np.zeros((4, 3)))(np.array([[1, 1, 2], [1, 0, 1]]))
    assert_array_equal(backward(np.ones((2, 3, 3))).table, [[1] * 3, [4] * 3, [1] * 3, [0] * 3])


@given(tables_and_ids())
def test_agrees_with_loops(drawn):
    layer, ids, rng = drawn
    y, backward = layer(ids)
    assert_array_equal(y, loops.embedding(layer.table, ids), strict=True)
    dy = rng.normal(size=y.shape)
    assert_close(backward(dy).table, loops.embedding_backward(layer.table, ids, dy))


@given(tables_and_ids(least=1))
def test_is_the_product_with_one_hot_rows(drawn):
    layer, ids, rng = drawn
    one_hot = (ids[..., None] == np.arange(len(layer.table))).astype(float)
    y, backward = layer(ids)
    assert_close(y, one_hot @ layer.table)
    dy = rng.normal(size=y.shape)
    rows = one_hot.reshape(ids.size, -1).T @ dy.reshape(ids.size, -1)
    assert_close(backward(dy).table, rows)


@given(tables_and_ids())
def test_gradient(drawn):
    layer, ids, rng = drawn
    assert set(check_gradients(lambda layer: layer(ids), layer, rng=rng)) == {"layer.table"}


def test_many_words_of_a_large_vocabulary():
    rng = np.random.default_rng(1)
    ids, dy = rng.integers(0, 1000, (20, 50)), rng.normal(size=(20, 50, 3))
    gradient = Embedding(np.zeros((1000, 3)))(ids)[1](dy)
    expected = np.zeros((1000, 3))
    np.add.at(expected, ids, dy)
    assert_close(gradient.table, expected)


def test_the_result_is_not_a_window_into_the_table():
    layer = Embedding(np.random.default_rng(2).normal(size=(4, 3)))
    for ids in (np.array(2), np.array([0, 1, 2, 3]), np.array([[1]])):
        y, backward = layer(ids)
        assert not np.shares_memory(y, layer.table)
        assert not np.shares_memory(backward(np.ones_like(y)).table, layer.table)


def test_words_that_do_not_occur_have_no_gradient():
    _, backward = Embedding(np.ones((5, 2)))(np.array([3]))
    assert_array_equal(backward(np.array([[7.0, 8.0]])).table, [[0, 0], [0, 0], [0, 0], [7, 8], [0, 0]])


# ── Ids of every kind ────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("dtype", INTEGERS)
def test_first_and_last_id_of_every_integer_dtype(dtype):
    layer = Embedding(np.arange(8.0).reshape(4, 2))
    y, backward = layer(np.array([0, 3, 3], dtype))
    assert_array_equal(y, [[0, 1], [6, 7], [6, 7]])
    assert_array_equal(backward(np.ones((3, 2))).table, [[1, 1], [0, 0], [0, 0], [2, 2]])


def test_ids_in_lists_and_alone():
    layer = Embedding(np.arange(8.0).reshape(4, 2))
    assert_array_equal(layer([[1, 2]])[0], [[[2, 3], [4, 5]]])
    y, backward = layer(3)
    assert_array_equal(y, [6, 7])
    assert_array_equal(backward(np.array([1.0, 2.0])).table, [[0, 0], [0, 0], [0, 0], [1, 2]])


@pytest.mark.parametrize("ids", [
    pytest.param([], id="list"), pytest.param([[], []], id="lists"),
    pytest.param(np.zeros((0, 3), int), id="no sentence"), pytest.param(np.zeros((2, 0), np.uint8), id="no word")])
def test_no_ids(ids):
    with np.errstate(all="raise"):
        y, backward = Embedding(np.ones((4, 2), np.float32))(ids)
        gradient = backward(y)
    assert y.shape == (*np.shape(ids), 2)
    assert_array_equal(gradient.table, np.zeros((4, 2), np.float32), strict=True)


@pytest.mark.parametrize("ids, message", [
    ([-1], r"ids\[0\] is -1, outside \[0, 4\)"),
    ([4], r"ids\[0\] is 4, outside \[0, 4\)"),
    (4, r"ids\[\] is 4, outside \[0, 4\)"),
    ([[0, 3, 1], [2, 99, -7]], r"ids\[1, 1\] is 99, outside \[0, 4\)"),
    (np.array([255], np.uint8), r"ids\[0\] is 255, outside \[0, 4\)"),
    (np.array([2**64 - 1], np.uint64), r"ids\[0\] is 18446744073709551615, outside \[0, 4\)"),
    (np.array([-(2**63)]), r"ids\[0\] is -9223372036854775808, outside \[0, 4\)"),
])
def test_an_id_outside_the_vocabulary_is_named(ids, message):
    with pytest.raises(IndexError, match=message):
        Embedding(np.ones((4, 2)))(ids)


@pytest.mark.parametrize("ids, message", [
    ([1.0], "ids must be integers, not dtype float64, for example .*1.0"),
    ([[0.0, 2.7]], "ids must be integers, not dtype float64"),
    (np.float32(2.7), "ids must be integers, not dtype float32, for example .*2.7"),
    ([float("nan")], "ids must be integers, not dtype float64, for example .*nan"),
    ([True, False], "ids must be integers, not dtype bool, for example .*True"),
    (["the"], "ids must be integers, not dtype <U3, for example .*the"),
    ([None], "ids must be integers, not dtype object, for example None"),
    (np.zeros(0, bool), "ids must be integers, not dtype bool$"),
])
def test_an_id_that_is_no_integer_is_refused(ids, message):
    with pytest.raises(TypeError, match=message):
        Embedding(np.ones((4, 2)))(ids)


# ── Purity, memory, dtypes ───────────────────────────────────────────────────────────────────────

@given(tables_and_ids())
def test_pure_and_linear(drawn):
    layer, ids, rng = drawn
    (ids,) = read_only((ids,))
    before = ids.copy()
    assert_pure_and_linear(lambda layer: layer(ids), layer, rng=rng)
    assert_array_equal(ids, before, strict=True)


@given(tables_and_ids(least=1))
def test_memory_layout_does_not_matter(drawn):
    layer, ids, rng = drawn
    assert_same_for_layouts(lambda layer: layer(ids), layer, rng=rng)
    dy = rng.normal(size=(*ids.shape, layer.table.shape[1]))
    expected = layer(ids)[1](dy)
    wide = np.full((*ids.shape, 2), 99, ids.dtype)
    wide[..., 1] = ids
    for other in (np.asfortranarray(ids), wide[..., 1], ids[::-1].copy()[::-1]):
        assert_array_equal(layer(other)[0], layer(ids)[0])
        assert_same(layer(other)[1](dy), expected, atol=1e-12)


@given(tables_and_ids(), st.sampled_from([np.float32, np.float64]))
def test_dtype_is_kept(drawn, dtype):
    layer, ids, rng = drawn
    assert_keeps_dtype(lambda layer: layer(ids), layer, rng=rng, dtype=dtype, near=1e-5 if dtype == np.float32 else 0)


# ── Construction ─────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [16, 100])
def test_initial_vectors_have_length_one_on_average(width, dtype):
    table = Embedding.init(np.random.default_rng(3), 500, width, dtype=dtype).table
    assert table.shape == (500, width) and table.dtype == dtype
    assert_allclose(table.var(), 1 / width, rtol=0.03)
    assert abs(table.mean()) < 3 / np.sqrt(table.size * width)
    assert_allclose((table**2).sum(axis=1).mean(), 1, rtol=0.03)
    kurtosis = (table**4).mean() / table.var() ** 2
    assert_allclose(kurtosis, 3, rtol=0.1)  # normal; a uniform draw of the same variance would have 1.8


def test_same_seed_same_table():
    one, same, other = (Embedding.init(np.random.default_rng(seed), 5, 3).table for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert not np.isin(one, other).any()
    assert one.dtype == np.float32


def test_a_layer_is_itself_alone_and_cannot_be_changed():
    layer = Embedding(np.ones((4, 2)))
    assert layer == layer != replace(layer) and len({layer, layer, replace(layer)}) == 2
    with pytest.raises(FrozenInstanceError):
        layer.table = None


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 4)])
def test_a_table_of_another_rank_is_refused(shape):
    with pytest.raises(ValueError, match=r"table has shape \(.*\): expected \(vocabulary, width\)") as error:
        Embedding(np.ones(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", None, True], ids=repr)
def test_sizes_must_be_positive_whole_numbers(value):
    with pytest.raises(ValueError, match=f"vocabulary must be a whole number of at least 1, not {value!r}"):
        Embedding.init(np.random.default_rng(0), value, 3)
    with pytest.raises(ValueError, match=f"width must be a whole number of at least 1, not {value!r}"):
        Embedding.init(np.random.default_rng(0), 3, value)
