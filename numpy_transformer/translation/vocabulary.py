"""Vocabulary: from text to tokens, from tokens to numbers, and back.

A Transformer reads and writes integers. `tokenise` cuts a text into tokens; a `Vocabulary` numbers
the tokens it has met:

    "The cat isn't here."  →  the · cat · isn't · here · .      (lower=True)
    "我爱你，Tom！"         →  我 · 爱 · 你 · , · Tom · !

Chinese and Japanese are written without spaces. Cutting them into words takes a dictionary and
makes mistakes; taking every character as a token needs neither, and the same rule then serves any
file. A model puts 苹 and 果 together by itself: attention is there to do that. All other writing is
cut at white space, with punctuation as tokens of its own. An apostrophe or hyphen inside a word
(don't, o'clock) and a full stop, comma or colon inside a number (3.5, 12:30) stay where they are.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index

from ..foundations.checks import check_count
from ..training.batches import BOS, EOS, PAD

INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"))  # zero width: for str.translate
_FULL_WIDTH = dict(zip(",!?:;()", "，！？：；（）"))

# Sets of characters, written as the inside of a regular expression's [ ].
_CJK = "\u3005-\u3007\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_CJK_MARKS = "、。「」『』《》〈〉【】〔〕〖〗・，！？：；（）"
_MARKS = re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~‘’“”–—·") + _CJK_MARKS
_LETTER = rf"[^\s{_CJK}{_MARKS}]"

_TOKEN = re.compile(rf"\d+(?:[.,:]\d+)+|{_LETTER}+(?:['-]{_LETTER}+)*|\S")
_INNER_QUOTE = re.compile(rf"(?<={_LETTER})’(?={_LETTER})")
_BESIDE_CJK = re.compile(rf"(?<=[{_CJK}] )[,!?:;()]|[,!?:;()](?= [{_CJK}])")
_NO_SPACE = re.compile(rf" (?=[,.!?:;%)\]}}’”{_CJK_MARKS}])|(?<=[(\[{{‘“{_CJK_MARKS}]) "
                       rf"|(?<=[{_CJK}]) (?=[{_CJK}{_MARKS}])|(?<=[{_MARKS}]) (?=[{_CJK}])")


def normalise(text: str) -> str:
    """Write equal texts equally: no zero-width characters, Unicode's form NFKC, single spaces.

    NFKC gives one spelling to what has several: Ａ becomes A, the full-width ， a plain comma, an
    ideographic space a space, é written as two characters one. A curly apostrophe between two letters
    becomes a straight one, so that don’t is don't.
    """
    text = unicodedata.normalize("NFKC", text.translate(INVISIBLE))
    return " ".join(_INNER_QUOTE.sub("'", text).split())


def tokenise(text: str, *, lower: bool = False) -> list[str]:
    """Cut a text into tokens. `lower` is for a source, where The and the should be one token; a target
    keeps its case, for it is to be written out again."""
    text = normalise(text)
    return _TOKEN.findall(text.lower() if lower else text)


def detokenise(tokens: Iterable[str]) -> str:
    """Join tokens to a readable text, such that tokenise(detokenise(tokens)) gives the tokens again.

    No space between Chinese characters, before a closing mark or after an opening one; a single space
    elsewhere. A comma next to a Chinese character is written full width, as Chinese does.
    """
    text = _BESIDE_CJK.sub(lambda mark: _FULL_WIDTH[mark[0]], " ".join(tokens))
    return _NO_SPACE.sub("", text)


@dataclass(frozen=True)
class Vocabulary:
    """V tokens, each with its place as its number. Numbers 0 to 3 are no words:

        PAD <pad>  fills the short sentences of a batch     BOS <bos>  begins what the decoder reads
        EOS <eos>  ends what it writes                      UNK <unk>  stands for an unknown token

    Text cannot forge them: `tokenise` cuts "<pad>" into < · pad · >.
    """

    tokens: tuple[str, ...]

    PAD, BOS, EOS, UNK = PAD, BOS, EOS, 3
    SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")

    def __post_init__(self):
        if not isinstance(self.tokens, tuple) or not all(isinstance(token, str) for token in self.tokens):
            raise TypeError(f"tokens must be a tuple of strings, not {self.tokens!r:.60}")
        if self.tokens[:4] != self.SPECIAL:
            raise ValueError(f"tokens begins with {self.tokens[:4]}, not with {self.SPECIAL}")
        if len(self._numbers) != len(self.tokens):
            twice = next(token for token, count in Counter(self.tokens).items() if count > 1)
            raise ValueError(f"tokens holds {twice!r} more than once")

    @classmethod
    def build(cls, token_lists: Iterable[Sequence[str]], minimum_count: int = 1) -> "Vocabulary":
        """Number every token that occurs at least `minimum_count` times: the most frequent first, equally
        frequent ones in alphabetical order, so that the same texts always give the same numbers."""
        check_count("minimum_count", minimum_count)
        counts = Counter(token for tokens in token_lists for token in _as_tokens(tokens))
        frequent = [token for token in counts if counts[token] >= minimum_count and token not in cls.SPECIAL]
        return cls(cls.SPECIAL + tuple(sorted(frequent, key=lambda token: (-counts[token], token))))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, tokens: Sequence[str]) -> list[int]:
        """The number of each token, UNK for one that the vocabulary does not have."""
        return [self._numbers.get(token, self.UNK) for token in _as_tokens(tokens)]

    def unknown(self, tokens: Sequence[str]) -> list[str]:
        """The tokens that `encode` would turn into UNK."""
        return [token for token in _as_tokens(tokens) if token not in self._numbers]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The tokens of the numbers up to the first EOS, without PAD and BOS."""
        tokens = []
        for place, number in enumerate(map(index, ids)):  # index: 2.0 is a TypeError, not token 2
            if not 0 <= number < len(self):
                raise IndexError(f"ids[{place}] is {number}, outside [0, {len(self)})")
            if number == self.EOS:
                break
            if number not in (self.PAD, self.BOS):
                tokens.append(self.tokens[number])
        return tokens


def _as_tokens(tokens: Sequence[str]) -> Sequence[str]:
    if isinstance(tokens, str):  # it would be taken letter by letter
        raise TypeError(f"tokens must be a list of tokens, not the text {tokens!r:.60}: tokenise it first")
    return tokens
