"""Why the scores are divided by √d_k: the gradient that gets through softmax with and without it.

    python -m tests.attention.sqrt_dk

Queries and keys have independent normal entries, the gradient that arrives at the weights too. Shown is the
norm of the gradient that leaves softmax for one query's scores over 8 keys, mean and median of 500 queries.
"""

import numpy as np

from numpy_transformer.attention.softmax import softmax

WIDTHS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
QUERIES, KEYS = 500, 8


def scores_of(width, seed=0):
    """q·k for queries and keys of this width, each query with keys of its own: (QUERIES, KEYS)"""
    rng = np.random.default_rng([seed, width])
    q = rng.standard_normal((QUERIES, 1, width))
    k = rng.standard_normal((QUERIES, KEYS, width))
    return (q @ k.swapaxes(-1, -2))[:, 0]


def gradient_norms(seed=0):
    """d_k → norms of ∂loss/∂scores, one a query: (unscaled, scaled)"""
    d_weights = np.random.default_rng(seed).standard_normal((QUERIES, KEYS))
    norms = {}
    for width in WIDTHS:
        scores = scores_of(width, seed)
        norms[width] = tuple(np.linalg.norm(softmax(scores * scale)[1](d_weights), axis=-1)
                             for scale in (1, 1 / np.sqrt(width)))
    return norms


def table():
    """The norms as text: mean and median, without and with the division"""
    lines = ["  d_k    unscaled (median)    scaled (median)"]
    for width, (unscaled, scaled) in gradient_norms().items():
        lines.append(f"{width:5}    {unscaled.mean():8.3f} ({np.median(unscaled):6.4f})"
                     f"    {scaled.mean():6.3f} ({np.median(scaled):6.4f})")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
