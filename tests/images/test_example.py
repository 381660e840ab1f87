"""examples/images_torch.py, and the program of docs/images.md. torchvision needs two declarations without CUDA."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pictures import encoded, picture

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


def test_the_program_of_the_page(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```py\n(.*?)^```$", (EXAMPLE.parents[1] / "docs/images.md").read_text(), re.M | re.S)
    for label in ("cat", "dog"):
        (tmp_path / "photos/train" / label).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "photos/train" / label / f"{number}.jpg").write_bytes(encoded(picture(300, 400)))
    (tmp_path / "page.py").write_text(block.replace("num_workers=8", "num_workers=2"))
    command = [sys.executable, "-c", START, EXAMPLE.parents[1] / "tests", tmp_path / "page.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
