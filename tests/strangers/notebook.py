"""Runs a script as a notebook, in a kernel of its own: `# %%` begins a cell. Prints what the cells print."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

text = Path(sys.argv[1]).read_text()
notebook = nbformat.v4.new_notebook()
notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in text.split("# %%\n")]
NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.outputs:
        stream = sys.stderr if output.get("name") == "stderr" else sys.stdout
        stream.write(output.get("text", ""))
