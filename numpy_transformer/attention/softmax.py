"""Softmax: from scores, which may be any numbers, to weights, which are positive and add to one."""

import numpy as np

from ..foundations.checks import as_float, check_rank
from ..foundations.pullback import Array
from ..foundations.sums import row_sums


def softmax(x: Array):
    """Turn each row of scores into weights that are positive and add to one (Bridle 1990, section 2).

        yᵢ = exp(xᵢ) / Σⱼ exp(xⱼ)

    A number c taken from every xⱼ is a factor exp(−c) above and below, and cancels. With the row's
    maximum for c no exp can overflow. By the quotient rule ∂yᵢ/∂xⱼ = yᵢ(δᵢⱼ − yⱼ), where δᵢⱼ is 1 if
    i = j and else 0: on the diagonal yᵢ(1 − yᵢ), off it −yᵢyⱼ, since one weight can only grow at the
    cost of the others. With the upstream gradient dy

        dxⱼ = Σᵢ dyᵢ ∂yᵢ/∂xⱼ = yⱼ (dyⱼ − Σᵢ dyᵢ yᵢ)

    which takes two passes over a row and never builds the N × N table of these, the Jacobian.

    Parameters: x (..., N); −inf marks an entry that may get no weight. Returns y (..., N) and
    backward(dy) → dx. A row that is all −inf gives zeros, and its gradient is zero. Going forward
    float16 is computed in float32. Raises ValueError if x holds NaN or +inf.

    >>> softmax(np.array([2.0, 0.0, -1.0]))[0].round(2)      # scores close together share the weight
    array([0.84, 0.11, 0.04])
    >>> softmax(np.array([50.0, 0.0, -20.0]))[0].round(2)    # scores far apart: the winner takes all
    array([1., 0., 0.])
    """
    x = as_float("x", x)                                          # (..., N)
    check_rank("x", x, 1, "(..., N)")
    given = x.dtype
    if given == np.float16:
        x = x.astype(np.float32)                                  # (..., N)
    shift = x.max(axis=-1, keepdims=True, initial=-np.inf)        # (..., 1)
    if not np.isfinite(shift).all():
        if not (shift < np.inf).all():
            raise ValueError(f"x of shape {x.shape} holds NaN or +inf: softmax needs finite scores, or -inf to hide one")
        shift = np.where(shift == -np.inf, 0, shift)              # (..., 1)  -inf - (-inf) would be NaN
    with np.errstate(over="ignore"):  # a difference too large for the dtype is -inf, and its exp is 0
        y = x - shift                                             # (..., N)  the shift cancels; exp cannot overflow
    np.exp(y, out=y)
    total = row_sums(y)                                           # (...)
    y /= np.maximum(total, 1)[..., None]  # the maximum gives exp(0) = 1: a total below 1 is a row all hidden
    y = np.asarray(y, given)                                      # (..., N)

    def backward(dy):                                             # (..., N)
        inner = np.einsum("...n,...n->...", dy, y)[..., None]     # (..., 1)  one pass, and no array of products
        dx = dy - inner                                           # (..., N)
        dx *= y                                                   # (..., N)
        return dx

    return y, backward
