"""Adam: step each parameter by its own measure, the mean of its gradients over their usual size."""

import math
from dataclasses import dataclass

import numpy as np

from ..foundations.checks import check_number, check_shape
from ..foundations.parameters import map_tree, named_parameters
from ..foundations.pullback import Array

CHUNK = 1 << 15  # numbers updated at a time, few enough for all that is made of them to stay in the cache


@dataclass(frozen=True, eq=False)
class AdamState:
    """How often the optimiser has stepped, and both moments of each parameter, in the parameters' order."""

    step: int
    first: tuple[Array, ...]   # m
    second: tuple[Array, ...]  # v


@dataclass(frozen=True)
class Adam:
    """Adaptive moment estimation (Kingma and Ba 2015, algorithm 1) with decoupled weight decay.

        m ← β₁ m + (1 − β₁) g           m̂ = m / (1 − β₁ᵗ)
        v ← β₂ v + (1 − β₂) g²          v̂ = v / (1 − β₂ᵗ)
        p ← p − η λ p − η m̂ / (√v̂ + ε)

    m and v start at 0 and would stay too small for a while; the division by 1 − βᵗ makes good for
    it exactly when all gradients are alike. t counts calls of `update`, one for all parameters. The
    decay λ acts on p itself, not through g (Loshchilov and Hutter 2019, algorithm 2), and on
    matrices only: biases, gains and shifts have no reason to be small. β₂ and ε are the
    Transformer paper's (section 5.3).
    """

    learning_rate: float  # η
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0  # λ

    def __post_init__(self):
        check_number("learning_rate", self.learning_rate)
        check_number("epsilon", self.epsilon, above=True)
        check_number("weight_decay", self.weight_decay)
        for name in ("beta1", "beta2"):
            check_number(name, getattr(self, name), 0, math.nextafter(1, 0))

    def init(self, model) -> AdamState:
        """Return the state before the first step: no step taken, moments 0."""
        first, second = (tuple(map(np.zeros_like, named_parameters(model).values())) for _ in range(2))
        return AdamState(0, first, second)

    def update(self, model, gradient, state: AdamState, learning_rate: float | None = None, *, in_place: bool = False):
        """Return the stepped model and the new state; what was given stays as it was.

        `learning_rate` replaces η for this step, for a schedule. Whoever keeps no older model may
        say `in_place`: the arrays of model and state are then stepped where they are, which saves
        three copies of everything. Raises ValueError if model, gradient and state do not fit.
        """
        rate = self.learning_rate if learning_rate is None else learning_rate
        check_number("learning_rate", rate)
        parameters, gradients = named_parameters(model), named_parameters(gradient)
        if gradients.keys() != parameters.keys() or len(state.first) != len(parameters):
            raise ValueError(f"model has {len(parameters)} parameters, gradient {len(gradients)} and state "
                             f"{len(state.first)}, or their names differ")
        for (name, p), m, v in zip(parameters.items(), state.first, state.second, strict=True):
            check_shape(f"gradient of {name or 'the array'}", gradients[name], p.shape)
            check_shape(f"first moment of {name or 'the array'}", m, p.shape)
            check_shape(f"second moment of {name or 'the array'}", v, p.shape)
            if in_place and not all(array.flags.c_contiguous for array in (p, m, v)):
                raise ValueError(f"parameter {name} is a strided view: it cannot be stepped in place")
        if not in_place:
            model, first, second = map_tree(lambda array: array.copy(order="C"), (model, state.first, state.second))
            parameters, state = named_parameters(model), AdamState(state.step, first, second)
        t = state.step + 1
        step_size, correction = rate / (1 - self.beta1**t), 1 / (1 - self.beta2**t)
        for (name, whole), *moments in zip(parameters.items(), state.first, state.second):
            decay = rate * self.weight_decay if whole.ndim >= 2 else 0.0
            rows = [array.reshape(-1) for array in (whole, gradients[name], *moments)]
            for start in range(0, whole.size, CHUNK):
                p, g, m, v = (row[start : start + CHUNK] for row in rows)  # (N,), (N,), (N,), (N,)
                m *= self.beta1                      # (N,)
                m += (1 - self.beta1) * g            # (N,)
                v *= self.beta2                      # (N,)
                v += (1 - self.beta2) * g * g        # (N,)
                if decay:
                    p *= 1 - decay                   # (N,)
                size = np.sqrt(v * correction)       # (N,)  √v̂
                size += self.epsilon                 # (N,)
                p -= step_size * m / size            # (N,)
        return model, AdamState(t, state.first, state.second)
