"""The corpus: what its page claims, what a split may not share, and grammar that can be checked by rule."""

import hashlib
import re
from collections import Counter

import pytest

from numpy_transformer.translation import corpus
from numpy_transformer.translation.corpus import (ANIMAL_STATES, ANIMALS, BASE, PLACE_STATES, PLACES, SHOWCASE, THINGS,
                                                  WITHHELD, generate_corpus, is_withheld, split_corpus)
from numpy_transformer.translation.vocabulary import Vocabulary, detokenise, tokenise

PAIRS = generate_corpus()
CHINESE = dict(PAIRS)
TRAINING, HELD_OUT, UNSEEN = split_corpus(PAIRS)
WORDS_OF = [({BASE.get(word, word) for word in pair.source.split()}, pair) for pair in TRAINING]


def test_the_page_s_numbers():
    pairs, tokens, characters = map(int, re.search(
        r"There are ([\d,]+) pairs, at most (\d+) English tokens and (\d+) Chinese", corpus.__doc__).expand(
        r"\1 \2 \3").replace(",", "").split())
    assert len(PAIRS) == pairs
    assert max(len(tokenise(pair.source)) for pair in PAIRS) == tokens
    assert max(len(pair.target) for pair in PAIRS) == max(len(tokenise(pair.target)) for pair in PAIRS) == characters


def test_the_page_s_examples_are_the_showcase():
    text = re.sub(r"^    [a-z]+ ", " " * 8, corpus.__doc__, flags=re.M)
    examples = re.findall(r"^ {5,}([a-z ]*[a-z])\s+([\u4e00-\u9fff，]+)$", text, flags=re.M)
    assert tuple(english for english, _ in examples) == SHOWCASE
    for english, chinese in examples:
        assert CHINESE[english] == chinese


def test_the_notes_sentences():
    assert CHINESE["i love you"] == "我爱你"
    assert CHINESE["apple is delicious"] == "苹果很好吃"
    street = "the animal did not cross the street because it was too "
    assert CHINESE[street + "tired"] == "这只动物没有穿过这条街道，因为这只动物太累了"
    assert CHINESE[street + "wide"] == "这只动物没有穿过这条街道，因为这条街道太宽了"


def test_one_translation_for_each_sentence():
    assert len(CHINESE) == len(PAIRS)


def test_the_same_corpus_everywhere():
    assert generate_corpus.__wrapped__() == PAIRS
    text = "\n".join(f"{source}\t{target}" for source, target in PAIRS)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "d510ce7a6fb688a5"


def test_text_is_written_as_promised():
    for source, target in PAIRS:
        assert re.fullmatch(r"[a-z]+( [a-z]+)*", source), source
        assert re.fullmatch(r"[\u4e00-\u9fff]+(，[\u4e00-\u9fff]+)?", target), target
        assert detokenise(tokenise(target)) == target


def test_vocabularies_are_small():
    assert len(Vocabulary.build(tokenise(pair.source) for pair in TRAINING)) == 165
    assert len(Vocabulary.build(tokenise(pair.target) for pair in TRAINING)) == 195


# ── The split ────────────────────────────────────────────────────────────────────────────────────

def test_split_is_a_partition():
    assert sorted(TRAINING + HELD_OUT + UNSEEN) == sorted(PAIRS)
    assert (len(TRAINING), len(HELD_OUT), len(UNSEEN)) == (4770, 441, 389)


def test_showcase_is_never_trained_on():
    assert not {pair.source for pair in TRAINING} & set(SHOWCASE)
    assert {pair.source for pair in UNSEEN} & set(SHOWCASE) == set(SHOWCASE[:2])


@pytest.mark.parametrize("words", WITHHELD)
def test_withheld_words_never_meet_but_meet_others(words):
    pair = set(words.split())
    assert len(pair) == 2 and pair.isdisjoint(set(BASE) - set(BASE.values()))
    assert sum(pair <= {BASE.get(word, word) for word in source.split()} for source, _ in UNSEEN) >= 4
    for word in pair:
        sentences = [others for others, _ in WORDS_OF if word in others]
        assert len(sentences) >= 25 and not any(pair <= others for others in sentences)
        assert len(set().union(*sentences)) >= 20


def test_every_unseen_sentence_is_withheld_and_no_other():
    assert all(is_withheld(pair.source) for pair in UNSEEN)
    assert not any(is_withheld(pair.source) for pair in TRAINING + HELD_OUT)
    assert is_withheld("she borrowed the coat") and is_withheld("the doctor loves you")
    assert not is_withheld("she bought the coat") and not is_withheld("the animals crossed streets")


def test_every_tested_word_was_trained_on():
    english = Counter(word for pair in TRAINING for word in pair.source.split())
    chinese = Counter(character for pair in TRAINING for character in pair.target)
    for source, target in HELD_OUT + UNSEEN:
        assert min(english[word] for word in source.split()) >= 10, source
        assert min(chinese[character] for character in target) >= 25, target


# ── What the sentences ask ───────────────────────────────────────────────────────────────────────

def test_it_is_the_animal_or_the_place_as_the_last_word_says():
    answers = Counter()
    for source, target in PAIRS:
        found = re.fullmatch(r"the (\w+) .* the (\w+) because it was (?:too|not) (\w+)", source)
        if found:
            animal, place, state = found.groups()
            noun = ANIMALS[animal] if state in ANIMAL_STATES else PLACES[place][0]
            assert target.split("，")[1].startswith(f"因为这{noun}"), source
            answers[state in ANIMAL_STATES] += 1
        elif " it" in source:
            assert re.search(r"but (it still \w+ the \w+|the \w+ still \w+ it)$", source), source
    assert min(answers.values()) > 550
    assert not set(ANIMAL_STATES) & set(PLACE_STATES)


def test_apple_has_two_senses_and_sometimes_both():
    senses = Counter()
    for source, target in PAIRS:
        apples = source.split().count("apple")
        assert target.count("苹果") == apples
        for following in re.findall("苹果(公司)?", target):
            senses[following] += 1
        senses["both"] += apples == 2 and target.count("苹果公司") == 1
    assert senses["公司"] > 200 and senses[""] > 200 and senses["both"] > 50


@pytest.mark.parametrize("word", ["apple", "it", "delicious", "cross", "read"])
def test_a_word_s_neighbours_differ_while_the_word_does_not(word):
    assert sum(word in source.split() for source, _ in TRAINING) > 30


def test_nouns_have_their_own_measure_words():
    nouns = {**ANIMALS, **THINGS, **{place: words[0] for place, words in PLACES.items()}}.values()
    text = "\n".join(pair.target for pair in PAIRS)
    for noun in nouns:
        found = set(re.findall(f"[一这](.){noun[1:]}(?!公司|路|奶)", text))
        assert found == {noun[0]}, (noun, found)


def test_time_stands_before_the_verb():
    times = {**corpus.PAST_TIMES, **corpus.FUTURE_TIMES}
    timed = 0
    for source, target in PAIRS:
        for english, chinese in times.items():
            if english and source.endswith(english):
                timed += 1
                assert re.fullmatch(rf".+{chinese}(没有|会|不会)?[买卖借读画写做打吃喝].+", target), target
    assert timed > 900


def test_what_was_not_done_has_neither_le_nor_a_number():
    for source, target in PAIRS:
        clause = target.split("，")[-1] if " but " in source else target.split("，")[0]
        if "did not" in source:
            assert "没有" in clause and not {"了", "一"} & set(clause), target
        elif "did" not in source and re.search(" (bought|ate|left|drew) ", source):
            assert "了" in target, target


def test_english_articles_and_persons():
    for source, _ in PAIRS:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", source), source
        assert not re.search(r"\b(he|she|child|mother) (love|eat|work|do)\b", source), source
        assert not re.search(r"^(i|you|we|they) (\w+s|does) ", source), source
        assert not re.search(r"^(i|we) .*\b(me|us)$|^you .*\byou$", source), source
