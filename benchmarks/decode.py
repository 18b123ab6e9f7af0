"""Decoding: translations written greedily, with the cache of keys and values, by several workers too, and without it.

Without a cache, word t costs as much as a forward pass over all t words written so far, so N words
cost in proportion to N². With it, word t costs one word's pass, and its attention over t keys.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numpy_transformer.attention.masks import padding_mask
from numpy_transformer.foundations.pullback import Array
from numpy_transformer.model.transformer import Transformer
from numpy_transformer.training.batches import BOS, PAD
from numpy_transformer.translation.greedy import greedy_decode

from .measure import Setting
from .model import CONFIGURATIONS, Configuration
from .operations import CheckError, Work, optional

Workers = optional("training.workers", "Workers")

WORDS = {False: 64, True: 16}  # in quick runs fewer


def greedy_with_cache(model: Transformer, source: Array, words: int, never: int) -> Array:
    """Write so many words for every sentence: `never`, which is no word, stands for the end."""
    return greedy_decode(model, source, start=BOS, end=never, pad=PAD, max_length=words)  # (B, T)


def greedy_without_cache(model: Transformer, source: Array, words: int, never: int) -> Array:
    """Write the same words, but read everything written so far again for each."""
    memory, _ = model.encode(source, pad=PAD)                                   # (B, S, D)
    memory_mask = padding_mask(source, PAD)                                     # (B, 1, 1, S)
    written = np.full((len(source), 1), BOS)                                    # (B, 1)
    for _ in range(words):
        hidden, _ = model.decode(written, memory, memory_mask, pad=never)       # (B, T, D)
        logits, _ = model.score(hidden[:, -1])                                  # (B, V)
        written = np.column_stack([written, logits.argmax(axis=-1)])            # (B, T + 1)
    return written[:, 1:]                                                       # (B, T)


@dataclass(frozen=True, eq=False)
class Decode:
    """Writing `words` words for each of B sentences, as something to be timed."""

    B: int
    words: int
    dtype: str
    threads: int = 1
    random: bool = False

    @property
    def name(self) -> str:
        return f"B = {self.B}"

    @property
    def shape(self) -> str:
        return f"{self.words} words"

    @property
    def variants(self) -> dict[str, tuple[Callable, int]]:
        """Return the function that writes and the number of workers by name."""
        workers = [1, self.threads] if Workers and self.B >= self.threads > 1 else [1]
        cached = {"cached" + f", {count} workers" * (count > 1): (greedy_with_cache, count) for count in workers}
        return {**cached, "uncached": (greedy_without_cache, 1)}

    @property
    def work(self) -> dict[str, Work]:
        return dict.fromkeys(self.variants, Work(0, 0, self.B * self.words))

    @property
    def configuration(self) -> Configuration:
        return CONFIGURATIONS["small"]

    def model(self, dtype: str) -> Transformer:
        c = self.configuration
        return c.model(dtype, max_length=max(c.T, self.words))

    def source(self) -> Array:
        c = self.configuration
        return np.random.default_rng(3).integers(PAD + 1, c.V, (self.B, c.T))   # (B, S)

    def ways(self, dtype: str) -> dict[str, Callable]:
        return {name: self.writing(dtype, *variant) for name, variant in self.variants.items()}

    def writing(self, dtype: str, write: Callable, workers: int) -> Callable:
        model, source = self.model(dtype), self.source()
        never = self.configuration.V  # an <eos> that no model writes, so that every run has the same length
        team = None  # made by the first call; its processes end when nobody refers to it any more

        def shared():
            nonlocal team
            team = team or Workers(model, workers)
            return np.stack(team.share_out(write, source, self.words, never))

        return shared if workers > 1 else lambda: write(model, source, self.words, never)

    def passes(self) -> dict[str, Callable]:
        return self.ways(self.dtype)

    def values(self) -> dict[str, Array]:
        """Return the ids, in float64, where rounding decides no tie, after seeing that all ways write the same."""
        ids = [way() for way in self.ways("float64").values()]
        if not all(np.array_equal(ids[0], other) for other in ids):
            raise CheckError(f"decoding, {self.name}: {', '.join(self.variants)} do not all write the same words")
        return {"y": ids[0]}


def operations(setting: Setting) -> list[Decode]:
    return [Decode(B, WORDS[setting.quick], setting.dtype, setting.threads) for B in (1, 32)]
