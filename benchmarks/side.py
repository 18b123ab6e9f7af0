"""A side of the duel: the process that builds, checks and times the operations of NumPy or of PyTorch.

It answers requests, one JSON text a line: [method, arguments …] → the method's result.
"""

import importlib
import json
import sys
import timeit
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from numpy_transformer.training.memory import keep_freed_memory

from .measure import Setting, calls_per_repeat
from .operations import check_values
from .parts import OPERATIONS


class Operations:
    """What the process holds: the operations of one part, a timer for each call of one of them, and how
    often a turn repeats it."""

    def __init__(self, kind: str, setting: Setting):
        self.setting = setting
        self.twin = importlib.import_module(".torch_twin", __package__) if kind == "torch" else None
        if self.twin:
            self.twin.set_threads(setting.threads)
        self.part, self.built = "", {}
        self.timed, self.timers = None, {}

    def find(self, part: str, dtype: str) -> dict:
        """Return the part's operations by name, from equal seeds on both sides."""
        if part != self.part:
            self.part, self.built = part, {}
        if dtype not in self.built:
            found = OPERATIONS[part](replace(self.setting, dtype=dtype))
            self.built[dtype] = {operation.name: operation for operation in found}
        return self.built[dtype]

    def twins(self, part: str) -> dict[str, dict[str, list[str]]]:
        """Return the names that have a twin, their passes, and the twin's ways to each."""
        found = {name: self.twin.ways(operation) for name, operation in self.find(part, self.setting.dtype).items()}
        return {name: ways for name, ways in found.items() if ways}

    def version(self) -> str:
        return self.twin.VERSION

    def shape(self, part: str, name: str) -> str:
        return self.find(part, self.setting.dtype)[name].shape

    def values(self, part: str, name: str, dtype: str, label: str | None, file: str) -> bool:
        """Save the values to a file; False if they are drawn at random. A label is one of the twin's ways."""
        operation = self.find(part, dtype)[name]
        if operation.random:
            return False
        values = (operation if label is None else self.twin.twin(operation, label)).values()
        check_values(name, values, dtype)
        np.savez(file, **values)
        return True

    def time(self, part: str, name: str, variant: str, label: str | None) -> float:
        """Return the seconds of one call; calls that a turn repeats get one before them to warm up."""
        operation = self.find(part, self.setting.dtype)[name]
        if self.timed is not operation:
            self.timed, self.timers = operation, {}
        if (variant, label) not in self.timers:
            subject = operation if label is None else self.twin.twin(operation, label)
            timer = timeit.Timer(subject.passes()[variant])
            self.timers[variant, label] = timer, calls_per_repeat(timer, self.setting.seconds)
        timer, number = self.timers[variant, label]
        if number > 1:
            timer.timeit(1)
        return timer.timeit(number) / number


def serve(kind: str, setting: Setting, requests: Iterable[str]) -> None:
    keep_freed_memory()  # on either side
    operations = Operations(kind, setting)
    for line in requests:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(operations, method)(*arguments)), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Setting(**json.loads(sys.argv[2])), sys.stdin)
