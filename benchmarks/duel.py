"""The duel: the book beside PyTorch, each in a process of its own, taking turns.

In one process they would spoil each other: the threads of NumPy's BLAS keep a core busy for a while
after each product, waiting for the next. So each side is started as `python -m benchmarks.side`,
answers requests and rests while the other works. The two sides draw equal inputs from equal seeds.

Before anything is timed their results are compared: in float64 the result and every gradient, in the
run's own dtype the result. (In float32 a ReLU's input within rounding of 0 may fall on either side,
which moves a gradient by far more than rounding.)
"""

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np

from .measure import Setting
from .operations import CheckError
from .rows import Duel
from .threads import environment

TOLERANCE = {"float64": 1e-6, "float32": 1e-4}  # relative, in the norm over an array
GAP = 0.1                                       # seconds of rest between two turns
INSTALL = ("PyTorch is not installed, so its columns are left out: "
           "pip install torch --index-url https://download.pytorch.org/whl/cpu")


def installed() -> bool:
    return importlib.util.find_spec("torch") is not None


class Side:
    """A process that builds, checks and times the operations of one side on request."""

    def __init__(self, kind: str, setting: Setting):
        threads = environment(setting.threads)
        if kind == "torch":
            threads["OPENBLAS_NUM_THREADS"] = "1"  # NumPy only makes the inputs there
        self.kind = kind
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.side", kind, json.dumps(asdict(setting))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            cwd=Path(__file__).parents[1], env=os.environ | threads)

    def ask(self, *request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            raise CheckError(f"the {self.kind} side of the comparison ended early") from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Duels:
    """Both sides, for as long as there is something to compare."""

    def __init__(self, setting: Setting):
        self.setting, self.sides = setting, ExitStack()

    def __enter__(self):
        self.ours, self.theirs = (self.sides.enter_context(Side(kind, self.setting)) for kind in ("numpy", "torch"))
        self.version = self.theirs.ask("version")
        return self

    def __exit__(self, *_):
        self.sides.close()

    def measure(self, part: str, progress: Callable) -> list[Duel]:
        """Compare and time everything of a part that has a twin."""
        duels = []
        for name, ways in self.theirs.ask("twins", part).items():
            progress(f"PyTorch: {part}, {name}")
            difference = compare_values(self.ours, self.theirs, part, name, ways, self.setting)
            duels += [fight(self.ours, self.theirs, part, name, variant, labels, difference, self.setting)
                      for variant, labels in ways.items()]
        return duels


# ---------------------------------------------------------------- turns and values


def fight(ours, theirs, part, name, variant, labels, difference, setting) -> Duel:
    """Let the book and each of PyTorch's ways take turns; keep the fastest of these."""
    times = {label: [] for label in (None, *labels)}
    for round_ in range(setting.repeats):
        for label in times if round_ % 2 else reversed(times):
            time.sleep(GAP / 4 if setting.quick else GAP)
            side = ours if label is None else theirs
            times[label].append(side.ask("time", part, name, variant, label))
    best = min(labels, key=lambda label: statistics.median(times[label]))
    shape = ours.ask("shape", part, name)
    return Duel(part, name, variant, shape, best, tuple(times[None]), tuple(times[best]), difference)


def compare_values(ours, theirs, part, name, ways, setting) -> float | None:
    """Return the largest relative difference in float64, None for random values; raise CheckError beyond tolerance."""
    worst = 0.0
    labels = sorted({label for found in ways.values() for label in found})
    with tempfile.TemporaryDirectory() as directory:
        mine, yours = Path(directory) / "numpy.npz", Path(directory) / "torch.npz"
        for dtype in dict.fromkeys(("float64", setting.dtype)):
            if not ours.ask("values", part, name, dtype, None, str(mine)):
                return None
            for label in labels:
                theirs.ask("values", part, name, dtype, label, str(yours))
                with np.load(mine) as expected, np.load(yours) as got:
                    found, array = difference(expected, got, compared(expected, dtype))
                if not found <= TOLERANCE[dtype]:
                    raise CheckError(f"{name}, {label}: {array!r} differs from PyTorch's by {found:.1e} in {dtype}")
                if dtype == "float64":
                    worst = max(worst, found)
    return worst


def compared(expected, dtype: str) -> list[str]:
    """Name the arrays to be compared in this dtype: in float32 no gradients, and no ids, which rounding may change."""
    if dtype == "float64":
        return list(expected)
    return [name for name in expected if not name.startswith("gradient") and expected[name].dtype.kind == "f"]


def difference(expected, got, names: list[str]) -> tuple[float, str]:
    """Return the largest ‖a − b‖ / ‖b‖ of these arrays, and its name; infinity for a missing or misshapen one.

    A gradient that is 0 but for rounding, as is that of the keys' bias (it shifts all scores of a row
    alike, which softmax does not see), is held to a thousandth of the largest gradient's scale.
    """
    def scale(array):
        return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0

    floor = 1e-3 * max((scale(expected[name]) for name in names if name.startswith("gradient")), default=0.0)
    found = [(0.0, "")]
    for name in names:
        error = math.inf
        if name in got and got[name].shape == expected[name].shape:
            error = scale(got[name] - expected[name]) / (max(scale(expected[name]), floor) or 1.0)
        found.append((error, name))
    return max(found)
