"""Masks: which keys each query may attend to. True means that it may.

Masks are boolean and broadcast to (B, H, T, S); two of them combine with `&`. A mask of numbers is
refused, since half the world writes 1 for "attend" and the other half 1 for "hidden".
"""

import numpy as np

from ..foundations.checks import check_count
from ..foundations.pullback import Array


def causal_mask(T: int, S: int | None = None) -> Array:
    """Let each query attend to the keys up to its own place, never to the future: (T, S).

    While it trains, the decoder sees the whole right answer at once; without this mask the first
    word could look up the second. With S > T keys the queries are the last T of the S places, so
    the last query sees every key: what decoding with stored keys needs. S defaults to T.

    >>> causal_mask(3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    >>> causal_mask(2, 5).astype(int)
    array([[1, 1, 1, 1, 0],
           [1, 1, 1, 1, 1]])
    """
    S = T if S is None else S
    check_count("T", T, 0)
    check_count("S", S, 0)
    return np.tri(T, S, S - T, dtype=bool)  # (T, S)


def padding_mask(ids: Array, pad: int, *, name: str = "ids", form: str = "(B, S)") -> Array:
    """Hide the padding that fills short sentences up to the batch's length: (B, S) → (B, 1, 1, S).

    Every head and every query of a sentence hides the same keys, hence the two axes of 1.
    """
    ids = np.asarray(ids)  # (B, S)
    if ids.ndim != 2:
        raise ValueError(f"{name} has shape {ids.shape}: expected {form}")
    check_count("pad", pad, 0)
    return (ids != pad)[:, None, None, :]  # (B, 1, 1, S)


def check_mask(mask: Array, shape: tuple[int, ...]) -> None:
    """Demand a boolean mask that broadcasts to `shape`, the shape of the scores (..., T, S)."""
    if not isinstance(mask, np.ndarray) or mask.dtype != bool:
        raise TypeError(f"mask must be a boolean array, True = may attend, not {getattr(mask, 'dtype', type(mask).__name__)}")
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"mask has shape {mask.shape}, which does not broadcast to the scores' {shape}")
