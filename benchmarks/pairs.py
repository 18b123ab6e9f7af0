"""Pairs that teach: two ways to the same numbers, seen to be the same before either is timed.

The first way of each pair follows the equation by the letter, or does without a trick; the second
is what the book does. The ways take turns, so that a slow spell of the machine strikes both.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from numpy_transformer.attention.multi_head import MultiHeadAttention
from numpy_transformer.attention.scaled_dot_product import scaled_dot_product_attention
from numpy_transformer.attention.softmax import softmax
from numpy_transformer.foundations.linear import Linear
from numpy_transformer.foundations.parameters import named_parameters
from numpy_transformer.layers.embedding import Embedding
from numpy_transformer.layers.positional_encoding import sinusoidal_positions
from numpy_transformer.training.loop import loss_and_gradient

from .decode import WORDS, Decode
from .measure import Setting, peak_memory, time_calls
from .model import CONFIGURATIONS
from .operations import CheckError, normal, optional
from .rows import Row

tiled_attention = optional("attention.tiled", "tiled_attention")
Workers = optional("training.workers", "Workers")


@dataclass(frozen=True, eq=False)
class Pair:
    name: str
    shape: str
    ways: dict[str, Callable]  # by name, the plain one first
    lesson: str                # what the pair teaches, whichever way is faster here
    memory: bool = False       # measure the peak as well
    tolerance: float = 1e-4    # relative to the largest value, in float32


def heads(setting: Setting) -> Pair:
    s = setting.sizes
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention.init(rng, s.D, s.H, dtype=setting.dtype)
    x = normal(rng, s.B, s.T, s.D, dtype=setting.dtype)                         # (B, T, D)

    def head(h):
        part = slice(h * s.K, (h + 1) * s.K)
        q, k, v = (x @ p.weight[:, part] + p.bias[part] for p in (layer.query, layer.key, layer.value))
        return scaled_dot_product_attention(q, k, v)[0]                         # (B, T, K)

    def one_at_a_time():
        return layer.output(np.concatenate([head(h) for h in range(s.H)], axis=-1))[0]  # (B, T, D)

    return Pair("heads", f"({s.B}, {s.T}, {s.D}), {s.H} heads",
                {"one at a time": one_at_a_time, "all in one product": lambda: layer.self_attention(x)[0]},
                "narrow matrices, and a call for each head, leave BLAS less to do at a time")


def softmax_gradient(setting: Setting) -> Pair:
    s = setting.sizes
    rows, n = s.N, s.T
    x, dy = (normal(np.random.default_rng(i), rows, n, dtype=setting.dtype) for i in (0, 1))  # (N, S), (N, S)
    y, backward = softmax(x)                                                    # (N, S)
    unit = np.eye(n, dtype=setting.dtype)                                       # (S, S)

    def jacobians():
        return np.array([dy_row @ (y_row[:, None] * (unit - y_row)) for y_row, dy_row in zip(y, dy)])  # (N, S)

    return Pair("softmax's gradient", f"{rows} rows of {n}",
                {"every Jacobian": jacobians, "the row formula": lambda: backward(dy)},
                f"a Jacobian has {n} times as many entries as its row, and all of them collapse into one sum")


def positions(setting: Setting) -> Pair:
    T, D = setting.sizes.T, setting.sizes.D

    def entry_by_entry():
        table = np.empty((T, D))                                                # (T, D)
        for t in range(T):
            for d in range(D):
                angle = t / 10000 ** (d // 2 * 2 / D)
                table[t, d] = math.cos(angle) if d % 2 else math.sin(angle)
        return table

    return Pair("sinusoids", f"({T}, {D})",
                {"entry by entry": entry_by_entry, "the whole table": lambda: sinusoidal_positions(T, D)},
                "each step of a Python loop costs more than the sine it computes")


def embedding_gradients(setting: Setting) -> Iterator[Pair]:
    s = setting.sizes
    rng = np.random.default_rng(0)
    layer = Embedding.init(rng, s.V, s.D, dtype=setting.dtype)
    ids = np.minimum(rng.zipf(1.3, (s.B, s.T)), s.V) - 1                        # (B, T)  a few words often, as in texts
    y, backward = layer(ids)                                                    # (B, T, D)
    dy = normal(rng, *y.shape, dtype=setting.dtype)                             # (B, T, D)

    def by_rows():
        d_table = np.zeros_like(layer.table)                                    # (V, D)
        np.add.at(d_table, ids, dy)
        return d_table

    def by_sorting():
        order = ids.ravel().argsort(kind="stable")                              # (N,)
        words, starts = np.unique(ids.ravel()[order], return_index=True)
        d_table = np.zeros_like(layer.table)                                    # (V, D)
        d_table[words] = np.add.reduceat(dy.reshape(-1, s.D)[order], starts)
        return d_table

    shape = f"{s.N} words of {s.V}, width {s.D}"
    yield Pair("embedding's gradient", shape, {"np.add.at on rows": by_rows, "sorted, np.add.reduceat": by_sorting},
               "sorted by word, what belongs together lies together and is added in one run")
    yield Pair("embedding's gradient", shape, {"np.add.at on rows": by_rows, "np.add.at on numbers": lambda: backward(dy).table},
               "NumPy has a fast way for one index a number, and a slow one for all else")


def scores(setting: Setting) -> Pair:
    s = setting.sizes
    q, k = (normal(np.random.default_rng(i), s.B, s.H, s.T, s.K, dtype=setting.dtype) for i in (0, 1))
    return Pair("scores q kᵀ", f"({s.B}, {s.H}, {s.T}, {s.K})",
                {"np.einsum": lambda: np.einsum("bhtk,bhsk->bhts", q, k), "matmul": lambda: q @ k.swapaxes(-1, -2)},
                "einsum runs loops of its own, matmul hands each product to BLAS")


def projections(setting: Setting) -> Pair:
    s = setting.sizes
    rng = np.random.default_rng(0)
    x = normal(rng, s.B, s.T, s.D, dtype=setting.dtype)                         # (B, T, D)
    layers = [Linear.init(rng, s.D, s.D, dtype=setting.dtype) for _ in range(3)]
    fused = Linear(np.hstack([layer.weight for layer in layers]), np.hstack([layer.bias for layer in layers]))
    return Pair("projections to q, k, v", f"({s.N}, {s.D}) → 3 × {s.D}",
                {"three products": lambda: tuple(layer(x)[0] for layer in layers),
                 "one fused product": lambda: tuple(np.split(fused(x)[0], 3, axis=-1))},
                "x is read once, not three times; how much that saves depends on the width")


def cache(setting: Setting) -> Pair:
    decode = Decode(1, WORDS[setting.quick], setting.dtype)
    decode.values()  # both ways write the same words
    ways = decode.passes()
    return Pair("greedy decoding", f"{decode.name}, {decode.shape}",
                {"without cache": ways["uncached"], "with cache": ways["cached"]},
                "keys and values of the words written so far never change, so once is enough", tolerance=math.inf)


def tiles(setting: Setting) -> Iterator[Pair]:
    for T in (128, 256) if setting.quick else (256, 1024, 4096):
        q, k, v, dy = (normal(np.random.default_rng(i), 1, 2, T, 64, dtype=setting.dtype) for i in range(4))

        def both_passes(attention):
            out, backward = attention(q, k, v)
            return out, *backward(dy)

        yield Pair("attention, both passes", f"(1, 2, {T}, 64)",
                   {"all scores at once": lambda f=both_passes: f(scaled_dot_product_attention),
                    "tile by tile": lambda f=both_passes: f(tiled_attention)},
                   "a tile's scores are used up before the next are made: T² of them are never stored", memory=True)


def data_parallel(setting: Setting) -> Iterator[Pair]:
    configuration = CONFIGURATIONS["tiny" if setting.quick else "small"]
    model, batch = configuration.model(setting.dtype), configuration.batch()
    with Workers(model, setting.threads) as workers:
        yield Pair("loss and gradient", str(configuration),
                   {f"one process, {setting.threads} BLAS threads": lambda: loss_and_gradient(model, batch)[1],
                    f"{setting.threads} workers, sharing the cores": lambda: (workers.differentiate(batch), workers.gradient())[1]},
                   "BLAS shares out the products alone; workers share out all that lies between them too")


def pairs(setting: Setting) -> Iterator[Pair]:
    for pair in (heads, softmax_gradient, positions, scores, projections, cache):
        yield pair(setting)
    yield from embedding_gradients(setting)
    if tiled_attention:
        yield from tiles(setting)
    if Workers and setting.threads > 1:
        yield from data_parallel(setting)


def check_equal(pair: Pair) -> None:
    """Demand the same numbers from both ways."""
    plain, book = (named_parameters((way(),)) for way in pair.ways.values())
    if plain.keys() != book.keys():
        raise CheckError(f"{pair.name}: the two ways return different things")
    scale = max(np.abs(expected).max() for expected in plain.values())  # a key bias's own gradient is nothing but rounding
    for name, expected in plain.items():
        got = book[name]
        if expected.shape != got.shape or not np.isfinite(got).all():
            raise CheckError(f"{pair.name}: the two ways differ in shape, or are not finite")
        if np.abs(got - expected).max() > pair.tolerance * scale:
            raise CheckError(f"{pair.name}: the two ways differ by up to {np.abs(got - expected).max():.1e}")


def measure_pairs(setting: Setting, progress: Callable) -> tuple[list[Row], list[str]]:
    """Check and time every pair; return its rows, and one line of conclusion for each pair."""
    rows, conclusions = [], []
    for pair in pairs(setting):
        progress(f"pairs: {pair.name}, {pair.shape}")
        check_equal(pair)
        times = time_calls(list(pair.ways.values()), setting)
        both = [Row("pairs", pair.name, way, pair.shape, t, memory=peak_memory(call) if pair.memory else None)
                for (way, call), t in zip(pair.ways.items(), times)]
        rows += both
        conclusions.append(conclusion(*both, pair.lesson))
    return rows, conclusions


def conclusion(plain: Row, book: Row, lesson: str) -> str:
    """Say which way won, by how much, and why one should expect it. It won if median and minimum
    both say so, and by the smaller of the two factors."""
    factors = plain.median / book.median, plain.best / book.best
    if min(factors) > 1.05:
        verdict = f"“{book.variant}” is {min(factors):.1f} times as fast"
    elif max(factors) < 1 / 1.05:
        verdict = f"“{plain.variant}” is {1 / max(factors):.1f} times as fast"
    else:
        verdict = "no clear difference here"
    if plain.memory and book.memory:
        verdict += f", “{book.variant}” takes {book.memory / plain.memory:.0%} of the memory"
    return f"{verdict}: {lesson}"
