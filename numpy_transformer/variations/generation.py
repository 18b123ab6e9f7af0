"""Generation: a GPT reads a text, character by character, and then writes on.

A GPT weighs every word that could come next. To write is to choose one, append it, and ask again.
Whoever always takes the likeliest goes in circles; whoever draws by the model's own weights draws,
sooner or later, one of the many words that are each improbable and together are not. Between the
two lie three ways to cut the distribution (Holtzman et al. 2020, sections 3.1 to 3.3):

    temperature τ    p_v ∝ exp(z_v / τ): 1 leaves the model's own weights, towards 0 the winner takes all
    top-k            p_v = 0 for all but the k likeliest words
    top-p            p_v = 0 for all but the fewest likeliest words that weigh p together

and what is left is divided by its sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from ..attention.softmax import softmax
from ..foundations.checks import as_float, as_ids, check_count, check_number, check_rank
from ..foundations.parameters import map_tree
from ..foundations.pullback import Array
from ..training.adam import Adam
from ..training.clipping import clip_gradients
from ..training.cross_entropy import cross_entropy
from ..training.loop import Progress, TrainingConfig
from ..training.schedule import cooldown, warmup_schedule
from .gpt import GPT


def next_word_weights(logits: Array, *, temperature: float = 1.0, top_k: int | None = None,
                      top_p: float = 1.0) -> Array:
    """logits (..., V) → the weights to draw by (..., V), float64: temperature, then top-k, then top-p.

    Equally likely words rank in the order of their ids, so that top-k leaves exactly k of V.
    Temperature 0 leaves the first of the likeliest alone, which is greedy decoding.

    >>> z = np.log([0.1, 0.5, 0.15, 0.25])
    >>> next_word_weights(z, temperature=0.5).round(2)         # p² = 0.01, 0.25, 0.0225, 0.0625
    array([0.03, 0.72, 0.07, 0.18])
    >>> next_word_weights(z, top_k=2).round(2)
    array([0.  , 0.67, 0.  , 0.33])
    >>> next_word_weights(z, top_p=0.8).round(2)               # 0.5 + 0.25 would be too few
    array([0.  , 0.56, 0.17, 0.28])
    """
    logits = as_float("logits", logits)                                     # (..., V)
    check_rank("logits", logits, 1, "(..., V)")
    if not np.isfinite(logits.max(axis=-1)).all():
        raise ValueError(f"logits of shape {logits.shape} holds NaN, +inf or a row of nothing but -inf")
    check_number("temperature", temperature)
    check_number("top_p", top_p, 0, 1, above=True)
    if top_k is not None:
        check_count("top_k", top_k)
    if temperature == 0:
        temperature, top_k = 1.0, 1
    order = np.argsort(-logits, axis=-1, kind="stable")                     # (..., V)  the likeliest first
    z = np.take_along_axis(logits, order, axis=-1).astype(np.float64)       # (..., V)
    with np.errstate(over="ignore"):  # a tiny τ makes of a difference −inf, and the exp of that is 0
        p, _ = softmax((z - z[..., :1]) / temperature)                      # (..., V)
    if top_k is not None:
        p[..., top_k:] = 0
        p /= p.sum(axis=-1, keepdims=True)                                  # (..., V)
    if top_p < 1:
        before = p.cumsum(axis=-1) - p                                      # (..., V)  what the likelier words weigh
        p *= before < top_p                                                 # (..., V)
        p /= p.sum(axis=-1, keepdims=True)                                  # (..., V)
    weights = np.empty_like(p)                                              # (..., V)
    np.put_along_axis(weights, order, p, axis=-1)
    return weights


def draw(weights: Array, rng: np.random.Generator) -> Array:
    """weights (B, V) → a word for each row, (B,): where the running sum first exceeds a number drawn below its last."""
    running = weights.cumsum(axis=-1)                                       # (B, V)
    threshold = rng.random((len(weights), 1)) * running[:, -1:]             # (B, 1)
    return (running <= threshold).sum(axis=-1)                              # (B,)  a word of weight 0 is never the first


def continuation(gpt: GPT, prompt: Array, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0,
                 rng: np.random.Generator | None = None) -> Iterator[Array]:
    """Write on behind each prompt (B, T), without end: yield the next word of all, ids (B,), as soon as it is chosen.

    Each word is computed alone, against the keys and values of those before it. When the position
    table of length P is full, the window moves on: the last ⌈P/2⌉ words are read anew from place 0,
    in one go. So a word always sees at least the ⌈P/2⌉ before it, if there are so many, and at most
    P. Of a longer prompt the last P words are read.

    Raises ValueError for a prompt without words, and for a temperature above 0 without `rng`.
    """
    text = as_ids("prompt", prompt, len(gpt.embedding.table))               # (B, T)
    if text.ndim != 2 or text.shape[1] == 0:
        raise ValueError(f"prompt has shape {text.shape}: expected (B, T) with at least one word to begin from")
    if rng is None and temperature != 0:
        raise ValueError(f"rng is None, but temperature {temperature} draws at random")
    P = len(gpt.positions.table)
    text = text[:, -P:]                                                     # (B, T)
    cache = gpt.start(text[:, :-1])
    while True:
        logits, cache = gpt.step(text[:, -1], cache)                        # (B, V)
        weights = next_word_weights(logits, temperature=temperature, top_k=top_k, top_p=top_p)  # (B, V)
        words = weights.argmax(axis=-1) if temperature == 0 else draw(weights, rng)  # (B,)
        yield words
        text = np.concatenate([text, words[:, None]], axis=1)               # (B, N)
        if cache.length == P:
            text = text[:, -((P + 1) // 2):]                                # (B, (P + 1) // 2)
            cache = gpt.start(text[:, :-1])


def generate(gpt: GPT, prompt: Array, *, count: int, temperature: float = 1.0, top_k: int | None = None,
             top_p: float = 1.0, rng: np.random.Generator | None = None) -> Array:
    """The next `count` words behind each prompt (B, T), without the prompt: ids (B, count)."""
    check_count("count", count, 0)
    words = continuation(gpt, prompt, temperature=temperature, top_k=top_k, top_p=top_p, rng=rng)
    columns = list(islice(words, count))
    return np.stack(columns, axis=1) if columns else np.zeros((len(prompt), 0), dtype=int)  # (B, N)


@dataclass(frozen=True)
class CharacterVocabulary:
    """Every character of a text is a word, and its place in `characters` its number.

    A text is one sequence, so there is nothing to pad, to begin or to end, and no number is set aside.
    """

    characters: str

    def __post_init__(self):
        if not isinstance(self.characters, str) or len(self._numbers) != len(self.characters) or not self.characters:
            raise ValueError(f"characters must be a text in which each occurs once, not {self.characters!r:.60}")

    @classmethod
    def build(cls, text: str) -> "CharacterVocabulary":
        """Number the characters of a text in Unicode's order."""
        return cls("".join(sorted(set(text))))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Array:
        """A text of N characters → ids (N,). Raises ValueError naming the character that has no number."""
        for place, character in enumerate(text):
            if character not in self._numbers:
                raise ValueError(f"text[{place}] is {character!r}, which the vocabulary does not have")
        return np.array([self._numbers[character] for character in text], dtype=int)  # (N,)

    def decode(self, ids: Array) -> str:
        """ids (N,) → the text."""
        return "".join(self.characters[number] for number in as_ids("ids", ids, len(self)))


def text_windows(ids: Array, length: int, batch_size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Cut a batch of windows out of a text (N,), at random places: inputs (B, T) and targets (B, T), T = length.

    The targets are the same windows one place further on: after each word, the next. Raises
    ValueError if the text is too short for a window and one word behind it.
    """
    ids = np.asarray(ids)                                                   # (N,)
    check_count("length", length)
    check_count("batch_size", batch_size)
    if ids.ndim != 1 or len(ids) <= length:
        raise ValueError(f"ids has shape {ids.shape}: expected a text of more than {length} words, (N,)")
    starts = rng.integers(len(ids) - length, size=(batch_size, 1))          # (B, 1)
    windows = ids[starts + np.arange(length + 1)]                           # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]                                  # (B, T), (B, T)


def gpt_training_steps(progress: Progress, ids: Array, config: TrainingConfig, *,
                       window: int | None = None) -> Iterator[Progress]:
    """Train a GPT on a text (N,), from `progress` to config.steps, yielding after every step.

    A window is as long as position table and text allow, or `window` words. As in `training_steps`
    all randomness is a function of the seed and of the place: step s cuts with generator (seed, 0, s)
    and drops out with generator (seed, 1, s), so that a run can be taken up again where it stopped;
    and as there, the model given stays as it was, but the one yielded is stepped in place.
    """
    gpt, state = map_tree(lambda array: array.copy(), (progress.model, progress.optimiser))
    (vocabulary, width), P = gpt.embedding.table.shape, len(gpt.positions.table)
    ids = as_ids("ids", ids, vocabulary)                                    # (N,)
    length = min(P, len(ids) - 1) if window is None else window
    adam = Adam(learning_rate=0.0, weight_decay=config.weight_decay)  # the schedule sets the rate
    for step in range(state.step + 1, config.steps + 1):
        cutting, dropping = (np.random.default_rng([config.seed, use, step]) for use in (0, 1))
        inputs, targets = text_windows(ids, length, config.batch_size, cutting)  # (B, T), (B, T)
        logits, gpt_backward = gpt(inputs, dropping)                        # (B, T, V)
        loss, loss_backward = cross_entropy(logits, targets, label_smoothing=config.label_smoothing)
        gradient, _ = clip_gradients(gpt_backward(loss_backward()), config.max_norm)
        rate = config.rate_factor * warmup_schedule(step, width, config.warmup_steps)
        rate *= cooldown(step, config.steps, config.cooldown_steps)
        gpt, state = adam.update(gpt, gradient, state, rate, in_place=True)
        yield Progress(gpt, state, loss, targets.size)


def text_loss(gpt: GPT, ids: Array) -> float:
    """The loss per word of a text (N,) that is only looked at, in windows as long as the position table, end to end."""
    P, total = len(gpt.positions.table), 0.0
    for start in range(0, len(ids) - 1, P):
        window = np.asarray(ids[start : start + P + 1])[None]               # (1, T + 1)
        logits, _ = gpt(window[:, :-1])                                     # (1, T, V)
        loss, _ = cross_entropy(logits, window[:, 1:])
        total += loss * logits.shape[1]
    return total / max(len(ids) - 1, 1)
