"""Greedy decoding: write the likeliest next word, then the next, until every sentence has ended."""

from typing import Protocol

import numpy as np

from ..foundations.checks import check_count
from ..foundations.pullback import Array


class StepModel(Protocol):
    """What decoding asks of a model; `Transformer` is one."""

    def start(self, source: Array, *, pad: int):
        """Read source (B, S) → the cache before the first word."""

    def step(self, ids: Array, cache) -> tuple[Array, object]:
        """Feed each sentence's last word, ids (B,) → logits (B, V) of the next word, and the new cache."""


def check_request(source: Array, max_length: int, **words: int) -> Array:
    """Return source as an array (B, S), when all that decoding was asked for makes sense."""
    check_count("max_length", max_length)
    for name, word in words.items():
        check_count(name, word, 0)
    source = np.asarray(source)                               # (B, S)
    if source.ndim != 2:
        raise ValueError(f"source has shape {source.shape}: expected (B, S)")
    return source


def greedy_decode(model: StepModel, source: Array, *, start: int, end: int, pad: int, max_length: int) -> Array:
    """Translate a batch of sentences, one word at a time for all of them.

        y₁ = <bos>      y_{t+1} = argmax_v logits_v(y₁ … y_t)      until every sentence has said <eos>

    Each step computes the newest word alone, against the keys and values kept in the cache. Sentences
    end at different times; one that has ended goes on in the batch, but only padding is written.

    Parameters: source ids (B, S), padded with `pad`; at most `max_length` words, <eos> included.
    Returns ids (B, T) without `start`, T ≤ max_length the longest translation, `pad` behind `end`.
    """
    source = check_request(source, max_length, start=start, end=end, pad=pad)  # (B, S)
    cache = model.start(source, pad=pad)
    words = np.full(len(source), start)                       # (B,)
    ended = np.zeros(len(source), dtype=bool)                 # (B,)
    written = []
    while len(written) < max_length and not ended.all():
        logits, cache = model.step(words, cache)              # (B, V)
        words = np.where(ended, pad, logits.argmax(axis=-1))  # (B,)
        written.append(words)
        ended = ended | (words == end)                        # (B,)
    if not written:
        return np.zeros((len(source), 0), dtype=int)          # (B, 0)
    return np.stack(written, axis=1)                          # (B, T)
