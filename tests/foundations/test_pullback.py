"""The convention itself: gradients in argument order, purity, and the sum over all uses."""

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_array_equal
from strategies import assert_close, assert_pure_and_linear, randomised, rngs

from numpy_transformer.attention.softmax import softmax
from numpy_transformer.foundations.gradient_check import GradientError, check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import add_trees
from numpy_transformer.foundations.pullback import Array


def product(a, b):
    def backward(dy):
        return dy * b, dy * a

    return a * b, backward


def twice(w, x):
    """y = w·(w·x): the page's own example"""
    inner, inner_backward = product(w, x)
    y, outer_backward = product(w, inner)

    def backward(dy):
        dw_outer, d_inner = outer_backward(dy)
        dw_inner, dx = inner_backward(d_inner)
        return dw_outer + dw_inner, dx

    return y, backward


def test_one_weight_used_twice():
    y, backward = twice(3.0, 2.0)
    assert (y, backward(1.0), backward(1.0)) == (18, (12, 9), (12, 9))
    worst = check_gradients(twice, np.array(3.0), np.array(2.0), rng=np.random.default_rng(0))
    assert list(worst) == ["w", "x"]


def through_twice(layer, x, uses=(0, 1)):
    """One layer applied twice, with a softmax between; `uses` says whose gradients are added up"""
    hidden, first_backward = layer(x)
    weights, softmax_backward = softmax(hidden)
    y, second_backward = layer(weights)

    def backward(dy):
        second, d_weights = second_backward(dy)
        first, dx = first_backward(softmax_backward(d_weights))
        found = [(first, second)[use] for use in uses]
        return found[0] if len(found) == 1 else add_trees(*found), dx

    return y, backward


@settings(max_examples=5)
@given(rngs)
def test_the_chain_rule_through_a_layer_used_twice(rng):
    layer, x = randomised((Linear.init(rng, 4, 4), np.zeros((2, 3, 4))), rng)
    check_gradients(through_twice, layer, x, rng=rng)
    assert_pure_and_linear(through_twice, layer, x, rng=rng)


@pytest.mark.parametrize("uses", [(0,), (1,), (0, 0), (1, 1)])
def test_half_of_the_gradient_is_not_enough(uses):
    rng = np.random.default_rng(1)
    layer, x = randomised((Linear.init(rng, 4, 4), np.zeros((2, 3, 4))), rng)
    with pytest.raises(GradientError, match=r"layer\.weight\["):
        check_gradients(lambda layer, x: through_twice(layer, x, uses), layer, x, rng=rng)


def test_array_is_the_name_of_numpys_array():
    assert isinstance(np.ones(2), Array) and not isinstance([1.0, 1.0], Array)


def test_gradients_come_in_the_order_of_the_arguments():
    a, b = np.array([2.0, 3.0]), np.array([5.0, 7.0])
    y, backward = product(a, b)
    assert_array_equal(backward(np.array([1.0, 10.0])), [[5, 70], [2, 30]])
    assert_close(y, [10, 21])
