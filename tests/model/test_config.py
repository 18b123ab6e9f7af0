"""The configuration refuses what cannot be built, and says which setting was wrong and what it was."""

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from numpy_transformer.layers.feed_forward import gelu, gelu_tanh, relu
from numpy_transformer.model.config import ACTIVATIONS, TransformerConfig

SMALL = TransformerConfig(11, 13, width=12, heads=3, hidden=20, max_length=9)


def test_the_defaults_are_a_small_pre_norm_model_without_dropout():
    config = TransformerConfig(11, 13)
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    assert settings == dict(
        source_vocabulary=11, target_vocabulary=13, width=128, heads=4, hidden=512, encoder_layers=2, decoder_layers=2,
        max_length=256, dropout_rate=0.0, attention_dropout_rate=0.0, feed_forward_dropout_rate=0.0, norm_first=True,
        final_norm=True, learned_positions=False, tie_embeddings=True, share_vocabulary=False, activation="relu",
        epsilon=1e-5)


def test_the_papers_base_model_is_a_configuration():
    base = TransformerConfig(37000, 37000, width=512, heads=8, hidden=2048, encoder_layers=6, decoder_layers=6,
                             dropout_rate=0.1, norm_first=False, final_norm=False, share_vocabulary=True)
    assert base.tie_embeddings and base.width // base.heads == 64


def test_every_name_of_an_activation_means_that_activation():
    assert ACTIVATIONS == {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}
    for name in ACTIVATIONS:
        assert replace(SMALL, activation=name).activation == name


COUNTS = ("source_vocabulary", "target_vocabulary", "width", "heads", "hidden", "max_length")
RATES = ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate")


@pytest.mark.parametrize("value", [0, -1, 2.0, 1.5, "4", None, True, float("nan")], ids=repr)
@pytest.mark.parametrize("name", COUNTS)
def test_a_size_is_a_whole_number_of_at_least_one(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least 1, not {value!r}$"):
        replace(SMALL, **{name: value})


@pytest.mark.parametrize("value", [-1, 1.0, "2", None, False], ids=repr)
@pytest.mark.parametrize("name", ["encoder_layers", "decoder_layers"])
def test_a_number_of_layers_is_a_whole_number_of_at_least_zero(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least 0, not {value!r}$"):
        replace(SMALL, **{name: value})
    assert getattr(replace(SMALL, **{name: 0}), name) == 0


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), -float("inf"), "0.1", None], ids=repr)
@pytest.mark.parametrize("name", RATES)
def test_a_rate_lies_between_zero_and_one(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be a number at least 0 and at most 1, not {value!r}$"):
        replace(SMALL, **{name: value})
    for limit in (0, 1, 0.0, 1.0, np.float32(0.3)):
        assert getattr(replace(SMALL, **{name: limit}), name) == limit


@pytest.mark.parametrize("value", [0, 0.0, -1e-5, float("nan"), float("inf"), "1e-5", None], ids=repr)
def test_epsilon_is_a_positive_number(value):
    with pytest.raises(ValueError, match=rf"^epsilon must be a number above 0, not {value!r}$"):
        replace(SMALL, epsilon=value)
    assert replace(SMALL, epsilon=1e-12).epsilon == 1e-12


@pytest.mark.parametrize("width, heads", [(10, 3), (4, 8), (7, 2), (1, 2)])
def test_heads_must_divide_the_width(width, heads):
    with pytest.raises(ValueError, match=f"^width {width} is not divisible by heads {heads}$"):
        replace(SMALL, width=width, heads=heads)


@pytest.mark.parametrize("width, heads", [(10, 1), (10, 10), (10, 2), (10, 5), (1, 1), (np.int64(6), np.int32(3))])
def test_every_divisor_of_the_width_is_a_number_of_heads(width, heads):
    config = replace(SMALL, width=width, heads=heads)
    assert (config.width, config.heads) == (width, heads)


@pytest.mark.parametrize("value", ["tanh", "ReLU", "", None, 3], ids=repr)
def test_an_unknown_activation_is_refused_with_the_list_of_known_ones(value):
    with pytest.raises(ValueError, match="^activation must be one of relu, gelu, gelu_tanh, not ") as error:
        replace(SMALL, activation=value)
    assert repr(value) in str(error.value)


def test_a_shared_vocabulary_has_one_size():
    with pytest.raises(ValueError, match="share_vocabulary needs one size, not source.* 11 and target_vocabulary 13"):
        replace(SMALL, share_vocabulary=True)
    assert replace(SMALL, source_vocabulary=13, share_vocabulary=True).share_vocabulary
    assert not replace(SMALL, source_vocabulary=13).share_vocabulary


def test_a_configuration_is_a_value():
    with pytest.raises(FrozenInstanceError):
        SMALL.width = 24
    assert replace(SMALL) == SMALL and hash(replace(SMALL)) == hash(SMALL)
    assert replace(SMALL, width=24) != SMALL
