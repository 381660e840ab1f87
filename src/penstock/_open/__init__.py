"""`penstock.open`: a dataset of files, whatever their format."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def open(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], **settings: Any) -> Any:
    """Returns the dataset of the files at these paths. Their format is recognised by their content and their names.

    `paths` is a path or URL, a list of these, a pattern (`"data/*.tar"`) or a folder. `settings` are the arguments of
    the class that reads the format: those of `penstock.formats`, `penstock.records.RecordFile` and `CaffeLMDB`, or
    `penstock.image.ImageFolder`. Choose the class itself in a program that knows its format. `penstock inspect PATH`
    shows in a terminal what files hold.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "some.jsonl")
    >>> _ = path.write_text('{"id": 1}\\n{"id": 2}\\n')
    >>> import penstock
    >>> penstock.open(path)[1]
    {'id': 2}
    """
    from penstock._open.recognise import open_files  # late: `import penstock` need not wait for the formats

    return open_files(paths, settings)
