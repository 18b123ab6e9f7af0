"""The linear layer: every learned map between two widths in a Transformer is one of these."""

import math
from dataclasses import dataclass

import numpy as np

from .checks import as_float, check_count, check_generator, check_shape, check_width
from .pullback import Array
from .sums import column_sums


@dataclass(frozen=True, eq=False)
class Linear:
    """Map each row x of width I to a row y of width O.

        y = x W + b

    Entry by entry y_no = Σᵢ x_ni W_io + b_o, where n numbers the rows of the whole batch. The loss
    depends on W_io through y_no of every row n, on x_ni through all of row n of y, on b_o through y_no of
    every row. So ∂loss/∂W_io = Σₙ x_ni dy_no; for all entries at once:

        dW = xᵀ dy        dx = dy Wᵀ        db = Σₙ dy_n

    layer(x) takes x (..., I) and returns y (..., O) and backward(dy) → (gradient, dx), where the
    gradient is a Linear. Raises ValueError if x is not I wide.
    """

    weight: Array  # (I, O)  W
    bias: Array    # (O,)  b

    def __post_init__(self):
        if self.weight.ndim != 2:
            raise ValueError(f"weight has shape {self.weight.shape}: expected (inputs, outputs)")
        check_shape("bias", self.bias, self.weight.shape[1:])

    @classmethod
    def init(cls, rng: np.random.Generator, inputs: int, outputs: int, *, dtype=np.float32) -> "Linear":
        """Weights uniform in ±√(6 / (I + O)), bias 0.

        Their variance is 2 / (I + O): a compromise between 1/I, which keeps the scale of the rows
        that go forward, and 1/O, which keeps that of the gradients that come back (Glorot and
        Bengio 2010, section 4.2.1).
        """
        check_generator("rng", rng)
        check_count("inputs", inputs)
        check_count("outputs", outputs)
        limit = math.sqrt(6 / (inputs + outputs))
        weight = rng.uniform(-limit, limit, (inputs, outputs)).astype(dtype)  # (I, O)
        return cls(weight, np.zeros(outputs, dtype))

    def __call__(self, x):
        x = as_float("x", x)                          # (..., I)
        check_width("x", x, len(self.weight))
        *leading, inputs = x.shape
        outputs = len(self.bias)
        rows = x.reshape(-1, inputs)                  # (N, I)  one product of many rows, not many small ones
        y = rows @ self.weight                        # (N, O)
        y += self.bias                                # (N, O)

        def backward(dy):                             # (..., O)
            dy_rows = dy.reshape(-1, outputs)         # (N, O)
            weight = rows.T @ dy_rows                 # (I, O)
            bias = column_sums(dy_rows)               # (O,)
            dx = dy_rows @ self.weight.T              # (N, I)
            return Linear(weight, bias), dx.reshape(*leading, inputs)  # (..., I)

        return y.reshape(*leading, outputs), backward
