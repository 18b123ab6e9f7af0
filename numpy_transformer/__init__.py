"""The Transformer in pure NumPy, as a book that runs.

Read the chapters in this order; each imports only chapters before it.

    foundations   pullback · checks · parameters · sums · linear · dropout · gradient_check · blas_threads
    attention     softmax · masks · scaled_dot_product · tiled · multi_head
    layers        layer_norm · normal_distribution · feed_forward · embedding · positional_encoding · residual
    model         config · encoder · decoder · transformer
    training      cross_entropy · adam · schedule · clipping · batches · checkpoint · memory · workers · loop · progress_line
    translation   vocabulary · corpus · parallel_text · greedy · beam_search · translator · heat_map
    variations    renaming · published_model · torch_interchange · bert · gpt · generation · grouped_query_attention
    command_line  gradcheck · train · translate · gpt

Letters mean the same on every page:

    B batch          T query (target) length    S key (source) length    D width of the model
    H heads          K = D / H width of a head  F feed-forward width     V vocabulary
    N any number     L layers                   I, O inputs and outputs of a layer
    M width of a value                          P positions, or all parameters
"""

from .attention.masks import causal_mask, padding_mask
from .attention.multi_head import MultiHeadAttention
from .attention.scaled_dot_product import attention_weights, scaled_dot_product_attention
from .attention.softmax import softmax
from .attention.tiled import tiled_attention
from .foundations.dropout import dropout
from .foundations.gradient_check import GradientError, check_gradients
from .foundations.linear import Linear
from .foundations.parameters import (add_trees, from_vector, map_tree, named_parameters, parameter_count,
                                     replace_parameters, to_vector)
from .layers.embedding import Embedding
from .layers.feed_forward import FeedForward, gelu, gelu_tanh, relu
from .layers.layer_norm import LayerNorm
from .layers.positional_encoding import LearnedPositions, SinusoidalPositions, sinusoidal_positions
from .layers.residual import residual
from .model.config import TransformerConfig
from .model.decoder import Decoder, DecoderLayer
from .model.encoder import Encoder, EncoderLayer
from .model.transformer import Transformer
from .training.adam import Adam, AdamState
from .training.checkpoint import load, save
from .training.clipping import clip_gradients
from .training.cross_entropy import cross_entropy
from .training.memory import keep_freed_memory
from .training.schedule import cooldown, warmup_schedule
from .training.workers import Workers
from .translation.beam_search import beam_search
from .translation.greedy import greedy_decode
from .translation.translator import Translator
from .translation.vocabulary import Vocabulary, detokenise, tokenise
from .variations.bert import Bert, from_bert
from .variations.gpt import GPT, GPTConfig, from_gpt2
from .variations.grouped_query_attention import GroupedQueryAttention
from .variations.published_model import from_published
from .variations.torch_interchange import from_torch, to_torch

__all__ = [name for name, value in list(globals().items()) if not name.startswith("_") and hasattr(value, "__module__")]
