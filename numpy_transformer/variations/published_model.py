"""A model that others trained: if the parts of this book are right, they run it, number for number.

An antibody holds its target with two domains, the tips of a heavy and of a light chain, each about
115 amino acids long and written as one letter for each. All of them fold alike but differ in
length, so the IMGT scheme numbers places in the fold, 1 to 128, and not in the chain: places 23 and
104 are the two cysteines that every fold is held together by. To number a chain is to translate it,
letters into numbers, and ANARCII (Greenshields-Watson et al. 2025) does it with a Transformer:

    <SOS> D I Q M T Q …  <EOS>   →   <SOS> K 1 2 3 4 5 6 … <EOS>      H, L or K: the kind of chain

Its smallest model is figure 1 of Vaswani et al. 2017 with D = 128, H = 4, F = 512 and one layer on
either side: a norm after each sublayer and none at the end. Only the positions are learned, and the
output layer has a matrix of its own. `Transformer` offers both, so this page is nothing but names,
and yet memory, logits, loss and gradients come out as PyTorch computes them. Run where the weights are:

    import json
    import numpy as np
    from numpy_transformer.translation.greedy import greedy_decode
    from numpy_transformer.variations.published_model import from_published

    arrays = np.load("tests/data/anarcii/weights.npz")
    words = json.loads(str(arrays["__meta__"]))
    chain = "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK"
    source = [[words["src_vocab"].index(letter) for letter in ("<SOS>", *chain, "<EOS>")]]
    ids = greedy_decode(from_published(arrays), source, start=1, end=2, pad=0, max_length=200)
    kind, *places = (words["tgt_vocab"][i] for i in ids[0, :-1])
    print(kind, *(letter + place for letter, place in zip(chain, places)))
"""

import numpy as np

from ..foundations.pullback import Array
from ..model.config import TransformerConfig
from ..model.transformer import Transformer
from .renaming import Names, layer_count, matrix_shape

NAMES = Names("""
    source_embedding                                    encoder.tok_embedding
    source_positions                                    encoder.pos_embedding
    encoder.layers.*.attention.query+key+value          encoder.layers.*.self_attention.multihead_attn.in_proj_
    encoder.layers.*.attention.output                   encoder.layers.*.self_attention.multihead_attn.out_proj
    encoder.layers.*.attention_norm                     encoder.layers.*.self_attn_layer_norm
    encoder.layers.*.feed_forward.expand                encoder.layers.*.positionwise_feedforward.fc_1
    encoder.layers.*.feed_forward.contract              encoder.layers.*.positionwise_feedforward.fc_2
    encoder.layers.*.feed_forward_norm                  encoder.layers.*.ff_layer_norm
    target_embedding                                    decoder.tok_embedding
    target_positions                                    decoder.pos_embedding
    decoder.layers.*.self_attention.query+key+value     decoder.layers.*.self_attention.multihead_attn.in_proj_
    decoder.layers.*.self_attention.output              decoder.layers.*.self_attention.multihead_attn.out_proj
    decoder.layers.*.self_attention_norm                decoder.layers.*.self_attn_layer_norm
    decoder.layers.*.cross_attention.query+key+value    decoder.layers.*.encoder_attention.multihead_attn.in_proj_
    decoder.layers.*.cross_attention.output             decoder.layers.*.encoder_attention.multihead_attn.out_proj
    decoder.layers.*.cross_attention_norm               decoder.layers.*.enc_attn_layer_norm
    decoder.layers.*.feed_forward.expand                decoder.layers.*.positionwise_feedforward.fc_1
    decoder.layers.*.feed_forward.contract              decoder.layers.*.positionwise_feedforward.fc_2
    decoder.layers.*.feed_forward_norm                  decoder.layers.*.ff_layer_norm
    output                                              decoder.fc_out
""")


def from_published(arrays, *, heads: int = 4) -> Transformer:
    """Build the model from the published arrays.

    The packed `in_proj_weight` (3·D, D) is cut into query, key and value, and every linear layer's
    weight is transposed. Sizes follow from the shapes, but not the number of heads. `__meta__`,
    which holds the vocabularies, is passed over.

    Raises ValueError naming all arrays that are missing or unknown, or the one that is misshapen.
    """
    state = {name: arrays[name] for name in arrays if name != "__meta__"}
    vocabulary, width = matrix_shape(state, "encoder.tok_embedding.weight")
    target_vocabulary, _ = matrix_shape(state, "decoder.tok_embedding.weight")
    length, _ = matrix_shape(state, "encoder.pos_embedding.weight")
    hidden, _ = matrix_shape(state, "encoder.layers.0.positionwise_feedforward.fc_1.weight")
    layers = [layer_count(state, f"{stack}.layers.") for stack in ("encoder", "decoder")]
    config = TransformerConfig(vocabulary, target_vocabulary, width, heads, hidden, *layers, length, norm_first=False,
                               final_norm=False, learned_positions=True, tie_embeddings=False)
    return NAMES.from_state(Transformer.init(np.random.default_rng(0), config), state)


def to_published(model: Transformer) -> dict[str, Array]:
    """Copy the arrays of such a model, or of its gradient, out under the published names.

    Raises ValueError naming the part that the published model does not have, or cannot be without.
    """
    return NAMES.to_state(model)
