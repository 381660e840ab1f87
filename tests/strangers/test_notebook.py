"""examples/penstock.ipynb runs from top to bottom. PENSTOCK_RECORD=1 writes its outputs into the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")
pytest.importorskip("nbclient")

RUN = Path(__file__).with_name("notebook.py")
NOTEBOOK = Path(__file__).parents[2] / "examples" / "penstock.ipynb"


def test_the_notebook_runs(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    to = NOTEBOOK if "PENSTOCK_RECORD" in os.environ else tmp_path / "made.ipynb"
    ran = subprocess.run([sys.executable, RUN, NOTEBOOK, to], cwd=folder, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stderr
    assert "250 batches, all the same: True" in ran.stdout
    assert ran.stdout.endswith("the weights are the same, to the last bit: True\n")
    assert list(folder.iterdir()) == []
