"""Interchange with PyTorch: begin training here and go on there, or the other way round.

torch.nn.Transformer is what lies between the embeddings and the output layer: our encoder and
decoder. Embeddings and output layer stand beside it, and are torch.nn.Embedding and torch.nn.Linear.
`to_torch(model)` names a model's arrays as a module of these four parts names its own:

    net = torch.nn.ModuleDict({
        "transformer": torch.nn.Transformer(**torch_settings(model)),
        "source_embedding": torch.nn.Embedding(source_vocabulary, width),
        "target_embedding": torch.nn.Embedding(target_vocabulary, width),
        "output": torch.nn.Linear(width, target_vocabulary)})
    net.load_state_dict({name: torch.from_numpy(array) for name, array in to_torch(model).items()})
    model = from_torch(net.state_dict(), heads=heads)

A part that our model does not have, because another does its work, is not in the state either. So a
tie is no obstacle: no `output` means that the logits are `hidden @ net["target_embedding"].weight.T`,
no `target_embedding` that the source's serves both sides. Learned positions are `source_positions` and `target_positions`,
two more Embeddings; sinusoids are computed and stand in no state.

What the arrays do not tell, the PyTorch side has to do as well: embeddings are multiplied by √D before
the positions are added, and torch's boolean masks are the reverse of ours, True hides. Dropout has one
rate there, for sublayers, attention weights and feed-forward network alike.
"""

import numpy as np

from ..attention.multi_head import MultiHeadAttention
from ..foundations.pullback import Array
from ..layers.feed_forward import FeedForward
from ..layers.layer_norm import LayerNorm
from ..model.config import TransformerConfig
from ..model.transformer import Transformer
from .renaming import Names, layer_count, matrix_shape

NAMES = Names("""
    source_embedding                                    source_embedding
    target_embedding?                                   target_embedding
    source_positions?                                   source_positions
    target_positions?                                   target_positions
    encoder.layers.*.attention.query+key+value          transformer.encoder.layers.*.self_attn.in_proj_
    encoder.layers.*.attention.output                   transformer.encoder.layers.*.self_attn.out_proj
    encoder.layers.*.attention_norm                     transformer.encoder.layers.*.norm1
    encoder.layers.*.feed_forward.expand                transformer.encoder.layers.*.linear1
    encoder.layers.*.feed_forward.contract              transformer.encoder.layers.*.linear2
    encoder.layers.*.feed_forward_norm                  transformer.encoder.layers.*.norm2
    encoder.norm                                        transformer.encoder.norm
    decoder.layers.*.self_attention.query+key+value     transformer.decoder.layers.*.self_attn.in_proj_
    decoder.layers.*.self_attention.output              transformer.decoder.layers.*.self_attn.out_proj
    decoder.layers.*.self_attention_norm                transformer.decoder.layers.*.norm1
    decoder.layers.*.cross_attention.query+key+value    transformer.decoder.layers.*.multihead_attn.in_proj_
    decoder.layers.*.cross_attention.output             transformer.decoder.layers.*.multihead_attn.out_proj
    decoder.layers.*.cross_attention_norm               transformer.decoder.layers.*.norm2
    decoder.layers.*.feed_forward.expand                transformer.decoder.layers.*.linear1
    decoder.layers.*.feed_forward.contract              transformer.decoder.layers.*.linear2
    decoder.layers.*.feed_forward_norm                  transformer.decoder.layers.*.norm3
    decoder.norm                                        transformer.decoder.norm
    output?                                             output
""")


def torch_settings(model: Transformer) -> dict:
    """The arguments that make torch.nn.Transformer the same network, all but its dropout rate.

    An activation is named after its function; torch knows "relu" and "gelu" by name.

    Raises ValueError if the layers differ in what torch has only one setting for.
    """
    layers = (*model.encoder.layers, *model.decoder.layers)
    parts = [part for layer in layers for part in vars(layer).values()] + [model.encoder.norm, model.decoder.norm]
    attentions, feed_forwards, norms = ([part for part in parts if isinstance(part, kind)]
                                        for kind in (MultiHeadAttention, FeedForward, LayerNorm))
    found = {
        "d_model": {size for a in attentions for part in (a.query, a.key, a.value, a.output) for size in part.weight.shape},
        "nhead": {a.heads for a in attentions},
        "dim_feedforward": {len(f.contract.weight) for f in feed_forwards},
        "activation": {f.activation.__name__ for f in feed_forwards},
        "layer_norm_eps": {norm.epsilon for norm in norms},
        "norm_first": {layer.norm_first for layer in layers}}
    for name, values in found.items():
        if len(values) != 1:
            raise ValueError(f"torch.nn.Transformer has one {name}, this model {sorted(values) or 'none'}")
    return {name: values.pop() for name, values in found.items()} | {
        "num_encoder_layers": len(model.encoder.layers), "num_decoder_layers": len(model.decoder.layers), "batch_first": True}


def to_torch(model: Transformer) -> dict[str, Array]:
    """Copy the arrays of a model, or of its gradient, out under the names above, each as torch stores it.

    Raises ValueError for what torch.nn.Transformer cannot express: a stack without a layer or without a
    norm at its end (`final_norm=False`), and layers that differ (see torch_settings).
    """
    torch_settings(model)
    return NAMES.to_state(model)


def from_torch(state, *, heads: int, **choices) -> Transformer:
    """Build the model from a state: arrays by name, or the tensors of torch's own `state_dict()`.

    The state tells all sizes, and by what it does not hold what is tied, shared or a sinusoid.
    Nothing in it tells `heads`, nor the `choices`: norm_first, activation, epsilon, the dropout rates,
    and max_length for sinusoids, as in TransformerConfig.

    Raises ValueError naming all arrays that are missing or unknown, or the one that is misshapen.
    """
    vocabulary, width = matrix_shape(state, "source_embedding.weight")
    hidden, _ = matrix_shape(state, "transformer.encoder.layers.0.linear1.weight")
    share = "target_embedding.weight" not in state
    learned = "source_positions.weight" in state or "target_positions.weight" in state
    if learned:
        choices["max_length"], _ = matrix_shape(state, "source_positions.weight")
    config = TransformerConfig(
        vocabulary, vocabulary if share else matrix_shape(state, "target_embedding.weight")[0], width, heads, hidden,
        *(layer_count(state, f"transformer.{stack}.layers.") for stack in ("encoder", "decoder")),
        share_vocabulary=share, tie_embeddings="output.weight" not in state, learned_positions=learned, **choices)
    return NAMES.from_state(Transformer.init(np.random.default_rng(0), config), state)
