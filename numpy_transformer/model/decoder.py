"""The decoder: write the target word by word, looking back at what is written and across at the source."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..attention.multi_head import MultiHeadAttention
from ..foundations.checks import as_float, check_number, check_shape
from ..foundations.pullback import Array
from ..layers.feed_forward import FeedForward, relu
from ..layers.layer_norm import LayerNorm
from ..layers.residual import residual


@dataclass(frozen=True, eq=False)
class LayerCache:
    """What a decoder layer need not compute again for the next word: its keys and values so far."""

    keys: Array           # (B, H, T, K)  of the words written so far
    values: Array         # (B, H, T, K)
    memory_keys: Array    # (B, H, S, K)  of the source, the same for every word
    memory_values: Array  # (B, H, S, K)


@dataclass(frozen=True, eq=False)
class DecoderLayer:
    """Look back, look across, think (Vaswani et al. 2017, section 3.1).

        x ← residual(masked self-attention)(x)                 queries, keys and values: the target
        x ← residual(cross-attention over the memory)(x)       queries: the target; keys, values: the source
        y = residual(feed-forward)(x)

    The caller masks self-attention with `causal_mask`, so that no word sees a later one. Cross-attention needs no causal mask,
    since the source is known to its end, but its padding has to be hidden.

    layer(x, memory, mask, memory_mask, rng) takes x (B, T, D), memory (B, S, D) and masks that
    broadcast to (B, H, T, T) and (B, H, T, S); it returns y (B, T, D) and backward(dy) →
    (gradient, dx, d_memory).
    """

    self_attention: MultiHeadAttention
    cross_attention: MultiHeadAttention
    feed_forward: FeedForward
    self_attention_norm: LayerNorm
    cross_attention_norm: LayerNorm
    feed_forward_norm: LayerNorm
    norm_first: bool = True
    dropout_rate: float = 0.0  # on each sublayer's answer

    def __post_init__(self):
        check_number("dropout_rate", self.dropout_rate, 0, 1)

    @classmethod
    def init(cls, rng: np.random.Generator, width: int, heads: int, hidden: int, *, norm_first: bool = True,
             dropout_rate: float = 0.0, attention_dropout_rate: float = 0.0, feed_forward_dropout_rate: float = 0.0,
             activation: Callable = relu, epsilon: float = 1e-5, dtype=np.float32) -> "DecoderLayer":
        return cls(
            MultiHeadAttention.init(rng, width, heads, dropout_rate=attention_dropout_rate, dtype=dtype),
            MultiHeadAttention.init(rng, width, heads, dropout_rate=attention_dropout_rate, dtype=dtype),
            FeedForward.init(rng, width, hidden, activation=activation, dropout_rate=feed_forward_dropout_rate, dtype=dtype),
            *(LayerNorm.init(width, epsilon=epsilon, dtype=dtype) for _ in range(3)),
            norm_first, dropout_rate)

    def __call__(self, x, memory, mask=None, memory_mask=None, rng=None):
        wiring = dict(norm_first=self.norm_first, dropout_rate=self.dropout_rate, rng=rng)

        def look_back(x):                                                                # (B, T, D)
            return self.self_attention.self_attention(x, mask, rng)

        def look_across(x):                                                              # (B, T, D)
            return self.cross_attention(x, memory, memory_mask, rng)

        def think(x):                                                                    # (B, T, D)
            return self.feed_forward(x, rng)

        x, back_backward = residual(look_back, self.self_attention_norm, x, **wiring)         # (B, T, D)
        x, across_backward = residual(look_across, self.cross_attention_norm, x, **wiring)    # (B, T, D)
        y, think_backward = residual(think, self.feed_forward_norm, x, **wiring)              # (B, T, D)

        def backward(dy):                                                                # (B, T, D)
            feed_forward, feed_forward_norm, dx = think_backward(dy)                     # (B, T, D)
            cross_attention, cross_attention_norm, dx, d_memory = across_backward(dx)    # (B, T, D), (B, S, D)
            self_attention, self_attention_norm, dx = back_backward(dx)                  # (B, T, D)
            gradient = replace(
                self, self_attention=self_attention, cross_attention=cross_attention, feed_forward=feed_forward,
                self_attention_norm=self_attention_norm, cross_attention_norm=cross_attention_norm,
                feed_forward_norm=feed_forward_norm)
            return gradient, dx, d_memory

        return y, backward

    def start(self, memory: Array) -> LayerCache:
        """Return the cache before the first word: the memory's keys and values, and none of the target's."""
        memory_keys, memory_values = self.cross_attention.keys_and_values(memory)        # (B, H, S, K), (B, H, S, K)
        keys, values = self.self_attention.keys_and_values(memory[:, :0])                # (B, H, 0, K), (B, H, 0, K)
        return LayerCache(keys, values, memory_keys, memory_values)

    def step(self, x: Array, cache: LayerCache, memory_mask: Array | None = None) -> tuple[Array, LayerCache]:
        """Continue by one word x (B, 1, D): its y (B, 1, D) and a new cache; the old one stays as it was.

        Earlier words cannot see this one, so their keys and values are what they were: only one
        query, key and value are new. Inference only, hence no pullbacks and no dropout.
        """
        check_shape("x", x, (len(cache.keys), 1, len(self.self_attention_norm.gain)))

        def look_back(x):                                                                # (B, 1, D)
            nonlocal cache
            k, v = self.self_attention.keys_and_values(x)                                # (B, H, 1, K), (B, H, 1, K)
            keys = np.concatenate([cache.keys, k], axis=2)                               # (B, H, T, K)
            values = np.concatenate([cache.values, v], axis=2)                           # (B, H, T, K)
            cache = replace(cache, keys=keys, values=values)
            return self.self_attention.attend(x, keys, values), None                     # (B, 1, D)

        def look_across(x):                                                              # (B, 1, D)
            return self.cross_attention.attend(x, cache.memory_keys, cache.memory_values, memory_mask), None  # (B, 1, D)

        x, _ = residual(look_back, self.self_attention_norm, x, norm_first=self.norm_first)        # (B, 1, D)
        x, _ = residual(look_across, self.cross_attention_norm, x, norm_first=self.norm_first)     # (B, 1, D)
        y, _ = residual(self.feed_forward, self.feed_forward_norm, x, norm_first=self.norm_first)  # (B, 1, D)
        return y, cache


@dataclass(frozen=True, eq=False)
class Decoder:
    """L layers, one after the other, and a last norm if the layers put theirs first.

        x ← layer₁(x, memory), x ← layer₂(x, memory) …        y = norm(x)

    Every layer reads the same memory, so its gradient is the sum over the layers.

    decoder(x, memory, mask, memory_mask, rng) takes x (B, T, D) and memory (B, S, D) and returns
    y (B, T, D) and backward(dy) → (gradient, dx, d_memory).
    """

    layers: tuple[DecoderLayer, ...]
    norm: LayerNorm | None

    def __post_init__(self):
        if not isinstance(self.layers, tuple):  # map_tree looks into tuples, not into lists
            raise TypeError(f"layers must be a tuple, not {type(self.layers).__name__}")

    def __call__(self, x, memory, mask=None, memory_mask=None, rng=None):
        memory = as_float("memory", memory)                                               # (B, S, D)
        pullbacks = []
        for layer in self.layers:
            x, layer_backward = layer(x, memory, mask, memory_mask, rng)                 # (B, T, D)
            pullbacks.append(layer_backward)
        y, norm_backward = (x, None) if self.norm is None else self.norm(x)              # (B, T, D)
        memory_shape, memory_dtype = memory.shape, memory.dtype

        def backward(dy):                                                                # (B, T, D)
            norm, dx = (None, dy) if self.norm is None else norm_backward(dy)            # (B, T, D)
            d_memory = np.zeros(memory_shape, memory_dtype)                              # (B, S, D)
            layers = []
            for layer_backward in reversed(pullbacks):
                gradient, dx, d_memory_of_layer = layer_backward(dx)                     # (B, T, D), (B, S, D)
                d_memory += d_memory_of_layer                                            # (B, S, D)
                layers.append(gradient)
            return replace(self, layers=tuple(reversed(layers)), norm=norm), dx, d_memory

        return y, backward

    def step(self, x: Array, caches: tuple[LayerCache, ...], memory_mask: Array | None = None):
        """Continue by one word x (B, 1, D): y (B, 1, D) and the new cache of every layer."""
        grown = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer.step(x, cache, memory_mask)                                 # (B, 1, D)
            grown.append(cache)
        y = x if self.norm is None else self.norm(x)[0]                                  # (B, 1, D)
        return y, tuple(grown)
