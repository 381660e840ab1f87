"""The examples that need torchvision, Lightning or transformers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

# torchvision's wheel is compiled for a torch with CUDA: see frameworks.vision.
START = """
import runpy, sys
sys.path.insert(0, {tests!r})
from frameworks.vision import declare_operators
declare_operators()
sys.argv = [{path!r}]
runpy.run_path({path!r}, run_name="__main__")
"""


def run(name: str, folder: Path) -> str:
    path = EXAMPLES / name
    command = [sys.executable, path]
    if name == "images_torch.py":
        command = [sys.executable, "-c", START.format(tests=str(EXAMPLES.parent / "tests"), path=str(path))]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert list(folder.iterdir()) == []
    return ran.stdout


def test_images_torch(tmp_path: Path) -> None:
    said = run("images_torch.py", tmp_path)
    assert said.endswith("With both lines, every loss is the same as before: True\n")
    rates = [int(rate) for rate in re.findall(r"(\d+) images/s", said)]
    assert len(rates) == 4 and min(rates) > 0


def test_lightning_swap(tmp_path: Path) -> None:
    said = run("lightning_swap.py", tmp_path)
    assert "Every loss is the same: True\n" in said
    assert said.endswith("Every loss is that of the run without a stop: True\n")


def test_hf_trainer(tmp_path: Path) -> None:
    said = run("hf_trainer.py", tmp_path)
    assert re.findall(r"epochs on penstock: (\d+)", said) == ["0", "1", "1"]
    assert said.endswith("After enable(), every loss is the same as before: True\n")
