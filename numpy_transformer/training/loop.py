"""The training loop: forward, loss, backward, step, and again."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ..foundations.checks import check_count, check_number
from ..foundations.parameters import map_tree
from ..model.transformer import Transformer
from .adam import Adam, AdamState
from .batches import PAD, Batch, Example, epoch
from .clipping import clip_gradients
from .cross_entropy import cross_entropy
from .schedule import cooldown, warmup_schedule
from .workers import Workers, loss_and_gradient


@dataclass(frozen=True)
class TrainingConfig:
    """How to train: everything that, with data, first model and number of workers, decides the outcome."""

    steps: int = 1000
    batch_size: int = 64
    warmup_steps: int = 150
    cooldown_steps: int = 0
    rate_factor: float = 1.0  # multiplies the paper's schedule
    label_smoothing: float = 0.1
    max_norm: float = 1.0
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self):
        for name, least in (("steps", 0), ("batch_size", 1), ("warmup_steps", 1), ("cooldown_steps", 0), ("seed", 0)):
            check_count(name, getattr(self, name), least)
        check_number("rate_factor", self.rate_factor)
        check_number("label_smoothing", self.label_smoothing, 0, 1)
        check_number("max_norm", self.max_norm, above=True)
        check_number("weight_decay", self.weight_decay)


@dataclass(frozen=True, eq=False)
class Progress:
    """Where training stands after a step: enough to go on from here."""

    model: Transformer
    optimiser: AdamState
    loss: float = float("nan")  # of the batch just learned from
    tokens: int = 0             # in its target

    @property
    def step(self) -> int:
        return self.optimiser.step


def training_steps(progress: Progress, examples: Sequence[Example], config: TrainingConfig,
                   workers: int = 1) -> Iterator[Progress]:
    """Train on, from `progress` to config.steps, yielding after every step.

    All randomness is a function of the seed and of the place: epoch e shuffles with generator
    (seed, 0, e), step s draws its dropout masks from (seed, 1, s), worker w from (seed, 1, s, w). So
    whoever starts again from a saved step, with as many workers, meets the same batches and the same
    masks as the run that was never interrupted.

    The model given stays as it was. The one yielded is stepped in place when the next step is asked
    for: copy or save what is to be kept. With `workers` > 1 that many processes share each batch.
    Raises, when a step is asked for, ValueError if there are no examples, `workers` makes no sense or a gradient
    is no longer finite, ChildProcessError if a worker process has ended.
    """
    if not examples:
        raise ValueError("examples is empty: there is nothing to train on")
    check_count("workers", workers)
    adam = Adam(learning_rate=0.0, weight_decay=config.weight_decay)  # the schedule sets the rate
    model, state = progress.model, progress.optimiser
    width = model.source_embedding.table.shape[1]
    with Workers(model, workers, state) if workers > 1 else nullcontext() as team:
        if not team:  # a team works on copies of its own
            model, state = map_tree(lambda array: array.copy(order="C"), (model, state))
        for batch in islice(_batches(examples, config, state.step), max(config.steps - state.step, 0)):
            step = state.step + 1
            rate = config.rate_factor * warmup_schedule(step, width, config.warmup_steps)
            rate *= cooldown(step, config.steps, config.cooldown_steps)
            if team:
                loss = team.differentiate(batch, label_smoothing=config.label_smoothing, seed=(config.seed, 1, step))
                team.update(adam, rate, max_norm=config.max_norm)
                model, state = team.model, team.optimiser
            else:
                loss, gradient = loss_and_gradient(
                    model, batch, label_smoothing=config.label_smoothing, rng=np.random.default_rng([config.seed, 1, step]))
                gradient, _ = clip_gradients(gradient, config.max_norm)
                model, state = adam.update(model, gradient, state, rate, in_place=True)
            yield Progress(model, state, loss, batch.tokens)


def _batches(examples: Sequence[Example], config: TrainingConfig, done: int) -> Iterator[Batch]:
    """Yield the batches after the first `done`, epoch after epoch, without end."""
    per_epoch = -(-len(examples) // config.batch_size)
    number, skip = divmod(done, per_epoch)
    while True:
        yield from islice(epoch(examples, config.batch_size, np.random.default_rng([config.seed, 0, number])), skip, None)
        number, skip = number + 1, 0


def mean_loss(model: Transformer, examples: Sequence[Example], batch_size: int = 64) -> float:
    """The loss per target token, in nats, on sentences that are only looked at: no dropout, no smoothing; 0.0 if there are none."""
    total = tokens = 0
    for batch in epoch(examples, batch_size, np.random.default_rng(0)):
        logits, _ = model(batch.source, batch.target_input, pad=PAD)                    # (B, T, V)
        loss, _ = cross_entropy(logits, batch.target_output, ignore_index=PAD)
        total, tokens = total + loss * batch.tokens, tokens + batch.tokens
    return total / max(tokens, 1)
