"""Multi-head attention: several attentions side by side, each looking for something of its own.

One attention makes one weighted mean, so whatever it looks for, it looks for that alone. "He bit
into the sweet apple, smiling": who acted on what, what the thing is like and how it was done are
three questions about the same words. H heads ask H questions at once, each in a space of its own
of width K = D / H, and one last linear layer lets their answers mix.

The paper gives head h its own matrices W_h of shape (D, K). Side by side these are one (D, D)
matrix, and K columns of x W, from column hK on, are head h's projection: one big product, then a reshape.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..foundations.checks import as_float, check_count, check_number, check_width
from ..foundations.linear import Linear
from ..foundations.pullback import Array
from .scaled_dot_product import attention_weights, scaled_dot_product_attention


def split_heads(x: Array, heads: int) -> Array:
    """(B, T, H·K) → (B, H, T, K): cut the last axis into heads, and let the heads be a batch."""
    if x.ndim != 3 or x.shape[-1] % heads:
        raise ValueError(f"x has shape {x.shape}: expected (B, T, H·K) with {heads} heads")
    B, T, D = x.shape
    return x.reshape(B, T, heads, D // heads).swapaxes(1, 2)  # (B, H, T, K)


def merge_heads(x: Array) -> Array:
    """(B, H, T, K) → (B, T, H·K): undo split_heads, which only moves numbers; to move them back is also its pullback."""
    if x.ndim != 4:
        raise ValueError(f"x has shape {x.shape}: expected (B, H, T, K)")
    B, H, T, K = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * K)  # (B, T, D)


@dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """Attention of x over a memory, in H heads (Vaswani et al. 2017, section 3.2.2).

        head_h = attention(x W^Q_h, memory W^K_h, memory W^V_h)      Q, K, V: for queries, keys, values
        y = concat(head_0 … head_{H−1}) W^O

    Going back, the gradient passes the steps in the opposite order: the output layer, the merging
    of the heads (which only moves numbers about, so its pullback moves them back), attention, and
    the three projections. The memory is used twice, as keys and as values, so its two gradients add.

    layer(x, memory, mask) takes x (B, T, D), memory (B, S, D) and a mask that broadcasts to
    (B, H, T, S), True = may attend; it returns y (B, T, D) and backward(dy) → (gradient, dx,
    d_memory). Raises ValueError for shapes that do not fit.
    """

    query: Linear   # W^Q of all heads side by side, (D, D)
    key: Linear
    value: Linear
    output: Linear  # W^O
    heads: int
    dropout_rate: float = 0.0  # on the attention weights

    def __post_init__(self):
        check_count("heads", self.heads)
        check_number("dropout_rate", self.dropout_rate, 0, 1)
        for name in ("query", "key", "value"):
            width = len(getattr(self, name).bias)
            if width % self.heads:
                raise ValueError(f"{name} is {width} wide, which {self.heads} heads do not divide")
        if len(self.query.bias) != len(self.key.bias):
            raise ValueError(f"query is {len(self.query.bias)} wide, key {len(self.key.bias)}: they must agree")
        if len(self.value.bias) != len(self.output.weight):
            raise ValueError(f"value is {len(self.value.bias)} wide, output takes {len(self.output.weight)}")

    @classmethod
    def init(cls, rng: np.random.Generator, width: int, heads: int, *, dropout_rate: float = 0.0, dtype=np.float32):
        """Four Linear layers of Glorot weights from width to width."""
        layers = (Linear.init(rng, width, width, dtype=dtype) for _ in range(4))
        return cls(*layers, heads, dropout_rate)

    def __call__(self, x, memory, mask=None, rng=None):
        x = as_float("x", x)                                             # (B, T, D)
        memory = as_float("memory", memory)                              # (B, S, D)
        if x.ndim != 3 or memory.ndim != 3 or len(x) != len(memory):
            raise ValueError(f"x has shape {x.shape}, memory {memory.shape}: expected (B, T, D) and (B, S, D)")
        check_width("memory", memory, len(self.key.weight))
        q, query_backward = self.query(x)                                # (B, T, D)
        k, key_backward = self.key(memory)                               # (B, S, D)
        v, value_backward = self.value(memory)                           # (B, S, D)
        y, heads_backward = self._attend_and_output(q, k, v, mask, rng)  # (B, T, D)

        def backward(dy):                                                # (B, T, D)
            output, *d_heads = heads_backward(dy)  # output: the gradient of W^O
            dq, dk, dv = map(merge_heads, d_heads)                       # (B, T, D), (B, S, D), (B, S, D)
            query, dx = query_backward(dq)                               # (B, T, D)
            key, d_memory_as_key = key_backward(dk)                      # (B, S, D)
            value, d_memory_as_value = value_backward(dv)                # (B, S, D)
            gradient = replace(self, query=query, key=key, value=value, output=output)
            return gradient, dx, d_memory_as_key + d_memory_as_value     # (B, T, D), (B, S, D)

        return y, backward

    def self_attention(self, x, mask=None, rng=None):
        """Let the words of x attend to each other: y (B, T, D) and backward(dy) → (gradient, dx).

        The same as layer(x, x, mask, rng) with dx + d_memory, in one product for all three projections:
        [q k v] = x [W^Q W^K W^V], and backward dx = [dq dk dv] [W^Q W^K W^V]ᵀ, a product that adds
        the gradients of all three uses of x by itself.
        """
        x = as_float("x", x)                                             # (B, T, D)
        if x.ndim != 3:
            raise ValueError(f"x has shape {x.shape}: expected (B, T, D)")
        parts = (self.query, self.key, self.value)
        stacked = Linear(np.concatenate([part.weight for part in parts], axis=1),
                         np.concatenate([part.bias for part in parts]))
        k_start = len(self.query.bias)
        v_start = k_start + len(self.key.bias)

        def apart(a):                                                    # (..., 3·D)
            """The columns of q, of k and of v, as views."""
            return a[..., :k_start], a[..., k_start:v_start], a[..., v_start:]  # (..., D), (..., D), (..., D)

        qkv, stacked_backward = stacked(x)                               # (B, T, 3·D)
        y, heads_backward = self._attend_and_output(*apart(qkv), mask, rng)  # (B, T, D)

        def backward(dy):                                                # (B, T, D)
            output, *d_heads = heads_backward(dy)  # output: the gradient of W^O
            d_qkv = np.empty(qkv.shape, np.result_type(*d_heads))        # (B, T, 3·D)
            for columns, d in zip(apart(d_qkv), d_heads):                # (B, T, D), (B, H, T, K)
                by_head = split_heads(columns, d.shape[1])               # (B, H, T, K)  a view of d_qkv: to write here is to merge
                by_head[...] = d                                         # (B, H, T, K)
            gradient, dx = stacked_backward(d_qkv)                       # (B, T, D)
            query, key, value = map(Linear, apart(gradient.weight), apart(gradient.bias))
            return replace(self, query=query, key=key, value=value, output=output), dx

        return y, backward

    def _attend_and_output(self, q, k, v, mask, rng):
        """q (B, T, D), k and v (B, S, D) → y (B, T, D) and backward(dy) → W^O's gradient, and dq, dk, dv by head."""
        q, k, v = (split_heads(a, self.heads) for a in (q, k, v))        # (B, H, T, K), (B, H, S, K), (B, H, S, K)
        per_head, attention_backward = scaled_dot_product_attention(
            q, k, v, mask, dropout_rate=self.dropout_rate, rng=rng)      # (B, H, T, K)
        y, output_backward = self.output(merge_heads(per_head))          # (B, T, D)

        def backward(dy):                                                # (B, T, D)
            output, d_merged = output_backward(dy)                       # (B, T, D)
            d_per_head = split_heads(d_merged, self.heads)               # (B, H, T, K)
            return output, *attention_backward(d_per_head)

        return y, backward

    def keys_and_values(self, memory):
        """Project a memory once, for many queries: (B, S, D) → k and v (B, H, S, K). Inference only.

        Each of the queries will read all of a head's rows, so they are copied to lie side by side.
        """
        k, v = self.key(memory)[0], self.value(memory)[0]                # (B, S, D), (B, S, D)
        return tuple(split_heads(a, self.heads).copy() for a in (k, v))  # (B, H, S, K), (B, H, S, K)

    def attend(self, x, k, v, mask=None):
        """Attend from x (B, T, D) to keys and values (B, H, S, K) already projected → y (B, T, D)."""
        q = split_heads(self.query(x)[0], self.heads)                    # (B, H, T, K)
        per_head, _ = scaled_dot_product_attention(q, k, v, mask)        # (B, H, T, K)
        return self.output(merge_heads(per_head))[0]                     # (B, T, D)

    def weights(self, x, memory, mask=None):
        """Return the weights alone, to be looked at: (B, H, T, S)."""
        q = split_heads(self.query(x)[0], self.heads)                    # (B, H, T, K)
        k = split_heads(self.key(memory)[0], self.heads)                 # (B, H, S, K)
        return attention_weights(q, k, mask)[0]                          # (B, H, T, S)
