"""The parts, in the order in which they run."""

from . import attention, decode, foundations, layers, model, step, training

OPERATIONS = {  # parts whose things are operations, or like them: passes, values, work
    "foundations": foundations.operations,
    "attention": attention.operations,
    "layers": layers.operations,
    "model": model.operations,
    "training": training.operations,
    "step": step.operations,
    "decode": decode.operations,
}
