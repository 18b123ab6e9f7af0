"""Beam search: keep several translations under way, since the likeliest first word may lead nowhere."""

import numpy as np

from ..foundations.checks import check_count, check_number
from ..foundations.parameters import map_tree
from ..foundations.pullback import Array
from .greedy import StepModel, check_request


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^α, by which a sum of log-probabilities is divided (Wu et al. 2016, equation 14).

    Every word makes the sum smaller, so without it short translations would always win.
    """
    return ((5 + length) / 6) ** alpha


def beam_search(model: StepModel, source: Array, *, start: int, end: int, pad: int, max_length: int,
                beam: int = 4, alpha: float = 0.6) -> tuple[list[Array], list[Array]]:
    """Search for the translation with the highest score, sentence by sentence.

        score(y) = Σ_t log p(y_t | y_{<t}) / ((5 + length) / 6)^α        length counts <eos>

    At each step every unfinished hypothesis is extended by every word, and the `beam` best of all
    these extensions by log-probability are kept (the lengths being equal, that is the order of their scores). Those that
    end with <eos> are put aside with their score. The search stops when `beam` hypotheses have
    ended and no unfinished one can still overtake the worst of the best `beam`, or at max_length,
    where what is unfinished counts as it stands. With beam 1 this is greedy decoding.

    Parameters: as for greedy_decode; beam ≥ 1; alpha ≥ 0. Returns for each sentence its hypotheses,
    ids (N, T) padded behind their end, best first, all distinct, N ≤ beam; and their scores (N,).
    """
    source = check_request(source, max_length, start=start, end=end, pad=pad)  # (B, S)
    check_count("beam", beam)
    check_number("alpha", alpha)
    results = [_search_one(model, sentence[None], start, end, pad, max_length, beam, alpha)
               for sentence in source]
    return [ids for ids, _ in results], [scores for _, scores in results]


def _search_one(model, source, start, end, pad, max_length, beam, alpha):
    cache = model.start(source, pad=pad)
    words = np.array([start])                                                  # (1,)
    hypotheses, totals = [()], np.zeros(1)                                     # (1,)
    ended: list[tuple[float, tuple]] = []
    for length in range(1, max_length + 1):
        logits, cache = model.step(words, cache)                               # (N, V)
        candidates = totals[:, None] + log_softmax(logits)                     # (N, V)
        best = np.argsort(-candidates, axis=None, kind="stable")[:beam]        # (M,)
        best = best[candidates.flat[best] > -np.inf]                           # (M,)  the impossible is no hypothesis
        rows, words = np.unravel_index(best, candidates.shape)                 # (M,), (M,)
        totals = candidates[rows, words]                                       # (M,)
        hypotheses = [(*hypotheses[row], int(word)) for row, word in zip(rows, words)]
        finished = (words == end) if length < max_length else np.ones(len(words), bool)  # (M,)
        ended += [(float(total) / length_penalty(length, alpha), hypothesis)
                  for total, hypothesis, done in zip(totals, hypotheses, finished) if done]
        ended = sorted(ended, key=lambda entry: -entry[0])[:beam]
        going = np.flatnonzero(~finished)                                      # (G,)
        if not len(going):
            break
        hypotheses, totals, words = [hypotheses[i] for i in going], totals[going], words[going]  # (G,), (G,)
        # The best that an unfinished one can still reach: no log-probability lost, the longest length.
        if len(ended) == beam and totals.max() / length_penalty(max_length, alpha) <= ended[-1][0]:
            break
        cache = map_tree(lambda array: array[rows[going]], cache)
    longest = max(len(hypothesis) for _, hypothesis in ended)
    ids = np.array([hypothesis + (pad,) * (longest - len(hypothesis)) for _, hypothesis in ended])  # (R, T)
    return ids, np.array([score for score, _ in ended])                        # (R, T), (R,)


def log_softmax(logits: Array) -> Array:
    """log softmax(z) = z − log Σ exp z, in float64: sums over a sentence are compared closely."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)   # (N, V)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))       # (N, V)
