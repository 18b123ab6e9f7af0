"""Reading parallel text: a file with a source, a tab and a target on each line.

    Run.        你用跑的。          any further columns, such as the author, are left alone
    a b o u t   AH0 B AW1 T        tokens set apart by spaces need no other preparation

Files made by many people hold lines that were never meant. None of them stops the reading, and none
vanishes silently: the report counts what was dropped and says where. A file that is no such table at
all is refused in one line.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path

import numpy as np

from ..foundations.checks import check_number
from .corpus import Pair
from .vocabulary import INVISIBLE, tokenise


@dataclass(frozen=True)
class ReadReport:
    """What was read and what was dropped; each tuple holds line numbers, counted from 1."""

    path: str
    lines: int
    pairs: int
    several_targets: int                  # sources that were kept with more than one target
    blank: tuple[int, ...] = ()
    without_tab: tuple[int, ...] = ()     # fewer than two columns
    empty_side: tuple[int, ...] = ()      # nothing visible in the first or the second column
    repeated: tuple[int, ...] = ()        # the same source and target as an earlier line

    def __str__(self) -> str:
        text = f"{self.path}: {_count(self.pairs, 'pair')} from {_count(self.lines, 'line')}"
        if self.several_targets:
            text += f", {_count(self.several_targets, 'source')} with several targets"
        reasons = {"blank": self.blank, "without a tab": self.without_tab, "with an empty side": self.empty_side,
                   "repeated": self.repeated}
        dropped = [f"{len(lines):,} {reason} (line {', '.join(map(str, lines[:3]))}{', …' * (len(lines) > 3)})"
                   for reason, lines in reasons.items() if lines]
        return text + ("\ndropped: " + "; ".join(dropped) if dropped else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def read_parallel_text(path: str | PathLike) -> tuple[list[Pair], ReadReport]:
    """Return the distinct pairs of a UTF-8 table in file order, and the report.

    With or without a byte order mark, with Windows or Unix line ends, with or without a last one. Characters of
    no width are removed, runs of white space (the ideographic space too) become one space. A source with several
    translations keeps them all.

    Raises ValueError, naming the path and where possible the line, if the file is empty, not UTF-8, has no line of
    two columns or no pair with something on both sides. A file that cannot be opened is the usual OSError.
    """
    pairs, blank, without_tab, empty_side, repeated = {}, [], [], [], []  # a dict: keeps order, finds repetitions
    lines = Path(path).read_bytes().splitlines()  # of bytes: at \n, \r\n and \r; of text also at form feeds and the like
    for number, line in enumerate(lines, 1):
        text = _decoded(path, number, line).translate(INVISIBLE)  # the byte order mark is one of them
        columns = [" ".join(column.split()) for column in text.split("\t")]
        if columns == [""]:
            blank.append(number)
        elif len(columns) < 2:
            without_tab.append(number)
        elif not (columns[0] and columns[1]):
            empty_side.append(number)
        elif (pair := Pair(columns[0], columns[1])) in pairs:
            repeated.append(number)
        else:
            pairs[pair] = number
    if len(blank) == len(lines):
        raise ValueError(f"{path} is empty")
    if len(blank) + len(without_tab) == len(lines):
        raise ValueError(f"{path} is not tab-separated: line {without_tab[0]} has no tab, nor has any other")
    if not pairs:
        raise ValueError(f"{path} has no line with text on both sides of the tab: see line {empty_side[0]}")
    several = sum(count > 1 for count in Counter(pair.source for pair in pairs).values())
    places = map(tuple, (blank, without_tab, empty_side, repeated))
    return list(pairs), ReadReport(str(path), len(lines), len(pairs), several, *places)


def _decoded(path: str | PathLike, number: int, line: bytes) -> str:
    try:
        text, wrong = line.decode("utf-8"), line.find(0)  # a zero byte is UTF-8, but no text: most likely UTF-16
    except UnicodeDecodeError as error:
        text, wrong = "", error.start
    if wrong >= 0:
        raise ValueError(f"{path} is not UTF-8 text: byte {wrong + 1} of line {number} is 0x{line[wrong]:02x}")
    return text


def split_by_source(pairs: Sequence[Pair], test: int | float, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Return (training, test), each in the order of `pairs`, with no source in both.

    Drawing lines would put one translation of "Run." into training and another into the test, and the model would
    be asked what it has read. So sources are drawn, with all their pairs; sources that are the same tokens but for
    case ("Run." and "run .") count as one. `test` is how many sources, if it is an integer, else what fraction.
    """
    sources = [tuple(tokenise(pair.source, lower=True)) for pair in pairs]
    distinct = list(dict.fromkeys(sources))
    counted = isinstance(test, Integral)
    check_number("test", test, 0, len(distinct) if counted else 1)
    count = test if counted else round(test * len(distinct))
    drawn = {distinct[n] for n in np.random.default_rng(seed).permutation(len(distinct))[:count]}
    training = [pair for pair, source in zip(pairs, sources) if source not in drawn]
    return training, [pair for pair, source in zip(pairs, sources) if source in drawn]
