"""Training: the loss over the vocabulary, and what is done to every parameter."""

from functools import partial

import numpy as np

from numpy_transformer.foundations.parameters import map_tree, parameter_count
from numpy_transformer.layers.feed_forward import FeedForward
from numpy_transformer.training.adam import Adam
from numpy_transformer.training.clipping import clip_gradients
from numpy_transformer.training.cross_entropy import cross_entropy

from .measure import Setting, Sizes
from .operations import Operation, Work, normal

LEARNING_RATE = 1e-4


def operations(setting: Setting, sizes: Sizes | None = None) -> list[Operation]:
    s, dtype, w = sizes or setting.sizes, setting.dtype, setting.itemsize
    N, V, n = s.N, s.V, s.N * s.V
    rng = np.random.default_rng(0)
    logits = normal(rng, s.B, s.T, V, dtype=dtype)              # (B, T, V)
    targets = rng.integers(0, V, (s.B, s.T))                    # (B, T)
    layers = tuple(FeedForward.init(rng, s.D, s.F, dtype=dtype) for _ in range(4))
    gradient = map_tree(lambda array: normal(rng, *array.shape, dtype=dtype), layers)
    P = parameter_count(layers)
    adam = Adam(LEARNING_RATE)
    return [
        Operation("cross_entropy", f"({s.B}, {s.T}, {V}), smoothing 0.1", partial(cross_entropy, label_smoothing=0.1),
                  (logits, targets), {
            "forward": Work(5 * n + 4 * N, w * n + targets.nbytes),  # max, −, exp, two sums; a row: log, −, 2 products
            "backward": Work(3 * n + N, 2 * w * n + targets.nbytes)}),     # ÷, −, ÷ count; logits → their gradient
        # m: 3, v: 4, √, ε, ÷, η, −: 5;  p, g, m, v → p, m, v
        Operation("Adam", f"{P} parameters, in place", lambda *given: adam.update(*given, in_place=True)[0],
                  (layers, gradient, adam.init(layers)), {"update": Work(12 * P, 7 * w * P)}),
        # a square and its sum, a product;  g → g
        Operation("clip_gradients", f"{P} parameters", clip_gradients, (gradient, 1.0), {
            "clip": Work(3 * P, 2 * w * P)}),
    ]
