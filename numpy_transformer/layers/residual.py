"""The residual connection: a sublayer does not replace the words' vectors, it adds to them.

A word that has gathered what surrounds it must not forget what it is itself, so x stays and the
sublayer's answer is added. Going back, ∂(x + f(x))/∂x = 1 + f′(x): whatever becomes of f′ on the
way through many layers, the 1 carries the gradient to the first of them undiminished, unless a norm
stands in its way.
"""

from collections.abc import Callable

import numpy as np

from ..foundations.dropout import dropout
from ..foundations.pullback import Array
from .layer_norm import LayerNorm


def residual(sublayer: Callable, norm: LayerNorm, x: Array, *, norm_first: bool = True,
             dropout_rate: float = 0.0, rng: np.random.Generator | None = None):
    """Add a sublayer's answer to its own input, with a normalisation before or after.

        norm first (pre-norm)    y = x + dropout(f(norm(x)))
        norm last (post-norm)    y = norm(x + dropout(f(x)))

    x is used twice, straight and through f, so its two gradients add.

    Parameters: sublayer(x) → branch (..., D) and a pullback that returns (gradient, dx, and the
    gradients of whatever else it reads, such as a memory); x (..., D). Returns y (..., D) and backward(dy) →
    (sublayer's gradient, norm's gradient, dx, the others).

    Differs from the paper by default: section 5.4 puts the norm last. With the norm first the
    straight way from the last layer to the first is free of it, and training needs less care
    (Xiong et al. 2020, section 3).
    """
    if norm_first:
        normed, norm_backward = norm(x)                                  # (..., D)
        branch, sublayer_backward = sublayer(normed)                     # (..., D)
        branch, dropout_backward = dropout(branch, dropout_rate, rng)    # (..., D)
        y = x + branch                                                   # (..., D)

        def backward(dy):                                                # (..., D)
            gradient, d_normed, *others = sublayer_backward(dropout_backward(dy))  # (..., D)
            norm_gradient, dx_through = norm_backward(d_normed)          # (..., D)
            return gradient, norm_gradient, dy + dx_through, *others     # (..., D)

    else:
        branch, sublayer_backward = sublayer(x)                          # (..., D)
        branch, dropout_backward = dropout(branch, dropout_rate, rng)    # (..., D)
        y, norm_backward = norm(x + branch)                              # (..., D)

        def backward(dy):                                                # (..., D)
            norm_gradient, d_sum = norm_backward(dy)                     # (..., D)
            gradient, dx_through, *others = sublayer_backward(dropout_backward(d_sum))  # (..., D)
            return gradient, norm_gradient, d_sum + dx_through, *others  # (..., D)

    return y, backward
