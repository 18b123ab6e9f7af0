"""The model: one layer of each stack, and the whole Transformer, in four sizes."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from numpy_transformer.attention.masks import causal_mask
from numpy_transformer.foundations.parameters import parameter_count
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.model.decoder import DecoderLayer
from numpy_transformer.model.encoder import EncoderLayer
from numpy_transformer.model.transformer import Transformer
from numpy_transformer.training.batches import PAD, Batch

from .attention import multi_head_flops
from .foundations import linear_flops
from .layers import feed_forward_flops, layer_norm_flops
from .measure import Setting, Sizes
from .operations import Operation, Work, normal, total


@dataclass(frozen=True)
class Configuration:
    """A model and its batch: B sentences of T words on either side, L layers in either stack."""

    B: int
    T: int
    D: int
    H: int
    F: int
    L: int
    V: int

    def __str__(self):
        return " · ".join(f"{letter} {size}" for letter, size in vars(self).items())

    def model(self, dtype: str, *, dropout_rate: float = 0.0, max_length: int | None = None) -> Transformer:
        """Pre-norm, final norms, ReLU, sinusoids, an output layer of its own; dropout on embeddings and residuals."""
        config = TransformerConfig(
            self.V, self.V, self.D, self.H, self.F, self.L, self.L, max_length or self.T, dropout_rate,
            norm_first=True, final_norm=True, tie_embeddings=False, activation="relu")
        return Transformer.init(np.random.default_rng(0), config, dtype=dtype)

    def batch(self) -> Batch:
        """Sentences of random words and no padding."""
        return Batch(*np.random.default_rng(1).integers(PAD + 1, self.V, (3, self.B, self.T)))


CONFIGURATIONS = {
    "tiny": Configuration(B=32, T=16, D=64, H=4, F=256, L=2, V=200),
    "small": Configuration(B=32, T=32, D=128, H=4, F=512, L=2, V=1000),
    "medium": Configuration(B=16, T=64, D=256, H=8, F=1024, L=4, V=4000),
    "base": Configuration(B=8, T=64, D=512, H=8, F=2048, L=6, V=8000),
}


def encoder_layer_flops(B: int, T: int, D: int, H: int, F: int) -> tuple[int, int]:
    """Self-attention (backward: x asked and answered, one sum), feed-forward, and for each a norm
    and a residual sum, there and back."""
    N = B * T
    sublayer = total(layer_norm_flops(N, D), (N * D, N * D))
    return total(multi_head_flops(B, T, T, D, H), (0, N * D), feed_forward_flops(N, D, F), sublayer, sublayer)


def decoder_layer_flops(B: int, T: int, D: int, H: int, F: int) -> tuple[int, int]:
    """An encoder layer and, with its norm and residual sum, attention over a memory of S = T words."""
    N = B * T
    sublayer = total(layer_norm_flops(N, D), (N * D, N * D))
    return total(encoder_layer_flops(B, T, D, H, F), multi_head_flops(B, T, T, D, H), sublayer)


def transformer_flops(c: Configuration) -> tuple[int, int]:
    """Both embeddings (√D and positions: 2; backward √D and the sum for each word: 2), both stacks,
    the memory's gradient summed over the layers, two norms, the output layer."""
    N, sizes = c.B * c.T, (c.B, c.T, c.D, c.H, c.F)
    stacks = [encoder_layer_flops(*sizes), decoder_layer_flops(*sizes), (0, N * c.D)] * c.L
    return total((4 * N * c.D, 4 * N * c.D), *stacks, *[layer_norm_flops(N, c.D)] * 2, linear_flops(N, c.D, c.V))


def operations(setting: Setting, sizes: Sizes | None = None) -> list[Operation]:
    s, dtype, w = sizes or setting.sizes, setting.dtype, setting.itemsize
    c = CONFIGURATIONS["tiny" if setting.quick else "medium"]
    B, T, D, H, F, n = s.B, s.T, s.D, s.H, s.F, s.N * s.D
    rng = np.random.default_rng(0)
    x, memory = normal(rng, B, T, D, dtype=dtype), normal(rng, B, T, D, dtype=dtype)  # (B, T, D), (B, S, D)
    encoder = EncoderLayer.init(rng, D, H, F, dtype=dtype)
    decoder = DecoderLayer.init(rng, D, H, F, dtype=dtype)
    model, batch = c.model(dtype), c.batch()
    shape = f"({B}, {T}, {D}), {H} heads, {F} hidden"

    def layer_work(flops, layer, inputs):
        """Inputs, parameters → y; inputs, dy, parameters → the gradient of each."""
        P = parameter_count(layer)
        return {"forward": Work(flops[0], w * (P + (inputs + 1) * n)),
                "backward": Work(flops[1], w * (2 * P + (2 * inputs + 1) * n))}

    forward, backward = transformer_flops(c)
    P, logits, ids = parameter_count(model), c.B * c.T * c.V, batch.source.nbytes + batch.target_input.nbytes
    return [
        Operation("EncoderLayer", shape, encoder, (x,), layer_work(encoder_layer_flops(B, T, D, H, F), encoder, 1)),
        Operation("DecoderLayer", shape, decoder, (x, memory, causal_mask(T)),
                  layer_work(decoder_layer_flops(B, T, D, H, F), decoder, 2)),
        Operation("Transformer", str(c), partial(model, pad=PAD),
                  (batch.source, batch.target_input), {
            "forward": Work(forward, ids + w * (P + logits)),            # ids, parameters → logits
            "backward": Work(backward, ids + w * (2 * P + logits))}),    # d_logits, parameters → their gradient
    ]
