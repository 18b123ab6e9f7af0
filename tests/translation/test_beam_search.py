"""Beam search: what it finds is what scalar loops find, and with a beam wide enough it is the best there is."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import loops
from numpy_transformer.foundations.parameters import map_tree, named_parameters
from numpy_transformer.model.config import TransformerConfig
from numpy_transformer.training.batches import pad_to_longest
from numpy_transformer.translation.beam_search import beam_search, largest, length_penalty, log_softmax
from numpy_transformer.translation.greedy import greedy_decode
from strategies import assert_close, assert_same, read_only, rngs, talkative_model

PAD, START, END = 0, 1, 2
IDS = dict(start=START, end=END, pad=PAD)
SMALL = TransformerConfig(9, 6, width=6, heads=2, hidden=5, encoder_layers=1, decoder_layers=2, max_length=8,
                          tie_embeddings=False)

alphas = st.sampled_from([0.0, 0.6, 1.0, 3.0])
few = settings(max_examples=settings().max_examples // 3)  # whole models take their time


class Tree:
    """A model whose logits are a function of all words so far, which its cache holds: a cache that is
    handed on with its rows in the wrong order makes other sentences."""

    def __init__(self, V, seed=0, end_logit=0.0, scale=2.0):
        self.V, self.seed, self.end_logit, self.scale, self.calls = V, seed, end_logit, scale, 0

    def start(self, source, *, pad):
        self.source, self.pad = source, pad
        return np.zeros((len(source), 0), int)

    def step(self, ids, cache):
        self.calls += 1
        cache = np.concatenate([cache, ids[:, None]], axis=1)
        return np.stack([self.logits(prefix) for prefix in cache.tolist()]), cache

    def logits(self, prefix):
        rng = np.random.default_rng([self.seed, *prefix])
        logits = self.scale * rng.normal(size=self.V)
        logits[END] += self.end_logit
        return logits

    def log_probabilities(self, prefix):
        return np.log(loops.softmax(self.logits(list(prefix))))


class Table(Tree):
    """A model that looks the probabilities of the next word up by the words so far; other sentences end"""

    def __init__(self, probabilities):
        super().__init__(len(next(iter(probabilities.values()))))
        self.probabilities = probabilities

    def logits(self, prefix):
        with np.errstate(divide="ignore"):
            return np.log(self.probabilities.get(tuple(prefix[1:]), np.eye(self.V)[END]))


trees = st.builds(Tree, st.integers(3, 5), st.integers(0, 10**6), st.sampled_from([-1.0, 0.0, 2.0]),
                  st.sampled_from([0.3, 2.0]))


def search(model, **settings):
    """The hypotheses of a single sentence, without padding, and their scores"""
    ((ids,), (scores,)) = beam_search(model, [[7]], **IDS | settings)
    assert ids.dtype.kind == "i" and scores.dtype == np.float64
    assert len(ids) == len(scores)
    return [until_end(row) for row in ids.tolist()], scores


def until_end(row):
    """A row of ids up to its end, behind which there is only padding"""
    length = row.index(END) + 1 if END in row else len(row)
    assert set(row[length:]) <= {PAD}
    return tuple(row[:length])


def patient_search(log_probabilities, max_length, beam, alpha):
    """Beam search in scalar loops that never stops early → [(tokens, score)], best first"""
    going, ended = [((), 0.0)], []
    for length in range(1, max_length + 1):
        longer = [((*tokens, token), total + log_p) for tokens, total in going
                  for token, log_p in enumerate(log_probabilities((START, *tokens)))]
        longer = sorted(longer, key=lambda hypothesis: -hypothesis[1])[:beam]
        done = [tokens[-1] == END or length == max_length for tokens, _ in longer]
        ended += [(tokens, loops.beam_score(total, length, alpha)) for (tokens, total), d in zip(longer, done) if d]
        going = [hypothesis for hypothesis, d in zip(longer, done) if not d]
    return sorted(ended, key=lambda hypothesis: -hypothesis[1])[:beam]


def a_model(config=SMALL, seed=0, dtype=np.float64):
    return talkative_model(config, END, seed, dtype)


# ── Right ────────────────────────────────────────────────────────────────────────────────────────

@given(st.builds(Tree, st.integers(3, 4), st.integers(0, 10**6)), st.integers(1, 4), alphas)
def test_a_beam_as_wide_as_the_tree_finds_everything(tree, max_length, alpha):
    everything = loops.exhaustive_search(tree.log_probabilities, START, END, max_length, alpha)
    found, scores = search(tree, max_length=max_length, beam=tree.V**max_length, alpha=alpha)
    assert found == [tokens for tokens, _ in everything]
    assert_close(scores, [score for _, score in everything])


@given(trees, st.integers(1, 6), st.integers(1, 7), alphas)
def test_any_beam_finds_what_a_search_in_loops_finds_that_never_stops_early(tree, max_length, beam, alpha):
    expected = patient_search(tree.log_probabilities, max_length, beam, alpha)
    found, scores = search(tree, max_length=max_length, beam=beam, alpha=alpha)
    assert found == [tokens for tokens, _ in expected]
    assert_close(scores, [score for _, score in expected])


@given(trees, st.integers(1, 6), st.integers(1, 7), alphas)
def test_hypotheses_are_distinct_at_most_as_many_as_the_beam_and_sorted(tree, max_length, beam, alpha):
    found, scores = search(tree, max_length=max_length, beam=beam, alpha=alpha)
    assert len(set(found)) == len(found) <= beam
    assert scores.tolist() == sorted(scores, reverse=True)
    assert all(tokens[-1] == END or len(tokens) == max_length for tokens in found)


@given(trees, st.integers(1, 6), st.integers(1, 7), alphas)
def test_a_score_is_the_sum_of_the_log_probabilities_over_the_penalty_of_the_length(tree, max_length, beam, alpha):
    for tokens, score in zip(*search(tree, max_length=max_length, beam=beam, alpha=alpha)):
        total = sum(tree.log_probabilities((START, *tokens[:t]))[token] for t, token in enumerate(tokens))
        assert_close(score, total / ((5 + len(tokens)) / 6) ** alpha)


@given(trees, st.integers(1, 6), alphas)
def test_a_beam_of_one_is_greedy_decoding(tree, max_length, alpha):
    (found,), _ = search(tree, max_length=max_length, beam=1, alpha=alpha)
    assert found == tuple(greedy_decode(tree, [[7]], **IDS, max_length=max_length)[0])
    assert found == loops.greedy_search(tree.log_probabilities, START, END, max_length)


# ── Known values ─────────────────────────────────────────────────────────────────────────────────

#                                     pad start end  3    4
GARDEN_PATH = Table({(): np.array([0.0, 0.0, 0.1, 0.5, 0.4]),
                     (3,): np.array([0.0, 0.0, 0.4, 0.3, 0.3]),
                     (4,): np.array([0.0, 0.0, 0.9, 0.1, 0.0])})


def test_the_likeliest_first_word_may_lead_nowhere():
    with np.errstate(invalid="raise", over="raise"):
        narrow, _ = search(GARDEN_PATH, max_length=2, beam=1)
        wide, scores = search(GARDEN_PATH, max_length=2, beam=2, alpha=0.6)
    assert narrow == [(3, END)]
    assert wide == [(4, END), (3, END)]
    penalty = (7 / 6) ** 0.6
    assert_close(scores, [math.log(0.36) / penalty, math.log(0.2) / penalty])


def test_the_end_counts_as_a_word():
    found, scores = search(GARDEN_PATH, max_length=2, beam=3, alpha=2.0)
    assert found == [(4, END), (3, END), (3, 3)]
    assert_close(scores, np.log([0.36, 0.2, 0.15]) / (7 / 6) ** 2)
    found, scores = search(GARDEN_PATH, max_length=1, beam=3, alpha=2.0)
    assert found == [(3,), (4,), (END,)]
    assert_close(scores, np.log([0.5, 0.4, 0.1]))  # one word: (5 + 1) / 6 = 1


SHORT_OR_LONG = Table({(): np.array([0.0, 0.0, 0.45, 0.55]), (3,): np.array([0.0, 0.0, 0.2, 0.8]),
                       (3, 3): np.array([0.0, 0.0, 0.98, 0.02])})


@pytest.mark.parametrize("alpha, best", [(0.0, (END,)), (0.2, (END,)), (0.3, (3, 3, END)), (1.0, (3, 3, END))])
def test_without_the_penalty_the_short_translation_wins(alpha, best):
    # log 0.45 = −0.799 against log 0.4312 = −0.841, divided by (8 / 6)^α: equal at α = 0.18
    alpha = 0.1 if alpha == 0.2 else alpha
    found, _ = search(SHORT_OR_LONG, max_length=3, beam=2, alpha=alpha)
    assert found[0] == best


@pytest.mark.parametrize("length, alpha, penalty", [
    (1, 0.6, 1), (7, 1, 2), (7, 0.5, math.sqrt(2)), (13, 2, 9), (4, 0, 1), (10, 0.6, 2.5**0.6)])
def test_the_penalty_of_a_length(length, alpha, penalty):
    assert length_penalty(length, alpha) == pytest.approx(penalty, rel=1e-15)


@given(rngs, st.sampled_from([np.float32, np.float64]), st.sampled_from([0.0, 1e4, -1e4]))
def test_log_softmax_is_the_logarithm_of_softmax_in_float64(rng, dtype, shift):
    logits = (rng.normal(size=(3, 4)) + shift).astype(dtype)
    found = log_softmax(logits)
    assert found.dtype == np.float64
    assert_close(found, np.log(loops.softmax(logits)), 1e-12)


def test_log_softmax_of_logits_far_apart():
    assert log_softmax(np.array([[1e4, 0, -1e4], [0, 0, -np.inf]])).tolist() == [[0, -1e4, -2e4], [-math.log(2)] * 2 + [-math.inf]]


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, -np.inf]), min_size=1, max_size=12), st.integers(1, 14))
def test_the_largest_are_those_of_sorting_everything(values, count):
    in_order = sorted((i for i, value in enumerate(values) if value > -np.inf), key=lambda i: -values[i])
    assert largest(np.array(values), count).tolist() == in_order[:count]


def test_a_model_that_gives_no_word_a_probability_is_refused():
    for logits in (np.nan, -np.inf):
        model = Table({(): np.full(5, logits)})
        model.logits = lambda prefix: np.full(5, logits)
        with pytest.raises(ValueError, match="^no word has a probability: the model's logits are NaN or all -inf$"), \
                np.errstate(invalid="ignore"):
            search(model, max_length=3)


# ── When it stops ────────────────────────────────────────────────────────────────────────────────

def chain(end):
    """The same probability `end` of an end after every word, the rest to the word 3"""
    return Table({(3,) * n: np.array([0.0, 0.0, end, 1 - end]) for n in range(50)})


@pytest.mark.parametrize("beam, alpha, calls", [(1, 0.0, 1), (2, 0.0, 2), (3, 0.0, 3), (1, 1.0, 1)])
def test_it_stops_when_nothing_unfinished_can_overtake(beam, alpha, calls):
    model = chain(0.9)
    found, _ = search(model, max_length=20, beam=beam, alpha=alpha)
    assert found == [(3,) * n + (END,) for n in range(beam)]
    assert model.calls == calls


def test_it_goes_on_while_an_unfinished_one_may_still_overtake():
    model = Table({(): np.array([0.0, 0.0, 0.45, 0.55]), **{(3,) * n: np.array([0.0, 0.0, 0.01, 0.99]) for n in range(1, 9)}})
    found, _ = search(model, max_length=9, beam=1, alpha=3.0)
    assert found == [(3,) * 9] and model.calls == 9
    model.calls = 0
    found, _ = search(model, max_length=9, beam=2, alpha=3.0)
    assert found[0] == (3,) * 9 and model.calls == 9  # (<eos>) and (3, <eos>) had ended long before


def test_the_bound_on_what_can_still_be_reached_is_tight():
    # beam 1 cannot end while something goes on, so two: (<eos>) scores log 0.4, and (3, <eos>) log 0.06
    model = Table({(): np.array([0.0, 0.0, 0.4, 0.6]), (3,): np.array([0.0, 0.0, 0.1, 0.9]),
                   **{(3,) * n: np.array([0.0, 0.0, 0.0, 1.0]) for n in range(2, 9)}})
    alpha, total = 1.0, math.log(0.6 * 0.9)
    for max_length in (3, 9):
        model.calls = 0
        worst = math.log(0.06) / (7 / 6) ** alpha
        assert total / ((5 + max_length) / 6) ** alpha > worst
        found, scores = search(model, max_length=max_length, beam=2, alpha=alpha)
        assert model.calls == max_length and (3,) * max_length in found


def test_it_goes_on_for_the_last_place_even_when_the_first_is_sure():
    model = Table({(): np.array([0.0, 0.0, 0.6, 0.4]), (3,): np.array([0.0, 0.0, 0.1, 0.9])})
    found, scores = search(model, max_length=9, beam=2, alpha=0.0)  # (3, <eos>), at log 0.04, was second after two words
    assert found == [(END,), (3, 3, END)]
    assert_close(scores, [math.log(0.6), math.log(0.4 * 0.9)])


def test_what_is_unfinished_at_the_end_counts_as_it_stands():
    found, scores = search(chain(0.1), max_length=3, beam=2, alpha=0.0)
    assert found == [(3, 3, 3), (END,)]
    assert_close(scores, [3 * math.log(0.9), math.log(0.1)])


def test_a_beam_wider_than_the_vocabulary_takes_all_there_is():
    assert len(search(Tree(5), max_length=1, beam=50)[0]) == 5
    assert len(search(Tree(5), max_length=2, beam=50)[0]) == 1 + 4 * 5  # <eos>, and four words before any of five


def test_what_has_no_probability_is_no_translation():
    found, scores = search(GARDEN_PATH, max_length=1, beam=50)
    assert found == [(3,), (4,), (END,)]
    found, scores = search(GARDEN_PATH, max_length=2, beam=50)
    assert sorted(found) == [(END,), (3, END), (3, 3), (3, 4), (4, END), (4, 3)] and np.isfinite(scores).all()


# ── Several sentences, a real model ──────────────────────────────────────────────────────────────

@pytest.mark.parametrize("config", [SMALL, replace(SMALL, norm_first=False, final_norm=False)],
                         ids=["pre-norm", "post-norm"])
@few
@given(seed=st.integers(0, 100), beam=st.integers(2, 4), alpha=alphas)
def test_each_score_is_that_of_a_whole_forward_pass(config, seed, beam, alpha):
    model, lists = read_only(a_model(config, seed)), [[3, 4, 5], [6]]
    hypotheses, scores = beam_search(model, pad_to_longest(lists), **IDS, max_length=5, beam=beam, alpha=alpha)
    for sentence, ids, own in zip(lists, hypotheses, scores, strict=True):
        def log_probabilities(prefix):
            logits, _ = model(np.array([sentence]), np.array([prefix]), pad=99)
            return np.log(loops.softmax(logits[0, -1]))

        expected = patient_search(log_probabilities, 5, beam, alpha)
        assert [until_end(row) for row in ids.tolist()] == [tokens for tokens, _ in expected]
        assert_close(own, [score for _, score in expected], 1e-10)


@few
@given(st.integers(0, 100), st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=1, max_size=3))
def test_a_beam_of_one_is_greedy_decoding_of_a_real_model(seed, lists):
    model, source = a_model(seed=seed), pad_to_longest(lists)
    greedy = greedy_decode(model, source, **IDS, max_length=6)
    hypotheses, scores = beam_search(model, source, **IDS, max_length=6, beam=1)
    assert [ids.shape[0] for ids in hypotheses] == [1] * len(lists) == [score.shape[0] for score in scores]
    assert [until_end(ids[0].tolist()) for ids in hypotheses] == [until_end(row) for row in greedy.tolist()]


@few
@given(st.integers(0, 100), st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=6), min_size=1, max_size=3))
def test_each_sentence_fares_as_it_does_alone(seed, lists):
    """Though some end sooner than others and all go through the model together."""
    model = a_model(seed=seed)
    together = beam_search(model, pad_to_longest(lists), **IDS, max_length=5, beam=3)
    for sentence, ids, scores in zip(lists, *together, strict=True):
        (alone,), (own,) = beam_search(model, [sentence], **IDS, max_length=5, beam=3)
        assert_array_equal(ids, alone, strict=True)
        assert_close(scores, own, 1e-10)


def test_the_rows_are_padded_behind_their_end_with_the_padding_asked_for():
    ((ids,), _) = beam_search(SHORT_OR_LONG, [[7]], **IDS | {"pad": 4}, max_length=3, beam=3, alpha=0.0)
    assert ids.tolist() == [[END, 4, 4], [3, 3, END], [3, END, 4]]
    assert SHORT_OR_LONG.pad == 4
    assert_array_equal(SHORT_OR_LONG.source, [[7]])


def test_beam_and_alpha_unless_given():
    tree = Tree(5, seed=3)
    assert_same(beam_search(tree, [[7]], **IDS, max_length=4)[1][0],
                beam_search(tree, [[7]], **IDS, max_length=4, beam=4, alpha=0.6)[1][0])
    assert search(tree, max_length=4)[0] != search(tree, max_length=4, beam=4, alpha=0.0)[0]


def test_float32_models_are_scored_in_float64_and_left_as_they_are():
    model, source = read_only(a_model(dtype=np.float32)), read_only(np.array([[3, 4, 0], [5, 6, 7]]))
    kept = map_tree(np.copy, (model, source))
    ids, scores = beam_search(model, source, **IDS, max_length=5, beam=3)
    again = beam_search(model, source, **IDS, max_length=5, beam=3)
    assert_same((tuple(ids), tuple(scores)), (tuple(again[0]), tuple(again[1])))
    assert all(own.dtype == np.float64 for own in scores)
    for name, array in named_parameters((model, source)).items():
        assert_array_equal(array, named_parameters(kept)[name], strict=True)


def test_all_sentences_go_through_the_model_together():
    tree, rows = Tree(5, end_logit=-99.0), []
    logits = tree.step
    tree.step = lambda ids, cache: (rows.append(len(ids)), logits(ids, cache))[1]
    beam_search(tree, [[7], [8], [9]], **IDS, max_length=4, beam=2)
    assert rows == [3, 6, 6, 6]


def test_no_sentences_have_no_translations():
    assert beam_search(a_model(), np.zeros((0, 4), int), **IDS, max_length=5) == ([], [])


# ── Refused ──────────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize("name, value, limits", [
    *((name, value, "whole number of at least 1") for name in ("max_length", "beam")
      for value in (0, -1, 2.0, "2", None, True)),
    *(("alpha", value, "number at least 0") for value in (-0.1, math.nan, math.inf, "0.6", None)),
    *((name, value, "whole number of at least 0") for name in ("start", "end", "pad") for value in (-1, 2.0, None))])
def test_a_setting_out_of_bounds_is_named(name, value, limits):
    tree = Tree(5)
    with pytest.raises(ValueError, match=rf"^{name} must be a {limits}, not {value!r}$"):
        beam_search(tree, [[7]], **dict(IDS, max_length=3) | {name: value})
    assert tree.calls == 0


@pytest.mark.parametrize("source", [3, [3, 4], [[[3, 4]]]], ids=str)
def test_a_source_is_a_batch_of_sentences(source):
    with pytest.raises(ValueError, match=rf"^source has shape \({', '.join(map(str, np.shape(source)))},?\): expected \(B, S\)"):
        beam_search(Tree(5), source, **IDS, max_length=3)


@pytest.mark.parametrize("source, settings, error, message", [
    ([[3, 99]], {}, IndexError, r"source\[0, 1\] is 99, outside \[0, 9\)"),
    ([[3.0, 4.0]], {}, TypeError, "source must be integers, not dtype float64"),
    ([[3]], {"start": 6}, IndexError, r"ids\[0\] is 6, outside \[0, 6\)"),
    ([[3]], {"end": 6, "max_length": 9}, ValueError, "a sequence of length 9 does not fit the table of 8 positions"),
])
def test_what_the_model_cannot_read_or_write_is_named(source, settings, error, message):
    with pytest.raises(error, match=message):
        beam_search(a_model(), source, **dict(IDS, max_length=3) | settings)
