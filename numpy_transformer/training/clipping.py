"""Gradient clipping: one bad batch must not undo what a thousand good ones have taught."""

import math

import numpy as np

from ..foundations.checks import check_number
from ..foundations.parameters import map_tree, named_parameters
from ..foundations.pullback import Array


def clip_gradients(gradient, max_norm: float):
    """Shorten the gradient to `max_norm` if it is longer, keeping its direction (Pascanu et al. 2013, section 3.2).

        ‖g‖ = √Σ g²  over all parameters together        g ← g · min(1, max_norm / ‖g‖)

    Returns the gradient and the norm ‖g‖ it had; below the limit it is the same gradient, untouched.
    Raises ValueError naming the parameter if an entry is infinite or NaN.
    """
    check_number("max_norm", max_norm)
    norm = gradient_norm(named_parameters(gradient))
    if norm <= max_norm:
        return gradient, norm
    scale = max_norm / norm
    return map_tree(lambda array: array * scale, gradient), norm


def gradient_norm(arrays: dict[str, Array]) -> float:
    """Return √Σ g² over all arrays together. g / max |g| is what is squared, so that no square overflows."""
    largest = 0.0
    for name, array in arrays.items():
        size = float(np.abs(array).max(initial=0))
        if not math.isfinite(size):
            raise ValueError(f"the gradient of {name or 'the array'} holds {size}")
        largest = max(largest, size)
    if largest == 0:
        return largest
    return largest * math.sqrt(sum(float(np.square(array / largest).sum(dtype=np.float64)) for array in arrays.values()))
