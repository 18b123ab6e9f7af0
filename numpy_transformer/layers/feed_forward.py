"""The feed-forward network: after the words have exchanged what they know, each thinks for itself.

Attention only mixes: its output is a weighted mean of values. What makes of a mixture something new
is this layer, the same small network at every position: widen to F (four times D in the paper),
bend, and return to D.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..foundations.checks import as_float, check_number
from ..foundations.dropout import dropout
from ..foundations.linear import Linear
from ..foundations.pullback import Array
from .normal_distribution import normal_distribution


def relu(x: Array):
    """y = max(x, 0);  dx = dy where y > 0, else 0 (at the kink itself: 0).

    Takes x (...); returns y (...) and backward(dy) → dx.
    """
    x = as_float("x", x)             # (...)
    y = np.maximum(x, np.zeros(x.shape[-1:], x.dtype))  # (...)  against a row of zeros: twice as fast as against the number 0

    def backward(dy):                # (...)
        return dy * (y > 0)          # (...)

    return y, backward


def gelu_tanh(x: Array):
    """y = ½x (1 + tanh u),  u = √(2/π) (x + 0.044715 x³): GPT-2's form of GELU.

    With t = tanh u and dt/du = 1 − t²:   dx = dy ½ (1 + t + x (1 − t²) u′),  u′ = √(2/π) (1 + 3·0.044715 x²)

    Takes x (...); returns y (...) and backward(dy) → dx (Hendrycks and Gimpel 2016, section 2).
    """
    x = as_float("x", x)                                        # (...)
    root = math.sqrt(2 / math.pi)
    near = np.clip(x, -10, 10)                                  # (...)  beyond, t is ±1, and x³ might overflow
    t = np.tanh(root * near * (1 + 0.044715 * near * near))     # (...)
    y = 0.5 * x * (1 + t)                                       # (...)

    def backward(dy):                                           # (...)
        slope = root * (1 + 3 * 0.044715 * near * near)         # (...)  u′
        return dy * (0.5 * (1 + t + x * (1 - t * t) * slope))   # (...)

    return y, backward


def gelu(x: Array):
    """y = x Φ(x),  Φ(x) = ½ (1 + erf(x / √2)), the normal distribution function: BERT's form of GELU.

        dx = dy (Φ(x) + x φ(x)),   φ(x) = exp(−x²/2) / √(2π), the slope of Φ

    Takes x (...); returns y (...) and backward(dy) → dx (Hendrycks and Gimpel 2016, section 2).
    """
    x = as_float("x", x)                                        # (...)
    cumulative = normal_distribution(x)                         # (...)  Φ(x)
    y = x * cumulative                                          # (...)

    def backward(dy):                                           # (...)
        near = np.clip(x, -40, 40)                              # (...)  beyond, φ is 0, and x² might overflow
        density = np.exp(-0.5 * near * near) / math.sqrt(2 * math.pi)  # (...)  φ(x)
        return dy * (cumulative + x * density)                  # (...)

    return y, backward


@dataclass(frozen=True, eq=False)
class FeedForward:
    """Two linear layers and a bend between them, the same at every position (Vaswani et al. 2017, section 3.3).

        y = dropout(f(x W₁ + b₁)) W₂ + b₂

    layer(x, rng) takes x (..., D) and returns y (..., D) and backward(dy) → (gradient, dx), the gradient
    passes the four steps from last to first. `activation` is relu, gelu, gelu_tanh, or any f → y, backward.
    """

    expand: Linear    # W₁ (D, F)
    contract: Linear  # W₂ (F, D)
    activation: Callable = relu
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_number("dropout_rate", self.dropout_rate, 0, 1)
        if len(self.expand.bias) != len(self.contract.weight):
            raise ValueError(f"expand gives {len(self.expand.bias)} numbers, contract takes {len(self.contract.weight)}")

    @classmethod
    def init(cls, rng: np.random.Generator, width: int, hidden: int, *, activation: Callable = relu,
             dropout_rate: float = 0.0, dtype=np.float32) -> "FeedForward":
        """Glorot weights from width to hidden and back."""
        return cls(Linear.init(rng, width, hidden, dtype=dtype), Linear.init(rng, hidden, width, dtype=dtype),
                   activation, dropout_rate)

    def __call__(self, x, rng=None):
        wide, expand_backward = self.expand(x)                            # (..., F)
        bent, activation_backward = self.activation(wide)                 # (..., F)
        kept, dropout_backward = dropout(bent, self.dropout_rate, rng)    # (..., F)
        y, contract_backward = self.contract(kept)                        # (..., D)

        def backward(dy):                                                 # (..., D)
            contract, d_kept = contract_backward(dy)                      # (..., F)
            d_wide = activation_backward(dropout_backward(d_kept))        # (..., F)
            expand, dx = expand_backward(d_wide)                          # (..., D)
            return replace(self, expand=expand, contract=contract), dx

        return y, backward
