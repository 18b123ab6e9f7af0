"""Checks at the door: bad input is refused before any work, by an error that says what it was.

Every message names the argument and shows the shape or the value that was wrong, so that a reader
never has to guess from a broadcasting error three functions further down.
"""

import math
from numbers import Integral, Real

import numpy as np

from .pullback import Array

WHOLE, REAL = (int, Integral), (int, float, Real)  # the usual types first: to ask an abstract one takes eight times as long


def as_float(name: str, x) -> Array:
    """Return x as a floating array: floats as they are, integers and booleans as float64."""
    x = np.asarray(x)
    if x.dtype.kind == "f":
        return x
    if x.dtype.kind in "biu":
        return x.astype(np.float64)
    raise TypeError(f"{name} must hold real numbers, not dtype {x.dtype}")


def as_ids(name: str, ids, size: int) -> Array:
    """Return ids as an integer array whose entries all lie in [0, size)."""
    ids = np.asarray(ids)
    if ids.size == 0 and ids.dtype.kind == "f":
        ids = ids.astype(np.int64)  # np.array([]) is a float array that holds no float
    if ids.dtype.kind not in "iu":
        shown = f", for example {ids.flat[0]!r}" if ids.size else ""
        raise TypeError(f"{name} must be integers, not dtype {ids.dtype}{shown}")
    wrong = (ids < 0) | (ids >= size)
    if wrong.any():
        where = tuple(map(int, np.argwhere(wrong)[0]))
        raise IndexError(f"{name}{list(where)} is {ids[where]}, outside [0, {size})")
    return ids


def check_rank(name: str, x: Array, least: int, form: str) -> None:
    if x.ndim < least:
        raise ValueError(f"{name} has shape {x.shape}: expected {form}")


def check_width(name: str, x: Array, width: int) -> None:
    if x.ndim == 0 or x.shape[-1] != width:
        raise ValueError(f"{name} has shape {x.shape}: its last axis must be {width} wide")


def check_shape(name: str, x: Array, shape: tuple) -> None:
    if np.shape(x) != shape:
        raise ValueError(f"{name} has shape {np.shape(x)}: expected {shape}")


def check_count(name: str, value, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, WHOLE) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_generator(name: str, rng) -> None:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"{name} must be a numpy.random.Generator such as np.random.default_rng(0), not {rng!r}")


def check_number(name: str, value, least: float = 0.0, most: float = math.inf, *, above: bool = False) -> None:
    """Demand a finite number with least ≤ value ≤ most; `above` makes the lower bound strict."""
    real = isinstance(value, REAL) and math.isfinite(value)
    if not real or not least <= value <= most or (above and value == least):
        lower = f"above {least:g}" if above else f"at least {least:g}"
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise ValueError(f"{name} must be a number {lower}{upper}, not {value!r}")
