"""The translator: a model and its two vocabularies, from text to text."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from ..foundations.checks import check_count
from ..foundations.pullback import Array
from ..model.config import TransformerConfig
from ..model.transformer import Transformer
from ..training import checkpoint
from ..training.adam import AdamState
from ..training.batches import BOS, EOS, PAD, Example, pad_to_longest
from ..training.workers import Workers
from .beam_search import beam_search
from .greedy import StepModel, greedy_decode
from .vocabulary import Vocabulary, detokenise, tokenise


def decode(model: StepModel, source: Array, beam: int, max_length: int) -> list[Array]:
    """Return the best translation found for each source (B, S), as ids (T,)."""
    symbols = dict(start=BOS, end=EOS, pad=PAD, max_length=max_length)
    if beam == 1:
        return list(greedy_decode(model, source, **symbols))
    hypotheses, _ = beam_search(model, source, **symbols, beam=beam)
    return [best[0] for best in hypotheses]


@dataclass(frozen=True, eq=False)
class Translator:
    """Everything that a translation needs: tokens to ids, ids through the model, ids to tokens."""

    model: Transformer
    config: TransformerConfig
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary

    def example(self, source: str, target: str) -> Example:
        """A pair of texts as ids to train on."""
        return (self.source_vocabulary.encode(tokenise(source, lower=True)),
                self.target_vocabulary.encode(tokenise(target)))

    def unknown(self, sentence: str) -> list[str]:
        """The words of a sentence that the model never learned and will read as <unk>."""
        return self.source_vocabulary.unknown(tokenise(sentence, lower=True))

    def ids(self, sentence: str) -> list[int]:
        """A source as the encoder reads it. Raises ValueError if it is empty or longer than the model's table."""
        ids = [*self.source_vocabulary.encode(tokenise(sentence, lower=True)), EOS]
        if len(ids) == 1:
            raise ValueError("the sentence is empty: there is nothing to translate")
        if len(ids) > self.config.max_length:
            raise ValueError(f"the sentence has {len(ids) - 1} tokens, the model reads at most "
                             f"{self.config.max_length - 1}: {sentence[:40]!r}…")
        return ids

    def translate(self, sentences: Iterable[str], *, beam: int = 1, batch_size: int = 128, workers: int = 1) -> list[str]:
        """Translate each sentence; greedily, or with beam search for beam > 1.

        Sentences of like length go through the model together, `batch_size` at a time. A translation ends after twice as
        many words as the longest of these has, and ten, if not before. With `workers` > 1 that many processes share each
        batch (in a script, under the guard that Workers asks for); to start them takes half a second, which thousands of
        sentences are worth.
        """
        check_count("batch_size", batch_size)
        check_count("workers", workers)
        if isinstance(sentences, str):
            raise TypeError(f"sentences must be several texts, such as a list, not the one text {sentences!r}")
        sentences = list(sentences)
        ids = [self.ids(sentence) for sentence in sentences]
        by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        texts = [""] * len(ids)
        workers = min(workers, len(sentences))
        with Workers(self.model, workers) if workers > 1 else nullcontext() as team:
            share_out = team.share_out if team else lambda function, *given: function(self.model, *given)
            for start in range(0, len(ids), batch_size):
                group = by_length[start : start + batch_size]
                source = pad_to_longest([ids[i] for i in group])                   # (B, S)
                limit = min(self.config.max_length, 2 * source.shape[1] + 10)
                for i, written in zip(group, share_out(decode, source, beam, limit)):
                    texts[i] = detokenise(self.target_vocabulary.decode(written))
        return texts

    def save(self, path, *, optimiser: AdamState | None = None, notes: dict | None = None) -> None:
        """Write model and vocabularies to one file; `notes` are any further things that JSON can hold."""
        notes = {"source_tokens": self.source_vocabulary.tokens, "target_tokens": self.target_vocabulary.tokens,
                 **(notes or {})}
        checkpoint.save(path, self.model, self.config, optimiser=optimiser, notes=notes)

    @classmethod
    def load(cls, path) -> tuple["Translator", AdamState | None, dict]:
        """Return the translator, the optimiser's state if it was saved, and the notes."""
        loaded = checkpoint.load(path)
        try:
            source, target = (Vocabulary(tuple(loaded.notes[f"{side}_tokens"])) for side in ("source", "target"))
        except KeyError as error:
            raise ValueError(f"{path} holds a model without vocabularies: {error} is missing") from None
        sizes = (loaded.config.source_vocabulary, loaded.config.target_vocabulary)
        if (len(source), len(target)) != sizes:
            raise ValueError(f"{path} holds vocabularies of {len(source)} and {len(target)} tokens for a model of {sizes}")
        return cls(loaded.model, loaded.config, source, target), loaded.optimiser, loaded.notes


def edit_distance(one: Sequence, other: Sequence) -> int:
    """The fewest tokens to insert, delete or replace that turn one sequence into the other (Levenshtein 1966).

    d_ij = min(d_{i−1,j} + 1, d_{i,j−1} + 1, d_{i−1,j−1} + [one_i ≠ other_j])

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


@dataclass(frozen=True)
class Score:
    """How well translations agree with what was expected."""

    sentences: int
    exact: int   # translations that are the expected ones to the last token
    tokens: int  # in the expected translations
    edits: int   # tokens to change

    @property
    def exact_match(self) -> float:
        return self.exact / max(self.sentences, 1)

    @property
    def token_error_rate(self) -> float:
        return self.edits / max(self.tokens, 1)


def score(translations: Iterable[str], expected: Iterable[Iterable[str]]) -> Score:
    """Compare each translation with its expected ones, of which there may be several, and take the nearest."""
    sentences = exact = tokens = edits = 0
    for translation, references in zip(translations, expected, strict=True):
        written = tokenise(translation)
        distances = [(edit_distance(written, right), len(right)) for right in map(tokenise, references)]
        distance, length = min(distances)
        sentences, exact = sentences + 1, exact + (distance == 0)
        tokens, edits = tokens + length, edits + distance
    return Score(sentences, exact, tokens, edits)
