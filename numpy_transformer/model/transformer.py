"""The Transformer: embed, encode, decode, and score every word of the vocabulary at every place.

The encoder reads the source. The decoder reads the target as written so far, which while training
is the right answer moved one place to the right behind <bos>, and predicts at each place the word
that comes next; the causal mask keeps each place from seeing it.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from ..attention.masks import causal_mask, padding_mask
from ..attention.multi_head import MultiHeadAttention
from ..foundations.checks import as_ids, check_number, check_shape
from ..foundations.dropout import dropout
from ..foundations.linear import Linear
from ..foundations.parameters import add_trees, parameter_count
from ..foundations.pullback import Array
from ..layers.embedding import Embedding
from ..layers.layer_norm import LayerNorm
from ..layers.positional_encoding import LearnedPositions, SinusoidalPositions
from .config import ACTIVATIONS, TransformerConfig
from .decoder import Decoder, DecoderLayer, LayerCache
from .encoder import Encoder, EncoderLayer

@dataclass(frozen=True, eq=False)
class Cache:
    """The state of a translation under way, for every layer; never changed, only replaced."""

    layers: tuple[LayerCache, ...]
    memory_mask: Array  # (B, 1, 1, S)
    length: int = 0     # words written so far


@dataclass(frozen=True, eq=False)
class Transformer:
    """An encoder-decoder Transformer (Vaswani et al. 2017, figure 1).

        embed(ids) = dropout(√D E[ids] + positions)
        memory = encoder(embed(source))
        logits = decoder(embed(target), memory) W + b

    A missing part says that another does its work, so that a tie cannot come apart: without
    `target_embedding` the source's table serves both sides; without `output` the logits are
    x Eᵀ, E the target's table (section 3.4). What serves twice has its gradients added.

    model(source, target_input, pad=…, rng=…) takes ids (B, S) and (B, T) and returns logits
    (B, T, V) and backward(d_logits) → gradient, a Transformer. With rng it trains (dropout), without
    it infers. Raises ValueError for misshapen ids or sentences longer than the position table,
    IndexError for ids outside the vocabulary.
    """

    source_embedding: Embedding
    target_embedding: Embedding | None
    source_positions: SinusoidalPositions | LearnedPositions
    target_positions: SinusoidalPositions | LearnedPositions
    encoder: Encoder
    decoder: Decoder
    output: Linear | None
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_number("dropout_rate", self.dropout_rate, 0, 1)

    @classmethod
    def init(cls, rng: np.random.Generator, config: TransformerConfig, *, dtype=np.float32) -> "Transformer":
        """Glorot-uniform weights, zero biases, embeddings of variance 1/D: each says why on its page."""
        c = config

        def layers(kind, count):
            return tuple(kind.init(
                rng, c.width, c.heads, c.hidden, norm_first=c.norm_first, dropout_rate=c.dropout_rate,
                attention_dropout_rate=c.attention_dropout_rate, feed_forward_dropout_rate=c.feed_forward_dropout_rate,
                activation=ACTIVATIONS[c.activation], epsilon=c.epsilon, dtype=dtype) for _ in range(count))

        def norm():
            return LayerNorm.init(c.width, epsilon=c.epsilon, dtype=dtype) if c.final_norm else None

        def positions():
            return (LearnedPositions.init(rng, c.max_length, c.width, dtype=dtype) if c.learned_positions
                    else SinusoidalPositions(c.max_length, c.width))

        return cls(
            Embedding.init(rng, c.source_vocabulary, c.width, dtype=dtype),
            None if c.share_vocabulary else Embedding.init(rng, c.target_vocabulary, c.width, dtype=dtype),
            positions(),
            positions(),
            Encoder(layers(EncoderLayer, c.encoder_layers), norm()),
            Decoder(layers(DecoderLayer, c.decoder_layers), norm()),
            None if c.tie_embeddings else Linear.init(rng, c.width, c.target_vocabulary, dtype=dtype),
            c.dropout_rate)

    def __call__(self, source, target_input, *, pad, rng=None):
        memory, encode_backward = self.encode(source, pad=pad, rng=rng)                       # (B, S, D)
        memory_mask = padding_mask(source, pad)                                               # (B, 1, 1, S)
        hidden, decode_backward = self.decode(target_input, memory, memory_mask, pad=pad, rng=rng)  # (B, T, D)
        logits, score_backward = self.score(hidden)                                           # (B, T, V)

        def backward(d_logits):                                                               # (B, T, V)
            output, tied_embedding, d_hidden = score_backward(d_logits)                       # (B, T, D)
            target_embedding, target_positions, decoder, d_memory = decode_backward(d_hidden)  # (B, S, D)
            source_embedding, source_positions, encoder = encode_backward(d_memory)
            if self.output is None:            # the target's table also scored the words
                target_embedding = add_trees(target_embedding, tied_embedding)
            if self.target_embedding is None:  # the source's table also embedded the target
                source_embedding, target_embedding = add_trees(source_embedding, target_embedding), None
            return replace(self, source_embedding=source_embedding, target_embedding=target_embedding,
                           source_positions=source_positions, target_positions=target_positions,
                           encoder=encoder, decoder=decoder, output=output)

        return logits, backward

    def encode(self, source, *, pad, rng=None):
        """source (B, S) → memory (B, S, D) and backward(d_memory) → embedding's, positions', encoder's gradient."""
        mask = padding_mask(source, pad, name="source")                                       # (B, 1, 1, S)
        x, embed_backward = self._embed(self.source_embedding, self.source_positions, "source", source, rng)  # (B, S, D)
        memory, encoder_backward = self.encoder(x, mask, rng)                                 # (B, S, D)

        def backward(d_memory):                                                               # (B, S, D)
            encoder, dx = encoder_backward(d_memory)                                          # (B, S, D)
            embedding, positions = embed_backward(dx)
            return embedding, positions, encoder

        return memory, backward

    def decode(self, target_input, memory, memory_mask=None, *, pad, rng=None):
        """target_input (B, T), memory (B, S, D) → hidden (B, T, D) and backward(d_hidden) →
        embedding's, positions', decoder's gradient and d_memory."""
        padding = padding_mask(target_input, pad, name="target_input", form="(B, T)")         # (B, 1, 1, T)
        mask = causal_mask(padding.shape[-1]) & padding                                       # (B, 1, T, T)
        embedding = self.target_embedding or self.source_embedding
        x, embed_backward = self._embed(embedding, self.target_positions, "target_input", target_input, rng)  # (B, T, D)
        hidden, decoder_backward = self.decoder(x, memory, mask, memory_mask, rng)            # (B, T, D)

        def backward(d_hidden):                                                               # (B, T, D)
            decoder, dx, d_memory = decoder_backward(d_hidden)                                # (B, T, D), (B, S, D)
            embedding, positions = embed_backward(dx)
            return embedding, positions, decoder, d_memory

        return hidden, backward

    def score(self, hidden):
        """hidden (..., D) → logits (..., V) and backward(d_logits) → output's gradient, tied table's, d_hidden."""
        embedding = self.target_embedding or self.source_embedding
        layer = self.output or Linear(embedding.table.T, np.zeros(len(embedding.table), embedding.table.dtype))
        logits, layer_backward = layer(hidden)                                                # (..., V)

        def backward(d_logits):                                                               # (..., V)
            gradient, d_hidden = layer_backward(d_logits)                                     # (..., D)
            if self.output is None:
                return None, replace(embedding, table=gradient.weight.T), d_hidden
            return gradient, None, d_hidden

        return logits, backward

    def _embed(self, embedding, positions, name, ids, rng):
        """ids (B, T) → dropout(√D E[ids] + positions) and backward(dy) → embedding's, positions' gradient."""
        ids = as_ids(name, ids, len(embedding.table))                                         # (B, T)
        words, embedding_backward = embedding(ids)                                            # (B, T, D)
        scale = math.sqrt(words.shape[-1])  # the table's entries have variance 1/D, the positions' about 1/2
        placed, positions_backward = positions(words * scale)                                 # (B, T, D)
        x, dropout_backward = dropout(placed, self.dropout_rate, rng)                         # (B, T, D)

        def backward(dx):                                                                     # (B, T, D)
            positions, d_words = positions_backward(dropout_backward(dx))                     # (B, T, D)
            return embedding_backward(d_words * scale), positions

        return x, backward

    def start(self, source, *, pad) -> Cache:
        """Encode the source (B, S) once, ready for `step`."""
        memory, _ = self.encode(source, pad=pad)                                              # (B, S, D)
        return Cache(tuple(layer.start(memory) for layer in self.decoder.layers), padding_mask(source, pad))

    def step(self, ids, cache: Cache) -> tuple[Array, Cache]:
        """Feed the next word of each sentence, ids (B,): logits (B, V) of the word after it, and the new cache."""
        embedding = self.target_embedding or self.source_embedding
        ids = as_ids("ids", ids, len(embedding.table))                                        # (B,)
        check_shape("ids", ids, cache.memory_mask.shape[:1])
        words, _ = embedding(ids[:, None])                                                    # (B, 1, D)
        x, _ = self.target_positions(words * math.sqrt(words.shape[-1]), cache.length)        # (B, 1, D)
        hidden, layers = self.decoder.step(x, cache.layers, cache.memory_mask)                # (B, 1, D)
        logits, _ = self.score(hidden[:, 0])                                                  # (B, V)
        return logits, replace(cache, layers=layers, length=cache.length + 1)

    def attention_maps(self, source, target_input, *, pad) -> dict[str, Array]:
        """Return every attention's weights (B, H, T, S) by name, such as `decoder.layers.0.cross_attention`."""
        maps = {}

        def watch(stack, name, *attentions):
            return replace(stack, layers=tuple(
                replace(layer, **{a: Watched(getattr(layer, a), f"{name}.layers.{i}.{a}", maps) for a in attentions})
                for i, layer in enumerate(stack.layers)))

        watched = replace(self, encoder=watch(self.encoder, "encoder", "attention"),
                          decoder=watch(self.decoder, "decoder", "self_attention", "cross_attention"))
        watched(source, target_input, pad=pad)
        return maps

    def parameter_count(self, *, embeddings: bool = True) -> int:
        """Return the number of learned numbers, with or without the tables of words and positions."""
        tables = (self.source_embedding, self.target_embedding, self.source_positions, self.target_positions)
        return parameter_count(self) - (0 if embeddings else parameter_count(tables))


@dataclass(frozen=True, eq=False)
class Watched:
    """A MultiHeadAttention that notes its weights in `maps` before it does its work."""

    attention: MultiHeadAttention
    name: str
    maps: dict

    def __call__(self, x, memory, mask=None, rng=None):
        self.maps[self.name] = self.attention.weights(x, memory, mask)
        return self.attention(x, memory, mask, rng)

    def self_attention(self, x, mask=None, rng=None):
        self.maps[self.name] = self.attention.weights(x, x, mask)
        return self.attention.self_attention(x, mask, rng)
