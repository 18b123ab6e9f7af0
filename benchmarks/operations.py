"""Operations: what every page offers, a function that returns y and its pullback, ready to be timed.

Each row of a table states the operation's work beside it, as formulas in the book's letters:

* flops: additions, multiplications, divisions and comparisons; exp, tanh and √ count one each;
  a product of (N, I) with (I, O) has 2·N·I·O.
* bytes: every argument read once and every result written once, which no program can avoid. What a
  page moves beyond that, by passing over an array more than once, shows as a lower percentage.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from numpy_transformer.foundations.parameters import named_parameters
from numpy_transformer.foundations.pullback import Array

from .measure import Setting, time_calls
from .rows import Row


def total(*parts: tuple[float, float]) -> tuple[float, float]:
    """Add up the (forward, backward) flops of parts."""
    forward, backward = zip(*parts)
    return sum(forward), sum(backward)


class CheckError(Exception):
    """A value that was to be timed is wrong."""


@dataclass(frozen=True)
class Work:
    flops: float
    bytes: float
    size: int | None = None  # words written, where words are written


@dataclass(frozen=True, eq=False)
class Operation:
    """A function, its arguments, and the work of each of its passes.

    With a pass named "backward" the function returns y and a pullback, without one just a result.
    """

    name: str
    shape: str
    function: Callable
    arguments: tuple
    work: dict[str, Work]
    random: bool = False  # its values are drawn, so that no twin can have the same

    def forward(self):
        return self.function(*self.arguments)

    def passes(self) -> dict[str, Callable]:
        """Return by name the calls to be timed."""
        if "backward" not in self.work:
            return dict.fromkeys(self.work, self.forward)
        y, backward = self.forward()
        upstream = upstream_gradient(y)
        return {"forward": self.forward, "backward": lambda: backward(*upstream)}

    def values(self) -> dict[str, Array]:
        """Return the result, `y`, and all gradients by name, to be compared with a twin's."""
        if "backward" not in self.work:
            return named_parameters(self.forward())
        y, backward = self.forward()
        gradients = named_parameters(backward(*upstream_gradient(y)))
        return {"y": np.asarray(y), **{f"gradient {name}".strip(): array for name, array in gradients.items()}}


def upstream_gradient(y) -> tuple:
    """Return what the pullback is called with: a random dy like y, and nothing for a loss."""
    if not isinstance(y, np.ndarray):
        return ()
    return (normal(np.random.default_rng(1), *y.shape, dtype=y.dtype),)


def normal(rng: np.random.Generator, *shape: int, dtype) -> Array:
    """Return normal numbers, the same ones (but for rounding) in every dtype."""
    return rng.standard_normal(shape).astype(dtype)


def check_values(name: str, values: dict[str, Array], dtype: str) -> None:
    """Demand finite numbers, not all of them zero, and floats of the dtype that went in."""
    for label, array in values.items():
        if array.dtype.kind == "f" and label != "y" and array.dtype != dtype:
            raise CheckError(f"{name}: {label} is {array.dtype}, not {dtype}")
        if not np.isfinite(array).all():
            raise CheckError(f"{name}: {label} is not finite")
    if not any(array.any() for array in values.values()):
        raise CheckError(f"{name}: all values are zero")


def measure_operations(part: str, operations: Iterable, setting: Setting, progress: Callable) -> list[Row]:
    """Check and time every pass of every operation."""
    rows = []
    for operation in operations:
        check_values(operation.name, operation.values(), setting.dtype)
        for variant, work in operation.work.items():
            progress(f"{part}: {operation.name}, {variant}")
            (times,) = time_calls([operation.passes()[variant]], setting)
            rows.append(Row(part, operation.name, variant, operation.shape, times, work.flops, work.bytes,
                            size=work.size))
    return rows


def optional(module: str, name: str):
    """Return a name of a page that may not be there, or None."""
    try:
        return getattr(importlib.import_module(f"numpy_transformer.{module}"), name, None)
    except ModuleNotFoundError as error:
        if error.name != f"numpy_transformer.{module}":
            raise
        return None
