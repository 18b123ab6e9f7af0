"""Foundations: the product that does most of a Transformer's work, and the noise that costs none of it."""

import numpy as np

from numpy_transformer.foundations.dropout import dropout
from numpy_transformer.foundations.linear import Linear

from .measure import Setting, Sizes
from .operations import Operation, Work, normal


def linear_flops(N: int, inputs: int, outputs: int) -> tuple[int, int]:
    """Forward: a product, a bias. Backward: two products, and the sum of the bias's gradient."""
    product = 2 * N * inputs * outputs
    return product + N * outputs, 2 * product + N * outputs


def operations(setting: Setting, sizes: Sizes | None = None) -> list[Operation]:
    s, dtype, w = sizes or setting.sizes, setting.dtype, setting.itemsize
    N, D, F, n = s.N, s.D, s.F, s.N * s.D
    rng = np.random.default_rng(0)
    x = normal(rng, s.B, s.T, D, dtype=dtype)                   # (B, T, D)
    forward, backward = linear_flops(N, D, F)
    return [
        Operation("Linear", f"({N}, {D}) → ({N}, {F})", Linear.init(rng, D, F, dtype=dtype), (x,), {
            "forward": Work(forward, w * (N * D + D * F + F + N * F)),           # x, W, b → y
            "backward": Work(backward, w * (N * F + 2 * (N * D + D * F) + F))}),  # dy, x, W → dW, db, dx
        Operation("dropout", f"({s.B}, {s.T}, {D}), rate 0.1", lambda x: dropout(x, 0.1, rng), (x,), {
            "forward": Work(2 * n, 2 * w * n),                  # y = x ⊙ m · scale
            "backward": Work(2 * n, 2 * w * n + n)},            # dy, m (a byte each) → dx
            random=True),
    ]
