"""Decoding: a translation written greedily, with the cache of keys and values and without it.

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
from .operations import CheckError, Work
WORDS = {False: 64, True: 16}  # in quick runs fewer


def greedy_without_cache(model: Transformer, source: Array, words: int, never: int) -> Array:
    """Write as greedy_decode does, but read everything written so far again for each word. `never` is no word."""
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
    random: bool = False

    @property
    def name(self) -> str:
        return f"B = {self.B}"

    @property
    def shape(self) -> str:
        return f"{self.words} words"

    @property
    def work(self) -> dict[str, Work]:
        return dict.fromkeys(("cached", "uncached"), Work(0, 0, self.B * self.words))

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
        model, source = self.model(dtype), self.source()
        never = self.configuration.V  # an <eos> that no model writes, so that every run has the same length
        return {"cached": lambda: greedy_decode(model, source, start=BOS, end=never, pad=PAD, max_length=self.words),
                "uncached": lambda: greedy_without_cache(model, source, self.words, never)}

    def passes(self) -> dict[str, Callable]:
        return self.ways(self.dtype)

    def values(self) -> dict[str, Array]:
        """Return the ids, in float64, where rounding decides no tie, after seeing that both ways write the same."""
        ids = [way() for way in self.ways("float64").values()]
        if not np.array_equal(*ids):
            raise CheckError(f"decoding, {self.name}: cached and uncached write different words")
        return {"y": ids[0]}


def operations(setting: Setting) -> list[Decode]:
    return [Decode(B, WORDS[setting.quick], setting.dtype) for B in (1, 32)]
