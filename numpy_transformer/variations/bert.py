"""BERT's encoder: read a text in both directions at once, and say what each word means where it stands.

A translation is written from left to right, so a decoder must not see the future. A model that only
has to understand may look both ways in every layer: BERT (Devlin et al. 2019) is the Transformer's
encoder alone, trained to restore words that were blotted out. Its input is the sum of three
embeddings, for the word, its segment (first or second of a pair of sentences) and its position:

    x = norm(E[ids] + S[segments] + P)      hidden = encoder(x)      pooled = tanh(hidden₀ W + b)

`hidden` holds a vector for each word. `pooled` is one for the whole text, made of the first word's;
for that purpose the first word is always [CLS]. Going back, the sum hands its gradient to all three
embeddings alike, and tanh′ = 1 − tanh².

`from_bert` reads models that were published under the names of Hugging Face's BertModel.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..foundations.checks import as_float, as_ids, check_count, check_number, check_shape
from ..foundations.dropout import dropout
from ..foundations.linear import Linear
from ..foundations.parameters import map_tree
from ..foundations.pullback import Array
from ..layers.embedding import Embedding
from ..layers.feed_forward import gelu
from ..layers.layer_norm import LayerNorm
from ..layers.positional_encoding import LearnedPositions
from ..model.encoder import Encoder, EncoderLayer
from .renaming import Names, layer_count, matrix_shape

NAMES = Names("""
    word_embedding                            embeddings.word_embeddings
    segment_embedding                         embeddings.token_type_embeddings
    positions                                 embeddings.position_embeddings
    norm                                      embeddings.LayerNorm
    encoder.layers.*.attention.query          encoder.layer.*.attention.self.query
    encoder.layers.*.attention.key            encoder.layer.*.attention.self.key
    encoder.layers.*.attention.value          encoder.layer.*.attention.self.value
    encoder.layers.*.attention.output         encoder.layer.*.attention.output.dense
    encoder.layers.*.attention_norm           encoder.layer.*.attention.output.LayerNorm
    encoder.layers.*.feed_forward.expand      encoder.layer.*.intermediate.dense
    encoder.layers.*.feed_forward.contract    encoder.layer.*.output.dense
    encoder.layers.*.feed_forward_norm        encoder.layer.*.output.LayerNorm
    pooler?                                   pooler.dense
""")


@dataclass(frozen=True, eq=False)
class Bert:
    """BERT without the tasks it is trained by (Devlin et al. 2019, section 3).

    bert(ids, mask, segments, rng) takes ids (B, S), a mask that broadcasts to (B, H, S, S), such as
    padding_mask(ids, pad), and segments (B, S), 0 if not given; it returns hidden (B, S, D) and
    backward(d_hidden) → gradient, in which the pooler's part is 0. What comes back through `pool`
    joins in from there:

        hidden, backward = bert(ids, mask)
        pooled, pool_backward = bert.pool(hidden)
        pooler, d_hidden = pool_backward(d_pooled)
        gradient = replace(backward(d_hidden), pooler=pooler)

    Differs from the paper's figure 2 by the norm after the sum, which the authors' code has.
    """

    word_embedding: Embedding     # E (V, D)
    segment_embedding: Embedding  # S (2, D)
    positions: LearnedPositions   # P (512, D)
    norm: LayerNorm
    encoder: Encoder              # post-norm layers, no norm at the end
    pooler: Linear | None         # W (D, D)
    dropout_rate: float = 0.0     # on the embeddings; the layers have their own

    def __post_init__(self):
        check_number("dropout_rate", self.dropout_rate, 0, 1)

    @classmethod
    def init(cls, rng: np.random.Generator, vocabulary: int, width: int, heads: int, hidden: int, layers: int, *,
             max_length: int = 512, segment_count: int = 2, pooler: bool = True, activation: Callable = gelu,
             epsilon: float = 1e-12, dropout_rate: float = 0.0, dtype=np.float32) -> "Bert":
        """BERT's form with this book's initial values; one dropout rate everywhere, as in the paper."""
        check_count("layers", layers, 0)
        return cls(
            Embedding.init(rng, vocabulary, width, dtype=dtype), Embedding.init(rng, segment_count, width, dtype=dtype),
            LearnedPositions.init(rng, max_length, width, dtype=dtype), LayerNorm.init(width, epsilon=epsilon, dtype=dtype),
            Encoder(tuple(EncoderLayer.init(
                rng, width, heads, hidden, norm_first=False, activation=activation, epsilon=epsilon, dtype=dtype,
                dropout_rate=dropout_rate, attention_dropout_rate=dropout_rate) for _ in range(layers)), None),
            Linear.init(rng, width, width, dtype=dtype) if pooler else None, dropout_rate)

    def __call__(self, ids, mask=None, segments=None, rng=None):
        ids = as_ids("ids", ids, len(self.word_embedding.table))                          # (B, S)
        if ids.ndim != 2:
            raise ValueError(f"ids has shape {ids.shape}: expected (B, S)")
        segments = np.zeros_like(ids) if segments is None else segments                   # (B, S)
        segments = as_ids("segments", segments, len(self.segment_embedding.table))        # (B, S)
        check_shape("segments", segments, ids.shape)
        words, words_backward = self.word_embedding(ids)                                  # (B, S, D)
        marks, marks_backward = self.segment_embedding(segments)                          # (B, S, D)
        summed, positions_backward = self.positions(words + marks)                        # (B, S, D)
        normed, norm_backward = self.norm(summed)                                         # (B, S, D)
        x, dropout_backward = dropout(normed, self.dropout_rate, rng)                     # (B, S, D)
        hidden, encoder_backward = self.encoder(x, mask, rng)                             # (B, S, D)

        def backward(d_hidden):                                                           # (B, S, D)
            encoder, dx = encoder_backward(d_hidden)                                      # (B, S, D)
            norm, d_summed = norm_backward(dropout_backward(dx))                          # (B, S, D)
            positions, d_summed = positions_backward(d_summed)                            # (B, S, D)
            return replace(self, word_embedding=words_backward(d_summed), segment_embedding=marks_backward(d_summed),
                           positions=positions, norm=norm, encoder=encoder, pooler=map_tree(np.zeros_like, self.pooler))

        return hidden, backward

    def pool(self, hidden):
        """hidden (B, S, D) → pooled (B, D) and backward(d_pooled) → pooler's gradient, d_hidden."""
        if self.pooler is None:
            raise ValueError("this model has no pooler")
        hidden = as_float("hidden", hidden)                                               # (B, S, D)
        if hidden.ndim != 3 or hidden.shape[1] == 0:
            raise ValueError(f"hidden has shape {hidden.shape}: expected (B, S, D) with a first word")
        z, pooler_backward = self.pooler(hidden[:, 0])                                    # (B, D)
        pooled = np.tanh(z)                                                               # (B, D)

        def backward(d_pooled):                                                           # (B, D)
            pooler, d_first = pooler_backward(d_pooled * (1 - pooled * pooled))           # (B, D)
            d_hidden = np.zeros_like(hidden)                                              # (B, S, D)
            d_hidden[:, 0] = d_first                                                      # (B, D)
            return pooler, d_hidden

        return pooled, backward


def from_bert(arrays, *, heads: int, activation: Callable = gelu, epsilon: float = 1e-12, dropout_rate: float = 0.0) -> Bert:
    """Build the model from arrays with BertModel's names, each with or without `bert.` before it.

    A linear layer's weight comes as (out, in) and is transposed. The pooler may be absent;
    `embeddings.position_ids`, which only counts 0, 1, 2 …, is passed over. Sizes follow from the
    shapes; heads, activation and ε do not, and stand in the configuration beside the arrays.

    Raises ValueError naming all arrays that are missing or unknown, or the one that is misshapen.
    """
    state = {name.removeprefix("bert."): arrays[name] for name in arrays}
    if len(state) < len(arrays):
        raise ValueError("arrays has a name both with and without 'bert.' before it")
    state.pop("embeddings.position_ids", None)
    vocabulary, width = matrix_shape(state, "embeddings.word_embeddings.weight")
    length, _ = matrix_shape(state, "embeddings.position_embeddings.weight")
    segment_count, _ = matrix_shape(state, "embeddings.token_type_embeddings.weight")
    hidden, _ = matrix_shape(state, "encoder.layer.0.intermediate.dense.weight")
    template = Bert.init(
        np.random.default_rng(0), vocabulary, width, heads, hidden, layer_count(state, "encoder.layer."),
        max_length=length, segment_count=segment_count, pooler="pooler.dense.weight" in state,
        activation=activation, epsilon=epsilon, dropout_rate=dropout_rate)
    return NAMES.from_state(template, state)


def to_bert(model: Bert) -> dict[str, Array]:
    """Copy the arrays of a model, or of its gradient, out under BertModel's names."""
    return NAMES.to_state(model)
