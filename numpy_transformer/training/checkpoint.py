"""Checkpoints: a model in a file, and everything needed to go on training as if nothing had happened."""

import json
import os
import tempfile
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ..foundations.checks import check_shape
from ..foundations.parameters import named_parameters, parameter_count, replace_parameters
from ..model.config import TransformerConfig
from ..model.transformer import Transformer
from .adam import AdamState

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a file holds: the model, the configuration that gives it its form, and optionally more."""

    model: Transformer
    config: TransformerConfig
    optimiser: AdamState | None = None
    notes: dict = field(default_factory=dict)  # anything that JSON can hold


def save(path, model: Transformer, config: TransformerConfig, *, optimiser: AdamState | None = None,
         notes: dict | None = None) -> None:
    """Write a checkpoint to `path`, whole or not at all.

    The file is an `.npz` archive: every parameter under its name, behind `model.`; both moments of
    the optimiser; and one JSON text. It is written beside `path` under another name and moved there
    when it is complete, so that whoever reads `path`, even after a crash, finds a whole file.
    """
    path = Path(path)
    arrays = {f"model.{name}": array for name, array in named_parameters(model).items()}
    if optimiser is not None:
        arrays |= {"optimiser.first": optimiser.first, "optimiser.second": optimiser.second}
    header = {"format": FORMAT, "config": asdict(config), "step": optimiser and optimiser.step, "notes": notes or {}}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, header=json.dumps(header, ensure_ascii=False), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path) -> Checkpoint:
    """Read a checkpoint, of the same dtype, bit for bit as it was saved.

    Raises ValueError naming the file, and the entry that is missing, extra or misshapen. Nothing in
    the file is ever run: arrays of Python objects are refused.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop("header")))
        config = TransformerConfig(**header["config"])
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, expected {FORMAT}")
        optimiser = None
        if header["step"] is not None:
            optimiser = AdamState(header["step"], arrays.pop("optimiser.first"), arrays.pop("optimiser.second"))
        model = Transformer.init(np.random.default_rng(0), config)
        parameters = {name.removeprefix("model."): array for name, array in arrays.items()}
        for name, array in parameters.items():
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                raise ValueError(f"parameter {name!r} of dtype {array.dtype} holds what is no finite number")
        model = replace_parameters(model, parameters)
        if optimiser is not None:
            for name, vector in (("first", optimiser.first), ("second", optimiser.second)):
                check_shape(f"optimiser.{name}", vector, (parameter_count(model),))
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a checkpoint of this program: {error}") from None
    return Checkpoint(model, config, optimiser, header["notes"])
