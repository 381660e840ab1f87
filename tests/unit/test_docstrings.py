"""The examples in docstrings run, public and private. (Those of pages: test_docs.py.)"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
WITH_EXAMPLES = [path for path in sorted(SOURCES.rglob("*.py")) if ">>> " in path.read_text()]
MODULES = [
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__") for path in WITH_EXAMPLES
]

FACES = ("penstock.torch", "penstock.jax")  # for the latter: tests/on_jax/test_docs.py


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(FACES)])
def test_the_examples_of_docstrings_run(name: str) -> None:
    ran = doctest.testmod(importlib.import_module(name))
    assert ran.attempted and not ran.failed


@pytest.mark.imports_torch
@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("penstock.torch")])
def test_the_examples_of_the_torch_face_run(name: str) -> None:
    ran = doctest.testmod(importlib.import_module(name))
    assert ran.attempted and not ran.failed
