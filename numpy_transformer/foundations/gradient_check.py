"""The gradient check: a derived gradient is believed only when the difference quotient agrees.

Choose a random upstream gradient dy and look at the one number φ(x) = Σ dy ⊙ f(x). Its gradient is
exactly what `backward(dy)` claims to return. Along any direction v the slope of φ can be measured:

    D(h) = (φ(x + hv) − φ(x − hv)) / 2h = slope + c h² + O(h⁴)
    slope ≈ (4 D(h) − D(2h)) / 3                     (Richardson: the term c h² cancels)

which must equal Σ gradient ⊙ v. The measurement also tells how far it can be trusted. On smooth
ground the estimates from (h, 2h) and from (2h, 4h) agree to ten digits, and so do the slopes to the
left and to the right of x. Across a kink (a ReLU that flips between x − 4hv and x + 4hv, or at x
itself) they do not, nor where f bends strongly. A tenth of h then tells: seen from near enough a
bend is straight, and a kink beside x no longer in sight. If doubt remains, fewer entries are moved at
once, and a single entry in doubt is passed over.

The upstream gradient is random, never ones: softmax's rows always add to one, so Σ f(x) would be
constant and a softmax without any backward pass would look right.
"""

import inspect
from collections.abc import Callable

import numpy as np

from .checks import check_count, check_number
from .parameters import map_tree, named_parameters, replace_parameters
from .pullback import Array

STEPS = (1e-4, 1e-5)  # h, and the second look where the first is in doubt


class GradientError(AssertionError):
    """A gradient disagrees with the difference quotient, or cannot be compared with it."""


def check_gradients(f: Callable, *arguments, rng: np.random.Generator, tolerance: float = 1e-7,
                    coordinates: int = 100, directions: int = 2) -> dict[str, float]:
    """Compare every gradient that f's pullback returns with central differences, in float64.

    Parameters: f(*arguments) → (y, backward), deterministic; each argument an array or a tree of
    parameters, to be differentiated (close over everything else). An array of at most `coordinates`
    entries is checked entry by entry, a larger one along `directions` random directions, each of
    which moves all its entries at once.

    Returns the worst relative error of each array by name. Raises GradientError naming the array,
    the index and both values where the error exceeds `tolerance`, where a gradient is missing,
    misshapen or not finite, or where kinks left nothing to compare.
    """
    check_number("tolerance", tolerance, above=True)
    check_count("coordinates", coordinates, 0)
    check_count("directions", directions)
    point = map_tree(lambda array: array.astype(np.float64), tuple(_promoted(a) for a in arguments))
    values = named_parameters(point)
    labels = _labels(f, values, len(arguments))
    y, backward = f(*point)
    y = np.asarray(y)
    if y.dtype != np.float64:
        raise GradientError(f"f computes in {y.dtype} where its arguments are float64")
    if not np.isfinite(y).all():
        raise GradientError("f returned a value that is not finite")
    if not np.array_equal(y, f(*point)[0]):
        raise GradientError("f is random: two calls differ (make its generator inside f, from a fixed seed)")
    dy = rng.standard_normal(y.shape)
    centre = float(np.sum(dy * y))
    claimed = _claimed(backward(dy if y.ndim else float(dy)), point, labels)

    def phi(name: str, shift: Array) -> float:
        moved = replace_parameters(point, values | {name: values[name] + shift})
        return float(np.sum(dy * f(*moved)[0]))

    def slope(name: str, v: Array, h: float) -> tuple[float, float]:
        """Return the measured slope along v and how uncertain it is."""
        right, left = ([phi(name, side * k * h * v) for k in (1, 2, 4)] for side in (1, -1))
        d1, d2, d4 = ((r - l) / (2 * k * h) for r, l, k in zip(right, left, (1, 2, 4)))
        a1, a2 = ((r - 2 * centre + l) / h for r, l in zip(right[:2], left[:2]))
        fine, coarse = (4 * d1 - d2) / 3, (4 * d2 - d4) / 3
        jump = 2 * a1 - a2 / 2  # of the slope at x: 0 at a bend, whose second derivative cancels
        return fine, abs(fine - coarse) + abs(jump)

    # The error is relative to the largest of: both slopes; a thousandth of the norm of the gradient that v
    # meets, since a sum may cancel; a ten thousandth of the largest gradient of all; the rounding of φ,
    # which weighs the more the smaller h.
    largest = max((np.abs(g).max(initial=0) for g in claimed.values()), default=0.0)
    rounding = 1e-4 * float(np.sum(np.abs(dy * y))) + np.finfo(float).tiny

    def error(name: str, v: Array) -> tuple[float, float, float]:
        """Return the relative error along v and both slopes; the error is NaN where v meets a kink."""
        derived = float(np.sum(claimed[name] * v))
        met = np.sqrt(np.sum((claimed[name] * (v != 0)) ** 2))
        for h in STEPS:
            measured, uncertainty = slope(name, v, h)
            scale = max(abs(derived), abs(measured), 1e-3 * met, 1e-4 * largest, rounding * STEPS[0] / h)
            if uncertainty <= tolerance * scale:
                return abs(derived - measured) / scale, derived, measured
        return np.nan, derived, measured

    worst = {}
    for name, label in labels.items():
        size, shape = values[name].size, values[name].shape
        if size <= coordinates:
            probes = (unit.reshape(shape) for unit in np.eye(size))
        else:
            probes = (rng.choice([-1.0, 1.0], shape) for _ in range(directions))
        errors = []
        for v in probes:
            found, _, _ = error(name, v)
            while np.isnan(found) and np.count_nonzero(v) > 1:
                v = v * (rng.random(shape) < 0.5)  # fewer entries move, so fewer of them can meet a kink
                found, _, _ = error(name, v)
            if not v.any():
                found = np.nan  # every entry was taken away: nothing moved, so nothing was compared
            if found > tolerance:
                _raise_at_worst_entry(error, name, label, v)
            errors.append(found)
        if errors and np.isnan(errors).all():
            raise GradientError(f"{label}: every direction tried meets a kink; nothing was compared")
        worst[label] = float(np.nanmax([0.0, *errors]))
    return worst


def _promoted(argument):
    return argument if hasattr(argument, "__dataclass_fields__") or isinstance(argument, tuple) else np.asarray(argument)


def _labels(f: Callable, values: dict, count: int) -> dict[str, str]:
    """Name each array after f's own arguments: `0.weight` becomes `layer.weight`."""
    parameters = [p for p in inspect.signature(f).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in parameters[:count]]
    names += [f"argument {index}" for index in range(len(names), count)]
    labels = {}
    for name in values:
        index, *rest = name.split(".")
        labels[name] = ".".join([names[int(index)], *rest])
    return labels


def _claimed(gradients, point: tuple, labels: dict[str, str]) -> dict[str, Array]:
    """Return the gradients that a pullback gave, by name, after checking their form and finiteness."""
    gradients = gradients if isinstance(gradients, tuple) and len(point) > 1 else (gradients,)
    if len(gradients) != len(point):
        raise GradientError(f"backward returned {len(gradients)} gradients for {len(point)} arguments")
    gradients = map_tree(np.asarray, tuple(_promoted(g) for g in gradients))
    claimed, values = named_parameters(gradients), named_parameters(point)
    for name, label in labels.items():
        if name not in claimed:
            raise GradientError(f"{label}: backward returned no gradient")
        if claimed[name].shape != values[name].shape:
            raise GradientError(f"{label}: gradient has shape {claimed[name].shape}, the array {values[name].shape}")
        if not np.isfinite(claimed[name]).all():
            index = tuple(map(int, np.argwhere(~np.isfinite(claimed[name]))[0]))
            raise GradientError(f"{label}{list(index)}: gradient is {claimed[name][index]}")
    for name in claimed:
        if name not in values:
            raise GradientError(f"argument {name}: backward returned a gradient of what is not there")
    return claimed


def _raise_at_worst_entry(error: Callable, name: str, label: str, v: Array) -> None:
    """Halve the direction, keeping the half that is further off, until one entry is left to blame."""
    entries = np.flatnonzero(v)
    while len(entries) > 1:
        halves = np.array_split(entries, 2)
        off = []
        for half in halves:
            part = np.zeros_like(v)
            part.flat[half] = v.flat[half]
            _, derived, measured = error(name, part)
            off.append(abs(derived - measured))
        entries = halves[int(off[1] > off[0])]
    unit = np.zeros_like(v)
    unit.flat[entries] = 1.0
    found, derived, measured = error(name, unit)
    index = list(map(int, np.unravel_index(entries[0], v.shape))) if v.ndim else []
    raise GradientError(f"{label}{index}: backward says {derived:.12g}, "
                        f"the difference quotient says {measured:.12g} (relative error {found:.1e})")
