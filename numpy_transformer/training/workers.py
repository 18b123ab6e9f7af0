"""Workers: several processes, each with a part of every batch, do the work of one in less time.

The loss is a mean over tokens, and a mean of sums can be taken apart: if worker w has n_w of the
batch's n tokens, then

    loss = Σ_w (n_w / n) loss_w        ∂loss = Σ_w (n_w / n) ∂loss_w

so each worker runs both passes on its own sentences, starting backward from n_w / n instead of 1,
and the gradients simply add. Pullbacks are pure, so nothing else has to be agreed upon.

Why not leave the cores to the matrix products? Those use them, but whatever stands between two
products (softmax, norms, dropout, Python itself) keeps all but one core waiting. Here every core
does everything, one BLAS thread each.

Parameters and gradients lie in memory that all processes see, so that only ids and losses travel.
The processes are started afresh (not forked), since BLAS reads the number of its threads but once.
"""

import multiprocessing
import os
import signal
from dataclasses import dataclass

import numpy as np

from ..foundations.checks import check_count
from ..foundations.parameters import from_vector, named_parameters, parameter_count, to_vector
from ..model.transformer import Transformer
from .batches import PAD, Batch
from .cross_entropy import cross_entropy

BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def loss_and_gradient(model: Transformer, batch: Batch, *, label_smoothing: float = 0.0,
                      rng: np.random.Generator | None = None, share: float = 1.0) -> tuple[float, Transformer]:
    """One forward and one backward pass: `share` times the mean loss of a batch, and its gradient."""
    logits, model_backward = model(batch.source, batch.target_input, pad=PAD, rng=rng)  # (B, T, V)
    loss, loss_backward = cross_entropy(logits, batch.target_output, ignore_index=PAD, label_smoothing=label_smoothing)
    return share * loss, model_backward(loss_backward(share))


@dataclass(frozen=True, eq=False)
class _Task:
    """What one worker is to do for one step."""

    batch: Batch
    share: float
    label_smoothing: float
    seed: tuple[int, ...]


class Workers:
    """`count` processes that compute gradients of one model together. Use as `with Workers(model, 2) as workers:`.

    `workers.model` is the model whose parameters all of them see: step it in place and they follow.
    For a fixed number of workers results are the same bit for bit from run to run; for another
    number they differ by rounding, and with dropout by the masks.
    """

    def __init__(self, model: Transformer, count: int):
        check_count("count", count)
        context = multiprocessing.get_context("spawn")
        size, dtype = parameter_count(model), to_vector(model).dtype
        shared = [context.RawArray("b", size * dtype.itemsize) for _ in range(count + 1)]
        parameters, *self._gradients = (np.frombuffer(memory, dtype) for memory in shared)  # (P,)
        parameters[:] = to_vector(model)
        self.model, self._total = from_vector(model, parameters), from_vector(model, self._gradients[0])
        self._connections, self._processes = [], []
        threads = {name: os.environ.get(name) for name in BLAS_THREADS}
        os.environ.update({name: str(max((os.cpu_count() or 1) // count, 1)) for name in BLAS_THREADS})
        try:
            for memory in shared[1:]:
                here, there = context.Pipe()
                process = context.Process(target=_work, args=(there, model, shared[0], memory, dtype.str), daemon=True)
                process.start()
                there.close()
                self._connections.append(here)
                self._processes.append(process)
        finally:
            for name, value in threads.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def loss_and_gradient(self, batch: Batch, *, label_smoothing: float = 0.0, seed: tuple[int, ...] = (0,)):
        """The mean loss of a batch and its gradient; worker w drops out with generator (*seed, w).

        The gradient lies in shared memory: it is good until the next call. Raises what a worker
        raised, or ChildProcessError if one of them was killed.
        """
        count = len(self._connections)
        try:
            for w, connection in enumerate(self._connections):
                part = Batch(*(rows[w::count] for rows in (batch.source, batch.target_input, batch.target_output)))
                share = part.tokens / max(batch.tokens, 1)
                connection.send(_Task(part, share, label_smoothing, (*seed, w)))
            answers = [connection.recv() for connection in self._connections]
        except (EOFError, OSError):
            raise ChildProcessError("a worker process was killed: there is no answer from it") from None
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        total = self._gradients[0]          # (P,)
        for gradient in self._gradients[1:]:  # (P,)
            total += gradient               # (P,)
        return sum(answers), self._total

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        for connection in self._connections:
            connection.close()  # the worker reads the end of its orders, and ends
        for process in self._processes:
            process.join(timeout=5)


def _work(connection, model, parameters, memory, dtype) -> None:
    """A worker's life: take a task, write the gradient, answer with the loss, until there are no more orders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the orders
    model = from_vector(model, np.frombuffer(parameters, dtype))
    written = named_parameters(from_vector(model, np.frombuffer(memory, dtype)))
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            loss, gradient = loss_and_gradient(model, task.batch, label_smoothing=task.label_smoothing,
                                               rng=np.random.default_rng(task.seed), share=task.share)
            for name, array in named_parameters(gradient).items():
                written[name][...] = array
            connection.send(loss)
        except Exception as error:
            connection.send(error)
