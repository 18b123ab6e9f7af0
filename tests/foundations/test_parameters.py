"""Walking a tree: the arrays, all of them, each once, in the order in which they stand."""

import gc
import re
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from strategies import assert_same

from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import (
    add_trees, from_vector, map_tree, named_parameters, parameter_count, replace_parameters, to_vector,
)


@dataclass(frozen=True, eq=False)
class Block:
    layers: tuple
    gain: np.ndarray
    norm: object = None
    rate: float = 0.25


def numbered(*shapes):
    """Arrays of these shapes that count on from one to the next"""
    start = 0
    for shape in shapes:
        size = int(np.prod(shape))
        yield np.arange(start, start + size, dtype=np.float64).reshape(shape)
        start += size


def a_tree():
    w, b, v, c, g = numbered((2, 3), (3,), (3, 1), (1,), (4,))
    return Block((Linear(w, b), (Linear(v, c),), ()), g)


NAMES = ["layers.0.weight", "layers.0.bias", "layers.1.0.weight", "layers.1.0.bias", "gain"]

trees = st.recursive(
    st.sampled_from([(), (2,), (1, 3), (0, 2)]).map(lambda shape: np.ones(shape)) | st.sampled_from([None, 0.5, "a"]),
    lambda part: st.lists(part, max_size=3).map(tuple) | st.builds(Block, st.tuples(part), st.just(np.ones(2)), part),
    max_leaves=6)


def test_names_and_order():
    tree = a_tree()
    named = named_parameters(tree)
    assert list(named) == NAMES
    assert named["layers.0.bias"] is tree.layers[0].bias and named["layers.1.0.weight"] is tree.layers[1][0].weight
    assert list(named_parameters((tree.gain, tree))) == ["0", *(f"1.{name}" for name in NAMES)]
    assert list(named_parameters(tree.gain)) == [""]
    assert named_parameters(None) == named_parameters(()) == named_parameters(0.5) == {}


def test_map_goes_through_every_array_and_leaves_the_settings():
    tree = a_tree()
    mapped = map_tree(lambda a, b: a + 10 * b, tree, tree)
    assert type(mapped) is Block and mapped.rate == 0.25 and mapped.norm is None and len(mapped.layers) == 3
    for name, array in named_parameters(mapped).items():
        assert_array_equal(array, 11 * named_parameters(tree)[name])


def test_settings_stay_as_in_the_first_tree():
    one, two = Block((), np.ones(2), rate=0.25), Block((), np.ones(2), rate=0.75)
    assert map_tree(np.add, one, two).rate == 0.25 and map_tree(np.add, two, one).rate == 0.75


@dataclass(frozen=True)
class Settings:
    rate: float = 0.5
    norm: object = None


def test_a_part_without_arrays_stays_the_very_same_object():
    settings = Settings()
    tree = Block((settings, Settings(0.25)), np.ones(2), settings)
    mapped = map_tree(lambda a: a + 1, tree)
    assert mapped.norm is mapped.layers[0] is settings and mapped.layers[1] is tree.layers[1]
    assert_array_equal(mapped.gain, [2, 2])
    assert mapped is not tree and map_tree(lambda a: a, tree).gain is tree.gain
    assert list(named_parameters(tree)) == ["gain"] and parameter_count(settings) == 0


def test_the_arguments_of_f_keep_the_order_of_the_trees():
    assert_array_equal(map_tree(lambda a, b, c: a - 10 * b + 100 * c, *(np.array([n]) for n in (1.0, 2.0, 3.0))), [281])


class Kin(Block):
    """Of a class of its own"""


@pytest.mark.parametrize("one, two, message", [
    (Block((), np.ones(2)), Kin((), np.ones(2)), r"\['Block', 'Kin'\]"),
    (np.ones(2), None, r"\['ndarray', 'NoneType'\]"),
    ((np.ones(2),), np.ones(2), r"\['tuple', 'ndarray'\]"),
    ((np.ones(2),), (np.ones(2), np.ones(2)), r"tuples of \[1, 2\]"),
    (Block((), np.ones(2)), Linear(np.ones((1, 2)), np.ones(2)), r"\['Block', 'Linear'\]"),
    (Block((np.ones(1),), np.ones(2)), Block((None,), np.ones(2)), r"\['ndarray', 'NoneType'\]"),
    (Block((), np.ones(2)), Block((), np.ones(2), np.ones(1)), r"\['NoneType', 'ndarray'\]"),
])
def test_trees_of_different_form(one, two, message):
    for pair in ((one, two), (one, one, two)):
        with pytest.raises(TypeError, match="trees differ in form"):
            map_tree(lambda *arrays: arrays[0], *pair)
    with pytest.raises(TypeError, match=message):
        add_trees(one, two)


def test_add():
    one, two = a_tree(), map_tree(np.ones_like, a_tree())
    before = map_tree(np.copy, one)
    assert_same(add_trees(one, two), map_tree(lambda a: a + 1, one))
    assert_same(one, before)


def test_replace_by_name():
    tree = a_tree()
    other = {name: array + 1 for name, array in named_parameters(tree).items()}
    replaced = replace_parameters(tree, dict(reversed(other.items())))
    assert_same(named_parameters(replaced)["gain"], other["gain"])
    assert_same(replaced, map_tree(lambda a: a + 1, tree))
    assert_same(tree, a_tree())


@pytest.mark.parametrize("change, message", [
    ({"gain": None}, r"^parameter 'gain' is missing$"),
    ({"layers.1.0.bias": None}, r"^parameter 'layers\.1\.0\.bias' is missing$"),
    ({"layers.2.weight": np.ones(2)}, r"^parameter 'layers\.2\.weight' belongs to no place in the Block$"),
    ({"layers.0.weight": np.ones((3, 2))}, r"^parameter 'layers\.0\.weight' has shape \(3, 2\): expected \(2, 3\)$"),
    ({"gain": np.ones((4, 1))}, r"^parameter 'gain' has shape \(4, 1\): expected \(4,\)$"),
])
def test_a_replacement_that_does_not_fit(change, message):
    tree = a_tree()
    arrays = named_parameters(tree) | change
    with pytest.raises(ValueError, match=message):
        replace_parameters(tree, {name: array for name, array in arrays.items() if array is not None})
    assert_same(tree, a_tree())


def test_count():
    assert parameter_count(a_tree()) == 6 + 3 + 3 + 1 + 4
    assert parameter_count(np.ones(())) == 1 and parameter_count(()) == 0 and parameter_count(np.ones((3, 0))) == 0


def test_a_tree_as_one_vector():
    vector = to_vector(a_tree())
    assert_array_equal(vector, np.arange(17.0))
    vector[0] = 99
    assert_same(a_tree().layers[0].weight, np.arange(6.0).reshape(2, 3))
    copied = a_tree()
    to_vector(copied)[:] = 0
    assert_same(copied, a_tree())


def test_a_tree_written_into_a_vector():
    vector = np.full(19, -1.0)
    assert np.shares_memory(to_vector(a_tree(), out=vector[1:18]), vector)
    assert_array_equal(vector, [-1, *range(17), -1])


@pytest.mark.parametrize("shape", [(16,), (18,), (0,), (1, 17), ()])
def test_a_vector_of_the_wrong_length_is_not_written(shape):
    vector = np.zeros(shape)
    with pytest.raises(ValueError, match=rf"^out has shape {re.escape(str(shape))}: expected \(17,\)$"):
        to_vector(a_tree(), out=vector)
    assert not vector.any()


def test_a_vector_of_integers_is_not_written():
    with pytest.raises(TypeError):
        to_vector((np.full(2, 0.5),), out=np.zeros(2, int))


def test_a_vector_holds_rows_however_they_lie_in_memory():
    assert_array_equal(to_vector((np.asfortranarray(np.arange(6.0).reshape(2, 3)),)), np.arange(6.0))


def test_a_vector_as_a_tree_of_views():
    vector = np.arange(17.0) * 2
    tree = from_vector(a_tree(), vector)
    assert_same(tree, map_tree(lambda a: 2 * a, a_tree()))
    vector[13:] = -1
    assert_array_equal(tree.gain, [-1] * 4)


@pytest.mark.parametrize("shape", [(16,), (18,), (17, 1), (1, 17), ()])
def test_a_vector_of_the_wrong_length(shape):
    with pytest.raises(ValueError, match=rf"^vector has shape \({str(shape)[1:-1]}\): expected \(17,\)$"):
        from_vector(a_tree(), np.ones(shape))


@given(trees)
def test_every_walk_sees_the_same_arrays(tree):
    queue = iter(range(10_000))
    tree = map_tree(lambda array: np.full_like(array, next(queue)), tree)  # each array its own number
    named = named_parameters(tree)
    assert len(named) == next(queue)
    assert [array.max(initial=0) for array in named.values()] == [i if array.size else 0
                                                                  for i, array in enumerate(named.values())]
    assert parameter_count(tree) == sum(array.size for array in named.values())
    assert_same(replace_parameters(tree, named), tree)
    if named:
        vector = to_vector(tree)
        assert vector.shape == (parameter_count(tree),)
        assert_same(from_vector(tree, vector), tree)


def test_an_array_without_axes_stays_an_array():
    """NumPy answers a sum of 0-d arrays with a bare number, which no walk over the tree would find again."""
    doubled = map_tree(lambda array: 2 * array, (np.array(3.0), None))
    assert named_parameters(doubled) == {"0": 6.0} and isinstance(doubled[0], np.ndarray)
    assert isinstance(add_trees(np.array(1.0), np.array(2.0)), np.ndarray)
    assert map_tree(np.shape, (np.array(3.0),)) == ((),)  # what is no number stays what it is


def test_a_tree_without_arrays_is_an_empty_vector():
    assert to_vector((None, "a setting")).shape == (0,)


def test_the_vector_of_one_array_is_new_as_well():
    array = np.ones(3)
    assert not np.shares_memory(to_vector(array), array)


def test_nobody_keeps_an_array_that_was_only_named():
    """Gradients of a step are as large as the model: they must be gone before the next, not when the collector comes."""
    array = np.ones(3)
    alive = weakref.ref(array)
    gc.disable()
    try:
        for use in (named_parameters, to_vector, parameter_count, lambda tree: map_tree(np.copy, tree)):
            use((array, (array,)))
        from_vector((array,), np.zeros(3))
        replace_parameters((array,), {"0": np.zeros(3)})
        del array
        assert alive() is None
    finally:
        gc.enable()
