"""What the property tests draw, and the demands that every operation of the book has to meet.

Shapes, masks and rates are drawn by Hypothesis. The numbers in an array come from a drawn generator: a
gradient check wants numbers in general position, and Hypothesis would shrink them all to zero.

`f` is always an operation of the book, f(*arguments) → (y, backward), each argument an array or a tree.
"""

from dataclasses import FrozenInstanceError, fields, replace
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from numpy_transformer.foundations.parameters import map_tree, named_parameters
from numpy_transformer.model.transformer import Transformer

# ── Drawn ────────────────────────────────────────────────────────────────────────────────────────

rngs = st.builds(np.random.default_rng, st.integers(0, 2**32 - 1))
rates = st.integers(1, 65535).filter(lambda n: n != 32768).map(lambda n: n / 65536)  # exactly what dropout uses


def letters(names: str, least: int = 2):
    """Sizes by letter, all different: letters("BTS").example().T"""
    sizes = range(least, least + len(names))
    return st.permutations(sizes).map(lambda drawn: SimpleNamespace(**dict(zip(names, drawn))))


def shapes(least: int = 1, most: int = 4):
    """Shapes of rank `least` to `most`, sides from 1 to 5"""
    return hnp.array_shapes(min_dims=least, max_dims=most, max_side=5)


@st.composite
def masks(draw, shape):
    """Boolean masks that broadcast to `shape`: some axes 1, leading axes left out, some rows all False"""
    own = [1 if draw(st.booleans()) else n for n in shape]
    own = own[draw(st.integers(0, len(shape))) :]
    mask = np.asarray(draw(rngs).random(own) < draw(st.sampled_from([0.3, 0.6, 0.9])))
    if mask.ndim and len(mask) and draw(st.booleans()):
        mask[draw(st.integers(0, len(mask) - 1))] = False
    return mask


# ── Trees and memory ─────────────────────────────────────────────────────────────────────────────

def randomised(tree, rng, dtype=np.float64):
    """The tree with normal random arrays: no γ = 1 or β = 0 behind which a mistake could hide"""
    return map_tree(lambda array: rng.normal(size=array.shape).astype(dtype), tree)


def read_only(tree):
    """A copy of the tree whose arrays refuse to be written to"""
    def frozen(array):
        array = array.copy(order="K")
        array.flags.writeable = False
        return array

    return map_tree(frozen, tree)


def layouts(x):
    """x again in other memory: columns first, every second entry of a longer array, backwards"""
    yield np.asfortranarray(x)
    if x.ndim:
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan if x.dtype.kind == "f" else -1, x.dtype)
        wide[..., ::2] = x
        yield wide[..., ::2]
        yield np.ascontiguousarray(x[::-1])[::-1]


def assert_same(actual, expected, rtol=0.0, atol=0.0):
    """Two trees agree leaf by leaf: bit by bit, or within the tolerance"""
    assert type(actual) is type(expected)
    actual, expected = named_parameters(actual), named_parameters(expected)
    assert list(actual) == list(expected)
    for name in expected:
        assert actual[name].dtype == expected[name].dtype, name
        assert actual[name].shape == expected[name].shape, name
        assert_allclose(actual[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


def assert_close(actual, expected, tolerance=1e-12):
    """Equal to `tolerance`, beside the largest entry and absolutely; the shapes must agree, broadcasting is no help"""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


# ── Demands ──────────────────────────────────────────────────────────────────────────────────────

def assert_pure_and_linear(f, *arguments, rng, tolerance=1e-10):
    """Neither pass writes into what it is given, each answers twice the same, and backward is linear in dy."""
    arguments = read_only(arguments)
    before = map_tree(np.copy, arguments)
    y, backward = f(*arguments)
    assert_same(f(*arguments)[0], y)
    one, two = read_only((rng.normal(size=y.shape), rng.normal(size=y.shape)))
    first, second = backward(one), backward(two)
    kept = map_tree(np.copy, (y, first))
    assert_same(backward(one), first)
    mixed, zero = backward(2.5 * one - 1.5 * two), backward(np.zeros(y.shape))
    expected = map_tree(lambda a, b: 2.5 * a - 1.5 * b, first, second)
    size = max(np.abs(g).max(initial=0.0) for g in named_parameters((first, second)).values())
    assert_same(mixed, expected, atol=tolerance * size)
    for gradient in named_parameters(zero).values():
        assert_array_equal(gradient, np.zeros(gradient.shape))
    assert_same((y, first), kept)
    assert_same(arguments, before)


def assert_same_for_layouts(f, *arguments, rng, tolerance=1e-12):
    """Columns-first, strided, reversed and broadcast arguments (and dy) give what contiguous copies give."""
    def both(arguments, dy):
        y, backward = f(*arguments)
        return y, backward(dy)

    y, _ = f(*arguments)
    dy = rng.normal(size=y.shape)
    expected = both(arguments, dy)
    ordered = list(named_parameters((*arguments, dy)).values())
    for variants in zip(*(layouts(array) for array in ordered)):
        queue = iter(variants)
        *others, other_dy = map_tree(lambda _: next(queue), (*arguments, dy))
        assert_same(both(others, other_dy), expected, rtol=tolerance, atol=tolerance)
    repeated = map_tree(lambda a: np.broadcast_to(a[:1], a.shape) if a.ndim else a, (*arguments, dy))
    *copies, copied_dy = map_tree(np.ascontiguousarray, repeated)
    *repeated, repeated_dy = repeated
    assert_same(both(repeated, repeated_dy), both(copies, copied_dy), rtol=tolerance, atol=tolerance)


def assert_plain_data(layer):
    """A layer cannot be changed, and is equal to nothing but itself: it may be a key of a dictionary."""
    for field in fields(layer):
        with pytest.raises(FrozenInstanceError):
            setattr(layer, field.name, None)
    assert len({layer, replace(layer)}) == 2 and layer == layer != replace(layer)


def assert_keeps_dtype(f, *arguments, rng, dtype=np.float32, near=1e-4):
    """`dtype` in, `dtype` out, for y and every gradient, and the numbers are those of float64 but for rounding."""
    arguments = map_tree(lambda array: array.astype(dtype), arguments)
    y, backward = f(*arguments)
    dy = rng.normal(size=y.shape).astype(dtype)
    exact, exact_backward = f(*map_tree(lambda array: array.astype(np.float64), arguments))
    results = named_parameters((y, backward(dy)))
    for name, expected in named_parameters((exact, exact_backward(dy.astype(np.float64)))).items():
        assert results[name].dtype == dtype, f"{name} is {results[name].dtype}"
        assert_close(results[name], expected, near)


def held_bytes(function):
    """The bytes of all arrays that a pullback keeps alive: each buffer counted once, at its full size"""
    buffers, seen = {}, set()

    def walk(thing):
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, FunctionType):
            for cell in thing.__closure__ or ():
                walk(cell.cell_contents)
            for default in thing.__defaults__ or ():
                walk(default)
        elif isinstance(thing, (tuple, list)):
            for part in thing:
                walk(part)
        elif isinstance(thing, np.ndarray):
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            buffers[id(thing)] = thing.nbytes

    walk(function)
    return sum(buffers.values())


def talkative_model(config, end, seed=0, dtype=np.float64):
    """A model that says now this, now that, and sometimes comes to an end"""
    rng = np.random.default_rng(seed)

    def drawn(array):
        return 0.3 * rng.normal(size=array.shape) + (0 if array.ndim == 2 else array)

    model = map_tree(drawn, Transformer.init(rng, config, dtype=np.float64))
    model = replace(model, source_embedding=randomised(model.source_embedding, rng),
                    target_embedding=randomised(model.target_embedding, rng), output=randomised(model.output, rng))
    (model.output.weight if model.output else model.target_embedding.table.T)[:, end] *= 2
    return map_tree(lambda array: array.astype(dtype), model)
