"""What the prose claims is run: examples in docstrings and in the README, the README's table, its figures."""

import doctest
import importlib
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import numpy_transformer

ROOT = Path(numpy_transformer.__file__).parent
README = (ROOT.parent / "README.md").read_text(encoding="utf-8")
MODULES = [".".join(("numpy_transformer", *path.relative_to(ROOT).with_suffix("").parts))
           for path in sorted(ROOT.rglob("*.py")) if path.name not in ("__init__.py", "__main__.py")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert not result.failed


def test_there_are_examples():
    count = sum(len(test.examples) for name in MODULES for test in doctest.DocTestFinder().find(importlib.import_module(name)))
    assert count > 20


def blocks(language):
    """Code blocks of the README with the block that follows each, which is what it prints."""
    return re.findall(rf"```{language}\n(.*?)```\s+(?:```\n(.*?)```)?", README, re.DOTALL)


@pytest.mark.parametrize("code, output", blocks("python"))
def test_examples_in_the_readme(code, output):
    if "import torch" in code:
        pytest.skip("needs PyTorch, which the tests do not")
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


def test_the_readme_lists_every_chapter_in_reading_order():
    from test_house_rules import table_of_contents

    linked = re.findall(r"\(numpy_transformer/(\w+)/(\w+)\.py\)", README)
    listed = [f"{part}.{chapter}" for part, chapter in linked]
    assert listed == [name for name in table_of_contents() if not name.startswith("command_line")]


def test_the_readme_shows_the_figures_of_the_demonstration():
    from attention.sqrt_dk import table

    assert table() in README
