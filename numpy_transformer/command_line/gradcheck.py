"""`gradcheck`: hold every derived gradient of the book against the difference quotient."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from ..attention.masks import causal_mask
from ..attention.multi_head import MultiHeadAttention
from ..attention.scaled_dot_product import attention_weights, scaled_dot_product_attention
from ..attention.softmax import softmax
from ..attention.tiled import tiled_attention
from ..foundations.dropout import dropout
from ..foundations.gradient_check import GradientError, check_gradients
from ..foundations.linear import Linear
from ..foundations.parameters import map_tree, named_parameters
from ..layers.embedding import Embedding
from ..layers.feed_forward import FeedForward, gelu, gelu_tanh, relu
from ..layers.layer_norm import LayerNorm
from ..layers.positional_encoding import LearnedPositions
from ..layers.residual import residual
from ..model.config import TransformerConfig
from ..model.decoder import Decoder, DecoderLayer
from ..model.encoder import Encoder, EncoderLayer
from ..model.transformer import Transformer
from ..training.cross_entropy import cross_entropy
from ..variations.bert import Bert
from ..variations.gpt import GPT, GPTConfig
from ..variations.grouped_query_attention import GroupedQueryAttention

B, T, S, D, H, K, F, V = 2, 5, 7, 12, 3, 4, 11, 13
TOLERANCE = 1e-7


def components(rng: np.random.Generator) -> Iterator[tuple[str, Callable, tuple]]:
    """Yield a name, a function f(*arguments) → y, backward, and its arguments, for every operation of the book."""
    draw = rng.standard_normal
    new = np.random.default_rng(0)  # initial values do not matter: all parameters are drawn anew

    def drawn(tree):
        """Random parameters: with a gain of 1 and a bias of 0 some mistakes would not show."""
        return map_tree(lambda array: 0.5 * draw(array.shape), tree)

    def noise():
        """A generator made afresh for each call, so that dropout drops the same entries every time."""
        return np.random.default_rng(1)

    x, memory = draw((B, T, D)), draw((B, S, D))
    q, k, v = draw((B, H, T, K)), draw((B, H, S, K)), draw((B, H, S, K + 2))
    causal, hidden = causal_mask(T), rng.random((B, 1, 1, S)) < 0.7
    blind = rng.random((T, S)) < 0.6
    blind[1] = False  # a query that may see no key

    yield "linear", lambda layer, x: layer(x), (drawn(Linear.init(new, D, F)), x)
    yield "dropout", lambda x: dropout(x, 0.3, noise()), (x,)
    yield "softmax", softmax, (draw((B, T, S)),)
    yield "attention_weights", lambda q, k: attention_weights(q, k, blind), (q, k)
    yield "scaled_dot_product_attention", lambda q, k, v: scaled_dot_product_attention(
        q, k, v, blind, dropout_rate=0.2, rng=noise()), (q, k, v)
    yield "tiled_attention", lambda q, k, v: tiled_attention(q, k, v, blind, query_block=2, key_block=3), (q, k, v)
    heads = drawn(MultiHeadAttention.init(new, D, H, dropout_rate=0.2))
    yield "self_attention", lambda layer, x: layer.self_attention(x, causal, noise()), (heads, x)
    yield "cross_attention", lambda layer, x, memory: layer(x, memory, hidden, noise()), (heads, x, memory)
    norm = drawn(LayerNorm.init(D))
    yield "layer_norm", lambda layer, x: layer(x), (norm, x)
    yield "relu", relu, (x,)
    yield "gelu", gelu, (x,)
    yield "gelu_tanh", gelu_tanh, (x,)
    feed_forward = drawn(FeedForward.init(new, D, F, dropout_rate=0.2))
    yield "feed_forward", lambda layer, x: layer(x, noise()), (feed_forward, x)
    ids = rng.integers(0, V // 2, (B, T))  # few words, so that some occur twice
    yield "embedding", lambda layer: layer(ids), (drawn(Embedding.init(new, V, D)),)
    yield "learned_positions", lambda layer, x: layer(x, 1), (drawn(LearnedPositions.init(new, T + 2, D)), x)
    for norm_first in (True, False):
        name = "pre-norm" if norm_first else "post-norm"
        rates = dict(norm_first=norm_first, dropout_rate=0.1, attention_dropout_rate=0.2, feed_forward_dropout_rate=0.3)
        encoder = drawn(Encoder((EncoderLayer.init(new, D, H, F, **rates),), LayerNorm.init(D)))
        decoder = drawn(Decoder((DecoderLayer.init(new, D, H, F, **rates),) * 2, LayerNorm.init(D)))
        yield f"residual, {name}", lambda sublayer, norm, x: residual(
            sublayer, norm, x, norm_first=norm_first, dropout_rate=0.2, rng=noise()), (drawn(Linear.init(new, D, D)), norm, x)
        yield f"encoder, {name}", lambda encoder, x: encoder(x, hidden, noise()), (encoder, memory)
        yield f"decoder, {name}", lambda decoder, x, memory: decoder(x, memory, causal, hidden, noise()), (decoder, x, memory)
    targets = rng.integers(0, V, (B, T))
    targets[0, :2] = 3
    yield "cross_entropy", lambda logits: cross_entropy(
        logits, targets, ignore_index=3, label_smoothing=0.1), (draw((B, T, V)),)

    source, target = rng.integers(1, V, (B, S)), rng.integers(1, V, (B, T))
    source[0, -2:] = target[1, -1:] = 0  # padding
    for norm_first, tied in product((True, False), (True, False)):
        config = TransformerConfig(V, V, D, H, F, 1, 2, S, 0.1, 0.2, 0.3, norm_first=norm_first, final_norm=norm_first,
                                   tie_embeddings=tied, share_vocabulary=tied, learned_positions=not tied)
        name = f"transformer, {'pre' if norm_first else 'post'}-norm, {'tied' if tied else 'untied'}"
        yield name, lambda model: model(source, target, pad=0, rng=noise()), (drawn(Transformer.init(new, config)),)

    few = drawn(GroupedQueryAttention.init(new, D, 6, 2, dropout_rate=0.2))
    yield "grouped_query_attention", lambda layer, x, memory: layer(x, memory, hidden, noise()), (few, x, memory)
    bert = drawn(Bert.init(new, V, D, H, F, 2, max_length=S, dropout_rate=0.2))
    yield "bert", lambda model: model(source, hidden, rng=noise()), (bert,)
    gpt = drawn(GPT.init(new, GPTConfig(V, D, H, F, 2, T, 0.1, 0.2)))
    yield "gpt", lambda model: model(target, noise()), (gpt,)


def run(names: list[str], seed: int) -> int:
    """Print a table of the components whose name holds one of `names`; exit status 0 if all gradients agree."""
    known = [name for name, _, _ in components(np.random.default_rng(seed))]
    for part in names:
        if not any(part.lower() in name for name in known):
            raise ValueError(f"no component is called {part}; there are {'; '.join(known)}")
    print(f"{'component':<30} {'argument':<48} {'worst error':>11}  verdict")
    checked = failed = 0
    for name, f, arguments in components(np.random.default_rng(seed)):
        if names and not any(part.lower() in name for part in names):
            continue
        checked += 1
        stack = len(named_parameters(arguments)) > 12  # dozens of arrays: one direction each, and one line for all
        try:
            errors = check_gradients(f, *arguments, rng=np.random.default_rng(seed), tolerance=TOLERANCE,
                                     coordinates=0 if stack else 40, directions=1)
        except GradientError as error:
            print(f"{name:<30} {error}  WRONG", flush=True)
            failed += 1
            continue
        for argument, worst in [max(errors.items(), key=lambda item: item[1])] if stack else errors.items():
            verdict = f"ok, {len(errors)} arrays" if stack else "ok"
            print(f"{name:<30} {argument:<48} {worst:>11.1e}  {verdict}", flush=True)
    print(f"{checked} components, {failed} wrong: float64, random parameters and upstream gradient, tolerance {TOLERANCE:g}")
    return 1 if failed else 0
