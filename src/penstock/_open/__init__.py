"""`penstock.open` opens files of any known format as a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def open(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], **settings: Any) -> Any:
    """Returns a dataset that reads the files at these paths. Recognises their format by their content and names.

    `paths` is a path or URL, a list of these, a pattern (`"data/*.tar"`) or a folder. `settings` are the keyword
    arguments of the class that reads the format: a class of `penstock.formats`, `penstock.records.RecordFile`,
    `penstock.records.CaffeLMDB` or `penstock.image.ImageFolder`. If your program knows the format of its files, use
    the class itself. `penstock inspect PATH` shows in a terminal what files contain.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "some.jsonl")
    >>> _ = path.write_text('{"id": 1}\\n{"id": 2}\\n')
    >>> import penstock
    >>> penstock.open(path)[1]
    {'id': 2}
    """
    from penstock._open.recognise import open_files  # late, so that `import penstock` does not wait for it

    return open_files(paths, settings)
