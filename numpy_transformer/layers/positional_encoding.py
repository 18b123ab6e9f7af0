"""Positions: attention sees a set of words, so the order has to be written into their vectors.

Shuffle the keys and values together and attention gives the same answer: "I love you" and "you love
I" would be one sentence. So a vector that depends on the place alone is added to each word's vector.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..foundations.checks import as_float, check_count, check_generator, check_number, check_rank, check_width
from ..foundations.pullback import Array


def sinusoidal_positions(length: int, width: int, *, base: float = 10000.0, dtype=np.float64) -> Array:
    """Clocks that run at different speeds, the fast ones first (Vaswani et al. 2017, section 3.5).

        PE(p, 2i) = sin(p ω_i)      PE(p, 2i+1) = cos(p ω_i)      ω_i = base^(−2i/D)

    Rows are positions counted from 0, columns come in pairs; an odd width ends with a sine alone.
    To move k places is to turn each clock by kω, whatever the position p:

        ( sin (p+k)ω )   (  cos kω   sin kω ) ( sin pω )
        ( cos (p+k)ω ) = ( −sin kω   cos kω ) ( cos pω )

    so that "k words further left" can be learned as one linear map. Returns (length, width).

    >>> sinusoidal_positions(2, 4, base=100).round(4)
    array([[0.    , 1.    , 0.    , 1.    ],
           [0.8415, 0.5403, 0.0998, 0.995 ]])
    """
    check_count("length", length, 0)
    check_count("width", width)
    check_number("base", base, above=True)
    column = np.arange(width)                                        # (D,)
    frequency = base ** (-2 * (column // 2) / width)                 # (D,)  ω, equal for the two of a pair
    angle = np.arange(length)[:, None] * frequency                   # (P, D)
    table = np.where(column % 2 == 0, np.sin(angle), np.cos(angle))  # (P, D)
    return table.astype(dtype)                                       # (P, D)


def check_length(start: int, count: int, length: int) -> None:
    check_count("start", start, 0)
    if start + count > length:
        raise ValueError(f"a sequence of length {start + count} does not fit the table of {length} positions")


@dataclass(frozen=True, eq=False)
class SinusoidalPositions:
    """y_t = x_t + PE(start + t): fixed clocks, nothing to learn.

    layer(x, start=0) takes x (..., T, D) and returns y (..., T, D) and backward(dy) → (gradient, dx)
    like every layer; it has no parameters, so the gradient holds no arrays. Raises ValueError
    naming both lengths if the sequence reaches beyond the table.
    """

    length: int
    width: int
    base: float = 10000.0

    def __post_init__(self):
        check_count("length", self.length)
        check_count("width", self.width)
        check_number("base", self.base, above=True)

    @cached_property
    def table(self) -> Array:
        return sinusoidal_positions(self.length, self.width, base=self.base)  # (P, D)

    def __call__(self, x, start=0):
        x = as_float("x", x)                                    # (..., T, D)
        check_rank("x", x, 2, "(..., T, D)")
        check_width("x", x, self.width)
        T = x.shape[-2]
        check_length(start, T, self.length)
        y = x + self.table[start : start + T].astype(x.dtype)   # (..., T, D)

        def backward(dy):                                       # (..., T, D)
            return self, dy

        return y, backward


@dataclass(frozen=True, eq=False)
class LearnedPositions:
    """y_t = x_t + P[start + t]: a vector for each place, learned like a word's (section 3.5 compares).

    Row t of the table was added to position t of every sentence, so its gradient is the sum of dy
    over the sentences. layer(x, start=0) takes x (..., T, D), as SinusoidalPositions does.
    """

    table: Array  # (P, D)

    def __post_init__(self):
        if self.table.ndim != 2:
            raise ValueError(f"table has shape {self.table.shape}: expected (length, width)")

    @classmethod
    def init(cls, rng: np.random.Generator, length: int, width: int, *, dtype=np.float32) -> "LearnedPositions":
        """Normal with variance 1/D, small beside the words' variance of 1."""
        check_count("length", length)
        check_count("width", width)
        check_generator("rng", rng)
        return cls(rng.normal(0, width**-0.5, (length, width)).astype(dtype))

    def __call__(self, x, start=0):
        x = as_float("x", x)                                    # (..., T, D)
        check_rank("x", x, 2, "(..., T, D)")
        check_width("x", x, self.table.shape[1])
        T = x.shape[-2]
        check_length(start, T, len(self.table))
        y = x + self.table[start : start + T]                   # (..., T, D)

        def backward(dy):                                       # (..., T, D)
            d_table = np.zeros_like(self.table)                 # (P, D)
            d_table[start : start + T] = dy.sum(axis=tuple(range(dy.ndim - 2)))  # (T, D)
            return replace(self, table=d_table), dy

        return y, backward
