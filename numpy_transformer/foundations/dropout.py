"""Dropout: while training, silence a random part of a layer's numbers so that none is relied on alone."""

import numpy as np

from .checks import as_float, check_generator, check_number
from .pullback import Array


def dropout(x: Array, rate: float, rng: np.random.Generator | None):
    """Set each entry to zero with probability `rate` and scale up the others to make good for it.

        y = x ⊙ m / (1 − rate),   m ∈ {0, 1},  P(m = 0) = rate

    Then E[y] = x, so that nothing has to be rescaled when dropout is off ("inverted" dropout;
    Srivastava et al. 2014, section 10). y is linear in x, so dx = dy ⊙ m / (1 − rate): the gradient
    passes through the same holes, with the same scale.

    Parameters: x (...); rate in [0, 1]; rng, or None for inference. Rate 0 and rng None give back x
    itself, rate 1 gives zeros. Returns y (...) and backward(dy) → dx.

    m costs more than the product, so each entry draws 16 random bits, not the 53 of a float. The
    rate is thereby rounded to a multiple of 1/65536, in m and in the scale alike.
    """
    x = as_float("x", x)                                                   # (...)
    check_number("rate", rate, 0, 1)
    if rng is not None:
        check_generator("rng", rng)
    dropped = round(rate * 65536)
    if rng is None or dropped == 0:
        return x, lambda dy: dy
    kept = rng.integers(65536, size=x.shape, dtype=np.uint16) >= dropped   # (...)
    scale = 65536 / max(65536 - dropped, 1)  # at rate 1 nothing is kept that could be scaled

    def backward(dy):                                                      # (...)
        dx = dy * kept                                                     # (...)
        dx *= scale                                                        # (...)
        return dx

    return backward(x), backward  # a product with fixed factors: forward and backward are one map
