"""Layers: everything of a Transformer that is not attention. Only one of them is made of products."""

from functools import partial

import numpy as np

from numpy_transformer.layers.embedding import Embedding
from numpy_transformer.layers.feed_forward import FeedForward, gelu, gelu_tanh, relu
from numpy_transformer.layers.layer_norm import LayerNorm
from numpy_transformer.layers.positional_encoding import LearnedPositions, SinusoidalPositions, sinusoidal_positions

from .foundations import linear_flops
from .measure import Setting, Sizes
from .operations import Operation, Work, normal, total


def layer_norm_flops(N: int, D: int) -> tuple[int, int]:
    """Forward, an entry: mean 1, centre 1, variance 2, scale 1, γ 1, β 1; a row: ÷D twice, ε, √, 1/x.
    Backward, an entry: dγ 2, dβ 1, dx̂ 1, its means 3, two subtractions and a product 3, scale 1; a row: ÷D twice."""
    return N * (7 * D + 5), N * (11 * D + 2)


def feed_forward_flops(N: int, D: int, F: int) -> tuple[int, int]:
    """Two linear layers and a ReLU: forward a comparison, backward a comparison and a product."""
    return total(linear_flops(N, D, F), (N * F, 2 * N * F), linear_flops(N, F, D))


def operations(setting: Setting, sizes: Sizes | None = None) -> list[Operation]:
    s, dtype, w = sizes or setting.sizes, setting.dtype, setting.itemsize
    B, T, D, F, V, N = s.B, s.T, s.D, s.F, s.V, s.N
    rng = np.random.default_rng(0)
    x = normal(rng, B, T, D, dtype=dtype)                       # (B, T, D)
    wide = normal(rng, B, T, F, dtype=dtype)                    # (B, T, F)
    ids = rng.integers(0, V, (B, T))                            # (B, T)
    gain, shift = 1 + normal(rng, D, dtype=dtype) / 4, normal(rng, D, dtype=dtype)  # (D,), (D,)
    embedding = Embedding.init(rng, V, D, dtype=dtype)
    feed_forward = FeedForward.init(rng, D, F, dtype=dtype)
    narrow_shape, wide_shape = f"({B}, {T}, {D})", f"({B}, {T}, {F})"
    norm, feed = layer_norm_flops(N, D), feed_forward_flops(N, D, F)
    parameters = 2 * D * F + F + D

    def bends(forward, backward):
        """Element by element: x → y; x, dy → dx."""
        return {"forward": Work(forward * N * F, 2 * w * N * F), "backward": Work(backward * N * F, 3 * w * N * F)}

    return [
        Operation("LayerNorm", narrow_shape, LayerNorm(gain, shift), (x,), {
            "forward": Work(norm[0], w * (2 * N * D + 2 * D)),       # x, γ, β → y
            "backward": Work(norm[1], w * (3 * N * D + 3 * D))}),    # x, dy, γ → dx, dγ, dβ
        Operation("relu", wide_shape, relu, (wide,), bends(1, 2)),
        # Φ: 2 to clip, 6 to find the node, 6 products, 6 sums; x Φ: 1;  dy (Φ + x exp(−½x²)/√2π): 7
        Operation("gelu", wide_shape, gelu, (wide,), bends(21, 7)),
        # ½x (1 + tanh(√(2/π) x (1 + c x²))): 9;  dy ½ (1 + t + x (1 − t²) √(2/π) (1 + 3c x²)): 12
        Operation("gelu_tanh", wide_shape, gelu_tanh, (wide,), bends(9, 12)),
        Operation("FeedForward", f"({B}, {T}, {D} → {F} → {D})", feed_forward, (x,), {
            "forward": Work(feed[0], w * (parameters + 2 * N * D)),       # x, parameters → y
            "backward": Work(feed[1], w * (2 * parameters + 3 * N * D))}),  # x, dy, parameters → gradient, dx
        Operation("Embedding", f"{V} words, {narrow_shape}", embedding, (ids,), {
            "forward": Work(0, ids.nbytes + 2 * w * N * D),               # ids, their rows → y
            "backward": Work(N * D, ids.nbytes + w * (N * D + V * D))}),  # ids, dy → a gradient for every word
        Operation("sinusoidal_positions", f"({T}, {D})", partial(sinusoidal_positions, dtype=dtype), (T, D), {
            "forward": Work(2 * T * D, w * T * D)}),                      # an angle and its sine
        Operation("SinusoidalPositions", narrow_shape, SinusoidalPositions(T, D), (x,), {
            "forward": Work(N * D, w * 2 * N * D + 8 * T * D)}),          # x + table; backward: dy itself
        Operation("LearnedPositions", narrow_shape, LearnedPositions.init(rng, T, D, dtype=dtype), (x,), {
            "forward": Work(N * D, w * (2 * N * D + T * D)),
            "backward": Work(N * D, w * (N * D + T * D))}),               # dy → its sum over the sentences
    ]
