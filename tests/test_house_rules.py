"""The rules of the house, read off the source: what a page may import, name and leave out."""

import ast
import importlib
import inspect
import re
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import numpy_transformer

ROOT = Path(numpy_transformer.__file__).parent
PAGES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path
         for path in sorted(ROOT.rglob("*.py")) if path.name not in ("__init__.py", "__main__.py")}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in PAGES.items()}


def table_of_contents() -> list[str]:
    """The chapters, in the order in which the package's own docstring lists them."""
    lines = re.findall(r"^    (\w+) +(\w+(?: · \w+)*(?:\n {8,}· \w+(?: · \w+)*)*)$", numpy_transformer.__doc__, re.MULTILINE)
    return [f"{part}.{chapter}" for part, chapters in lines for chapter in re.findall(r"\w+", chapters)]


def imports(name: str):
    """Yield the modules that a page imports, those of the book as part.chapter."""
    parts = name.split(".")[:-1]
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node.module
                continue
            base = parts[: len(parts) + 1 - node.level]
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from ([module] if module in PAGES else (f"{module}.{alias.name}" for alias in node.names))


def test_the_table_of_contents_names_every_page():
    assert sorted(table_of_contents()) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_chapter_imports_only_chapters_before_it(name):
    order = table_of_contents()
    for module in imports(name):
        if module in PAGES:
            assert order.index(module) < order.index(name), f"{name} imports {module}, which comes later"
        else:
            assert module.split(".")[0] in sys.stdlib_module_names | {"numpy"}, f"{name} imports {module}"


@pytest.mark.parametrize("name", PAGES)
def test_randomness_comes_from_a_generator(name):
    used = {node.attr for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute) and node.value.attr == "random"}
    assert used <= {"Generator", "default_rng"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_chapter_and_says_what_it_is_about(name):
    lines = PAGES[name].read_text(encoding="utf-8").split("\n")
    assert len(lines) <= 260 and max(map(len, lines)) <= 140
    first = ast.get_docstring(TREES[name]).split("\n")[0]
    assert len(first) > 30


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith(("translation", "command_line"))])
def test_a_pullback_is_a_nested_function_called_backward_and_takes_no_state_along(name):
    for function in functions(TREES[name]):
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                assert owner != "self" or function.name in ("__init__", "update", "__enter__", "ask"), \
                    f"{name}:{node.lineno} keeps state in self.{node.attr}"


LAYERS = ["Linear", "LayerNorm", "Embedding", "LearnedPositions", "SinusoidalPositions", "FeedForward",
          "MultiHeadAttention", "EncoderLayer", "DecoderLayer", "Encoder", "Decoder", "Transformer"]
OPERATIONS = ["softmax", "attention_weights", "scaled_dot_product_attention", "tiled_attention", "dropout", "relu", "gelu",
              "gelu_tanh", "cross_entropy", "residual"]


@pytest.mark.parametrize("name", LAYERS + OPERATIONS)
def test_every_component_has_both_passes_close_together(name):
    value = getattr(numpy_transformer, name)
    source = inspect.getsource(value.__call__ if inspect.isclass(value) else value)
    assert "def backward(" in source and "return" in source.split("def backward(")[1]
    assert source.count("\n") < 110


@pytest.mark.parametrize("name", LAYERS + OPERATIONS + ["Adam", "sinusoidal_positions", "warmup_schedule", "clip_gradients"])
def test_public_operations_give_their_equation_and_their_shapes(name):
    value = getattr(numpy_transformer, name)
    text = inspect.getdoc(value) + (sys.modules[value.__module__].__doc__ or "")
    assert re.search(r"[=←]", text), f"{name} shows no equation"
    if name not in ("Adam", "warmup_schedule", "clip_gradients"):
        assert re.search(r"\((\.\.\.|[A-Z])[^)]*\)|length, width", text), f"{name} shows no shape"


@pytest.mark.parametrize("name", [name for name in PAGES if name.split(".")[0] in ("attention", "layers", "model", "training")
                                  and name.split(".")[1] not in ("masks", "config", "batches", "checkpoint", "memory", "blas_threads",
                                                                 "workers", "loop", "progress_line", "encoder", "decoder")])
def test_pages_name_their_source(name):
    assert re.search(r"\b(19|20)\d\d\b", PAGES[name].read_text(encoding="utf-8")), f"{name} names no paper"


def test_public_names_are_documented():
    for name in numpy_transformer.__all__:
        assert inspect.getdoc(getattr(numpy_transformer, name)), name


SETTINGS = {"TransformerConfig", "GPTConfig", "TrainingConfig", "Adam", "Vocabulary", "CharacterVocabulary",
            "ReadReport", "Score", "Names", "Data"}


@pytest.mark.parametrize("name", PAGES)
def test_data_is_frozen_and_what_holds_arrays_is_equal_to_itself_alone(name):
    """Two models of equal arrays cannot be compared by ==, which would ask whether a whole array is true."""
    for kind in vars(importlib.import_module(f"numpy_transformer.{name}")).values():
        if is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == f"numpy_transformer.{name}":
            assert kind.__dataclass_params__.frozen, kind
            assert ("__eq__" in vars(kind)) == (kind.__name__ in SETTINGS), kind


def test_the_project_speaks_of_nothing_but_itself():
    project = ROOT.parent
    for path in [*PAGES.values(), *project.glob("tests/**/*.py"), *project.glob("benchmarks/*.py"), project / "README.md"]:
        assert not re.search(r"/wor[k]/|\.\./share[d]|\bhelper sessio[n]", path.read_text(encoding="utf-8")), path
