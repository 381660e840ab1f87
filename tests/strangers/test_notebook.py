"""examples/penstock.ipynb runs from top to bottom. PENSTOCK_RECORD=1 writes its outputs into the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "penstock.ipynb"


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "250 batches, all the same: True" in said
    assert said.endswith("the weights are the same, to the last bit: True\n")
    assert list(tmp_path.iterdir()) == []
    if "PENSTOCK_RECORD" in os.environ:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # the times of each cell
        nbformat.write(notebook, NOTEBOOK)
