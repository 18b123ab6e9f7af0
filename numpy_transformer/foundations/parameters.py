"""Parameter trees: a model is nested data, and so is its gradient.

A layer is a frozen dataclass. Its fields are arrays (parameters), other layers, tuples of layers,
None (a part that is not there), or plain settings such as a rate. The gradient of a `Linear` is a
`Linear` that holds ∂loss/∂weight where the layer holds its weight. So one small set of functions
walks a model, and a model and its gradient side by side:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, eq=False)
... class Line:
...     slope: Array
...     offset: Array
...     name: str = "a line"
>>> line = Line(np.array([1.0, 2.0]), np.array([5.0]))
>>> gradient = Line(np.array([10.0, 10.0]), np.array([10.0]))
>>> stepped = map_tree(lambda p, g: p - 0.1 * g, line, gradient)
>>> named_parameters((stepped, line))
{'0.slope': array([0., 1.]), '0.offset': array([4.]), '1.slope': array([1., 2.]), '1.offset': array([5.])}
>>> parameter_count(line)
3
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np

from .checks import check_shape
from .pullback import Array


def map_tree(f: Callable, *trees):
    """Apply f to the arrays that stand in the same place of all trees; settings stay as in the first.

    Returns a tree of the first tree's form. Raises TypeError where the forms differ.
    """
    first = trees[0]
    if any(type(tree) is not type(first) for tree in trees):
        raise TypeError(f"trees differ in form: {[type(tree).__name__ for tree in trees]} stand in one place")
    if isinstance(first, np.ndarray):
        return _kept_array(f(*trees))
    if isinstance(first, tuple):
        if any(len(tree) != len(first) for tree in trees):
            raise TypeError(f"trees differ in form: tuples of {[len(tree) for tree in trees]} stand in one place")
        mapped = tuple(map_tree(f, *parts) for parts in zip(*trees))
        return first if all(new is old for new, old in zip(mapped, first)) else mapped
    changed = {}
    for name in field_names(type(first)):
        part = getattr(first, name)
        mapped = map_tree(f, part, *(getattr(tree, name) for tree in trees[1:]))
        if mapped is not part:
            changed[name] = mapped
    return replace(first, **changed) if changed else first  # what did not change stays the very same object


def _kept_array(value):
    """Undo NumPy's habit of answering a 0-d array with a bare number, which would be no parameter any more."""
    return np.asarray(value) if isinstance(value, np.generic) else value


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass, none for anything else; looked up once for each class, since trees are walked often."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def add_trees(one, other):
    """Add two gradients of the same part: what was used in two places receives both."""
    return map_tree(np.add, one, other)


def named_parameters(tree) -> dict[str, Array]:
    """Return the arrays of a tree by name, such as `encoder.layers.0.attention.query.weight`."""
    found = {}
    _collect(tree, "", found)
    return found


def _collect(part, name: str, found: dict[str, Array]) -> None:
    if isinstance(part, np.ndarray):
        found[name] = part
    elif isinstance(part, tuple):
        for index, item in enumerate(part):
            _collect(item, f"{name}.{index}" if name else str(index), found)
    else:
        for field in field_names(type(part)):
            _collect(getattr(part, field), f"{name}.{field}" if name else field, found)


def replace_parameters(tree, parameters: dict[str, Array]):
    """Return the tree with its arrays replaced by name: every one, no others, each of the same shape.

    Raises ValueError naming what is missing, extra or misshapen, before anything is built.
    """
    old = named_parameters(tree)
    for name in old:
        if name not in parameters:
            raise ValueError(f"parameter {name!r} is missing")
    for name, array in parameters.items():
        if name not in old:
            raise ValueError(f"parameter {name!r} belongs to no place in the {type(tree).__name__}")
        if array.shape != old[name].shape:
            raise ValueError(f"parameter {name!r} has shape {array.shape}: expected {old[name].shape}")
    arrays = iter([parameters[name] for name in old])
    return map_tree(lambda _: next(arrays), tree)


def parameter_count(tree) -> int:
    """Return how many numbers the arrays of a tree hold together."""
    return sum(array.size for array in named_parameters(tree).values())


def to_vector(tree, out: Array | None = None) -> Array:
    """Copy all arrays of a tree, one after another, into one vector of length P: a new one, or `out`."""
    arrays = [array.ravel() for array in named_parameters(tree).values()]
    if out is not None:
        check_shape("out", out, (sum(array.size for array in arrays),))
    return np.concatenate(arrays or [np.empty(0)], out=out)  # (P,)


def from_vector(tree, vector: Array):
    """Return the tree with its arrays replaced by views into `vector`: the inverse of `to_vector`."""
    check_shape("vector", vector, (parameter_count(tree),))
    start = 0

    def view(array):
        nonlocal start
        start += array.size
        return vector[start - array.size : start].reshape(array.shape)

    return map_tree(view, tree)
