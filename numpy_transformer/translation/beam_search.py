"""Beam search: keep several translations under way, since the likeliest first word may lead nowhere."""

from dataclasses import dataclass
from itertools import accumulate

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


@dataclass(frozen=True, eq=False)
class Search:
    """Where the search for one sentence stands: N unfinished hypotheses, and the best of those that have ended."""

    hypotheses: list[tuple[int, ...]]
    totals: Array  # (N,)  Σ log p so far
    words: Array   # (N,)  the last word of each
    rows: Array    # (N,)  which of the hypotheses before the last word each one continues
    ended: list[tuple[float, tuple[int, ...]]]  # score and words, best first

    def result(self, pad: int) -> tuple[Array, Array]:
        """Return the ended hypotheses as ids (N, T), padded behind their end, and their scores (N,)."""
        if not self.ended:
            raise ValueError("no word has a probability: the model's logits are NaN or all -inf")
        longest = max(len(hypothesis) for _, hypothesis in self.ended)
        ids = np.array([hypothesis + (pad,) * (longest - len(hypothesis)) for _, hypothesis in self.ended])  # (N, T)
        return ids, np.array([score for score, _ in self.ended])               # (N, T), (N,)


def beam_search(model: StepModel, source: Array, *, start: int, end: int, pad: int, max_length: int,
                beam: int = 4, alpha: float = 0.6) -> tuple[list[Array], list[Array]]:
    """Search for the translation with the highest score, sentence by sentence.

        score(y) = Σ_t log p(y_t | y_{<t}) / ((5 + length) / 6)^α        length counts <eos>

    At each step every unfinished hypothesis is extended by every word, and the `beam` likeliest of all
    these extensions are kept (their lengths being equal, that is the order of their scores). Those
    that end with <eos> are put aside with their score. The search stops when `beam` hypotheses have
    ended and no unfinished one can still overtake the worst of the best `beam`, or at max_length,
    where what is unfinished counts as it stands. With beam 1 this is greedy decoding.

    The hypotheses of all sentences go through the model together, as rows of one batch. A sentence
    whose search is over has no rows any more.

    Parameters: as for greedy_decode; beam ≥ 1; alpha ≥ 0. Returns for each sentence its hypotheses,
    ids (N, T) padded behind their end, best first, all distinct, N ≤ beam; and their scores (N,).
    """
    source = check_request(source, max_length, start=start, end=end, pad=pad)  # (B, S)
    check_count("beam", beam)
    check_number("alpha", alpha)

    def extend(search: Search, log_probabilities: Array, length: int) -> Search:  # (N, V)
        """Go on from a sentence's hypotheses, given the log-probabilities (N, V) of each one's next word."""
        candidates = search.totals[:, None] + log_probabilities                # (N, V)
        rows, words = np.unravel_index(largest(candidates.ravel(), beam), candidates.shape)  # (M,), (M,)
        totals = candidates[rows, words]                                       # (M,)
        hypotheses = [(*search.hypotheses[row], int(word)) for row, word in zip(rows, words)]
        finished = (words == end) if length < max_length else np.ones(len(words), bool)  # (M,)
        ended = search.ended + [(float(total) / length_penalty(length, alpha), hypothesis)
                                for total, hypothesis, done in zip(totals, hypotheses, finished) if done]
        ended = sorted(ended, key=lambda entry: -entry[0])[:beam]
        # The best that an unfinished one can still reach: no log-probability lost, the longest length.
        reachable = totals.max(where=~finished, initial=-np.inf) / length_penalty(max_length, alpha)
        over = len(ended) == beam and reachable <= ended[-1][0]
        going = np.flatnonzero(~finished & (not over))                         # (G,)
        return Search([hypotheses[i] for i in going], totals[going], words[going], rows[going], ended)

    cache = model.start(source, pad=pad)
    searches = [Search([()], np.zeros(1), np.array([start]), np.array([0]), []) for _ in source]
    firsts = range(len(source))  # where in the cache the rows of each sentence begin
    for length in range(1, max_length + 1):
        counts = [len(search.words) for search in searches]
        if not any(counts):
            break
        rows = np.concatenate([first + search.rows for first, search in zip(firsts, searches)])  # (R,)
        words = np.concatenate([search.words for search in searches])          # (R,)
        cache = map_tree(lambda array: array[rows], cache)
        logits, cache = model.step(words, cache)                               # (R, V)
        log_probabilities = log_softmax(logits)                                # (R, V)
        firsts = list(accumulate(counts[:-1], initial=0))
        searches = [extend(search, log_probabilities[first : first + count], length) if count else search
                    for search, first, count in zip(searches, firsts, counts)]
    results = [search.result(pad) for search in searches]
    return [ids for ids, _ in results], [scores for _, scores in results]


def largest(x: Array, count: int) -> Array:
    """Return where the `count` largest of x (N,) are, the largest first, of equal ones the first; −inf does not count."""
    least = np.partition(x, -count)[-count] if len(x) > count else -np.inf  # of 4 × 8000, to sort all takes 40 times as long
    found = np.flatnonzero((x >= least) & (x > -np.inf))                       # (M,)
    return found[np.argsort(-x[found], kind="stable")][:count]                 # (M,)


def log_softmax(logits: Array) -> Array:
    """log softmax(z) = z − log Σ exp z, in float64: sums over a sentence are compared closely."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)   # (N, V)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))       # (N, V)
