"""The configuration: the numbers and choices that make one Transformer out of the many possible."""

from dataclasses import dataclass

from ..foundations.checks import check_count, check_number
from ..layers.feed_forward import gelu, gelu_tanh, relu

ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and choices. The defaults are a small pre-norm model; the paper's base model is
    width 512, heads 8, hidden 2048, 6 + 6 layers, dropout 0.1, norm_first=False, final_norm=False,
    share_vocabulary=True, tie_embeddings=True."""

    source_vocabulary: int
    target_vocabulary: int
    width: int = 128
    heads: int = 4
    hidden: int = 512
    encoder_layers: int = 2
    decoder_layers: int = 2
    max_length: int = 256                   # longest source or target, <bos> and <eos> included
    dropout_rate: float = 0.0               # on embeddings and on every sublayer's answer
    attention_dropout_rate: float = 0.0     # on attention weights
    feed_forward_dropout_rate: float = 0.0  # inside the feed-forward network
    norm_first: bool = True                 # pre-norm; False: post-norm, as in the paper
    final_norm: bool = True                 # a norm after the last layer of each stack
    learned_positions: bool = False         # False: sinusoids
    tie_embeddings: bool = True             # the output layer is the target embedding, turned round
    share_vocabulary: bool = False          # one table for source and target
    activation: str = "relu"                # relu, gelu or gelu_tanh
    epsilon: float = 1e-5                   # of every LayerNorm

    def __post_init__(self):
        for name in ("source_vocabulary", "target_vocabulary", "width", "heads", "hidden", "max_length"):
            check_count(name, getattr(self, name))
        for name in ("encoder_layers", "decoder_layers"):
            check_count(name, getattr(self, name), 0)
        for name in ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"):
            check_number(name, getattr(self, name), 0, 1)
        check_number("epsilon", self.epsilon, above=True)
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {self.activation!r}")
        if self.share_vocabulary and self.source_vocabulary != self.target_vocabulary:
            raise ValueError("share_vocabulary needs one size, not source_vocabulary "
                             f"{self.source_vocabulary} and target_vocabulary {self.target_vocabulary}")
