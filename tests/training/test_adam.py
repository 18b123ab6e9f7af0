"""Adam: several steps of every kind of tree agree with scalar loops, and what was given stays as it was."""

import math
import re
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loops
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import map_tree, named_parameters, to_vector
from numpy_transformer.layers.layer_norm import LayerNorm
from numpy_transformer.training import adam
from numpy_transformer.training.adam import Adam
from strategies import assert_close, assert_same, layouts, randomised, read_only, rngs, shapes

SETTINGS = st.builds(
    dict, beta1=st.sampled_from([0.0, 0.5, 0.9, 0.99]), beta2=st.sampled_from([0.0, 0.7, 0.98, 0.999]),
    epsilon=st.sampled_from([1e-9, 1e-2, 1.0]), weight_decay=st.sampled_from([0.0, 0.01, 0.5]))


@st.composite
def trees(draw):
    """Tuples of arrays of rank 0 to 3"""
    return tuple(np.zeros(shape) for shape in draw(st.lists(shapes(0, 3), min_size=1, max_size=4)))


def run(optimiser, model, gradients, rates=None):
    """All models and states from the first to the last"""
    history = [(model, optimiser.init(model))]
    for gradient, rate in zip(gradients, rates or [None] * len(gradients)):
        history.append(optimiser.update(history[-1][0], gradient, history[-1][1], rate))
    return history


def of_loops(model, gradients, rates, weight_decay, **settings):
    """The last model, by scalar loops; matrices alone decay"""
    flat = [[np.asarray(g, float).ravel().tolist() for g in gradient] for gradient in gradients]
    return tuple(
        np.reshape(loops.adam(array.ravel().tolist(), [gradient[i] for gradient in flat], lambda step: rates[step - 1],
                              weight_decay=weight_decay if array.ndim >= 2 else 0.0, **settings)[-1], array.shape)
        for i, array in enumerate(model))


# ── Right ────────────────────────────────────────────────────────────────────────────────────────

@given(trees(), SETTINGS, st.lists(st.sampled_from([0.0, 0.003, 0.1, 1.0]), min_size=1, max_size=5), rngs)
def test_several_steps_agree_with_scalar_loops(tree, settings, rates, rng):
    model, *gradients = (randomised(tree, rng) for _ in range(len(rates) + 1))
    (final, state) = run(Adam(learning_rate=9.0, **settings), model, gradients, rates)[-1]
    assert state.step == len(rates)
    for found, expected in zip(final, of_loops(model, gradients, rates, **settings), strict=True):
        assert found.dtype == np.float64
        assert_close(found, expected)


@given(trees(), SETTINGS, rngs)
def test_float32_stays_float32_and_is_really_updated(tree, settings, rng):
    model, *gradients = (randomised(tree, rng, np.float32) for _ in range(4))
    history = run(Adam(0.1, **settings), model, gradients)
    for found, before, expected in zip(history[-1][0], model, of_loops(model, gradients, [0.1] * 3, **settings)):
        assert found.dtype == np.float32
        assert_close(found, expected, 1e-5)
        assert (found != before).all()
    assert {array.dtype for array in named_parameters(history[-1][1]).values()} == {np.dtype(np.float32)}


def test_float64_gradients_do_not_lift_a_float32_model():
    model, gradient = np.ones(3, np.float32), np.array([1.0, -2.0, 3.0])
    (found, state) = run(Adam(0.1), model, [gradient])[-1]
    assert found.dtype == state.first.dtype == state.second.dtype == np.float32
    assert_close(found, [0.9, 1.1, 0.9], 1e-6)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shapes", [[3], [4], [5], [8], [9], [(2, 2), 4], [3, (2, 3), 2], [(3, 3), (1, 2, 7)]], ids=str)
def test_the_size_of_the_chunks_does_not_matter(shapes, in_place, rng=np.random.default_rng(3)):
    model, *gradients = (tuple(rng.normal(size=shape) for shape in shapes) for _ in range(4))
    optimiser = Adam(0.1, weight_decay=0.2)
    whole = run(optimiser, model, gradients)[-1]
    state = optimiser.init(model)
    with patch.object(adam, "CHUNK", 4):
        for gradient in gradients:
            model, state = optimiser.update(model, gradient, state, in_place=in_place)
    assert_same((model, state), whole)


def test_more_parameters_than_one_chunk_holds(rng=np.random.default_rng(4)):
    model, *gradients = rng.normal(size=(3, adam.CHUNK + 3))
    (found, _) = run(Adam(0.1), model, gradients)[-1]
    ends = np.r_[0:3, adam.CHUNK - 3 : adam.CHUNK + 3]
    (expected,) = of_loops((model[ends],), [(g[ends],) for g in gradients], [0.1] * 2, weight_decay=0.0)
    assert_close(found[ends], expected)
    assert (found != model).all()


# ── Known values ─────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_bias_correction_and_an_epsilon_outside_the_root(shape):
    gradients = [np.full(shape, g) for g in (0.01, 0.01, 0.02)]
    history = run(Adam(0.1, 0.9, 0.999, 1e-2), np.zeros(shape), gradients)
    for (model, _), expected in zip(history[1:], (-0.05, -0.1, -0.15669768185273983), strict=True):
        assert_close(model, np.full(shape, expected), 1e-15)


def test_the_settings_are_the_papers_unless_given():
    assert Adam(0.3) == Adam(0.3, beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.0)


def test_the_moments_after_two_steps():
    """What is kept are the sums; the means are (1 − β) times these."""
    _, (_, one), (_, two) = run(Adam(0.1), np.array([5.0, 6.0]), [np.array([1.0, -3.0]), np.array([2.0, 0.0])])
    assert (one.step, two.step) == (1, 2)
    assert_close(one.first, [1, -3], 1e-15)
    assert_close(one.second, [1, 9], 1e-15)
    assert_close(two.first, [0.9 + 2, -2.7], 1e-15)
    assert_close(two.second, [0.98 + 4, 8.82], 1e-15)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_first_step_is_as_long_as_the_rate_whatever_the_scale_of_the_gradient(scale):
    gradient = scale * np.array([1.0, -2.0, 0.5])
    _, (found, _) = run(Adam(0.25), np.zeros(3), [gradient])
    assert_close(found, -0.25 * np.sign(gradient), 1e-5)


# ── One counter, one rate ────────────────────────────────────────────────────────────────────────

def test_one_call_is_one_step_for_all_arrays(rng=np.random.default_rng(5)):
    model, *gradients = (tuple(rng.normal(size=(2, 3)) for _ in range(5)) for _ in range(4))
    history = run(Adam(0.1), model, gradients)
    assert [state.step for _, state in history] == [0, 1, 2, 3]
    for i in range(5):  # each array fares among the others as it does alone
        (alone, _) = run(Adam(0.1), model[i], [gradient[i] for gradient in gradients])[-1]
        assert_same(history[-1][0][i], alone)


def test_a_rate_given_for_a_step_takes_the_place_of_the_optimisers_own(rng=np.random.default_rng(6)):
    model, gradient = rng.normal(size=(2, 2, 3))
    state = Adam(0.1).init(model)
    expected = Adam(0.3, weight_decay=0.1).update(model, gradient, state)
    optimiser = Adam(0.1, weight_decay=0.1)
    assert_same(optimiser.update(model, gradient, state, 0.3), expected)
    assert_same(optimiser.update(model, gradient, state, learning_rate=0.1), optimiser.update(model, gradient, state))
    assert not np.array_equal(optimiser.update(model, gradient, state)[0], expected[0])


def test_a_rate_of_zero_moves_the_moments_and_nothing_else(rng=np.random.default_rng(7)):
    model, gradient = rng.normal(size=(2, 2, 3))
    found, state = Adam(0.1, weight_decay=0.1).update(model, gradient, Adam(0.1).init(model), 0.0)
    assert_same(found, model)
    assert state.step == 1 and state.first.all() and state.second.all()


# ── Weight decay ─────────────────────────────────────────────────────────────────────────────────

def test_matrices_decay_and_nothing_else_does():
    model = (Linear(np.full((2, 3), 2.0), np.full(3, 2.0)), LayerNorm(np.full(3, 2.0), np.full(3, 2.0)),
             np.full((2, 1, 2), 2.0), np.array(2.0))
    gradient = map_tree(np.zeros_like, model)
    (found, state) = run(Adam(0.5, weight_decay=0.1), model, [gradient, gradient])[-1]
    for name, array in named_parameters(found).items():
        assert_close(array, np.full(array.shape, 2 * 0.95**2 if array.ndim >= 2 else 2.0), 1e-15)
    assert not to_vector(state).any()


def test_the_decay_is_scaled_by_the_rate_and_stays_out_of_the_moments(rng=np.random.default_rng(8)):
    model, gradient = rng.normal(size=(2, 2, 3))
    state = Adam(0.1).init(model)
    plain, plain_state = Adam(0.1).update(model, gradient, state)
    decayed, decayed_state = Adam(0.1, weight_decay=0.2).update(model, gradient, state)
    assert_close(decayed, plain - 0.1 * 0.2 * model, 1e-14)
    assert_same(decayed_state, plain_state)


# ── What was given ───────────────────────────────────────────────────────────────────────────────

@given(trees(), rngs)
def test_what_was_given_stays_as_it_was_and_what_comes_back_is_new(tree, rng):
    model, gradient = read_only(randomised(tree, rng)), read_only(randomised(tree, rng))
    optimiser = Adam(0.1, weight_decay=0.1)
    _, state = optimiser.update(model, gradient, optimiser.init(model))
    state = read_only(state)
    kept = map_tree(np.copy, (model, gradient, state))
    new_model, new_state = optimiser.update(model, gradient, state)
    assert_same((model, gradient, state), kept)
    given_arrays = named_parameters((model, gradient, state)).values()
    for new in named_parameters((new_model, new_state)).values():
        assert not any(np.shares_memory(new, old) for old in given_arrays)
    assert (to_vector(new_model) != to_vector(model)).all()
    assert (to_vector(new_state) != to_vector(state)).all()
    assert (state.step, new_state.step) == (1, 2)
    assert_same(optimiser.update(model, gradient, state), (new_model, new_state))


@given(trees(), st.lists(st.sampled_from([0.0, 0.1]), min_size=1, max_size=3), rngs)
def test_in_place_the_same_numbers_come_to_stand_where_the_old_ones_stood(tree, rates, rng):
    model, *gradients = (randomised(tree, rng) for _ in range(len(rates) + 1))
    gradients, optimiser = read_only(tuple(gradients)), Adam(9.0, weight_decay=0.1)
    expected = run(optimiser, model, gradients, rates)[-1]
    here, state = map_tree(np.copy, (model, optimiser.init(model)))
    stepped, new_state = here, state
    for gradient, rate in zip(gradients, rates):
        stepped, new_state = optimiser.update(stepped, gradient, new_state, rate, in_place=True)
    assert_same((stepped, new_state), expected)
    assert_same((here, state.first, state.second), (stepped, new_state.first, new_state.second))
    for old, new in zip(named_parameters((here, state)).values(), named_parameters((stepped, new_state)).values()):
        assert np.shares_memory(old, new)
    assert (state.step, new_state.step) == (0, len(rates))


def test_any_layout_in_memory_gives_the_same(rng=np.random.default_rng(9)):
    model, gradient = rng.normal(size=(2, 3, 4))
    optimiser = Adam(0.1, weight_decay=0.2)
    expected = run(optimiser, model, [gradient] * 2)[-1]
    for variants in zip(layouts(model), layouts(gradient)):
        assert_same(run(optimiser, variants[0], [variants[1]] * 2)[-1], expected)
        stepped = map_tree(np.copy, (model, optimiser.init(model)))
        for _ in range(2):
            stepped = optimiser.update(stepped[0], variants[1], stepped[1], in_place=True)
        assert_same(stepped, expected)


def test_the_moments_of_two_states_lie_in_memory_of_their_own():
    model, optimiser = np.ones(3), Adam(0.1)
    first, second = named_parameters(optimiser.init(model)).values()
    assert not np.shares_memory(first, second)


def test_the_first_state_has_taken_no_step_and_holds_zeros():
    model = (Linear(np.ones((2, 3), np.float32), np.ones(3, np.float32)), None, "a setting")
    state = Adam(0.1).init(model)
    assert state.step == 0
    assert_same((state.first, state.second), (np.zeros(9, np.float32), np.zeros(9, np.float32)))


def test_settings_and_missing_parts_go_through():
    model = (LayerNorm(np.ones(2), np.ones(2), epsilon=0.125), None)
    (found, _) = run(Adam(0.1), model, [map_tree(np.ones_like, model)])[-1]
    assert found[0].epsilon == 0.125 and found[1] is None
    assert_close(found[0].gain, [0.9, 0.9], 1e-8)


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("name, value, limits", [
    ("learning_rate", -0.1, "at least 0"), ("learning_rate", math.nan, "at least 0"),
    ("learning_rate", math.inf, "at least 0"), ("learning_rate", "0.1", "at least 0"),
    ("epsilon", 0.0, "above 0"), ("epsilon", -1e-9, "above 0"), ("epsilon", math.nan, "above 0"),
    ("weight_decay", -0.1, "at least 0"), ("weight_decay", math.inf, "at least 0"),
    ("beta1", 1.0, "at least 0"), ("beta1", -0.1, "at least 0"), ("beta1", 1.1, "at least 0"),
    ("beta2", 1, "at least 0"), ("beta2", -0.1, "at least 0"), ("beta2", math.nan, "at least 0"),
])
def test_a_setting_out_of_bounds_is_named(name, value, limits):
    with pytest.raises(ValueError, match=rf"^{name} must be a number {limits}.*, not {value!r}$"):
        Adam(**{"learning_rate": 0.1, name: value})


def test_the_bounds_of_the_settings_are_allowed():
    below_one = math.nextafter(1, 0)
    optimiser = Adam(0, beta1=0, beta2=below_one, epsilon=5e-324, weight_decay=0)
    assert (optimiser.beta1, optimiser.beta2) == (0, below_one)
    assert Adam(0, beta1=below_one, beta2=0).beta1 == below_one


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf, "0.1"], ids=repr)
def test_a_rate_out_of_bounds_is_named(rate):
    model = np.ones(3)
    with pytest.raises(ValueError, match=rf"^learning_rate must be a number at least 0, not {rate!r}$"):
        Adam(0.1).update(model, model, Adam(0.1).init(model), rate)


LAYER = Linear(np.ones((2, 3)), np.ones(3))


@pytest.mark.parametrize("moment", ["first", "second"])
@pytest.mark.parametrize("shape", [(8,), (10,), (9, 1), (3, 3), (0,), ()], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_the_state_of_another_model_is_refused_before_anything_is_stepped(moment, shape, in_place):
    model = Linear(np.ones((2, 3)), np.ones(3))
    state = replace(Adam(0.1).init(model), **{moment: np.ones(shape)})
    with pytest.raises(ValueError, match=rf"^{moment} moment has shape {re.escape(str(shape))}: expected \(9,\)$"):
        Adam(0.1, weight_decay=0.1).update(model, model, state, in_place=in_place)
    assert (to_vector(model) == 1).all() and (getattr(state, moment) == 1).all()


def test_a_model_without_parameters_is_stepped_by_doing_nothing():
    model, state = Adam(0.1).update((None, "a setting"), (None, "a setting"), Adam(0.1).init((None, "a setting")))
    assert model == (None, "a setting") and (state.step, state.first.size) == (1, 0)


@pytest.mark.parametrize("gradient", [
    (LAYER,), (LAYER, np.ones(2)), (LayerNorm(np.ones(3), np.ones(3)), None), (None, None), LAYER, np.ones(9)],
    ids=["shorter", "longer", "another layer", "nothing", "not a tuple", "an array"])
def test_a_gradient_of_another_form_is_refused(gradient):
    model = (LAYER, None, np.ones(2))
    with pytest.raises((ValueError, TypeError), match="differ"):
        Adam(0.1).update(model, gradient, Adam(0.1).init(model))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_gradient_of_another_shape_is_refused_by_name_before_anything_is_stepped(in_place):
    model = (Linear(np.ones((2, 3)), np.ones(3)), np.ones((2, 3)))
    gradient, state = (LAYER, np.ones((3, 2))), Adam(0.1).init(model)
    with pytest.raises(ValueError, match=r"^gradient of 1 has shape \(3, 2\): expected \(2, 3\)$"):
        Adam(0.1).update(model, gradient, state, in_place=in_place)
    assert (to_vector(model) == 1).all() and not to_vector(state).any() and state.step == 0
    with pytest.raises(ValueError, match=r"^gradient of .*has shape \(1,\): expected \(3,\)$"):
        Adam(0.1).update(np.ones(3), np.ones(1), Adam(0.1).init(np.ones(3)), in_place=in_place)


@pytest.mark.parametrize("view", [np.ones((3, 4)).T, np.ones((4, 6))[:, ::2]], ids=["transposed", "strided"])
def test_a_strided_parameter_cannot_be_stepped_in_place_and_is_refused_before_anything_is_stepped(view):
    model, gradient = (np.ones((2, 2)), view), (np.ones((2, 2)), np.ones((4, 3)))
    state = Adam(0.1).init(map_tree(np.ascontiguousarray, model))
    with pytest.raises(ValueError, match="^parameter 1 is a strided view: it cannot be stepped in place$"):
        Adam(0.1, weight_decay=0.1).update(model, gradient, state, in_place=True)
    assert (to_vector(model) == 1).all() and not to_vector(state).any()
    assert_close(Adam(0.1).update(model, gradient, state)[0][1], np.full((4, 3), 0.9), 1e-8)


@dataclass(frozen=True, eq=False)
class Turned:
    """A gradient that names the parts of a Linear in another order"""

    bias: np.ndarray
    weight: np.ndarray


def test_gradients_find_their_parameters_by_name():
    model, state = Linear(np.zeros((1, 2)), np.zeros(2)), Adam(0.1).init(Linear(np.zeros((1, 2)), np.zeros(2)))
    stepped, _ = Adam(0.1).update(model, Turned(np.array([1.0, 1.0]), np.array([[-1.0, -1.0]])), state)
    assert (stepped.weight > 0).all() and (stepped.bias < 0).all()


def test_long_arrays_are_cut_and_short_ones_collected():
    arrays = [np.ones(n) for n in (5, 1, 1, 1, 3)]
    with patch.object(adam, "CHUNK", 4):
        dealt = [[len(p) for p, _ in pieces] for pieces in adam._pieces(arrays, arrays)]
    assert dealt == [[4], [1, 1, 1, 1], [3]]
