"""Heat maps: shades for weights, in columns as wide as the words above them."""

import numpy as np
import pytest

from numpy_transformer import Transformer, TransformerConfig
from numpy_transformer.translation.heat_map import cell_width, cross_attention_map, heat_map
from numpy_transformer.translation.translator import Translator
from numpy_transformer.translation.vocabulary import Vocabulary
from strategies import randomised


@pytest.mark.parametrize("weight, shade", [(0, " "), (0.12, " "), (0.13, "░"), (0.37, "░"), (0.38, "▒"), (0.62, "▒"),
                                           (0.63, "▓"), (0.87, "▓"), (0.88, "█"), (1, "█")])
def test_shades(weight, shade):
    assert heat_map(np.array([[weight]]), ["q"], ["key"]) == f"   key\nq  {shade * 3}".rstrip()


def test_columns_stand_under_their_words_whatever_the_width_of_a_letter():
    lines = heat_map(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), ["苹", "ab", "c"], ["one", "苹果", "x"]).split("\n")
    assert lines == ["    one 苹果 x", "苹  ███", "ab      ████", "c            █"]
    assert (cell_width("苹果"), cell_width("ab"), cell_width("")) == (4, 2, 0)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (3,)])
def test_weights_must_fit_the_words(shape):
    with pytest.raises(ValueError, match="^weights has shape .*: expected \\(2, 2\\)"):
        heat_map(np.zeros(shape), ["a", "b"], ["c", "d"])


def test_the_map_of_a_translation_is_the_last_layers_mean_over_heads():
    source, target = Vocabulary.build([["one", "two"]]), Vocabulary.build([list("甲乙")])
    config = TransformerConfig(len(source), len(target), 8, 2, 12, 1, 2, 9)
    model = randomised(Transformer.init(np.random.default_rng(0), config), np.random.default_rng(3))
    drawn = cross_attention_map(Translator(model, config, source, target), "One two", "甲乙")
    ids = np.array([[*source.encode(["one", "two"]), 2]])
    written = np.array([[1, *target.encode(["甲", "乙"])]])
    weights = model.attention_maps(ids, written, pad=0)["decoder.layers.1.cross_attention"][0].mean(axis=0)
    assert drawn == heat_map(weights, ["甲", "乙", "<eos>"], ["one", "two", "<eos>"])
