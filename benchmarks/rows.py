"""What was measured: rows of seconds, kept in a file, and two such files compared.

A change is believed only when it is larger than the noise. Each run says itself how noisy it was:
its repeats lie between the best and (half of them) the median, so

    spread = median / best − 1
    noise  = 5 % + spread of the old run + spread of the new one

and a row counts as slower (faster) only when its median and its best both are, by more than that.
"""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

FORMAT = 1
FLOOR = 0.05  # two runs of the same program differ by this much for no reason


@dataclass(frozen=True)
class Row:
    """One thing that was timed, and the work it stands for."""

    part: str
    name: str
    variant: str                # which pass, or which way
    shape: str
    times: tuple[float, ...]    # seconds of one call, an entry for each repeat
    flops: float = 0.0          # floating-point operations of one call
    bytes: float = 0.0          # bytes that one call cannot avoid moving
    memory: int | None = None   # bytes allocated at the peak
    size: int | None = None     # the words written, or the letter's value in a scaling table

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def best(self) -> float:
        return min(self.times)

    @property
    def spread(self) -> float:
        return self.median / self.best - 1

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.part, self.name, self.variant, self.shape


@dataclass(frozen=True)
class Duel:
    """One thing that was timed on both sides in turn, after their values were compared."""

    part: str
    name: str
    variant: str
    shape: str
    way: str                    # PyTorch's fastest variant
    numpy: tuple[float, ...]    # seconds; entry i of both sides was taken in the same round
    torch: tuple[float, ...]
    difference: float | None    # the largest relative difference of their values; None: drawn at random

    @property
    def ratio(self) -> float:
        """The median over the rounds of NumPy's time divided by PyTorch's; below 1, NumPy is faster."""
        return statistics.median(n / t for n, t in zip(self.numpy, self.torch))

    @property
    def best_ratio(self) -> float:
        return min(self.numpy) / min(self.torch)


@dataclass(frozen=True)
class Results:
    """A whole run: the machine, its limits, and all that was measured."""

    machine: dict
    limits: dict
    rows: list[Row] = field(default_factory=list)
    duels: list[Duel] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    old: Row
    new: Row

    @property
    def medians(self) -> float:
        return self.new.median / self.old.median

    @property
    def bests(self) -> float:
        return self.new.best / self.old.best

    @property
    def verdict(self) -> str:
        """`slower`, `faster`, or nothing where the change may be noise."""
        noise = 1 + FLOOR + self.old.spread + self.new.spread
        if min(self.medians, self.bests) > noise:
            return "slower"
        if max(self.medians, self.bests) < 1 / noise:
            return "faster"
        return ""


def compare(old: Sequence[Row], new: Sequence[Row]) -> list[Change]:
    """Pair the rows that measured the same thing at the same size in both runs."""
    before = {row.key: row for row in old}
    return [Change(before[row.key], row) for row in new if row.key in before]


def write(path, text: str) -> None:
    """Write a file, whole or not at all."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def save(path, results: Results) -> None:
    """Write a run to a JSON file."""
    write(path, json.dumps({"format": FORMAT, **asdict(results)}, indent=1) + "\n")


def load(path) -> Results:
    """Read a run back. Raises ValueError, in one line that names the file, if it holds none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, expected {FORMAT}")
        rows = [Row(**{**row, "times": tuple(map(float, row["times"]))}) for row in content["rows"]]
        duels = [Duel(**{**duel, "numpy": tuple(duel["numpy"]), "torch": tuple(duel["torch"])})
                 for duel in content["duels"]]
        if not all(row.times and row.best > 0 for row in rows):
            raise ValueError("a row holds no times")
        limits = {name: float(content["limits"][name]) for name in ("product", "memory", "cache")}
        return Results(dict(content["machine"]), limits, rows, duels)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} holds no results of this program: {reason}") from None
