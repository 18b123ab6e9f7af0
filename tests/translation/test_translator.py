"""The translator: text to text through a model, and how translations are scored."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_transformer import Transformer, TransformerConfig, beam_search, greedy_decode, map_tree, save
from numpy_transformer.training.adam import Adam
from numpy_transformer.training.batches import BOS, EOS, PAD
from numpy_transformer.translation.translator import Score, Translator, edit_distance, score
from numpy_transformer.translation.vocabulary import Vocabulary, detokenise
from strategies import assert_same

SOURCE = Vocabulary.build([["the", "cat", "saw", "a", "dog", "and", "it", "ran"]])
TARGET = Vocabulary.build([list("这只猫看见了一狗跑")])
SENTENCES = ["the cat ran", "a dog", "The dog saw the cat and it ran", "it", "a cat saw it", "the the the the"]


def make(max_length=20):
    """A translator whose weights are large enough, and whose seed is such, that it has much to say."""
    config = TransformerConfig(len(SOURCE), len(TARGET), 8, 2, 12, 1, 1, max_length)
    model = Transformer.init(np.random.default_rng(8), config, dtype=np.float64)
    return Translator(map_tree(lambda array: 2 * array if array.ndim > 1 else array, model), config, SOURCE, TARGET)


def by_hand(translator, sentence, beam=1):
    """One sentence at a time, straight through decoding."""
    source = np.array([translator.ids(sentence)])
    symbols = dict(start=BOS, end=EOS, pad=PAD, max_length=min(translator.config.max_length, 2 * source.shape[1] + 10))
    ids = greedy_decode(translator.model, source, **symbols)[0] if beam == 1 else \
        beam_search(translator.model, source, **symbols, beam=beam)[0][0][0]
    return detokenise(TARGET.decode(ids))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 6, 100])
@pytest.mark.parametrize("beam", [1, 3])
def test_translations_come_in_the_order_of_their_sentences_whatever_the_batches(batch_size, beam):
    translator = make()
    # A longer companion may allow a longer translation: compare what is within the bound of the shortest.
    translator = replace(translator, config=replace(translator.config, max_length=11))
    expected = [by_hand(translator, sentence, beam) for sentence in SENTENCES]
    assert len(set(expected)) > 3
    assert translator.translate(SENTENCES, beam=beam, batch_size=batch_size) == expected


def test_greedily_unless_a_beam_is_given(monkeypatch):
    monkeypatch.setattr("numpy_transformer.translation.translator.beam_search", None)
    assert make().translate(SENTENCES) == make().translate(SENTENCES, beam=1)


def test_sentences_of_like_length_share_a_batch():
    translator, widths = make(), []

    class Watched:
        step = translator.model.step

        @staticmethod
        def start(source, *, pad):
            widths.append(source.shape)
            return translator.model.start(source, pad=pad)

    lengths = [3, 1, 5, 1, 3]
    replace(translator, model=Watched).translate([" ".join(["dog"] * length) for length in lengths], batch_size=2)
    assert widths == [(2, 1 + 1), (2, 3 + 1), (1, 5 + 1)]


@pytest.mark.parametrize("beam", [1, 3])
def test_several_processes_write_the_same_translations(beam):
    translator = make()
    expected = translator.translate(SENTENCES, beam=beam, batch_size=4)
    assert translator.translate(SENTENCES, beam=beam, batch_size=4, workers=3) == expected  # the last batch has two sentences


def test_no_more_processes_than_sentences(monkeypatch):
    asked = []

    class Team:
        def __init__(self, model, count):
            asked.append(count)
            self.model = model

        def share_out(self, function, rows, *arguments):
            return function(self.model, rows, *arguments)

        __enter__ = lambda self: self
        __exit__ = lambda *_: asked.append("ended")

    monkeypatch.setattr("numpy_transformer.translation.translator.Workers", Team)
    translator = make()
    assert translator.translate(SENTENCES[:2], workers=5) == translator.translate(SENTENCES[:2], workers=1)
    assert asked == [2, "ended"]
    translator.translate(SENTENCES[:1], workers=5)
    translator.translate([], workers=5)
    translator.translate(SENTENCES)  # unless asked for there is one process
    assert asked == [2, "ended"]


def test_the_model_alone_bounds_a_long_translation_and_the_source_a_short_one():
    translator = make(max_length=64)
    lengths = []

    class Endless:
        start = staticmethod(lambda source, *, pad: np.zeros(len(source)))

        @staticmethod
        def step(ids, cache):
            lengths.append(len(ids))
            return np.eye(len(TARGET))[np.full(len(ids), 5)], cache

    endless = replace(translator, model=Endless)
    endless.translate(["a dog"])
    assert len(lengths) == 2 * 3 + 10
    lengths.clear()
    endless.translate([" ".join(["dog"] * 40)])
    assert len(lengths) == 64


@pytest.mark.parametrize("arguments, error, message", [
    (dict(workers=0), ValueError, "^workers must be a whole number of at least 1, not 0"),
    (dict(batch_size=-1), ValueError, "^batch_size must be a whole number of at least 1, not -1"),
    (dict(sentences="a dog"), TypeError, "^sentences must be several texts, such as a list, not the one text 'a dog'"),
])
def test_what_cannot_be_translated_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        make().translate(**dict(sentences=SENTENCES) | arguments)


def test_sentences_may_come_one_by_one():
    assert make().translate(iter(SENTENCES)) == make().translate(SENTENCES)


def test_no_sentences():
    assert make().translate([]) == []


def test_ids_end_with_eos_and_lower_the_case():
    translator = make()
    assert translator.ids("The CAT") == [*SOURCE.encode(["the", "cat"]), EOS]
    assert translator.example("The cat", "这只猫") == (SOURCE.encode(["the", "cat"]), TARGET.encode(list("这只猫")))
    assert translator.unknown("The zebra saw Yaks") == ["zebra", "yaks"]
    assert translator.unknown("the cat") == []


@pytest.mark.parametrize("sentence", ["", "  ", "\u200b"])
def test_an_empty_sentence_is_refused(sentence):
    with pytest.raises(ValueError, match="^the sentence is empty"):
        make().ids(sentence)
    with pytest.raises(ValueError, match="^the sentence is empty"):
        make().translate(["the cat", sentence])


def test_a_sentence_longer_than_the_table_is_refused():
    translator = make(max_length=5)
    assert len(translator.ids("a a a a")) == 5
    with pytest.raises(ValueError, match="^the sentence has 5 tokens, the model reads at most 4: 'a a a a a'…$"):
        translator.ids("a a a a a")


def test_saved_and_loaded(tmp_path):
    translator = make()
    optimiser = Adam(0.0).init(translator.model)
    translator.save(tmp_path / "m.npz", optimiser=optimiser, notes={"day": 3})
    loaded, state, notes = Translator.load(tmp_path / "m.npz")
    assert_same(loaded.model, translator.model)
    assert (loaded.config, loaded.source_vocabulary, loaded.target_vocabulary) == (translator.config, SOURCE, TARGET)
    assert state.step == 0 and notes["day"] == 3
    assert loaded.translate(SENTENCES) == translator.translate(SENTENCES)


def test_a_model_without_its_vocabularies_is_refused(tmp_path):
    translator = make()
    save(tmp_path / "m.npz", translator.model, translator.config)
    with pytest.raises(ValueError, match="m.npz holds a model without vocabularies: 'source_tokens' is missing"):
        Translator.load(tmp_path / "m.npz")
    notes = {"source_tokens": SOURCE.tokens, "target_tokens": TARGET.tokens[:-1]}
    save(tmp_path / "m.npz", translator.model, translator.config, notes=notes)
    with pytest.raises(ValueError, match=rf"vocabularies of {len(SOURCE)} and {len(TARGET) - 1} tokens for a model of"):
        Translator.load(tmp_path / "m.npz")


# ── Scores ───────────────────────────────────────────────────────────────────────────────────────

def slow_distance(one, other):
    """The same by its recursive definition."""
    if not one or not other:
        return len(one) + len(other)
    return min(slow_distance(one[:-1], other) + 1, slow_distance(one, other[:-1]) + 1,
               slow_distance(one[:-1], other[:-1]) + (one[-1] != other[-1]))


@given(st.text("ab", max_size=5), st.text("abc", max_size=5))
def test_edit_distance(one, other):
    assert edit_distance(one, other) == slow_distance(one, other)


def test_score_counts_sentences_and_tokens_and_takes_the_nearest_reference():
    result = score(["她买了书", "我爱你", "x y z"], [["她买了一本书", "她没有买书"], ["我爱你"], ["x z"]])
    assert result == Score(sentences=3, exact=1, tokens=6 + 3 + 2, edits=2 + 0 + 1)
    assert result.exact_match == 1 / 3 and result.token_error_rate == 3 / 11
    assert score(["a b c d"], [["z", "a b c"]]) == Score(1, 0, 3, 1)


def test_score_of_nothing_and_of_one():
    assert (score([], []).exact_match, score([], []).token_error_rate) == (0, 0)
    assert (score(["dog"], [["dog"]]).exact_match, score(["a"], [["dog"]]).token_error_rate) == (1, 1)


def test_score_needs_as_many_references_as_translations():
    with pytest.raises(ValueError):
        score(["a"], [])
