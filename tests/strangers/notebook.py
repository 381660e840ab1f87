"""Runs a notebook, or a script as one, in a kernel of its own: `# %%` begins a cell. Prints what the cells print.

A notebook is written with its outputs to the path that is given second.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

path, *to = map(Path, sys.argv[1:])
if path.suffix == ".ipynb":
    notebook = nbformat.read(path, 4)
else:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in path.read_text().split("# %%\n")]
NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
for cell in notebook.cells:
    cell.metadata.pop("execution", None)  # the times
    for output in cell.get("outputs", ()):
        stream = sys.stderr if output.get("name") == "stderr" else sys.stdout
        stream.write(output.get("text", ""))
if to:
    nbformat.write(notebook, to[0])
