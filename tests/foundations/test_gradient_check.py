"""Can the judge be trusted? It must condemn every wrong gradient, name the culprit, and spare the innocent."""

from dataclasses import dataclass, replace
from functools import wraps

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from strategies import assert_same, rngs

from numpy_transformer.attention.softmax import softmax
from numpy_transformer.foundations.gradient_check import GradientError, check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import map_tree


def seeded(seed=0):
    return np.random.default_rng(seed)


def spoilt(f, spoil):
    """f with its gradients handed to `spoil` on the way out"""
    @wraps(f)
    def wrong(*arguments):
        y, backward = f(*arguments)
        return y, lambda dy: spoil(backward(dy))

    return wrong


def mix(x, w):
    """y = tanh(x) w"""
    t = np.tanh(x)

    def backward(dy):
        return dy @ w.T * (1 - t**2), t.T @ dy

    return t @ w, backward


def entry(array, index, factor):
    array = array.copy()
    array[index] *= factor
    return array


SMALL = (4, 3), (3, 3)   # checked entry by entry
LARGE = (20, 30), (30, 30)  # checked along directions


@pytest.mark.parametrize("shapes", [SMALL, LARGE])
@pytest.mark.parametrize("spoil, message", [
    (lambda g: (1.001 * g[0], g[1]), r"^x\[\d+, \d+\]: backward says .*, the difference quotient says "),
    (lambda g: (g[0], 1.001 * g[1]), r"^w\[\d+, \d+\]: backward says"),
    (lambda g: (-g[0], g[1]), r"^x\[\d+, \d+\]"),
    (lambda g: (g[0] / 4, g[1]), r"^x\[\d+, \d+\]"),  # a mean over rows for a sum
    (lambda g: (0 * g[0], g[1]), r"^x\[\d+, \d+\]: backward says -?0,"),
    (lambda g: (g[0], 0 * g[1]), r"^w\[\d+, \d+\]: backward says -?0,"),
    (lambda g: (g[0], np.ones_like(g[1])), r"^w\[\d+, \d+\]: backward says 1,"),
    (lambda g: (g[0], g[1].T), r"^w\[\d+, \d+\]"),
    (lambda g: (g[0][::-1], g[1]), r"^x\[\d+, \d+\]"),
    (lambda g: (g[0], g[1] - g[1].mean()), r"^w\[\d+, \d+\]"),
    (lambda g: (entry(g[0], (3, 1), 1.001), g[1]), r"^x\[3, 1\]: backward says"),
    (lambda g: (entry(g[0], (0, 0), 0.999), g[1]), r"^x\[0, 0\]: backward says"),
    (lambda g: (g[0], entry(g[1], (2, 2), 1.001)), r"^w\[2, 2\]: backward says"),
    (lambda g: (g[0], entry(g[1], (1, 2), np.nan)), r"^w\[1, 2\]: gradient is nan$"),
    (lambda g: (entry(g[0], (2, 0), np.inf), g[1]), r"^x\[2, 0\]: gradient is -?inf$"),
    (lambda g: (g[0].T, g[1]), r"^x: gradient has shape \(\d+, \d+\), the array \(\d+, \d+\)$"),
    (lambda g: (g[0], g[1][0]), r"^w: gradient has shape \(\d+,\), the array"),
    (lambda g: (g[0], g[1].sum()), r"^w: gradient has shape \(\), the array"),
    (lambda g: (g[0], None), r"^w: gradient has shape \(\), the array"),
    (lambda g: (g[0], ()), r"^w: backward returned no gradient$"),
    (lambda g: g[0], r"^backward returned 1 gradients for 2 arguments$"),
    (lambda g: g[:1], r"^backward returned 1 gradients for 2 arguments$"),
    (lambda g: (*g, g[0]), r"^backward returned 3 gradients for 2 arguments$"),
    (lambda g: list(g), r"^backward returned 1 gradients for 2 arguments$"),
])
def test_a_wrong_gradient_is_condemned_by_name_and_index(shapes, spoil, message):
    rng = seeded()
    x, w = (rng.normal(size=shape) for shape in shapes)
    with pytest.raises(GradientError, match=message):
        check_gradients(spoilt(mix, spoil), x, w, rng=rng)


@pytest.mark.parametrize("shapes", [SMALL, LARGE])
@pytest.mark.parametrize("seed", range(3))
def test_a_right_gradient_is_spared(shapes, seed):
    rng = seeded(seed)
    check_gradients(mix, *(rng.normal(size=shape) for shape in shapes), rng=rng)


@settings(max_examples=10)
@given(rngs, st.integers(0, 599))
def test_one_wrong_entry_of_a_large_array_is_found(rng, position):
    x, w = rng.normal(size=(20, 30)), rng.normal(size=(30, 2))
    index = tuple(map(int, np.unravel_index(position, x.shape)))
    gradient = mix(x, w)[1](np.ones((20, 2)))[0]
    assert gradient[index] != 0
    with pytest.raises(GradientError) as raised:
        check_gradients(spoilt(mix, lambda g: (entry(g[0], index, 1.001), g[1])), x, w, rng=rng)
    assert str(raised.value).startswith(f"x{list(index)}: backward says")
    said, measured = (float(part.split(" says ")[1].split(" (")[0]) for part in str(raised.value).split(", the "))
    assert said / measured == pytest.approx(1.001, rel=1e-6)


def test_both_values_are_shown():
    def wrong(x):
        return 2 * x, lambda dy: 3 * dy

    with pytest.raises(GradientError) as raised:
        check_gradients(wrong, np.array([7.0]), rng=seeded(1))
    dy = seeded(1).standard_normal(1)[0]
    assert f"x[0]: backward says {3 * dy:.12g}, the difference quotient says {2 * dy:.8g}" in str(raised.value)
    assert "relative error 3.3e-01" in str(raised.value)


@dataclass(frozen=True, eq=False)
class Stack:
    layers: tuple
    gain: np.ndarray
    nothing: None = None


def stacked(stack, x):
    y, first_backward = stack.layers[0](x)
    y, second_backward = stack.layers[1](y)

    def backward(dy):
        second, d_hidden = second_backward(dy * stack.gain)
        first, dx = first_backward(d_hidden)
        return replace(stack, layers=(first, second), gain=(dy * y).sum(0)), dx

    return y * stack.gain, backward


LEAVES = ["stack.layers.0.weight", "stack.layers.0.bias", "stack.layers.1.weight", "stack.layers.1.bias",
          "stack.gain", "x"]


def a_stack(rng):
    weights = (rng.normal(size=shape) for shape in ((3, 12), (12,), (12, 2), (2,)))
    return Stack((Linear(next(weights), next(weights)), Linear(next(weights), next(weights))), rng.normal(size=2))


@pytest.mark.parametrize("position", range(6))
def test_every_leaf_of_a_tree_is_checked_and_named(position):
    rng = seeded(position)
    stack, x = a_stack(rng), rng.normal(size=(4, 3))
    worst = check_gradients(stacked, stack, x, rng=rng, coordinates=11)
    assert list(worst) == LEAVES
    assert all(type(error) is float and 0 <= error < 1e-7 for error in worst.values())
    assert max(worst.values()) > 0

    def spoil(gradients):
        count = iter(range(6))
        return map_tree(lambda g: 1.001 * g if next(count) == position else g, gradients)

    with pytest.raises(GradientError, match=rf"^{LEAVES[position]}\[\d+(, \d+)?\]: backward says"):
        check_gradients(spoilt(stacked, spoil), stack, x, rng=rng, coordinates=11)


def test_a_leaf_without_gradient_is_named():
    rng = seeded()
    with pytest.raises(GradientError, match=r"^stack\.gain: backward returned no gradient$"):
        check_gradients(spoilt(stacked, lambda g: (replace(g[0], gain=None), g[1])),
                        a_stack(rng), rng.normal(size=(4, 3)), rng=rng)
    with pytest.raises(GradientError, match=r"^stack\.layers\.1\.weight: backward returned no gradient$"):
        check_gradients(spoilt(stacked, lambda g: (replace(g[0], layers=g[0].layers[:1]), g[1])),
                        a_stack(rng), rng.normal(size=(4, 3)), rng=rng)


def test_a_gradient_of_what_is_not_there_is_named():
    rng = seeded()
    with pytest.raises(GradientError, match=r"^argument 0\.nothing: "):
        check_gradients(spoilt(stacked, lambda g: (replace(g[0], nothing=np.ones(2)), g[1])),
                        a_stack(rng), rng.normal(size=(4, 3)), rng=rng)


def test_names_of_arguments():
    def total(*arrays):
        return sum(a.sum() for a in arrays), lambda dy: tuple(np.full(a.shape, dy) for a in arrays)

    def first_and_others(first, *others):
        return total(first, *others)

    arrays = np.ones(2), np.ones((1, 2)), np.ones(())
    assert list(check_gradients(total, *arrays, rng=seeded())) == ["argument 0", "argument 1", "argument 2"]
    assert list(check_gradients(first_and_others, *arrays, rng=seeded())) == ["first", "argument 1", "argument 2"]
    assert list(check_gradients(lambda a, b, c, d=1.0: total(a, b, c), *arrays, rng=seeded())) == ["a", "b", "c"]

    def scaled_total(*arrays, scale=1.0, **others):
        return total(*arrays)

    assert list(check_gradients(scaled_total, *arrays, rng=seeded())) == ["argument 0", "argument 1", "argument 2"]

    def of_a_pair(pair, x):
        return pair[0] * pair[1] * x, lambda dy: ((dy * pair[1] * x, dy * pair[0] * x), dy * pair[0] * pair[1])

    pair = np.array([2.0]), np.array([3.0])
    assert list(check_gradients(of_a_pair, pair, np.array([5.0]), rng=seeded())) == ["pair.0", "pair.1", "x"]


def test_a_single_argument_that_is_a_tree():
    layer = Linear(np.ones((2, 3)), np.ones(3))
    x = np.array([[1.0, 2.0]])
    worst = check_gradients(lambda layer: (layer(x)[0], lambda dy: layer(x)[1](dy)[0]), layer, rng=seeded())
    assert list(worst) == ["layer.weight", "layer.bias"]


# ── What it costs: which arrays are checked how ──────────────────────────────────────────────────

def counting(f):
    calls = []

    def counted(x):
        calls.append(x)
        return f(x)

    return counted, calls


def cube(x):
    return x**3, lambda dy: 3 * x**2 * dy


@pytest.mark.parametrize("size, settings, probes", [
    (7, {}, 7), (100, {}, 100), (101, {}, 2), (500, {}, 2), (101, {"coordinates": 101}, 101),
    (7, {"coordinates": 6}, 2), (7, {"coordinates": 0, "directions": 5}, 5),
])
def test_entry_by_entry_or_along_directions(size, settings, probes):
    f, calls = counting(cube)
    x = seeded().normal(size=size)
    check_gradients(f, x, rng=seeded(), **settings)
    moved = [np.count_nonzero(point != x) for point in calls]
    assert moved == [0, 0] + [1 if probes == size else size] * 6 * probes  # f(x ± kh), k = 1, 2, 4


def test_directions_differ():
    f, calls = counting(cube)
    check_gradients(f, np.ones(200), rng=seeded(), directions=3)
    signs = {tuple(np.sign(point - 1)) for point in calls[2:]}
    assert len(signs) == 6


# ── Sensitivity ──────────────────────────────────────────────────────────────────────────────────

def test_tolerance_is_the_line():
    f, x = spoilt(cube, lambda g: (1 + 1e-5) * g), seeded().normal(size=5)
    worst = check_gradients(f, x, rng=seeded(), tolerance=1.1e-5)
    assert list(worst.values()) == [pytest.approx(1e-5, rel=1e-3)]
    with pytest.raises(GradientError):
        check_gradients(f, x, rng=seeded(), tolerance=0.9e-5)
    with pytest.raises(GradientError):
        check_gradients(spoilt(cube, lambda g: (1 + 1.2e-7) * g), np.ones(1), rng=seeded())
    check_gradients(spoilt(cube, lambda g: (1 + 0.8e-7) * g), np.ones(1), rng=seeded())


def test_the_quotient_is_of_fourth_order():
    """Without the extrapolation the truncation of exp(3x) at step 1e-4 would be 1.5e-8."""
    worst = check_gradients(lambda x: (np.exp(3 * x), lambda dy: 3 * np.exp(3 * x) * dy), np.array([0.3]), rng=seeded())
    assert worst["x"] < 1e-10


@pytest.mark.parametrize("small", [1e-1, 1e-2, 1e-3])
def test_a_small_gradient_is_not_overlooked_beside_a_large_one(small):
    def scaled(x):
        factor = np.array([1.0, small])
        return factor * x, lambda dy: factor * dy

    x = np.array([0.7, 0.4])
    check_gradients(scaled, x, rng=seeded())
    with pytest.raises(GradientError, match=r"^x\[1\]"):
        check_gradients(spoilt(scaled, lambda g: g * [1, 1.001]), x, rng=seeded())


@pytest.mark.parametrize("factor", [1.0, 1e-2, 3e-4])
def test_an_error_is_relative_to_the_entry(factor):
    dy = seeded(2).standard_normal(2)

    def f(x):  # not to its neighbour: x[1] weighs less than x[0]
        return x * [1, factor], lambda d: d * [1, factor] + [0, 1e-11]

    worst = check_gradients(f, np.full(2, 1e-3), rng=seeded(2))
    assert worst["x"] == pytest.approx(1e-11 / abs(factor * dy[1]), rel=0.02, abs=1e-11)


def test_no_error_is_relative_to_less_than_a_ten_thousandth_of_the_largest_gradient():
    dy = seeded(2).standard_normal(2)

    def f(x, z):
        return 1.0 * x, lambda d: (d, np.full(z.shape, 1e-12))

    worst = check_gradients(f, np.full(2, 1e-3), np.ones(1), rng=seeded(2))
    assert worst["z"] == pytest.approx(1e-12 / (1e-4 * np.abs(dy).max()), rel=0.02)


def test_no_error_is_relative_to_less_than_rounding_lets_be_seen():
    dy = seeded(2).standard_normal(3)
    y = np.array([2.0, -3.0, 5.0])
    worst = check_gradients(lambda x: (y, lambda d: np.full(1, 1e-12)), np.ones(1), rng=seeded(2))
    assert worst["x"] == pytest.approx(1e-12 / (1e-4 * np.abs(dy * y).sum()), rel=1e-6)
    assert check_gradients(lambda x: (0 * x, lambda d: 0 * d), np.ones(3), rng=seeded()) == {"x": 0.0}


def test_along_a_direction_that_cancels_an_error_is_relative_to_a_thousandth_of_the_gradient():
    gradient = np.zeros(200)
    gradient[:2] = 1.0  # along half of all directions x₀ and x₁ move in opposite ways

    def f(x):
        return float(x[0] + x[1]), lambda dy: dy * gradient + 1e-12 * np.eye(200)[2]

    errors = []
    for seed in range(6):
        worst = check_gradients(f, np.full(200, 1e-3), rng=seeded(seed), directions=1)
        errors.append(worst["x"] * abs(seeded(seed).standard_normal(())) / 1e-12)
    assert min(errors) < 1 and max(errors) == pytest.approx(1e3 / np.sqrt(2), rel=0.02)


def test_a_constant_function():
    def constant(x):
        return np.ones(3), lambda dy: np.zeros(x.shape)

    assert check_gradients(constant, np.ones(4), rng=seeded()) == {"x": 0.0}
    with pytest.raises(GradientError, match=r"\[2\]"):
        check_gradients(spoilt(constant, lambda g: g + [0, 0, 1e-6, 0]), np.ones(4), rng=seeded())


def test_softmax_without_a_backward_pass_does_not_look_right():
    """Its rows add to one, so an upstream gradient of ones would believe zeros."""
    x = seeded().normal(size=(3, 4))
    check_gradients(softmax, x, rng=seeded())
    with pytest.raises(GradientError):
        check_gradients(spoilt(softmax, np.zeros_like), x, rng=seeded())


# ── Kinks ────────────────────────────────────────────────────────────────────────────────────────

def relu(x):
    return np.maximum(x, 0), lambda dy: dy * (x > 0)


def leaky_wrong_at(*where):
    """A ReLU whose gradient is wrong at some entries"""
    def spoil(gradient):
        gradient = gradient.copy()
        gradient[list(where)] += 1.0
        return gradient

    return spoilt(relu, spoil)


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.9])
@pytest.mark.parametrize("side", [-1, 1])
def test_kinks_are_passed_over_and_the_rest_is_compared(distance, side):
    x = np.array([-1.0, side * distance * 1e-5, 1.0])
    for seed in range(3):
        check_gradients(relu, x, rng=seeded(seed))
        if 0 < distance < 2:
            check_gradients(leaky_wrong_at(1), x, rng=seeded(seed))  # nothing can be said there …
        for index in (0, 2):                                         # … but elsewhere it can
            with pytest.raises(GradientError, match=rf"\[{index}\]"):
                check_gradients(leaky_wrong_at(index), x, rng=seeded(seed))


@pytest.mark.parametrize("x", [-4.05e-5, 4.05e-5, -1e-4, 1e-4, 1.5e-4, -3e-4, -4.05e-4, 4.05e-4, -1e-3, 1e-3])
def test_an_entry_beyond_four_small_steps_of_a_kink_is_compared(x):
    with pytest.raises(GradientError, match=r"\[0\]"):
        check_gradients(leaky_wrong_at(0), np.array([x, 1.0]), rng=seeded())


def bent(x):
    """Smooth, but bent too strongly for the longer of the two steps"""
    y = np.sin(500 * x)
    return y, lambda dy: dy * 500 * np.cos(500 * x)


def test_a_strong_bend_is_no_kink():
    x = np.linspace(0.0, 0.002, 5)
    assert check_gradients(bent, x, rng=seeded())["x"] < 1e-8
    with pytest.raises(GradientError, match=r"^x\[3\]"):
        check_gradients(spoilt(bent, lambda dx: dx + np.array([0, 0, 0, 1, 0])), x, rng=seeded())


def absolute(x):
    return np.abs(x), lambda dy: dy * np.sign(x)


@pytest.mark.parametrize("f", [relu, absolute])
@pytest.mark.parametrize("x", [np.zeros(3), np.zeros(()), np.full((2, 3), 1e-6), np.array([1.5e-5]), np.array([-3e-5])])
def test_nothing_but_kinks_proves_nothing(f, x):
    with pytest.raises(GradientError, match=r"^x: every direction tried meets a kink; nothing was compared$"):
        check_gradients(f, x, rng=seeded())


def test_a_smooth_argument_does_not_excuse_one_of_nothing_but_kinks():
    def f(a, b):
        return np.concatenate([a, np.abs(b)]), lambda dy: (dy[:2], dy[2:] * np.sign(b))

    check_gradients(f, np.ones(2), np.ones(3), rng=seeded())
    with pytest.raises(GradientError, match="^b: every direction"):
        check_gradients(f, np.ones(2), np.zeros(3), rng=seeded())


@pytest.mark.parametrize("seed", range(10))
def test_a_large_array_of_nothing_but_kinks_proves_nothing(seed):
    with pytest.raises(GradientError, match="every direction tried meets a kink"):
        check_gradients(relu, np.zeros(200), rng=seeded(seed))


@pytest.mark.parametrize("seed", range(5))
def test_a_direction_is_given_up_only_when_no_more_than_one_entry_moves(seed):
    f, calls = counting(relu)
    with pytest.raises(GradientError, match="meets a kink"):
        check_gradients(f, np.zeros(200), rng=seeded(seed), directions=1)
    moved = [np.count_nonzero(x) for x in calls[2::6]]
    assert moved[0] == 200 and moved[-1] <= 1 and all(one >= two for one, two in zip(moved, moved[1:]))
    assert sum(n > 0 for n in moved) > 4  # about half of them at a time


@pytest.mark.parametrize("seed", range(5))
def test_a_direction_that_meets_a_kink_gives_way_to_smaller_ones(seed):
    x = seeded(seed).normal(size=400)
    x[np.abs(x) < 1e-3] = 0.5
    x[17] = 0.0
    check_gradients(relu, x, rng=seeded(seed))
    with pytest.raises(GradientError, match=r"\[\d+\]: backward says"):
        check_gradients(spoilt(relu, lambda g: 1.001 * g), x, rng=seeded(seed))


# ── Precision, purity, chance ────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("x", [np.array([1.0], np.float32), np.array([1.0], np.float16), np.array([1], np.int64),
                               np.array([1], np.uint8), np.array([True]), [1], [1.0]])
def test_float32_and_integers_are_promoted(x):
    seen = []

    def square(x):
        seen.append(x.dtype)
        return x**2, lambda dy: 2 * x * dy

    assert check_gradients(square, x, rng=seeded())["x"] < 1e-9
    assert set(seen) == {np.dtype(np.float64)}
    with pytest.raises(GradientError):
        check_gradients(spoilt(square, lambda g: g * (1 + 1e-6)), x, rng=seeded())


def test_a_float32_layer_is_checked_in_float64():
    layer = Linear.init(seeded(), 3, 2, dtype=np.float32)
    seen = []

    def call(layer, x):
        seen.append(layer.weight.dtype)
        return layer(x)

    check_gradients(call, layer, np.ones((4, 3), np.float32), rng=seeded())
    assert set(seen) == {np.dtype(np.float64)} and layer.weight.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, complex])
def test_a_function_that_computes_in_another_precision_is_refused(dtype):
    with pytest.raises(GradientError, match=rf"^f computes in {np.dtype(dtype)} where its arguments are float64$"):
        check_gradients(lambda x: (x.astype(dtype), lambda dy: dy), np.ones(2), rng=seeded())


def test_the_arguments_are_left_as_they_were():
    rng = seeded()
    stack, x = map_tree(lambda a: a, (a_stack(rng), rng.normal(size=(4, 3))))
    before = map_tree(np.copy, (stack, x))
    for array in (stack.gain, x):
        array.flags.writeable = False
    check_gradients(stacked, stack, x, rng=rng)
    assert_same((stack, x), before)

    def writes(x):
        x *= 1.0  # a function of bad manners writes into the checker's copies only
        x[...] = -7.0
        return x.copy(), lambda dy: 0 * dy

    given = np.ones(3)
    try:
        check_gradients(writes, given, rng=rng)
    except GradientError:
        pass
    assert_array_equal(given, np.ones(3))


def test_randomness_is_refused():
    rng = seeded()

    def noisy(x):
        return x + rng.normal(size=x.shape), lambda dy: dy

    with pytest.raises(GradientError, match="^f is random: two calls differ"):
        check_gradients(noisy, np.ones(3), rng=seeded())
    check_gradients(lambda x: (x + seeded(5).normal(size=x.shape), lambda dy: dy), np.ones(3), rng=seeded())


def test_the_seed_decides_the_measurement():
    x = seeded().normal(size=300)
    one, again, other = (check_gradients(cube, x, rng=seeded(seed)) for seed in (3, 3, 4))
    assert one == again != other
    with pytest.raises(TypeError, match="rng"):
        check_gradients(cube, x)


def test_a_number_as_the_result():
    upstream = []

    def loss(x):
        def backward(dy):
            upstream.append(dy)
            return 2 * dy * x

        return float(np.sum(x**2)), backward

    assert check_gradients(loss, np.array([1.0, 2.0]), rng=seeded())["x"] < 1e-9
    assert [type(dy) for dy in upstream] == [float]
    assert upstream[0] not in (0.0, 1.0)


def test_the_upstream_gradient_is_random_and_of_the_results_shape():
    upstream = []

    def keep(x):
        return x[:, None] * np.ones((3, 4)), lambda dy: upstream.append(dy) or dy.sum(1)

    check_gradients(keep, np.ones(3), rng=seeded())
    assert upstream[0].shape == (3, 4) and len(np.unique(upstream[0])) == 12


@pytest.mark.parametrize("settings, message", [
    ({"directions": 0}, "^directions must be a whole number of at least 1, not 0$"),  # it would compare nothing
    ({"directions": True}, "^directions must .* not True"),
    ({"directions": 1.5}, r"^directions must .* not 1\.5"),
    ({"coordinates": -1}, "^coordinates must be a whole number of at least 0, not -1$"),
    ({"coordinates": False}, "^coordinates must .* not False"),
    ({"tolerance": 0}, "^tolerance must be a number above 0, not 0$"),
    ({"tolerance": np.inf}, "^tolerance must .* not inf"),
    ({"tolerance": np.nan}, "^tolerance must .* not nan"),
])
def test_settings_that_would_let_everything_pass(settings, message):
    with pytest.raises(ValueError, match=message):
        check_gradients(cube, np.ones(200), rng=seeded(), **settings)


def test_a_tree_without_arrays():
    assert check_gradients(lambda nothing: (np.ones(2), lambda dy: ()), (), rng=seeded()) == {}


def test_arrays_of_no_entries():
    assert check_gradients(cube, np.zeros((0, 3)), rng=seeded()) == {"x": 0.0}

    def both(x, z):
        return cube(x)[0], lambda dy: (cube(x)[1](dy), np.zeros(z.shape))

    assert list(check_gradients(both, np.ones(2), np.zeros(0), rng=seeded())) == ["x", "z"]
    with pytest.raises(GradientError, match=r"^z: gradient has shape \(1,\), the array \(0,\)"):
        check_gradients(spoilt(both, lambda g: (g[0], np.zeros(1))), np.ones(2), np.zeros(0), rng=seeded())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_result_that_is_not_finite_is_no_proof(value):
    with pytest.raises(GradientError, match="^f returned a value that is not finite$"):
        check_gradients(lambda x: (x * [1, value], lambda dy: dy), np.ones(2), rng=seeded())


def test_at_the_smaller_step_rounding_weighs_ten_times_as_much():
    dy = seeded(2).standard_normal(1)
    worst = check_gradients(lambda x: (np.cos(10 * x), lambda d: np.full(1, 1e-12)), np.zeros(1), rng=seeded(2))
    assert worst["x"] == pytest.approx(1e-12 / (1e-3 * abs(dy[0])), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_errors_that_cancel_each_other_lay_no_blame_on_the_innocent(seed):
    wrong = np.zeros(200)
    wrong[[150, 151]] = 1, -1
    with pytest.raises(GradientError, match=r"^x\[15[01]\]: "):
        check_gradients(spoilt(cube, lambda g: g + wrong), seeded(seed).normal(size=200), rng=seeded(seed), directions=9)


@pytest.mark.parametrize("seed", range(5))
def test_a_kink_in_every_column_leaves_the_rest_to_compare(seed):
    x = np.ones((40, 10))
    x[np.arange(10), np.arange(10)] = 0.0
    check_gradients(relu, x, rng=seeded(seed))
