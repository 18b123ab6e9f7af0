"""Heat maps: see where each written word looked."""

import unicodedata

import numpy as np

from ..foundations.pullback import Array
from ..training.batches import BOS, EOS, PAD
from .translator import Translator
from .vocabulary import tokenise

SHADES = " ░▒▓█"  # no weight … all of it


def cell_width(text: str) -> int:
    """How many cells of a terminal a text fills: two for each Chinese character."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def heat_map(weights: Array, queries: list[str], keys: list[str]) -> str:
    """Draw weights (T, S): a row for each query, and below each key a bar as dark as its weight.

    >>> print(heat_map(np.array([[0.9, 0.0, 0.1], [0.2, 0.3, 0.5]]), ["苹", "好"], ["apple", "is", "delicious"]))
        apple is delicious
    苹  █████
    好  ░░░░░ ░░ ▒▒▒▒▒▒▒▒▒
    """
    if np.shape(weights) != (len(queries), len(keys)):
        raise ValueError(f"weights has shape {np.shape(weights)}: expected ({len(queries)}, {len(keys)})")
    margin = max(map(cell_width, queries), default=0) + 2
    lines = [" " * margin + " ".join(keys)]
    shades = np.rint(weights * (len(SHADES) - 1)).astype(int)  # (T, S)
    for query, row in zip(queries, shades):                    # (S,)
        bars = " ".join(SHADES[shade] * cell_width(key) for shade, key in zip(row, keys))
        lines.append((query + " " * (margin - cell_width(query)) + bars).rstrip())
    return "\n".join(lines)


def cross_attention_map(translator: Translator, source: str, target: str) -> str:
    """The last decoder layer's cross-attention, its heads averaged: which source words each target word came from.

    The row of a word is the query that wrote it, which sat one place before it.
    """
    source_ids, target_ids = translator.ids(source), translator.target_vocabulary.encode(tokenise(target))
    maps = translator.model.attention_maps(np.array([source_ids]), np.array([[BOS, *target_ids]]), pad=PAD)
    layer = len(translator.model.decoder.layers) - 1
    weights = maps[f"decoder.layers.{layer}.cross_attention"][0].mean(axis=0)  # (T, S)
    words = lambda vocabulary, ids: [vocabulary.tokens[i] for i in (*ids, EOS)]
    return heat_map(weights, words(translator.target_vocabulary, target_ids),
                    words(translator.source_vocabulary, source_ids[:-1]))
