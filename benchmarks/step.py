"""The step: everything that training does once for each batch, in four sizes, with dropout and without.

    loss, gradient ← forward and backward pass        model ← Adam(model, gradient)

Its floor is the time that its products alone would take at the machine's best rate. A program that
did nothing else, and that perfectly, could not be faster.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numpy_transformer.foundations.parameters import named_parameters
from numpy_transformer.foundations.pullback import Array
from numpy_transformer.model.transformer import Transformer
from numpy_transformer.training.adam import Adam
from numpy_transformer.training.loop import loss_and_gradient

from .measure import Setting
from .model import CONFIGURATIONS, Configuration
from .operations import Work, optional
from .training import LEARNING_RATE

Workers = optional("training.workers", "Workers")

RATES = {"dropout 0": 0.0, "dropout 0.1": 0.1}  # on embeddings and residuals


def step_flops(c: Configuration) -> int:
    """The products of a step. Forward, for each of B·T words: in an encoder layer four D×D matrices and
    two D×F, in a decoder layer eight and two, once D×V; and for each score (one attention in an
    encoder layer, two in a decoder layer) 2D for q·k over all heads, 2D for the mean. Backward twice that."""
    N = c.B * c.T
    weights = c.L * (4 * c.D**2 + 2 * c.D * c.F) + c.L * (8 * c.D**2 + 2 * c.D * c.F) + c.D * c.V
    scores = 3 * c.L * c.B * c.T * c.T
    return 3 * (2 * N * weights + 4 * c.D * scores)


@dataclass(frozen=True, eq=False)
class Step:
    """A training step as something to be timed, and the loss and gradient to be compared first."""

    name: str
    dtype: str
    threads: int = 1
    random: bool = False

    @property
    def configuration(self) -> Configuration:
        return CONFIGURATIONS[self.name]

    @property
    def shape(self) -> str:
        return str(self.configuration)

    @property
    def variants(self) -> dict[str, tuple[float, int]]:
        """Return the dropout rate and the number of workers by name."""
        workers = [1, self.threads] if Workers and self.threads > 1 else [1]
        return {name + f", {count} workers" * (count > 1): (rate, count)
                for count in workers for name, rate in RATES.items()}

    @property
    def work(self) -> dict[str, Work]:
        return dict.fromkeys(self.variants, Work(step_flops(self.configuration), 0))

    def model(self, dropout_rate: float = 0.0) -> Transformer:
        return self.configuration.model(self.dtype, dropout_rate=dropout_rate)

    def passes(self) -> dict[str, Callable]:
        """Return a step for each variant. It goes on training: every call starts where the last one ended."""
        return {name: self.training(*variant) for name, variant in self.variants.items()}

    def training(self, dropout_rate: float, workers: int) -> Callable:
        adam, batch, rng = Adam(LEARNING_RATE), self.configuration.batch(), np.random.default_rng(2)
        model = state = team = None  # made by the first call; a team's processes end when nobody refers to it any more

        def step():
            nonlocal model, state, team
            if model is None:
                model = self.model(dropout_rate)
                if workers > 1:
                    team = Workers(model, workers)
                else:
                    state = adam.init(model)
            if team:
                loss = team.differentiate(batch, seed=(team.optimiser.step,))
                team.update(adam)
            else:
                loss, gradient = loss_and_gradient(model, batch, rng=rng)
                model, state = adam.update(model, gradient, state, in_place=True)
            return loss

        return step

    def values(self) -> dict[str, Array]:
        """Return loss and gradient without dropout."""
        loss, gradient = loss_and_gradient(self.model(), self.configuration.batch())
        return {"y": np.asarray(loss), **{f"gradient {n}": array for n, array in named_parameters(gradient).items()}}


def operations(setting: Setting) -> list[Step]:
    names = ("tiny", "small") if setting.quick else CONFIGURATIONS
    return [Step(name, setting.dtype, setting.threads) for name in names]
