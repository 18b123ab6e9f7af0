"""Tokens: the rules of cutting, the way back to text, the numbering and its errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_transformer.translation.vocabulary import Vocabulary, detokenise, normalise, tokenise

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
texts = st.text() | st.text("ab3 5.,:!?'’-()[]{}“”‘我你,，、。「」！？%—…·\u200b\u3000\ufeff\u00e9\u0301")
words = st.text("abcd", min_size=1, max_size=2)
sentences = st.lists(st.lists(words, max_size=6), max_size=6)


@pytest.mark.parametrize("text, tokens", [
    ("The cat isn't here.", "The cat isn't here ."),
    ("我爱你，Tom！", "我 爱 你 , Tom !"),
    ("我爱你", "我 爱 你"),
    ("はい、コーヒー々", "は い 、 コ ー ヒ ー 々"),
    ("don't, o'clock; mother-in-law", "don't , o'clock ; mother-in-law"),
    ("don’t ‘stop’", "don't ‘ stop ’"),
    ("the students' books", "the students ' books"),
    ("3.5 or 10,000 at 12:30.", "3.5 or 10,000 at 12:30 ."),
    ("他有3.5元", "他 有 3.5 元"),
    ("AH0 B AW1", "AH0 B AW1"),
    ("' c a u s e", "' c a u s e"),
    ("ＡＢＣ　你好！？", "ABC 你 好 ! ?"),
    ("\ufeff看\u200b见\u2060 a\u200d\u200cb", "看 见 ab"),
    ("<pad> <eos>", "< pad > < eos >"),
    ("“你好”他说", "“ 你 好 ” 他 说"),
    ("cafe\u0301 na\u00efve", "caf\u00e9 na\u00efve"),
    ("नमस्ते दुनिया", "नमस्ते दुनिया"),  # vowel signs are no letters to Python, but belong to the word
])
def test_tokenise(text, tokens):
    assert tokenise(text) == tokens.split()


@pytest.mark.parametrize("empty", ["", " ", "\u3000", "\u200b\ufeff", "\n\t"])
def test_nothing_has_no_tokens(empty):
    assert tokenise(empty) == [] and normalise(empty) == ""


def test_lower_case_is_the_reader_s_choice():
    assert tokenise("The AH0", lower=True) == ["the", "ah0"]
    assert tokenise("The AH0") == ["The", "AH0"]


@pytest.mark.parametrize("text", [
    "这只动物没有穿过这条街道，因为这只动物太累了。", "我爱你", "他说：“你好吗？”“很好！”".replace("”“", "” “"),
    "The cat isn't here, is it?", "well (he said) at 12:30...", "我喜欢 iPhone，你呢？", "「はい」、そうです。",
    "AH0 B AW1 T", "我们（她和我）有 3.5 元。"])
def test_detokenise_writes_the_text_again(text):
    assert detokenise(tokenise(text)) == text


def test_detokenise_of_nothing_and_of_a_generator():
    assert detokenise([]) == ""
    assert detokenise(token for token in ("我", ",", "<unk>")) == "我，<unk>"


@given(texts)
def test_text_to_tokens_and_back(text):
    tokens = tokenise(text)
    assert tokenise(detokenise(tokens)) == tokens
    assert tokenise(" ".join(tokens)) == tokens
    assert all(token and not any(c.isspace() for c in token) for token in tokens)
    assert tokenise(normalise(text)) == tokens
    assert not set(tokens) & set(SPECIAL)


@given(texts)
def test_zero_width_characters_change_nothing(text):
    assert tokenise("\u200b".join(text)) == tokenise(text)


def test_vocabulary_begins_with_the_special_tokens():
    vocabulary = Vocabulary.build([])
    assert vocabulary.tokens == SPECIAL and len(vocabulary) == 4
    assert (vocabulary.PAD, vocabulary.BOS, vocabulary.EOS, vocabulary.UNK) == (0, 1, 2, 3)
    assert Vocabulary.build([["<eos>", "a", "<eos>"]]).tokens == (*SPECIAL, "a")


def test_build_numbers_by_count_and_then_by_alphabet():
    vocabulary = Vocabulary.build([["b", "c"], ["b", "a", "猫"], ["d", "d", "d"]])
    assert vocabulary.tokens[4:] == ("d", "b", "a", "c", "猫")
    assert Vocabulary.build([["b", "c"], ["b", "a"]], minimum_count=2).tokens[4:] == ("b",)
    assert Vocabulary.build(iter([("a",)])) == Vocabulary((*SPECIAL, "a"))


@given(sentences, st.integers(1, 3))
def test_encode_and_decode(lists, minimum_count):
    vocabulary = Vocabulary.build(lists, minimum_count)
    assert vocabulary == Vocabulary.build(lists[::-1], minimum_count)
    for tokens in lists:
        ids = vocabulary.encode(tokens)
        missing = vocabulary.unknown(tokens)
        assert all(type(number) is int for number in ids)
        assert vocabulary.decode(ids) == ["<unk>" if token in missing else token for token in tokens]
        assert ids.count(vocabulary.UNK) == len(missing)
        assert bool(missing) <= (minimum_count > 1)
        assert vocabulary.decode([1, *ids, 2, 4, 10**9]) == vocabulary.decode(ids)


def test_unknown_names_what_encode_cannot_tell_apart():
    vocabulary = Vocabulary.build([["cat"]])
    assert vocabulary.encode(["dog", "cat", "cow"]) == [3, 4, 3]
    assert vocabulary.unknown(["dog", "cat", "cow"]) == ["dog", "cow"]


def test_decode_takes_arrays_drops_padding_and_stops_at_the_end():
    vocabulary = Vocabulary.build([["a", "b"]])
    for dtype in (np.int64, np.int32, np.uint8):
        assert vocabulary.decode(np.array([1, 4, 0, 5, 2, 4, 0], dtype)) == ["a", "b"]
    assert vocabulary.decode([]) == []


@pytest.mark.parametrize("ids, error, words", [
    ([4, 6], IndexError, r"ids\[1\] is 6, outside \[0, 6\)"), ([-1], IndexError, r"ids\[0\] is -1, outside \[0, 6\)"),
    ([4.0], TypeError, "float"), (["a"], TypeError, "str")])
def test_decode_refuses_what_is_no_id(ids, error, words):
    with pytest.raises(error, match=words):
        Vocabulary.build([["a", "b"]]).decode(ids)


@pytest.mark.parametrize("tokens, error, words", [
    (list(SPECIAL), TypeError, "tuple of strings"), ((*SPECIAL, 5), TypeError, "tuple of strings"),
    (("<bos>", "<pad>", "<eos>", "<unk>"), ValueError, "begins with .*<bos>.*not with"), ((), ValueError, "begins with"),
    ((*SPECIAL, "a", "b", "a"), ValueError, "'a' more than once"), ((*SPECIAL, "<eos>"), ValueError, "'<eos>' more than")])
def test_vocabulary_refuses_what_is_none(tokens, error, words):
    with pytest.raises(error, match=words):
        Vocabulary(tokens)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_minimum_count_is_a_count(count):
    with pytest.raises(ValueError, match=f"minimum_count.*{count}"):
        Vocabulary.build([], count)


def test_a_text_is_no_list_of_tokens():
    vocabulary = Vocabulary.build([["a"]])
    for use in (vocabulary.encode, vocabulary.unknown, lambda text: Vocabulary.build([text])):
        with pytest.raises(TypeError, match="'a cat'"):
            use("a cat")


def test_vocabulary_cannot_be_changed():
    with pytest.raises(AttributeError):
        Vocabulary.build([]).tokens = SPECIAL
