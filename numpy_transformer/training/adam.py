"""Adam: step each parameter by its own measure, the running mean of its gradients over their usual size."""

import math
from dataclasses import dataclass

import numpy as np

from ..foundations.checks import check_number, check_shape
from ..foundations.parameters import map_tree, named_parameters, to_vector
from ..foundations.pullback import Array

CHUNK = 1 << 15  # numbers stepped at a time: few enough to stay in the cache, enough to make the cost of a NumPy call small


@dataclass(frozen=True, eq=False)
class AdamState:
    """How often the optimiser has stepped, and both moments of all P parameters, in the order of `to_vector`.

    Kept are, instead of the means m and v, sums proportional to them: m′ ← β₁ m′ + g and v′ ← β₂ v′ + g².
    The factors 1 − β wait until the step's size is set: two products less for each number.
    """

    step: int
    first: Array   # (P,)  m′ = m / (1 − β₁)
    second: Array  # (P,)  v′ = v / (1 − β₂)


@dataclass(frozen=True)
class Adam:
    """Adaptive moment estimation (Kingma and Ba 2015, algorithm 1) with decoupled weight decay.

        m ← β₁ m + (1 − β₁) g           m̂ = m / (1 − β₁ᵗ)
        v ← β₂ v + (1 − β₂) g²          v̂ = v / (1 − β₂ᵗ)
        p ← p − η λ p − η m̂ / (√v̂ + ε)

    or, with the sums m′ = m / (1 − β₁) and v′ = v / (1 − β₂) that are kept here, and with
    w = 1 + β + … + βᵗ⁻¹ = (1 − βᵗ) / (1 − β) for the sum of their weights,

        m̂ = m′ / w₁      v̂ = v′ / w₂      η m̂ / (√v̂ + ε) = (η √w₂ / w₁) m′ / (√v′ + √w₂ ε)

    m and v start at 0, and at first are too small; the division by 1 − βᵗ corrects that, exactly if
    all gradients are equal. t counts calls of `update`, one for all parameters. The
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
        """Return the state before the first step: no step taken, both sums 0."""
        return AdamState(0, np.zeros_like(to_vector(model)), np.zeros_like(to_vector(model)))

    def update(self, model, gradient, state: AdamState, learning_rate: float | None = None, *, in_place: bool = False):
        """Return the stepped model and the new state; what was given stays as it was.

        `learning_rate` replaces η for this step, for a schedule. Whoever keeps no older model may
        say `in_place`: the arrays of model and state are then stepped where they are, which saves
        three copies of everything. Raises ValueError if model, gradient and state do not fit.
        """
        rate = self.learning_rate if learning_rate is None else learning_rate
        check_number("learning_rate", rate)
        parameters, gradients = named_parameters(model), named_parameters(gradient)
        if gradients.keys() != parameters.keys():
            raise ValueError(f"model has {len(parameters)} parameters, gradient {len(gradients)}, or their names differ")
        for name, p in parameters.items():
            check_shape(f"gradient of {name or 'the array'}", gradients[name], p.shape)
            if in_place and not p.flags.c_contiguous:
                raise ValueError(f"parameter {name} is a strided view: it cannot be stepped in place")
        for name in ("first", "second"):
            check_shape(f"{name} moment", getattr(state, name), (sum(p.size for p in parameters.values()),))
        if not in_place:
            model, state = map_tree(lambda array: array.copy(order="C"), (model, state))
            parameters = named_parameters(model)
        if self.weight_decay:
            for p in parameters.values():
                if p.ndim >= 2:
                    p *= 1 - rate * self.weight_decay  # (...)
        t, start = state.step + 1, 0
        w1, w2 = ((1 - beta**t) / (1 - beta) for beta in (self.beta1, self.beta2))
        step_size, epsilon = rate * math.sqrt(w2) / w1, math.sqrt(w2) * self.epsilon
        for pieces in _pieces(parameters.values(), [gradients[name] for name in parameters]):
            g = pieces[0][1] if len(pieces) == 1 else np.concatenate([piece for _, piece in pieces])  # (N,)
            here = slice(start, start + len(g))
            start += len(g)
            m, v = state.first[here], state.second[here]  # (N,), (N,)  m′ and v′
            m *= self.beta1                          # (N,)
            m += g                                   # (N,)
            v *= self.beta2                          # (N,)
            v += g * g                               # (N,)
            step = np.sqrt(v)                        # (N,)
            step += epsilon                          # (N,)
            np.divide(m, step, out=step)             # (N,)
            step *= step_size                        # (N,)
            done = 0
            for p, _ in pieces:
                p -= step[done : done + len(p)]      # (M,)
                done += len(p)
        return model, AdamState(t, state.first, state.second)


def _pieces(parameters, gradients):
    """Deal out parameters and gradients, flat: long arrays cut into CHUNK numbers, short ones collected until they are at least as many."""
    pieces, size = [], 0
    for p, g in zip(parameters, gradients):
        p, g = p.reshape(-1), g.reshape(-1)          # (M,), (M,)
        for start in range(0, len(p), CHUNK):
            pieces.append((p[start : start + CHUNK], g[start : start + CHUNK]))
            size += len(pieces[-1][0])
            if size >= CHUNK:
                yield pieces
                pieces, size = [], 0
    if pieces:
        yield pieces
