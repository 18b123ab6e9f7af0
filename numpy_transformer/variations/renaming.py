"""Renaming: the same numbers under the names that others gave them.

A model trained elsewhere reaches us as a "state": arrays by name. Its makers cut the Transformer
into the same parts as everyone, but they call them otherwise, keep the matrix of a linear layer as
(out, in), and may store three matrices as one. All of that is a table of two columns:

    encoder.layers.*.attention.query+key+value    encoder.layers.*.self_attn.in_proj_
    encoder.layers.*.attention.output             encoder.layers.*.self_attn.out_proj
    output?                                       fc_out

On the left stand parts of our model, on the right the same parts of theirs; * is the number of a
layer. Parts joined by + are stacked in this order, one below the other; a part with ? may be
absent. What a part holds is the same everywhere:

    Linear                         weight (I, O), bias     ↔  weight (O, I), bias
    LayerNorm                      gain, shift             ↔  weight, bias
    Embedding, LearnedPositions    table                   ↔  weight

Only the way out is written down. The way back takes a model of the right form, asks what its arrays
would be called, and looks there. Both move numbers and change none, so they are exact; and since a
gradient has the form of its model, the same table also names gradients.
"""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..foundations.checks import as_float, check_shape
from ..foundations.parameters import named_parameters, replace_parameters
from ..foundations.pullback import Array

LEAVES = {"weight": "weight", "bias": "bias", "gain": "weight", "shift": "bias", "table": "weight"}


@dataclass(frozen=True)
class Names:
    """A table of names, read from its text; `optional` holds our parts that may be absent."""

    text: str

    @cached_property
    def theirs(self) -> dict[str, str]:
        rows = {}
        for ours, theirs in map(str.split, self.text.strip().splitlines()):
            whole, _, parts = ours.removesuffix("?").rpartition(".")
            rows |= {f"{whole}.{part}".lstrip("."): theirs for part in parts.split("+")}
        return rows

    @cached_property
    def optional(self) -> set[str]:
        return {ours[:-1] for ours in self.text.split() if ours.endswith("?")}

    def to_state(self, tree) -> dict[str, Array]:
        """Copy the arrays of a model, or of its gradient, out under the other side's names.

        Raises ValueError naming the part that only one side has.
        """
        entries = self._entries(tree)
        met = self.optional | {part for part, *_ in entries}
        for part, theirs in self.theirs.items():
            if part not in met:
                raise ValueError(f"the model has no {part}, and {theirs} cannot be left out")
        pieces = {}
        for _, theirs, _, array in entries:
            pieces.setdefault(theirs, []).append(array)
        return {name: np.ascontiguousarray(np.concatenate(arrays)) for name, arrays in pieces.items()}

    def from_state(self, template, state):
        """Return the template, a model of the right form, with copies of the state's arrays for its own.

        Raises ValueError naming, as the other side does, all arrays that are missing or unknown, or the
        one that is misshapen; TypeError naming the one that holds no numbers.
        """
        expected = self.to_state(template)
        differences = {"missing": expected.keys() - state.keys(), "unknown": state.keys() - expected.keys()}
        if any(differences.values()):
            raise ValueError("; ".join(f"{kind} in the state: {', '.join(sorted(names))}"
                                       for kind, names in differences.items() if names))
        arrays = {name: as_float(name, state[name]) for name in expected}
        for name, array in arrays.items():
            check_shape(name, array, expected[name].shape)
        taken = dict.fromkeys(arrays, 0)
        parameters = {}
        for _, theirs, name, array in self._entries(template):
            start, taken[theirs] = taken[theirs], taken[theirs] + len(array)
            parameters[name] = _turned(name, arrays[theirs][start : taken[theirs]]).copy()
        return replace_parameters(template, parameters)

    def _entries(self, tree) -> list[tuple[str, str, str, Array]]:
        """The part, their name, our name and the array in their form, of all arrays in the table's order."""
        entries = [(*self._translated(name), name, _turned(name, array)) for name, array in named_parameters(tree).items()]
        order = list(self.theirs)
        return sorted(entries, key=lambda entry: order.index(entry[0]))

    def _translated(self, name: str) -> tuple[str, str]:
        """`encoder.layers.0.attention.output.weight` → the part, as in the table, and their name for the array."""
        whole, _, leaf = name.rpartition(".")
        part = re.sub(r"\.\d+\.", ".*.", whole)
        if part not in self.theirs:
            raise ValueError(f"{whole} has no name on the other side")
        number = re.search(r"\.(\d+)\.", whole)
        theirs = self.theirs[part].replace("*", number[1] if number else "*")
        return part, theirs + ("" if theirs.endswith("_") else ".") + LEAVES[leaf]


def _turned(name: str, array: Array) -> Array:
    return array.T if name.endswith(".weight") else array  # only Linear has a `weight`; twice turned is not turned


def matrix_shape(state, name: str) -> tuple[int, int]:
    """The shape of one of a state's matrices, from which the sizes of its model follow."""
    if name not in state:
        raise ValueError(f"missing in the state: {name}")
    shape = np.shape(state[name])
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {shape}: expected a matrix")
    return shape


def layer_count(state, stack: str) -> int:
    """How many different numbers follow `stack` in a state's names: layer_count(state, "encoder.layers.")."""
    return len({name[len(stack) :].partition(".")[0] for name in state if name.startswith(stack)})
