"""Checkpoints: a model in a file, and everything needed to go on training as if nothing had happened."""

import json
import os
import zipfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np

from ..foundations.checks import check_count
from ..foundations.parameters import from_vector, named_parameters, replace_parameters, to_vector
from ..model.config import TransformerConfig
from ..model.transformer import Transformer
from .adam import AdamState

FORMAT = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a file holds: the model, the configuration that gives it its form, and optionally more."""

    model: Transformer  # or another kind of model, as `load` was asked
    config: TransformerConfig
    optimiser: AdamState | None = None
    notes: dict = field(default_factory=dict)  # anything that JSON can hold


def save(path, model, config, *, optimiser: AdamState | None = None,
         notes: dict | None = None) -> None:
    """Write a checkpoint to `path`, whole or not at all.

    The file is an `.npz` archive: every parameter under its name, behind `model.`; both moments of
    the optimiser; and one JSON text. It is written beside `path` under another name and moved there
    when it is complete, so that whoever reads `path`, even after a crash, finds a whole file. Raises
    ValueError, writing nothing, if an entry holds a number that is not finite: `load` would refuse it.
    """
    path = Path(path)
    arrays = {f"model.{name}": array for name, array in named_parameters(model).items()}
    if optimiser is not None:
        for moment in ("first", "second"):
            moments = from_vector(model, getattr(optimiser, moment))
            arrays |= {f"{moment}.{name}": array for name, array in named_parameters(moments).items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"entry {name!r} holds what is no finite number: nothing was saved to {path}")
    header = {"format": FORMAT, "kind": type(model).__name__, "config": asdict(config),
              "step": optimiser and optimiser.step, "notes": notes or {}}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, header=json.dumps(header, ensure_ascii=False), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path, kind: type = Transformer, config_kind: type = TransformerConfig) -> Checkpoint:
    """Read a checkpoint, of the same dtype, bit for bit as it was saved.

    `kind` is the model's class, built by kind.init(rng, config), and `config_kind` its configuration's.
    Raises ValueError naming the file, and the entry that is missing, extra or misshapen. Nothing in
    the file is ever run: arrays of Python objects are refused.
    """
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no .npz archive")
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop("header")))
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}, expected {FORMAT}")
        if header["kind"] != kind.__name__:
            raise ValueError(f"it holds a {header['kind']}, not a {kind.__name__}")
        if missing := {f.name for f in fields(config_kind)} - header["config"].keys():
            raise ValueError(f"config lacks {', '.join(sorted(missing))}")
        config = config_kind(**header["config"])
        if header["step"] is not None:
            check_count("step", header["step"], 0)
        model = kind.init(np.random.default_rng(0), config)
        kinds = ("model", "first", "second") if header["step"] is not None else ("model",)
        found = {kind: {} for kind in kinds}
        for name, array in arrays.items():
            kind, _, parameter = name.partition(".")
            if kind not in found:
                raise ValueError(f"entry {name!r} belongs to no place in it")
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                raise ValueError(f"entry {name!r} of dtype {array.dtype} holds what is no finite number")
            found[kind][parameter] = array
        model, *moments = (replace_parameters(model, found[kind]) for kind in kinds)
        optimiser = AdamState(header["step"], *map(to_vector, moments)) if moments else None
        return Checkpoint(model, config, optimiser, header["notes"])
    except OSError:
        raise
    except Exception as error:  # a damaged archive can fail in a dozen ways
        raise ValueError(f"{path} is not a checkpoint of this program: {error}") from error
