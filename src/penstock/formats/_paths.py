"""Which files a path means: the file itself, a list of paths, a pattern, or a folder."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator

FilePath = str | os.PathLike[str]
Paths = FilePath | Iterable[FilePath]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def expand(paths: Paths, suffixes: Collection[str], reader: str) -> list[str]:
    """The files that are meant, as absolute paths, sorted and each once.

    Of a folder these are all files below it that end in one of the suffixes, hidden ones excluded. A pattern (`*`,
    `?`, `[...]`, `**`) means the files that match. `reader` is the name of the format, for errors.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise ValueError(f"{reader} needs at least one path, but got an empty list.")
    found: set[str] = set()
    for path in given:
        found.update(_files_of(_local(path, reader), suffixes, reader))
    return sorted(found)


def _local(path: FilePath, reader: str) -> str:
    """The absolute path, so that it means the same file after a change of the working directory."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"{reader} takes paths as str or os.PathLike, but got {path!r}.")
    if _URL.match(text):
        raise ValueError(
            f"{reader} reads local files, and {text!r} is a URL. Copy the files to a local disk, or mount them, and "
            "pass their path."
        )
    return os.path.abspath(text)


def _files_of(path: str, suffixes: Collection[str], reader: str) -> Iterable[str]:
    if os.path.isdir(path):
        found = list(_below(path, tuple(suffixes)))
        if not found:
            raise FileNotFoundError(
                f"{reader}: no file below the folder {path!r} ends in {' or '.join(sorted(suffixes))}. Name the "
                "files themselves, or a pattern such as 'folder/*.xyz'."
            )
        return found
    if os.path.exists(path):  # also if its name looks like a pattern
        return [path]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"{reader}: there is no file or folder {path!r}.")
    found = [match for match in glob.iglob(path, recursive=True) if not os.path.isdir(match)]
    if not found:
        raise FileNotFoundError(f"{reader}: no file matches the pattern {path!r}.")
    return found


def _below(folder: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(suffixes) and not name.startswith("."):
                yield os.path.join(where, name)
