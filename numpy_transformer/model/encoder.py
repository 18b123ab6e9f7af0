"""The encoder: read the whole source sentence, each word in the light of all the others."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..attention.multi_head import MultiHeadAttention
from ..foundations.checks import check_number
from ..layers.feed_forward import FeedForward, relu
from ..layers.layer_norm import LayerNorm
from ..layers.residual import residual


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """The words look at each other, then each thinks for itself (Vaswani et al. 2017, section 3.1).

        x ← residual(self-attention)(x)        y = residual(feed-forward)(x)

    layer(x, mask, rng) takes x (B, S, D) and a mask that broadcasts to (B, H, S, S), True = may
    attend; it returns y (B, S, D) and backward(dy) → (gradient, dx): the two sublayers in the
    opposite order.
    """

    attention: MultiHeadAttention
    feed_forward: FeedForward
    attention_norm: LayerNorm
    feed_forward_norm: LayerNorm
    norm_first: bool = True
    dropout_rate: float = 0.0  # on each sublayer's answer

    def __post_init__(self):
        check_number("dropout_rate", self.dropout_rate, 0, 1)

    @classmethod
    def init(cls, rng: np.random.Generator, width: int, heads: int, hidden: int, *, norm_first: bool = True,
             dropout_rate: float = 0.0, attention_dropout_rate: float = 0.0, feed_forward_dropout_rate: float = 0.0,
             activation: Callable = relu, epsilon: float = 1e-5, dtype=np.float32) -> "EncoderLayer":
        return cls(
            MultiHeadAttention.init(rng, width, heads, dropout_rate=attention_dropout_rate, dtype=dtype),
            FeedForward.init(rng, width, hidden, activation=activation, dropout_rate=feed_forward_dropout_rate, dtype=dtype),
            LayerNorm.init(width, epsilon=epsilon, dtype=dtype),
            LayerNorm.init(width, epsilon=epsilon, dtype=dtype),
            norm_first, dropout_rate)

    def __call__(self, x, mask=None, rng=None):
        wiring = dict(norm_first=self.norm_first, dropout_rate=self.dropout_rate, rng=rng)

        def look(x):                                                                     # (B, S, D)
            return self.attention.self_attention(x, mask, rng)

        def think(x):                                                                    # (B, S, D)
            return self.feed_forward(x, rng)

        x, look_backward = residual(look, self.attention_norm, x, **wiring)              # (B, S, D)
        y, think_backward = residual(think, self.feed_forward_norm, x, **wiring)         # (B, S, D)

        def backward(dy):                                                                # (B, S, D)
            feed_forward, feed_forward_norm, dx = think_backward(dy)                     # (B, S, D)
            attention, attention_norm, dx = look_backward(dx)                            # (B, S, D)
            gradient = replace(self, attention=attention, feed_forward=feed_forward,
                               attention_norm=attention_norm, feed_forward_norm=feed_forward_norm)
            return gradient, dx

        return y, backward


@dataclass(frozen=True, eq=False)
class Encoder:
    """L layers, one after the other, and a last norm if the layers put theirs first.

        x ← layer₁(x), x ← layer₂(x) …        y = norm(x)

    Pre-norm layers hand on a sum that grows with every layer and was never normalised itself, so
    the stack ends with a norm; post-norm layers end with one of their own, and the stack needs none.

    encoder(x, mask, rng) takes x (B, S, D) and returns y (B, S, D) and backward(dy) → (gradient, dx).
    """

    layers: tuple[EncoderLayer, ...]
    norm: LayerNorm | None

    def __post_init__(self):
        if not isinstance(self.layers, tuple):  # map_tree looks into tuples, not into lists
            raise TypeError(f"layers must be a tuple, not {type(self.layers).__name__}")

    def __call__(self, x, mask=None, rng=None):
        pullbacks = []
        for layer in self.layers:
            x, layer_backward = layer(x, mask, rng)                                      # (B, S, D)
            pullbacks.append(layer_backward)
        y, norm_backward = (x, None) if self.norm is None else self.norm(x)              # (B, S, D)

        def backward(dy):                                                                # (B, S, D)
            norm, dx = (None, dy) if self.norm is None else norm_backward(dy)            # (B, S, D)
            layers = []
            for layer_backward in reversed(pullbacks):
                gradient, dx = layer_backward(dx)                                        # (B, S, D)
                layers.append(gradient)
            return replace(self, layers=tuple(reversed(layers)), norm=norm), dx

        return y, backward
