"""The example and the page about Ray run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import Nodes, until

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "ray.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_loses_a_node_and_no_batch(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(uuid.uuid4().hex * 2)  # as a local ray.init() leaves it in HOME
    mark = f"PENSTOCK_EXAMPLE={uuid.uuid4()}"
    environment = {**os.environ, **dict([mark.split("=")]), "HOME": str(tmp_path)}
    command = [sys.executable, ROOT / "examples" / "ray_cluster.py"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    *lines, last = ran.stdout.splitlines()[-3:]
    assert last == "100 batches, equal to those of a plain loop: True"
    lost, end = (int(steps) for line in lines for steps in re.findall(r"127\.0\.0\.2: (\d+) steps", line))
    assert 0 < lost <= end <= lost + 2, lines  # of each of two workers, a step may have been on its way
    until(lambda: not marked(mark.encode()), "no process of the example is left", 10)


def marked(mark: bytes) -> list[int]:
    """The processes whose environment has this."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("code", BLOCKS, ids=range(1, len(BLOCKS) + 1))
def test_an_example_of_the_page_runs_as_a_program(code: str, nodes: Nodes, tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_ADDRESS": nodes.cluster.address}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr


def test_the_page_has_an_example() -> None:
    assert BLOCKS
