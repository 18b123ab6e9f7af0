"""Grouped-query attention: many queries, few keys. While a model writes, it is the keys that cost.

Must every head have a K of its own? What cannot be is one K of the model's width for the queries of
a head: there is no dot product of 64 numbers with 512.

>>> attention_weights(np.ones((5, 64)), np.ones((7, 512)))
Traceback (most recent call last):
ValueError: k has shape (7, 512): its last axis must be 64 wide

One K of a head's width does fit them all, for the heads still ask differently. So H heads may share
G keys and values, H / G heads each: G = 1 is multi-query attention (Shazeer 2019, section 3), G = H
the ordinary one, what lies between is grouped (Ainslie et al. 2023, section 2.2). A word that is
written costs time for the keys and values that must be kept and read again for every later word.
At width 512 with 8 heads of width 64, by layer:

    G                                        8            4            2            1
    parameters                       1,050,624      787,968      656,640      590,976
    numbers kept for each word           1,024          512          256          128
"""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from ..attention.masks import check_mask
from ..attention.multi_head import MultiHeadAttention, merge_heads, split_heads
from ..attention.scaled_dot_product import attention_weights, scaled_dot_product_attention
from ..foundations.checks import check_count, check_number
from ..foundations.linear import Linear
from ..foundations.pullback import Array


@dataclass(frozen=True, eq=False)
class GroupedQueryAttention(MultiHeadAttention):
    """Multi-head attention in which the R = H / G heads of a group look into one K and one V.

        head_h = attention(x W^Q_h, memory W^K_g, memory W^V_g)      g = ⌊h / R⌋
        y = concat(head_1 … head_H) W^O

    To one K, the T queries of R heads are simply R·T queries. Laid below each other, (B, G, R·T, K),
    they need no repeated keys, and going back

        dk_g = Σ over the heads h of group g and their queries t of d_score_hts q_ht / √K

    is the sum over rows that attention takes anyway. The projections are MultiHeadAttention's, whose
    place this layer can take anywhere: same arguments, same results. Only `key` and `value` are
    narrower, (D, G·K), and `keys_and_values` gives (B, G, S, K), which is what a cache then holds.
    """

    _: KW_ONLY
    groups: int  # G

    def __post_init__(self):
        check_count("heads", self.heads)
        check_count("groups", self.groups)
        check_number("dropout_rate", self.dropout_rate, 0, 1)
        if self.heads % self.groups:
            raise ValueError(f"heads is {self.heads}, which {self.groups} groups do not divide")
        for name, parts in (("query", "heads"), ("key", "groups"), ("value", "groups")):
            width = len(getattr(self, name).bias)
            if width % getattr(self, parts):
                raise ValueError(f"{name} is {width} wide, which {getattr(self, parts)} {parts} do not divide")
        own, shared = len(self.query.bias) // self.heads, len(self.key.bias) // self.groups
        if own != shared:
            raise ValueError(f"query gives {own} numbers to a head, key {shared}: there is no dot product of the two")

    @classmethod
    def init(cls, rng: np.random.Generator, width: int, heads: int, groups: int, *, dropout_rate: float = 0.0,
             dtype=np.float32) -> "GroupedQueryAttention":
        """Four Linear layers of Glorot weights, those of keys and values to a width of groups · width / heads."""
        check_count("heads", heads)
        check_count("groups", groups)
        if width % heads:
            raise ValueError(f"width {width} is not divisible by heads {heads}")
        narrow = groups * width // heads
        layers = (Linear.init(rng, width, outputs, dtype=dtype) for outputs in (width, narrow, narrow, width))
        return cls(*layers, heads, dropout_rate, groups=groups)

    def _attend_and_output(self, q, k, v, mask, rng):
        """q (B, T, H·K), k and v (B, S, G·K) → y (B, T, D) and backward(dy) → W^O's gradient, and dq, dk, dv by head."""
        B, T, _ = q.shape
        S, G = k.shape[1], self.groups
        q, k, v = self._stack(q), split_heads(k, G), split_heads(v, G)   # (B, G, R·T, K), (B, G, S, K), (B, G, S, K)
        mask = self._stack_mask(mask, B, T, S)                           # (B, G, R·T, S)
        per_group, attention_backward = scaled_dot_product_attention(
            q, k, v, mask, dropout_rate=self.dropout_rate, rng=rng)      # (B, G, R·T, K)
        y, output_backward = self.output(self._unstack(per_group, T))    # (B, T, D)

        def backward(dy):                                                # (B, T, D)
            output, d_merged = output_backward(dy)                       # (B, T, H·K)
            dq, dk, dv = attention_backward(self._stack(d_merged))       # (B, G, R·T, K), (B, G, S, K), (B, G, S, K)
            return output, dq.reshape(B, self.heads, T, dk.shape[-1]), dk, dv  # (B, H, T, K), (B, G, S, K), (B, G, S, K)

        return y, backward

    def keys_and_values(self, memory):
        """Project a memory once, for many queries: (B, S, D) → k and v (B, G, S, K). Inference only."""
        k, v = self.key(memory)[0], self.value(memory)[0]                # (B, S, G·K), (B, S, G·K)
        return tuple(split_heads(a, self.groups).copy() for a in (k, v))  # (B, G, S, K), (B, G, S, K)

    def attend(self, x, k, v, mask=None):
        """Attend from x (B, T, D) to keys and values (B, G, S, K) already projected → y (B, T, D)."""
        q = self._stack(self.query(x)[0])                                # (B, G, R·T, K)
        B, T, _ = x.shape
        mask = self._stack_mask(mask, B, T, k.shape[2])                  # (B, G, R·T, S)
        per_group, _ = scaled_dot_product_attention(q, k, v, mask)       # (B, G, R·T, K)
        return self.output(self._unstack(per_group, T))[0]               # (B, T, D)

    def weights(self, x, memory, mask=None):
        """Return the weights alone, to be looked at: (B, H, T, S)."""
        q = self._stack(self.query(x)[0])                                # (B, G, R·T, K)
        k = split_heads(self.key(memory)[0], self.groups)                # (B, G, S, K)
        (B, T, _), S = x.shape, memory.shape[1]
        per_group, _ = attention_weights(q, k, self._stack_mask(mask, B, T, S))  # (B, G, R·T, S)
        return per_group.reshape(B, self.heads, T, S)                    # (B, H, T, S)

    def _stack(self, x: Array) -> Array:
        """(B, T, H·K) → (B, G, R·T, K): cut into heads, and lay those of a group below each other."""
        x = split_heads(x, self.heads)                                   # (B, H, T, K)
        B, H, T, K = x.shape
        return x.reshape(B, self.groups, H // self.groups * T, K)        # (B, G, R·T, K)

    def _unstack(self, x: Array, T: int) -> Array:
        """(B, G, R·T, K) → (B, T, H·K): the inverse of _stack, and therefore also its pullback."""
        B, _, _, K = x.shape
        return merge_heads(x.reshape(B, self.heads, T, K))               # (B, T, H·K)

    def _stack_mask(self, mask: Array | None, B: int, T: int, S: int) -> Array | None:
        """A mask that broadcasts to (B, H, T, S) → (B, G, R·T, S)."""
        if mask is None:
            return None
        check_mask(mask, (B, self.heads, T, S))
        G, R = self.groups, self.heads // self.groups
        return np.broadcast_to(mask, (B, self.heads, T, S)).reshape(B, G, R * T, S)  # (B, G, R·T, S)
