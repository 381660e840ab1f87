"""examples/images_torch.py, with the declarations that torchvision needs beside a torch without CUDA."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "images_torch.py"
START = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
from images.vision import declare_operators
declare_operators()
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_images_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, EXAMPLE.parents[1] / "tests", EXAMPLE]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert ran.stdout.endswith("With both lines, every loss is the same as before: True\n")
    assert len(re.findall(r"(\d+) images/s", ran.stdout)) == 4
    assert list(tmp_path.iterdir()) == []
