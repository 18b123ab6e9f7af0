"""Batches: sentences of different lengths, side by side in one array.

Short sentences are filled up with padding, which masks hide and the loss does not count. The work
spent on it is lost all the same, so sentences of like length go into one batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..foundations.checks import check_count
from ..foundations.pullback import Array

PAD, BOS, EOS = 0, 1, 2  # the first three ids of every vocabulary
BUCKET = 32  # batches whose sentences are sorted by length together

Example = tuple[Sequence[int], Sequence[int]]  # ids of a source and of its target


@dataclass(frozen=True, eq=False)
class Batch:
    """Teacher forcing: at each place the decoder is given the right words so far and asked for the next.

        target          苹 果 很 好 吃
        target_input    <bos> 苹 果 很 好 吃
        target_output   苹 果 很 好 吃 <eos>

    Input and output are one sequence, one place apart: what stands at place t of the output is what
    the input shows only at t + 1, which the causal mask hides.
    """

    source: Array         # (B, S)
    target_input: Array   # (B, T)
    target_output: Array  # (B, T)

    @property
    def tokens(self) -> int:
        """The number of target tokens, <eos> included, padding not."""
        return int((self.target_output != PAD).sum())


def pad_to_longest(rows: Sequence[Sequence[int]], pad: int = PAD) -> Array:
    """Lists of ids of different lengths → one array (B, longest), filled up on the right.

    >>> pad_to_longest([[5, 6, 7], [8]])
    array([[5, 6, 7],
           [8, 0, 0]])
    """
    longest = max(map(len, rows), default=0)
    filled = [[*words, *[pad] * (longest - len(words))] for words in rows]
    ids = np.array(filled).reshape(len(rows), longest)               # (B, S)
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"rows must hold integers, not dtype {ids.dtype}")
    return ids                                                       # (B, S)


def make_batch(examples: Sequence[Example]) -> Batch:
    """Pad the sources, which end with <eos>, and the targets, shifted apart by one place."""
    return Batch(pad_to_longest([[*source, EOS] for source, _ in examples]),
                 pad_to_longest([[BOS, *target] for _, target in examples]),
                 pad_to_longest([[*target, EOS] for _, target in examples]))


def epoch(examples: Sequence[Example], batch_size: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield every example once, in random batches of sentences of like length.

    The examples are shuffled, cut into buckets of 32 batches, sorted by length inside each bucket,
    and cut into batches, which come in random order. The order is a function of rng alone.
    """
    check_count("batch_size", batch_size)
    order = rng.permutation(len(examples))                           # (N,)
    bucket = BUCKET * batch_size
    groups = []
    for start in range(0, len(order), bucket):
        by_length = sorted(order[start : start + bucket], key=lambda i: tuple(map(len, examples[i])))
        groups += [by_length[i : i + batch_size] for i in range(0, len(by_length), batch_size)]
    for index in rng.permutation(len(groups)):
        yield make_batch([examples[i] for i in groups[index]])
