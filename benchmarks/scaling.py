"""Scaling: how time and memory of both passes grow with the length, the width and the batch.

If a quantity is y = c xᵃ, then log y = log c + a log x, a straight line of slope a. The exponent a
printed here is the slope of the line of least squares through the measured points:

    a = Σ (log xᵢ − mean)(log yᵢ − mean) / Σ (log xᵢ − mean)²

A layer is a sum of several such terms, with fixed costs below them, so its exponent lies between
theirs and moves towards the largest as x grows.
"""

from collections.abc import Callable, Sequence

import numpy as np

from numpy_transformer.attention.scaled_dot_product import scaled_dot_product_attention
from numpy_transformer.model.encoder import EncoderLayer

from .measure import Setting, peak_memory, time_calls
from .operations import CheckError, normal, optional
from .rows import Row

tiled_attention = optional("attention.tiled", "tiled_attention")

BASE = dict(B=2, T=128, D=128)
HEADS = 4
SWEEPS = {"T": (64, 128, 256, 512, 1024), "D": (64, 128, 256, 512, 1024), "B": (1, 2, 4, 8, 16)}
QUICK = 3  # of each sweep


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of log y over log x by least squares; NaN for fewer than two points."""
    if len(x) < 2:
        return float("nan")
    u, v = (np.log(values) - np.mean(np.log(values)) for values in (x, y))  # (N,), (N,)
    return float(u @ v / (u @ u))


def exponents(rows: Sequence[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the exponents of time and of memory by name and letter."""
    found = {}
    for name, letter in dict.fromkeys((row.name, row.variant) for row in rows):
        own = [row for row in rows if (row.name, row.variant) == (name, letter)]
        sizes = [row.size for row in own]
        found[name, letter] = exponent(sizes, [row.median for row in own]), exponent(sizes, [row.memory for row in own])
    return found


def attention(function: Callable, dtype: str, B: int, T: int, D: int) -> Callable:
    q, k, v, dy = (normal(np.random.default_rng(i), B, HEADS, T, D // HEADS, dtype=dtype) for i in range(4))

    def both_passes():
        out, backward = function(q, k, v)
        return out, *backward(dy)

    return both_passes


def encoder_layer(dtype: str, B: int, T: int, D: int) -> Callable:
    layer = EncoderLayer.init(np.random.default_rng(0), D, HEADS, 4 * D, dtype=dtype)
    x, dy = (normal(np.random.default_rng(i), B, T, D, dtype=dtype) for i in (1, 2))  # (B, T, D), (B, T, D)

    def both_passes():
        y, backward = layer(x)
        return y, backward(dy)[1]

    return both_passes


def subjects(setting: Setting) -> dict[str, Callable]:
    """Return, by name, functions of B, T and D that give the call to be timed."""
    named = {"attention": lambda **sizes: attention(scaled_dot_product_attention, setting.dtype, **sizes)}
    if tiled_attention:
        named["tiled attention"] = lambda **sizes: attention(tiled_attention, setting.dtype, **sizes)
    named["encoder layer"] = lambda **sizes: encoder_layer(setting.dtype, **sizes)
    return named


def measure_scaling(setting: Setting, progress: Callable) -> list[Row]:
    """Time every subject along every sweep; the other two letters stay as in BASE."""
    rows = []
    for letter, values in SWEEPS.items():
        for name, build in subjects(setting).items():
            for value in values[:QUICK] if setting.quick else values:
                progress(f"scaling: {name}, {letter} = {value}")
                sizes = BASE | {letter: value}
                call = build(**sizes)
                if not all(np.isfinite(array).all() for array in call()):
                    raise CheckError(f"{name}: a value is not finite")
                (times,) = time_calls([call], setting)
                shape = f"{', '.join(f'{key} {size}' for key, size in sizes.items())}, {HEADS} heads"
                rows.append(Row("scaling", name, letter, shape, times, memory=peak_memory(call), size=value))
    return rows
