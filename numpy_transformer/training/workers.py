"""Workers: several processes, each with a part of every batch, do the work of one in less time.

The loss is a mean over the target's tokens, and such a mean is the mean of the parts' means, each
with the weight of its tokens: if worker w has n_w of the batch's n, then

    loss = Σ_w (n_w / n) loss_w        ∂loss = Σ_w (n_w / n) ∂loss_w

so each worker runs both passes on its own sentences, starting backward from n_w / n instead of 1,
and the gradients simply add. The sum and Adam's step go number by number, so they too are shared out:
each worker owns a stretch of the parameters, adds up all workers' gradients there and steps it. Only
clipping asks something of everybody, the norm; the sum is then taken twice, once for it and once for
the step.

Whoever asks for the work is a worker too, the first: it gives the others their orders, does its own
part, and then waits for their answers. Parameters, moments and gradients lie in memory that all of them
see, and only the orders, with their sentences, travel. Within an order each worker writes nothing but its own
gradient or its own stretch; the next one begins when the slowest has answered. So whatever one of
them reads, the others have written before.

Why not leave the cores to the matrix products? BLAS, NumPy's library for them, does use all cores, but
whatever stands between two products (softmax, norms, dropout, Python itself) keeps all but one waiting.
Here every core does everything, and the BLAS of each worker gets its share of the cores.
"""

import math
import multiprocessing
import pickle
import signal
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate

import numpy as np

from ..foundations.blas_threads import cores, limit_blas_threads
from ..foundations.checks import check_count, check_number
from ..foundations.parameters import from_vector, named_parameters, parameter_count, to_vector
from ..foundations.pullback import Array
from ..model.transformer import Transformer
from .adam import Adam, AdamState
from .batches import PAD, Batch
from .clipping import gradient_norm
from .cross_entropy import cross_entropy
from .memory import keep_freed_memory

ENDED = ("a worker process has ended: there is no answer from it "
         "(at the very start: a script that uses workers needs the guard `if __name__ == \"__main__\":`)")


def loss_and_gradient(model: Transformer, batch: Batch, *, label_smoothing: float = 0.0,
                      rng: np.random.Generator | None = None, share: float = 1.0) -> tuple[float, Transformer]:
    """One forward and one backward pass: `share` times the mean loss of a batch, and its gradient, a Transformer.

    The batch holds ids: source (B, S), target_input and target_output (B, T). With rng there is dropout.
    """
    logits, model_backward = model(batch.source, batch.target_input, pad=PAD, rng=rng)  # (B, T, V)
    loss, loss_backward = cross_entropy(logits, batch.target_output, ignore_index=PAD, label_smoothing=label_smoothing)
    return share * loss, model_backward(loss_backward(share))


class Workers:
    """`count` processes, this one among them, that train one model together, or use it. Use as `with Workers(model, 2) as workers:`.

    In a script that belongs under `if __name__ == "__main__":`, since each process imports the script again.
    The arrays of `workers.model` and `workers.optimiser` lie where all of them see them: `update` steps
    both, and a model that is changed in place is changed for all. The model given stays as it was, and so
    does the optimiser's state; without a state Adam is at its start.
    For a fixed number of workers results are the same bit for bit from run to run; for another
    number they differ by rounding, and with dropout by the masks.
    The other processes keep the memory that they free; for this one call `keep_freed_memory` yourself.
    After Ctrl-C in the middle of a call the team is over, and in the middle of `update` the model may be half stepped.
    """

    def __init__(self, model: Transformer, count: int, optimiser: AdamState | None = None):
        check_count("count", count)
        context = multiprocessing.get_context("spawn")  # new programs; a copy of this one would have BLAS without its threads
        size, dtype = parameter_count(model), to_vector(model).dtype
        shared = context.RawArray("b", int(3 + count) * size * dtype.itemsize)
        memory = np.frombuffer(shared, dtype).reshape(3 + count, size)  # (3 + W, P)
        parameters, first, second, *gradients = memory  # (P,) each: two moments, and a gradient from each of W workers
        to_vector(model, out=parameters)
        if optimiser:
            first[:], second[:] = optimiser.first, optimiser.second
        self.model, self._gradients = from_vector(model, parameters), gradients
        self.optimiser = AdamState(optimiser.step if optimiser else 0, first, second)
        self._own, self._connections, self._processes = _Worker(model, 0, count, shared, dtype.str), [], []
        for number in range(1, count):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, number, count, shared, dtype.str), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)
        try:
            for connection in self._connections:
                connection.send(model)  # not among args: if the process dies before it has read those, start() never returns
        except OSError:
            raise ChildProcessError(ENDED) from None

    def differentiate(self, batch: Batch, *, label_smoothing: float = 0.0, seed: tuple[int, ...] = (0,)) -> float:
        """Run both passes over a batch and return its mean loss; worker w's generator for dropout has the seed (*seed, w).

        Each worker's gradient stays where it is, for `update` or `gradient` to add up.
        Raises what the first worker that failed has raised, with the rows counted within its own part (then the
        gradients are not all of one batch), or ChildProcessError if a process has ended.
        """
        tasks, count = [], len(self._gradients)
        for w in range(count):
            part = Batch(*(rows[w::count] for rows in (batch.source, batch.target_input, batch.target_output)))
            tasks.append((part, part.tokens / max(batch.tokens, 1), label_smoothing, (*seed, w)))
        return sum(self._ask("differentiate", tasks))

    def gradient(self) -> Transformer:
        """Return the gradient last computed, the sum of all workers', in arrays of its own."""
        total = sum(self._gradients)  # (P,)
        return from_vector(self.model, total)

    def update(self, adam: Adam, learning_rate: float | None = None, *, max_norm: float | None = None) -> None:
        """Step `model` and `optimiser` by the gradient last computed, after clipping to `max_norm` if there is one.

        The gradient itself stays as it was, for another update if need be.
        Equal to `clip_gradients` and `adam.update` with `in_place`, each worker stepping its stretch.
        Raises ValueError naming the parameter if the gradient to be clipped is infinite or NaN (without clipping it is
        not looked at), or if max_norm or learning_rate makes no sense; ChildProcessError if a process has ended.
        """
        count, scale = len(self._gradients), 1.0
        if max_norm is not None:
            check_number("max_norm", max_norm)
            norm = math.hypot(*self._ask("norm", [()] * count))
            scale = max_norm / norm if norm > max_norm else 1.0
        self._ask("step", [(adam, self.optimiser.step, learning_rate, scale)] * count)
        self.optimiser = AdamState(self.optimiser.step + 1, self.optimiser.first, self.optimiser.second)

    def share_out(self, function: Callable, rows: Sequence, *arguments) -> list:
        """Return what function(model, rows, *arguments), one result for each row, would: each worker does some of the rows.

            with Workers(model, 2) as workers:
                translations = workers.share_out(decode, source, 1, 64)      # source (B, S); decode of translator.py

        Worker w of W takes the rows w, w + W, w + 2W …, which for sorted rows is a fair share. All that travels is pickled;
        of a function that is its name, so it must stand at the top level of a file. Raises what the first worker that
        failed has raised, or ChildProcessError if a process has ended.
        """
        count = len(self._gradients)
        parts = self._ask("call", [(function, rows[w::count], *arguments) for w in range(count)])
        return [parts[row % count][row // count] for row in range(len(rows))]

    def _ask(self, name: str, arguments: list[tuple]) -> list:
        """Have every worker call its method of that name, and wait for all answers."""
        own, *others = arguments
        orders = [pickle.dumps((name, given)) for given in others]  # all before any is sent: one may be refused
        try:
            for connection, order in zip(self._connections, orders):
                connection.send_bytes(order)
            answers = [self._own.answer(name, own), *(connection.recv() for connection in self._connections)]
        except (EOFError, OSError):
            raise ChildProcessError(ENDED) from None
        except BaseException:  # such as Ctrl-C: an answer still to come must not be taken for one to the next order
            self.__exit__()
            raise
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_) -> None:
        for connection in self._connections:
            connection.close()  # the worker reads the end of its orders, and ends
        for process in self._processes:
            process.join(timeout=5)


class _Worker:
    """What one worker does when asked: both passes for its sentences, sum and step for its stretch of parameters.

    The arrays of the P parameters lie one after another. Where worker w's stretch ends, the next one's begins: after the
    first array that ends at or beyond (w + 1) P / count. No array is cut, since weight decay must know a matrix from a bias.
    """

    def __init__(self, model: Transformer, number: int, count: int, shared, dtype: str):
        memory = np.frombuffer(shared, dtype).reshape(3 + count, -1)  # (3 + W, P)
        self.model, self.gradient = from_vector(model, memory[0]), memory[3 + number]  # (P,)
        arrays = named_parameters(self.model)
        ends = list(accumulate((array.size for array in arrays.values()), initial=0))  # where among the P numbers
        start, stop = (bisect_left(ends, ends[-1] * n / count) for n in (number, number + 1))
        self.names, stretch = list(arrays)[start:stop], slice(ends[start], ends[stop])
        self.parameters = tuple(arrays[name] for name in self.names)
        self.flat, self.first, self.second, *self.summands = memory[:, stretch]  # (N,) each; last, the gradients of all workers
        self.threads = max(cores() // count, 1)

    def answer(self, name: str, given: tuple):
        """Call the method of that name; an exception is an answer too, for whoever gave the order to raise."""
        try:
            with limit_blas_threads(self.threads):
                return getattr(self, name)(*given)
        except Exception as error:
            return error

    def differentiate(self, batch: Batch, share: float, label_smoothing: float, seed: tuple[int, ...]) -> float:
        """Write the gradient of some of the batch's sentences where all see it, and return their share of the loss."""
        loss, gradient = loss_and_gradient(self.model, batch, label_smoothing=label_smoothing,
                                           rng=np.random.default_rng(seed), share=share)
        to_vector(gradient, out=self.gradient)  # (P,)
        return loss

    def call(self, function: Callable, rows: Sequence, *arguments) -> list:
        """Return what a function makes of the model and of these rows, a result for each."""
        results = list(function(self.model, rows, *arguments))
        if len(results) != len(rows):
            raise ValueError(f"{function.__name__} returned {len(results)} results for {len(rows)} rows")
        return results

    def total(self) -> Array:
        """Return the batch's gradient for this stretch. With one worker that is the shared array itself: not to be written to."""
        start, *others = self.summands  # (N,)
        return sum(others, start=start)  # (N,)

    def norm(self) -> float:
        """Return the norm of the stretch's gradient; that of the whole is the root of their squares' sum."""
        return gradient_norm(dict(zip(self.names, from_vector(self.parameters, self.total()))))

    def step(self, adam: Adam, step: int, learning_rate: float | None, scale: float) -> None:
        """One step of Adam for the stretch, its gradient clipped by the factor `scale`; `step` steps came before."""
        total = self.total() if scale == 1 else self.total() * scale  # (N,)
        trees = self.flat, total  # all as one array: but for decay their shapes are of no account
        if adam.weight_decay:
            trees = self.parameters, from_vector(self.parameters, total)
        adam.update(*trees, AdamState(step, self.first, self.second), learning_rate, in_place=True)


def _work(connection, *arguments) -> None:
    """The life of a process: do what is asked and answer, until there are no more orders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the orders
    keep_freed_memory()
    with suppress(EOFError, OSError):  # the other end is closed
        worker = _Worker(connection.recv(), *arguments)
        while True:
            try:
                connection.send(worker.answer(*connection.recv()))
            except Exception as error:  # an order that cannot be read here or an answer that cannot be sent; or the end
                connection.send(error)
