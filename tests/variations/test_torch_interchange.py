"""What PyTorch's own module computes from the same arrays, and that every model goes there and comes back unchanged."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import from_vector, map_tree, named_parameters, to_vector
from numpy_transformer.layers.feed_forward import gelu, relu
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.model.transformer import Transformer
from numpy_transformer.variations.torch_interchange import from_torch, to_torch, torch_settings
from strategies import assert_close, assert_pure_and_linear, assert_same, randomised, rngs
from variations.waves import filled, projection, wave

V, W, D, H, F, P = 5, 7, 8, 2, 6, 4  # source words, target words, width, heads, hidden, positions
SOURCE, TARGET = np.array([[1, 2, 3, 4], [4, 2, 0, 0]]), np.array([[1, 3, 5], [1, 6, 0]])

few = settings(max_examples=settings.default.max_examples // 4)  # whole models take their time


def layer_shapes(stack, number, attentions, norms):
    """The names and shapes of a layer, as torch.nn.Transformer(8, 2, dim_feedforward=6).state_dict() lists them"""
    shapes = {}
    for attention in attentions:
        shapes |= {f"{attention}.in_proj_weight": (3 * D, D), f"{attention}.in_proj_bias": (3 * D,),
                   f"{attention}.out_proj.weight": (D, D), f"{attention}.out_proj.bias": (D,)}
    shapes |= {"linear1.weight": (F, D), "linear1.bias": (F,), "linear2.weight": (D, F), "linear2.bias": (D,)}
    for norm in norms:
        shapes |= {f"{norm}.weight": (D,), f"{norm}.bias": (D,)}
    return {f"transformer.{stack}.layers.{number}.{name}": shape for name, shape in shapes.items()}


def torch_shapes(encoder_layers=2, decoder_layers=2):
    shapes = {"source_embedding.weight": (V, D), "target_embedding.weight": (W, D), "source_positions.weight": (P, D),
              "target_positions.weight": (P, D), "output.weight": (W, D), "output.bias": (W,)}
    for number in range(encoder_layers):
        shapes |= layer_shapes("encoder", number, ["self_attn"], ["norm1", "norm2"])
    for number in range(decoder_layers):
        shapes |= layer_shapes("decoder", number, ["self_attn", "multihead_attn"], ["norm1", "norm2", "norm3"])
    for stack in ("encoder", "decoder"):
        shapes |= {f"transformer.{stack}.norm.weight": (D,), f"transformer.{stack}.norm.bias": (D,)}
    return shapes


def make(rng=None, **choices):
    rng = rng or np.random.default_rng(0)
    sizes = dict(width=D, heads=H, hidden=F, encoder_layers=2, decoder_layers=2, max_length=P)
    return randomised(Transformer.init(rng, TransformerConfig(V, W, **sizes | choices)), rng)


# ── What torch gives ─────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("norm_first, activation, expected", [  # computed by torch.nn.Transformer, padding masked
    (True, "relu", [-0.11302212005807594, 0.6441862535516727, -3.233071932716949, 26.65368986099813]),
    (True, "gelu", [-0.10948431326359304, 0.6273770020763443, -3.255278885445712, 26.19127909305838]),
    (False, "relu", [-0.7167731373965406, 0.24604839173892484, -0.5819558506576173, 7.534905371273325]),
    (False, "gelu", [-0.712095502504285, 0.24844786119401513, -0.5887769518937184, 7.281899336920591])])
def test_torchs_own_transformer_gives_the_same_numbers(norm_first, activation, expected):
    state = filled(torch_shapes())
    model = from_torch(state, heads=H, norm_first=norm_first, activation=activation)
    logits, backward = model(SOURCE, TARGET, pad=0)
    upstream = wave("upstream", logits.shape)
    found = [logits[0, 2, 3], logits[1, 1, 6], np.sum(logits * upstream), projection(to_torch(backward(upstream)))]
    assert_close(found, expected, 1e-13)


@pytest.mark.parametrize("encoder_layers, decoder_layers", [(1, 2), (2, 1), (11, 1)])
def test_names_and_shapes_are_those_of_torch(encoder_layers, decoder_layers):
    state = to_torch(make(encoder_layers=encoder_layers, decoder_layers=decoder_layers, learned_positions=True, tie_embeddings=False))
    assert {name: array.shape for name, array in state.items()} == torch_shapes(encoder_layers, decoder_layers)


def test_query_key_and_value_are_stacked_in_this_order_and_turned():
    model = make()
    state = to_torch(model)
    for name, attention in (("encoder.layers.1.self_attn", model.encoder.layers[1].attention),
                            ("decoder.layers.0.self_attn", model.decoder.layers[0].self_attention),
                            ("decoder.layers.1.multihead_attn", model.decoder.layers[1].cross_attention)):
        weight, bias = (state[f"transformer.{name}.in_proj_{leaf}"] for leaf in ("weight", "bias"))
        for i, part in enumerate((attention.query, attention.key, attention.value)):
            assert_array_equal(weight[i * D : (i + 1) * D], part.weight.T, strict=True)
            assert_array_equal(bias[i * D : (i + 1) * D], part.bias, strict=True)


# ── There and back ───────────────────────────────────────────────────────────────────────────────

configurations = st.fixed_dictionaries(dict(
    norm_first=st.booleans(), tie_embeddings=st.booleans(), learned_positions=st.booleans(), activation=st.sampled_from(["relu", "gelu"]),
    epsilon=st.sampled_from([1e-5, 1e-3]), encoder_layers=st.integers(1, 2), decoder_layers=st.integers(1, 2),
    dropout_rate=st.sampled_from([0.0, 0.25]), attention_dropout_rate=st.sampled_from([0.0, 0.75]), heads=st.sampled_from([1, 2, 4])))


@given(configurations, st.booleans(), st.sampled_from([np.float32, np.float64]), rngs)
@few
def test_there_and_back_is_exact(choices, share, dtype, rng):
    choices |= dict(share_vocabulary=share, source_vocabulary=W if share else V)
    config = TransformerConfig(target_vocabulary=W, width=D, hidden=F, max_length=P, **choices)
    model = randomised(Transformer.init(rng, config), rng, dtype)
    told = {name: choices[name] for name in ("norm_first", "activation", "epsilon", "dropout_rate", "attention_dropout_rate", "heads")}
    if not config.learned_positions:
        told["max_length"] = P
    state = to_torch(model)
    back = from_torch(state, **told)
    assert_same(back, model)
    assert back.source_positions.__class__ is model.source_positions.__class__
    assert_array_equal(back(SOURCE, TARGET, pad=0, rng=np.random.default_rng(3))[0],
                       model(SOURCE, TARGET, pad=0, rng=np.random.default_rng(3))[0])
    assert {array.dtype for array in state.values()} == {np.dtype(dtype)}
    assert ("output.weight" in state) != config.tie_embeddings and ("target_embedding.weight" in state) != share


def test_sinusoids_stand_in_no_state_and_reach_as_far_as_told():
    state = to_torch(make())
    assert not any("positions" in name for name in state)
    assert from_torch(state, heads=H, max_length=19).target_positions.length == 19
    assert from_torch(state, heads=H).source_positions.length == TransformerConfig(1, 1).max_length


@pytest.mark.parametrize("learned", [True, False])
def test_torchs_training_cannot_reach_into_our_arrays(learned):
    model = make(learned_positions=learned)
    kept, state = map_tree(np.copy, model), to_torch(model)
    back = from_torch(state, heads=H, max_length=P) if not learned else from_torch(state, heads=H)
    for array in state.values():
        assert array.flags.c_contiguous and array.flags.writeable
        array += 1
    assert_same(model, kept)
    assert_same(back, kept)


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("norm_first, activation, function, epsilon", [(True, "relu", relu, 1e-5), (False, "gelu", gelu, 1e-6)])
def test_torch_is_told_what_the_arrays_do_not_tell(norm_first, activation, function, epsilon):
    model = make(norm_first=norm_first, activation=activation, epsilon=epsilon, encoder_layers=1, decoder_layers=3)
    assert model.encoder.layers[0].feed_forward.activation is function
    assert torch_settings(model) == dict(
        d_model=D, nhead=H, num_encoder_layers=1, num_decoder_layers=3, dim_feedforward=F, activation=activation,
        layer_norm_eps=epsilon, norm_first=norm_first, batch_first=True)


def with_layer(model, stack="decoder", **parts):
    old = getattr(model, stack)
    return replace(model, **{stack: replace(old, layers=(*old.layers[:-1], replace(old.layers[-1], **parts)))})


def with_part(model, part, **fields):
    return with_layer(model, **{part: replace(getattr(model.decoder.layers[-1], part), **fields)})


def linear(inputs, outputs):
    return Linear(np.ones((inputs, outputs)), np.ones(outputs))


MODEL = make()


@pytest.mark.parametrize("model, message", [
    (with_part(MODEL, "cross_attention", heads=4), r"one nhead, this model \[2, 4\]"),
    (with_part(MODEL, "feed_forward", expand=linear(D, 9), contract=linear(9, D)), r"one dim_feedforward, this model \[6, 9\]"),
    (with_part(MODEL, "feed_forward", activation=gelu), r"one activation, this model \['gelu', 'relu'\]"),
    (with_part(MODEL, "self_attention_norm", epsilon=1e-3), r"one layer_norm_eps, this model \[1e-05, 0.001\]"),
    (replace(MODEL, encoder=replace(MODEL.encoder, norm=replace(MODEL.encoder.norm, epsilon=1e-3))), "one layer_norm_eps"),
    (replace(MODEL, decoder=replace(MODEL.decoder, norm=replace(MODEL.decoder.norm, epsilon=1e-3))), "one layer_norm_eps"),
    (with_layer(MODEL, norm_first=False), r"one norm_first, this model \[False, True\]"),
    (with_layer(MODEL, "encoder", norm_first=False), r"one norm_first, this model \[False, True\]"),
    (with_part(MODEL, "self_attention", value=linear(D, 4), output=linear(4, D)), r"one d_model, this model \[4, 8\]"),
    (make(encoder_layers=0, decoder_layers=0), "one d_model, this model none"),
    (make(encoder_layers=0), r"the model has no encoder\.layers\.\*\."),
    (make(decoder_layers=0), r"the model has no decoder\.layers\.\*\."),
    (make(final_norm=False), r"the model has no encoder\.norm, and transformer\.encoder\.norm cannot be left out"),
    (replace(MODEL, encoder=replace(MODEL.encoder, norm=None)), r"the model has no encoder\.norm, and transformer\.encoder\.norm cannot"),
    (replace(MODEL, decoder=replace(MODEL.decoder, norm=None)), r"the model has no decoder\.norm, and transformer\.decoder\.norm cannot")],
    ids=lambda value: value if isinstance(value, str) else "")
def test_what_torch_cannot_express_is_an_error_that_says_so(model, message):
    with pytest.raises(ValueError, match=message):
        to_torch(model)


# ── A state that does not fit ────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("name", sorted(torch_shapes(1, 1)))
def test_a_missing_extra_or_misshapen_array_is_named(name):
    state = filled(torch_shapes(1, 1))
    tie = {"target_embedding.weight": "output.weight", "output.weight": "output.bias"}  # what then seems tied or shared does not fit
    with pytest.raises(ValueError, match=tie.get(name, name)):
        from_torch({key: array for key, array in state.items() if key != name}, heads=H)
    with pytest.raises(ValueError, match=f"unknown in the state: {name}2"):
        from_torch(state | {f"{name}2": state[name]}, heads=H)
    with pytest.raises(ValueError, match="has shape .*: expected"):
        from_torch(state | {name: state[name][None]}, heads=H)


def test_a_missing_layer_is_missed():
    state = filled(torch_shapes(3, 1))
    with pytest.raises(ValueError, match=r"missing in the state: transformer\.encoder\.layers\.1\..*unknown.*encoder\.layers\.2"):
        from_torch({name: array for name, array in state.items() if "encoder.layers.1." not in name}, heads=H)


def test_choices_are_those_of_a_configuration():
    state = to_torch(MODEL)
    with pytest.raises(ValueError, match="width 8 is not divisible by heads 3"):
        from_torch(state, heads=3)
    with pytest.raises(ValueError, match="activation must be one of"):
        from_torch(state, heads=H, activation="tanh")
    with pytest.raises(TypeError, match="depth"):
        from_torch(state, heads=H, depth=3)


# ── Gradients ────────────────────────────────────────────────────────────────────────────────────

@given(rngs, st.booleans())
@few
def test_the_gradient_in_torchs_names_is_the_gradient_of_torchs_arrays(rng, tie):
    def back(tree):
        return from_torch(to_torch(tree), heads=H, max_length=P)

    model = back(make(rng, encoder_layers=1, decoder_layers=1, tie_embeddings=tie))

    def f(vector):
        logits, backward = from_vector(model, vector)(SOURCE, TARGET, pad=0)
        return logits, lambda dy: to_vector(back(backward(dy)))

    check_gradients(f, to_vector(model), rng=rng, directions=4)


@given(rngs)
@few
def test_a_model_that_was_read_is_pure_and_linear(rng):
    state = to_torch(make(rng, encoder_layers=1, decoder_layers=1))
    assert_pure_and_linear(lambda model: model(SOURCE, TARGET, pad=0), from_torch(state, heads=H, max_length=P), rng=rng)
    doubled = to_torch(map_tree(lambda array: 2 * array, from_torch(state, heads=H, max_length=P)))
    for name, array in state.items():
        assert_array_equal(doubled[name], 2 * array)
