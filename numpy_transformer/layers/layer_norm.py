"""Layer normalisation: bring every word's vector to mean 0 and variance 1, then scale and shift it as learned.

Each word is normalised by its own D numbers alone. Batch normalisation would take, for each
feature at each position, the statistics of all sentences of the batch, which are poor for small
batches, polluted by padding, undefined at positions that training never reached, and need a running
average at test time. A word's own vector is always there, and always all of it.
"""

from dataclasses import dataclass

import numpy as np

from ..foundations.checks import as_float, check_count, check_number, check_shape, check_width
from ..foundations.pullback import Array
from ..foundations.sums import column_sums, row_sums


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Normalise each row of width D (Ba, Kiros and Hinton 2016, section 3).

        y = γ ⊙ x̂ + β      x̂ = (x − μ) / √(σ² + ε)      μ = mean(x)      σ² = mean((x − μ)²)

    The variance divides by D, not D − 1, and ε stands inside the root. Every x moves its own x̂, and
    through μ and σ all the others. With dx̂ = γ ⊙ dy and s = 1 / √(σ² + ε):

        through the numerator alone   s dx̂
        through μ                     − s mean(dx̂)              ∂μ/∂x = 1/D
        through σ²                    − s x̂ mean(dx̂ ⊙ x̂)        ∂s/∂x = −s² x̂ / D

        dx = s (dx̂ − mean(dx̂) − x̂ mean(dx̂ ⊙ x̂))      dγ = Σ dy ⊙ x̂      dβ = Σ dy   over all rows

    (The μ inside σ² adds nothing, since Σ(x − μ) = 0.) So dx has no part along the constant vector
    and, but for ε, none along x̂: what the normalisation removes going forward cannot come back.

    layer(x) takes x (..., D) and returns y (..., D) and backward(dy) → (gradient, dx). Going forward
    float16 is computed in float32, since its squares overflow. Raises ValueError if x is not D wide.
    """

    gain: Array   # (D,)  γ
    shift: Array  # (D,)  β
    epsilon: float = 1e-5

    def __post_init__(self):
        if self.gain.ndim != 1:
            raise ValueError(f"gain has shape {self.gain.shape}: expected (width,)")
        check_shape("shift", self.shift, self.gain.shape)
        check_number("epsilon", self.epsilon, above=True)  # a constant row has variance 0

    @classmethod
    def init(cls, width: int, *, epsilon: float = 1e-5, dtype=np.float32) -> "LayerNorm":
        """γ = 1 and β = 0: nothing but the normalisation, until training finds better."""
        check_count("width", width)
        return cls(np.ones(width, dtype), np.zeros(width, dtype), epsilon)

    def __call__(self, x):
        x = as_float("x", x)                                             # (..., D)
        check_width("x", x, len(self.gain))
        shape, D, given = x.shape, x.shape[-1], x.dtype
        x = x.reshape(-1, D).astype(np.promote_types(given, np.float32), copy=False)  # (N, D)
        centred = x - row_sums(x)[:, None] / D                           # (N, D)
        variance = np.vecdot(centred, centred)[:, None] / D              # (N, 1)  one pass, no array of squares
        inverse_std = 1 / np.sqrt(variance + self.epsilon)               # (N, 1)
        x_hat = np.multiply(centred, inverse_std, out=centred)           # (N, D)  in place: centred is x̂ from here on
        x_hat = x_hat.astype(given, copy=False)                          # (N, D)
        y = self.gain * x_hat                                            # (N, D)
        y += self.shift                                                  # (N, D)

        def backward(dy):                                                # (..., D)
            dy = dy.reshape(-1, D)                                       # (N, D)
            shift = column_sums(dy)                                      # (D,)
            gain = column_sums(dy * x_hat)                               # (D,)
            dx = dy * self.gain                                          # (N, D)  dx̂, of which dx is made in place
            along_x_hat = np.vecdot(dx, x_hat)[:, None] / D              # (N, 1)
            dx -= row_sums(dx)[:, None] / D                              # (N, D)
            dx -= x_hat * along_x_hat                                    # (N, D)
            dx *= inverse_std                                            # (N, D)
            return LayerNorm(gain, shift, self.epsilon), dx.reshape(shape)  # (..., D)

        return y.reshape(shape), backward                                # (..., D)
