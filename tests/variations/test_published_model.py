"""The published antibody model, run by this book's parts, gives what its makers' framework gave: to the last token."""

import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from numpy_transformer.foundations.gradient_check import check_gradients
from numpy_transformer.foundations.parameters import from_vector, map_tree, named_parameters, parameter_count, to_vector
from numpy_transformer.layers.feed_forward import relu
from numpy_transformer.layers.positional_encoding import LearnedPositions
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.model.transformer import Transformer
from numpy_transformer.training.cross_entropy import cross_entropy
from numpy_transformer.translation.greedy import greedy_decode
from numpy_transformer.variations import published_model
from numpy_transformer.variations.published_model import from_published, to_published
from strategies import assert_close, assert_pure_and_linear, assert_same, letters, randomised, rngs

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "anarcii"
PAD, START, END = 0, 1, 2

few = settings(max_examples=settings.default.max_examples // 4)  # whole models take their time


@pytest.fixture(scope="module")
def weights():
    return np.load(DATA / "weights.npz")


@pytest.fixture(scope="module")
def reference():
    with np.load(DATA / "reference.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def model(weights):
    return map_tree(lambda array: array.astype(np.float64), from_published(weights))


@pytest.fixture(scope="module")
def run(model, reference):
    """Logits, loss and gradient for the three chains."""
    ids = reference["greedy"]
    logits, backward = model(reference["source"], ids[:, :-1], pad=PAD)
    loss, loss_backward = cross_entropy(logits, ids[:, 1:], ignore_index=PAD)
    return logits, loss, backward(loss_backward())


# ── What the other framework gave ────────────────────────────────────────────────────────────────

def test_the_encoder_agrees(model, reference):
    memory, _ = model.encode(reference["source"], pad=PAD)
    assert_close(memory[:, ::4], reference["memory_every_4th"], 1e-12)


def test_the_logits_agree(run, reference):
    assert_close(run[0][:, ::4], reference["logits_every_4th"], 1e-12)


def test_the_loss_agrees(run, reference):
    assert abs(run[1] / reference["loss"] - 1) < 1e-10


def test_the_gradient_of_every_parameter_agrees(run, reference, weights):
    gradients = to_published(run[2])
    assert gradients.keys() == set(weights.files) - {"__meta__"}
    assert {f"gradient.{name}" for name in gradients} == {name for name in reference if name.startswith("gradient.")}
    for name, gradient in gradients.items():
        expected = reference[f"gradient.{name}"].astype(np.float64)
        assert gradient.shape == expected.shape, name
        assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_greedy_decoding_through_the_cache_writes_the_same_ids(model, reference, dtype):
    ids = greedy_decode(map_tree(lambda array: array.astype(dtype), model), reference["source"],
                        start=START, end=END, pad=PAD, max_length=200)
    assert_array_equal(ids, reference["greedy"][:, 1:])


def test_the_pages_example_numbers_the_light_chain(capsys, monkeypatch, reference):
    text = published_model.__doc__
    monkeypatch.chdir(ROOT)
    example = {}
    exec(textwrap.dedent(text[text.index("    import json"):]), example)
    kind, *places = capsys.readouterr().out.split()
    assert example["chain"] == reference["chains"][1]
    assert_array_equal(example["source"][0], reference["source"][1][: len(example["chain"]) + 2])
    assert kind == "K" and "".join(place[0] for place in places) == example["chain"]
    numbers = [int(place[1:]) for place in places]
    assert numbers == sorted(set(numbers)) and 1 <= numbers[0] and numbers[-1] <= 128
    assert {"C23", "W41", "C104"} <= set(places)  # what holds the fold together


# ── The names ────────────────────────────────────────────────────────────────────────────────────

def test_the_published_arrays_come_back_bit_by_bit(weights):
    state = to_published(from_published(weights))
    assert state.keys() == set(weights.files) - {"__meta__"}
    for name, array in state.items():
        assert_array_equal(array, weights[name], err_msg=name, strict=True)


def test_the_model_has_the_published_form(weights):
    model = from_published(weights)
    assert parameter_count(model) == sum(weights[name].size for name in weights.files if name != "__meta__") == 554_760
    assert model.encoder.norm is model.decoder.norm is None and model.dropout_rate == 0
    for layer in (*model.encoder.layers, *model.decoder.layers):
        assert not layer.norm_first and layer.feed_forward.activation is relu and layer.feed_forward_norm.epsilon == 1e-5
    assert model.encoder.layers[0].attention.heads == 4
    assert isinstance(model.source_positions, LearnedPositions) and len(model.target_positions.table) == 210


def make(rng, V=5, W=6, D=4, F=3, P=7, layers=(1, 1), heads=2, **choices):
    options = dict(norm_first=False, final_norm=False, learned_positions=True, tie_embeddings=False) | choices
    return randomised(Transformer.init(rng, TransformerConfig(V, W, D, heads, F, *layers, P, **options)), rng)


@given(letters("VWFP"), st.sampled_from([(1, 1), (2, 1), (1, 3)]), st.sampled_from([1, 2, 4]), rngs)
@few
def test_any_size_comes_back_bit_by_bit(n, layers, heads, rng):
    model = make(rng, n.V, n.W, 4, n.F, n.P, layers, heads)
    back = from_published(to_published(model), heads=heads)
    assert_same(back, model)
    source, target = rng.integers(1, n.V, (2, 2)), rng.integers(1, n.W, (2, 2))
    assert_array_equal(back(source, target, pad=0)[0], model(source, target, pad=0)[0])


@pytest.mark.parametrize("name", sorted(to_published(make(np.random.default_rng(0)))))
def test_a_missing_extra_or_misshapen_array_is_named(name):
    state = to_published(make(np.random.default_rng(0)))
    with pytest.raises(ValueError, match=rf"^missing in the state: .*{name}"):
        from_published({key: array for key, array in state.items() if key != name}, heads=2)
    with pytest.raises(ValueError, match=rf"{name}2"):
        from_published(state | {f"{name}2": state[name]}, heads=2)
    with pytest.raises(ValueError, match=r"has shape .*: expected"):
        from_published(state | {name: state[name][None]}, heads=2)


@pytest.mark.parametrize("choices, part", [
    (dict(final_norm=True), "encoder.norm has no name"), (dict(tie_embeddings=True), "no output, and decoder.fc_out cannot"),
    (dict(learned_positions=False), "no source_positions"), (dict(layers=(1, 0)), r"no decoder.layers.\*.self_attention.query"),
    (dict(share_vocabulary=True, W=5), "no target_embedding")], ids=str)
def test_a_model_of_another_form_is_refused(choices, part):
    with pytest.raises(ValueError, match=part):
        to_published(make(np.random.default_rng(0), **choices))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="width 4 is not divisible by heads 3"):
        from_published(to_published(make(np.random.default_rng(0))), heads=3)


# ── Gradients ────────────────────────────────────────────────────────────────────────────────────

SOURCE, TARGET = np.array([[1, 4, 2], [3, 2, 0]]), np.array([[1, 5], [1, 0]])


@given(rngs)
@few
def test_the_gradient_in_published_names_is_the_gradient_of_the_published_arrays(rng):
    model = from_published(to_published(make(rng)), heads=2)

    def f(vector):
        logits, backward = from_vector(model, vector)(SOURCE, TARGET, pad=0)
        return logits, lambda dy: to_vector(from_published(to_published(backward(dy)), heads=2))

    check_gradients(f, to_vector(model), rng=rng, directions=4)


@given(rngs)
@few
def test_naming_is_pure_and_linear(rng):
    model = make(rng)
    assert_pure_and_linear(lambda model: model(SOURCE, TARGET, pad=0), model, rng=rng)
    doubled = to_published(map_tree(lambda array: 2 * array, model))
    for name, array in to_published(model).items():
        assert_array_equal(doubled[name], 2 * array)


@given(rngs, st.sampled_from([np.float16, np.float32, np.float64]))
@few
def test_the_dtype_stays(rng, dtype):
    model = map_tree(lambda array: array.astype(dtype), make(rng))
    state = to_published(model)
    assert {array.dtype for array in state.values()} == {array.dtype for array in named_parameters(from_published(state, heads=2)).values()} == {np.dtype(dtype)}
