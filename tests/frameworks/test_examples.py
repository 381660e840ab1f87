"""The examples that need Lightning or transformers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    ran = subprocess.run([sys.executable, EXAMPLES / name], cwd=folder, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert list(folder.iterdir()) == []
    return ran.stdout


def test_lightning_swap(tmp_path: Path) -> None:
    said = run("lightning_swap.py", tmp_path)
    assert "Every loss is the same: True\n" in said
    assert said.endswith("Every loss is that of the run without a stop: True\n")


def test_hf_trainer(tmp_path: Path) -> None:
    said = run("hf_trainer.py", tmp_path)
    assert re.findall(r"epochs on penstock: (\d+)", said) == ["0", "1", "1"]
    assert said.endswith("After enable(), every loss is the same as before: True\n")
