"""The examples of the pages about JAX, of docstrings, and examples/images_jax.py, each as a program of its own."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock.jax._loader

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ["jax.md", "from-grain.md"]

pytestmark = pytest.mark.timeout(500)  # an example may compile several programs, on a busy machine


def ran(folder: Path, script: Path, devices: int = 1) -> str:
    """What the program prints. It runs from another folder, and says nothing else."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **flags}, capture_output=True, text=True)
    said = "".join(line for line in done.stderr.splitlines(keepends=True) if "absl" not in line)
    assert (done.returncode, said) == (0, ""), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{page}:{number}")
        for page in PAGES
        for number, code in enumerate(BLOCK.findall((ROOT / "docs" / page).read_text()), 1)
    ],
)
def test_an_example_runs_as_a_program(code: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    ran(tmp_path, script)


@pytest.mark.parametrize("devices", [1, 4])
def test_the_training_example_continues_exactly(devices: int, tmp_path: Path) -> None:
    said = ran(tmp_path, ROOT / "examples/images_jax.py", devices)
    assert "the weights are the same to the last bit" in said
    assert "one compilation for 1 shape of batches" in said
    hits = re.search(r"of 250 new images (\d+) are right", said)
    assert hits is not None
    assert int(hits[1]) > 180


@pytest.mark.parametrize("module", [penstock.jax._loader, penstock.jax._batch])
def test_the_examples_of_docstrings_run(module: Any) -> None:
    done = doctest.testmod(module)
    assert done.attempted
    assert not done.failed
