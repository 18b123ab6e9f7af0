"""A GPT: a Transformer that only writes, each word in the light of all the words before it.

There is no source, hence no encoder, and nothing for a decoder to look across to. A decoder layer
without its cross-attention is an EncoderLayer under a causal mask, so the book's parts suffice. At
each place the logits score the word that comes next: a text of T words is T exercises in one.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..attention.masks import causal_mask
from ..attention.multi_head import MultiHeadAttention
from ..foundations.checks import as_float, as_ids, check_count, check_number
from ..foundations.dropout import dropout
from ..foundations.linear import Linear
from ..foundations.parameters import add_trees, named_parameters, replace_parameters
from ..foundations.pullback import Array
from ..layers.embedding import Embedding
from ..layers.feed_forward import FeedForward, gelu_tanh
from ..layers.layer_norm import LayerNorm
from ..layers.positional_encoding import LearnedPositions
from ..layers.residual import residual
from ..model.encoder import Encoder, EncoderLayer


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and rates. The defaults are a small model; the smallest GPT-2, of 124,439,808 parameters,
    is vocabulary 50257, width 768, heads 12, hidden 3072, layers 12, max_length 1024, both rates 0.1."""

    vocabulary: int
    width: int = 128
    heads: int = 4
    hidden: int = 512
    layers: int = 4
    max_length: int = 128                # the position table; generation may go on beyond it
    dropout_rate: float = 0.0            # on embeddings and on every sublayer's answer
    attention_dropout_rate: float = 0.0  # on attention weights
    epsilon: float = 1e-5                # of every LayerNorm

    def __post_init__(self):
        for name in ("vocabulary", "width", "heads", "hidden", "max_length"):
            check_count(name, getattr(self, name))
        check_count("layers", self.layers, 0)
        for name in ("dropout_rate", "attention_dropout_rate"):
            check_number(name, getattr(self, name), 0, 1)
        check_number("epsilon", self.epsilon, above=True)
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")


@dataclass(frozen=True, eq=False)
class GPTCache:
    """The keys and values of the words read so far, of every layer; never changed, only replaced."""

    layers: tuple[tuple[Array, Array], ...]  # (B, H, T, K)
    length: int = 0  # words read so far


@dataclass(frozen=True, eq=False)
class GPT:
    """A decoder-only Transformer (Radford et al. 2019, section 2.3).

        x = dropout(E[ids] + P)      h = norm(block_L(… block_1(x)))      logits = h Eᵀ

    The blocks put their norms first and bend with GELU in its tanh form. E is not multiplied by √D.
    It serves twice, so it receives the sum of two gradients: of the rows looked up, and of the scoring.

    gpt(ids, rng) takes ids (B, T) and returns logits (B, T, V) and backward(d_logits) → gradient, a
    GPT. With rng it trains (dropout), without it infers. Raises ValueError for misshapen ids or more
    words than positions, IndexError for ids outside the vocabulary.
    """

    embedding: Embedding         # E (V, D)
    positions: LearnedPositions  # P
    blocks: Encoder
    dropout_rate: float = 0.0

    @classmethod
    def init(cls, rng: np.random.Generator, config: GPTConfig, *, dtype=np.float32) -> "GPT":
        """Matrices normal with deviation 0.02, biases 0. 2L sublayers add to the residual sum, so the
        matrices that write into it are divided by √(2L), and the sum keeps the scale of one of them."""
        c = config
        blocks = tuple(EncoderLayer.init(
            rng, c.width, c.heads, c.hidden, activation=gelu_tanh, epsilon=c.epsilon, dropout_rate=c.dropout_rate,
            attention_dropout_rate=c.attention_dropout_rate, dtype=dtype) for _ in range(c.layers))
        gpt = cls(Embedding.init(rng, c.vocabulary, c.width, dtype=dtype),
                  LearnedPositions.init(rng, c.max_length, c.width, dtype=dtype),
                  Encoder(blocks, LayerNorm.init(c.width, epsilon=c.epsilon, dtype=dtype)), c.dropout_rate)

        def drawn(name, shape):
            writes = name.endswith(("output.weight", "contract.weight"))
            return rng.normal(0, 0.02 / math.sqrt(2 * c.layers) if writes else 0.02, shape).astype(dtype)  # (...)

        arrays = named_parameters(gpt).items()
        return replace_parameters(gpt, {name: a if a.ndim == 1 else drawn(name, a.shape) for name, a in arrays})

    def __call__(self, ids, rng=None):
        x, embed_backward = self._embed(ids, 0, rng)                     # (B, T, D)
        hidden, blocks_backward = self.blocks(x, causal_mask(x.shape[1]), rng)  # (B, T, D)
        logits, score_backward = self.score(hidden)                      # (B, T, V)

        def backward(d_logits):                                          # (B, T, V)
            scoring, d_hidden = score_backward(d_logits)                 # (B, T, D)
            blocks, dx = blocks_backward(d_hidden)                       # (B, T, D)
            looked_up, positions = embed_backward(dx)
            return replace(self, embedding=add_trees(looked_up, scoring), positions=positions, blocks=blocks)

        return logits, backward

    def score(self, hidden):
        """hidden (..., D) → logits (..., V) and backward(d_logits) → the embedding's gradient, d_hidden."""
        table = self.embedding.table                                     # (V, D)
        logits, layer_backward = Linear(table.T, np.zeros(len(table), table.dtype))(hidden)  # (..., V)

        def backward(d_logits):                                          # (..., V)
            gradient, d_hidden = layer_backward(d_logits)                # (..., D)
            return replace(self.embedding, table=gradient.weight.T), d_hidden

        return logits, backward

    def _embed(self, ids, start, rng=None):
        """ids (B, T), the first at place `start` → x (B, T, D) and backward(dx) → embedding's, positions' gradient."""
        ids = as_ids("ids", ids, len(self.embedding.table))              # (B, T)
        if ids.ndim != 2:
            raise ValueError(f"ids has shape {ids.shape}: expected (B, T)")
        words, embedding_backward = self.embedding(ids)                  # (B, T, D)
        placed, positions_backward = self.positions(words, start)        # (B, T, D)
        x, dropout_backward = dropout(placed, self.dropout_rate, rng)    # (B, T, D)

        def backward(dx):                                                # (B, T, D)
            positions, d_words = positions_backward(dropout_backward(dx))  # (B, T, D)
            return embedding_backward(d_words), positions

        return x, backward

    def start(self, ids) -> GPTCache:
        """Read the beginning of each text, ids (B, T), T ≥ 0, in one go, ready for `step`."""
        x, _ = self._embed(ids, 0)                                       # (B, T, D)
        nothing = tuple(block.attention.keys_and_values(x[:, :0]) for block in self.blocks.layers)
        return self._read(x, GPTCache(nothing))[1]

    def step(self, ids, cache: GPTCache) -> tuple[Array, GPTCache]:
        """Feed the next word of each text, ids (B,): logits (B, V) of the word after it, and the new cache."""
        ids = np.asarray(ids)                                            # (B,)
        if ids.ndim != 1:
            raise ValueError(f"ids has shape {ids.shape}: expected (B,)")
        x, _ = self._embed(ids[:, None], cache.length)                   # (B, 1, D)
        hidden, cache = self._read(x, cache)                             # (B, 1, D)
        return self.score(hidden[:, 0])[0], cache                        # (B, V)

    def _read(self, x: Array, cache: GPTCache) -> tuple[Array, GPTCache]:
        """Continue by N words x (B, N, D): hidden (B, N, D) and the grown cache; the old one stays as it was.

        Words already read cannot see these, so their keys and values are what they were.
        """
        mask = causal_mask(x.shape[1], cache.length + x.shape[1])        # (N, T)  bottom-right: N of T places are new
        grown = []
        for block, (keys, values) in zip(self.blocks.layers, cache.layers):  # (B, H, S, K)

            def look(x):                                                 # (B, N, D)
                k, v = block.attention.keys_and_values(x)                # (B, H, N, K), (B, H, N, K)
                grown.append((np.concatenate([keys, k], axis=2), np.concatenate([values, v], axis=2)))
                return block.attention.attend(x, *grown[-1], mask), None  # (B, N, D)

            x, _ = residual(look, block.attention_norm, x, norm_first=block.norm_first)                # (B, N, D)
            x, _ = residual(block.feed_forward, block.feed_forward_norm, x, norm_first=block.norm_first)  # (B, N, D)
        hidden = x if self.blocks.norm is None else self.blocks.norm(x)[0]  # (B, N, D)
        return hidden, GPTCache(tuple(grown), cache.length + x.shape[1])


def from_gpt2(arrays: Mapping[str, Array], *, heads: int) -> GPT:
    """Build a GPT from the arrays of a GPT-2 under their published names, with or without `transformer.` before them.

    GPT-2 keeps W^Q, W^K and W^V side by side as one matrix (D, 3D), `c_attn`, and calls γ a weight
    and β a bias. Its causal masks (`attn.bias`, `attn.masked_bias`) are no parameters and are passed
    over, and so is `lm_head.weight` if it is `wte.weight` again. Raises ValueError naming the array
    that is missing, misshapen or belongs nowhere.
    """
    check_count("heads", heads)
    names = [name for name in arrays if not re.search(r"\.attn\.(masked_)?bias$", name)]
    given = {name.removeprefix("transformer."): as_float(name, arrays[name]) for name in names}
    if len(given) < len(names):
        raise ValueError("arrays has a name both with and without 'transformer.' before it")

    def take(name, *shape):
        """Remove an array from those given; None stands for a size that this array decides."""
        if name not in given:
            raise ValueError(f"{name!r} is missing")
        array = given.pop(name)                                          # (...)
        if array.ndim != len(shape) or any(want not in (None, size) for want, size in zip(shape, array.shape)):
            raise ValueError(f"{name!r} has shape {array.shape}: expected {shape}".replace("None", "any"))
        return array

    def linear(name, inputs, outputs):
        weight = take(f"{name}.weight", inputs, outputs)                 # (I, O)
        return Linear(weight, take(f"{name}.bias", weight.shape[1]))

    def norm(name):
        return LayerNorm(take(f"{name}.weight", D), take(f"{name}.bias", D))

    def block(name):
        fused, output = linear(f"{name}.attn.c_attn", D, 3 * D), linear(f"{name}.attn.c_proj", D, D)
        parts = zip(np.split(fused.weight, 3, axis=1), np.split(fused.bias, 3))
        query, key, value = (Linear(weight, bias) for weight, bias in parts)
        expand = linear(f"{name}.mlp.c_fc", D, None)
        contract = linear(f"{name}.mlp.c_proj", len(expand.bias), D)
        attention = MultiHeadAttention(query, key, value, output, heads)
        feed_forward = FeedForward(expand, contract, gelu_tanh)
        return EncoderLayer(attention, feed_forward, norm(f"{name}.ln_1"), norm(f"{name}.ln_2"))

    table = take("wte.weight", None, None)                               # (V, D)
    D = table.shape[1]
    if "lm_head.weight" in given and not np.array_equal(given.pop("lm_head.weight"), table):
        raise ValueError("'lm_head.weight' differs from 'wte.weight', but a GPT's output is tied to its embedding")
    layers = len({match[1] for match in (re.match(r"h\.(\d+)\.", name) for name in given) if match})
    gpt = GPT(Embedding(table), LearnedPositions(take("wpe.weight", None, D)),
              Encoder(tuple(block(f"h.{i}") for i in range(layers)), norm("ln_f")))
    if given:
        raise ValueError(f"{min(given)!r} belongs to no place in a GPT-2 of {layers} layers")
    return gpt
