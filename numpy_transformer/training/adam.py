"""Adam: step each parameter by its own measure, the mean of its gradients over their usual size."""

import math
from dataclasses import dataclass

import numpy as np

from ..foundations.checks import check_number
from ..foundations.parameters import from_vector, map_tree, parameter_count, to_vector
from ..foundations.pullback import Array

CHUNK = 1 << 15  # numbers updated at a time: all their arrays stay in the cache


@dataclass(frozen=True, eq=False)
class AdamState:
    """How often the optimiser has stepped, and both moments of every parameter, as one vector each."""

    step: int
    first: Array   # (P,)  m
    second: Array  # (P,)  v


@dataclass(frozen=True)
class Adam:
    """Adaptive moment estimation (Kingma and Ba 2015, algorithm 1) with decoupled weight decay.

        m ← β₁ m + (1 − β₁) g           m̂ = m / (1 − β₁ᵗ)
        v ← β₂ v + (1 − β₂) g²          v̂ = v / (1 − β₂ᵗ)
        p ← p − η m̂ / (√v̂ + ε) − η λ p

    m and v start at 0 and would stay too small for a while; the division by 1 − βᵗ makes good for
    it exactly when all gradients are alike. t counts calls of `update`, one for all parameters. The
    decay λ acts on p itself, not through g (Loshchilov and Hutter 2019, algorithm 2), and on
    matrices only: biases, gains and shifts have no reason to be small. β₂ and ε are the
    Transformer paper's (section 5.3).

    All parameters are laid end to end in one vector, which costs a few long operations where a
    hundred small arrays would cost a thousand short ones.
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
        zeros = np.zeros_like(to_vector(model))          # (P,)
        return AdamState(0, zeros, zeros)

    def update(self, model, gradient, state: AdamState, learning_rate: float | None = None):
        """Return the stepped model and the new state; what was given stays as it was.

        `learning_rate` replaces η for this step, for a schedule. Raises ValueError if the state
        belongs to a model of another size, TypeError if model and gradient differ in form.
        """
        rate = self.learning_rate if learning_rate is None else learning_rate
        check_number("learning_rate", rate)
        map_tree(_check_same_shape, model, gradient)
        if state.first.shape != (parameter_count(model),):
            raise ValueError(f"state holds {len(state.first)} parameters, the model {parameter_count(model)}")
        t = state.step + 1
        vector, gradients = to_vector(model), to_vector(gradient)  # (P,), (P,)
        first, second = state.first.copy(), state.second.copy()    # (P,), (P,)
        if self.weight_decay:
            vector -= rate * self.weight_decay * vector * to_vector(map_tree(_is_matrix, model))  # (P,)
        step_size = rate / (1 - self.beta1**t)
        for start in range(0, len(vector), CHUNK):
            part = slice(start, start + CHUNK)
            p, g, m, v = vector[part], gradients[part], first[part], second[part]  # (N,), (N,), (N,), (N,)
            m *= self.beta1                              # (N,)
            m += (1 - self.beta1) * g                    # (N,)
            v *= self.beta2                              # (N,)
            v += (1 - self.beta2) * g * g                # (N,)
            size = np.sqrt(v / (1 - self.beta2**t))      # (N,)  √v̂
            size += self.epsilon                         # (N,)
            p -= step_size * m / size                    # (N,)
        return from_vector(model, vector), AdamState(t, first, second)


def _is_matrix(array: Array) -> Array:
    return np.full_like(array, array.ndim >= 2)


def _check_same_shape(parameter: Array, gradient: Array) -> Array:
    if parameter.shape != gradient.shape:
        raise ValueError(f"a parameter has shape {parameter.shape}, its gradient {gradient.shape}")
    return parameter
