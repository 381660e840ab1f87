"""Every example runs, here or in a group whose environment has what it needs, and is in examples/README.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTS = EXAMPLES.parent / "tests"


def run(name: str, folder: Path, seconds: float = 100) -> str:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=folder, capture_output=True, text=True, timeout=seconds
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


def test_the_files_of_caffe_and_mxnet(tmp_path: Path) -> None:
    said = run("caffe_and_mxnet_files.py", tmp_path)
    right = [int(share) for share in re.findall(r"epoch 5: (\d+)% of 300 test images are right", said)]
    assert len(right) == 2 and min(right) > 80
    assert said.endswith("Both files have the same test images and labels: True\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.quiet
def test_the_verdicts_make_a_loop_faster(tmp_path: Path) -> None:
    said = run("find_the_bottleneck.py", tmp_path)
    assert "because it loads the data itself" in said
    assert float(re.findall(r"([\d.]+) times as fast", said)[0]) > 4
    assert [path.name for path in tmp_path.iterdir()] == ["bottleneck.html"]


def test_the_readme_lists_every_example_and_each_has_a_test() -> None:
    listed = re.findall(r"^\| \[`([^`]+)`\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert set(listed) == files
    tests = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert [name for name in files if name not in tests] == []


def test_the_notebook_has_small_outputs_and_no_error() -> None:
    path = EXAMPLES / "penstock.ipynb"
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert path.stat().st_size < 60_000
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert all(cell["outputs"] for cell in cells)
    assert {output["output_type"] for cell in cells for output in cell["outputs"]} <= {"stream", "execute_result"}
    assert "stderr" not in {output.get("name") for cell in cells for output in cell["outputs"]}
