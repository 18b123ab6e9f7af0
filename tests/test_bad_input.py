"""What every page refuses alike: a seed where a generator belongs, attention over arrays of another rank."""

import numpy as np
import pytest

from numpy_transformer import Embedding, FeedForward, Linear, MultiHeadAttention, Transformer, TransformerConfig
from numpy_transformer.attention.multi_head import merge_heads, split_heads
from numpy_transformer.attention.scaled_dot_product import attention_weights, scaled_dot_product_attention
from numpy_transformer.attention.tiled import tiled_attention
from numpy_transformer.foundations.dropout import dropout
from numpy_transformer.layers.positional_encoding import LearnedPositions
from numpy_transformer.model.decoder import DecoderLayer
from numpy_transformer.model.encoder import EncoderLayer
from numpy_transformer.variations.bert import Bert
from numpy_transformer.variations.gpt import GPT, GPTConfig
from numpy_transformer.variations.grouped_query_attention import GroupedQueryAttention

X, IDS = np.ones((1, 2, 4)), np.ones((1, 2), int)
RNG = np.random.default_rng(0)
CONFIG = TransformerConfig(5, 5, 4, 2, 6, 1, 1, 8)

NEED_A_GENERATOR = {
    "Linear.init": lambda rng: Linear.init(rng, 2, 3),
    "Embedding.init": lambda rng: Embedding.init(rng, 2, 3),
    "LearnedPositions.init": lambda rng: LearnedPositions.init(rng, 2, 3),
    "FeedForward.init": lambda rng: FeedForward.init(rng, 2, 3),
    "MultiHeadAttention.init": lambda rng: MultiHeadAttention.init(rng, 4, 2),
    "GroupedQueryAttention.init": lambda rng: GroupedQueryAttention.init(rng, 4, 2, 1),
    "EncoderLayer.init": lambda rng: EncoderLayer.init(rng, 4, 2, 6),
    "DecoderLayer.init": lambda rng: DecoderLayer.init(rng, 4, 2, 6),
    "Transformer.init": lambda rng: Transformer.init(rng, CONFIG),
    "Bert.init": lambda rng: Bert.init(rng, 5, 4, 2, 6, 1),
    "GPT.init": lambda rng: GPT.init(rng, GPTConfig(5, 4, 2, 6, 1, 8)),
    "dropout": lambda rng: dropout(X, 0.5, rng),
    "dropout of nothing": lambda rng: dropout(X, 0.0, rng),
    "feed-forward": lambda rng: FeedForward.init(RNG, 4, 6)(X, rng),
    "attention": lambda rng: scaled_dot_product_attention(X, X, X, rng=rng),
    "transformer": lambda rng: Transformer.init(RNG, CONFIG)(IDS, IDS, pad=0, rng=rng),
}


@pytest.mark.parametrize("attempt", NEED_A_GENERATOR.values(), ids=NEED_A_GENERATOR)
@pytest.mark.parametrize("rng", [0, "0", np.random.RandomState(0)], ids=["seed", "text", "old generator"])
def test_what_is_no_generator_is_refused_by_name(attempt, rng):
    with pytest.raises(TypeError, match="^rng must be a numpy.random.Generator .*, not "):
        attempt(rng)


HEADS, GROUPS = MultiHeadAttention.init(RNG, 4, 2), GroupedQueryAttention.init(RNG, 4, 2, 1)


@pytest.mark.parametrize("layer", [HEADS, GROUPS], ids=["heads", "groups"])
@pytest.mark.parametrize("shape", [(4,), (2, 4), (1, 1, 2, 4)], ids=str)
def test_attention_of_another_rank_is_refused_with_its_shape(layer, shape):
    x, k, v = np.ones(shape), *layer.keys_and_values(X)
    for attempt in (lambda: layer(x, X), lambda: layer(X, x), lambda: layer.self_attention(x), lambda: layer.attend(x, k, v),
                    lambda: layer.keys_and_values(x), lambda: layer.weights(x, X), lambda: layer.weights(X, x)):
        with pytest.raises(ValueError, match=r"shape .*: expected \(B, "):
            attempt()


def test_heads_are_cut_from_three_axes_and_merged_from_four():
    with pytest.raises(ValueError, match=r"^x has shape \(2, 4\): expected \(B, T, H·K\) with 2 heads$"):
        split_heads(np.ones((2, 4)), 2)
    with pytest.raises(ValueError, match=r"^x has shape \(1, 2, 5\): expected \(B, T, H·K\) with 2 heads$"):
        split_heads(np.ones((1, 2, 5)), 2)
    with pytest.raises(ValueError, match=r"^x has shape \(1, 2, 4\): expected \(B, H, T, K\)$"):
        merge_heads(np.ones((1, 2, 4)))


@pytest.mark.parametrize("attend", [
    lambda q: attention_weights(q, q), lambda q: scaled_dot_product_attention(q, q, q), lambda q: tiled_attention(q, q, q)],
    ids=["weights", "plain", "tiled"])
def test_queries_of_no_width_are_refused(attend):
    with pytest.raises(ValueError, match="^width of q must be a whole number of at least 1, not 0$"):
        attend(np.ones((2, 3, 0)))
