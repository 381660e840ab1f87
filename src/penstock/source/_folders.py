"""Finds the files below a folder, following links. Also defines the suffixes of picture files.

This module imports only the standard library, so `ImageFolder`, `Tar` and `penstock.open` can all import it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

PICTURES = frozenset(
    [".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".avif"]
)
"""Suffixes of the picture files that `penstock.image` decodes."""

Above = tuple[tuple[int, int], ...]
"""A folder and its parents up to the start of the search, each as (device, inode number)."""


def files_below(root: str, folder: str = "", above: Above = ()) -> Iterator[str]:
    """Yields all non-hidden files below a folder, as paths relative to `root`.

    Files and folders are sorted together by name. A link to a folder is followed, unless it leads back to a
    folder that contains the link. Raises OSError if a folder cannot be read.
    """
    here = os.path.join(root, folder)
    found, above = _inside(here, above or (_number(root),), hidden=False)
    for name, is_folder in found:
        path = os.path.join(folder, name)
        if not is_folder:
            yield path
        elif not _leads_back(os.path.join(here, name), above):
            yield from files_below(root, path, above)


def folders_below(folder: str, *, hidden: bool = False, above: Above = ()) -> Iterator[tuple[str, list[str]]]:
    """Yields the folder and all folders below it, parents first, each with the names of its files.

    Links are followed as in `files_below`. Folders that cannot be read, such as lost+found, are left out.
    """
    try:
        found, above = _inside(folder, above, hidden)
    except (PermissionError, FileNotFoundError, NotADirectoryError):  # but not a shortage, such as EMFILE
        return
    yield folder, [name for name, is_folder in found if not is_folder]
    for path in (os.path.join(folder, name) for name, is_folder in found if is_folder):
        if not _leads_back(path, above):
            yield from folders_below(path, hidden=hidden, above=above)


def _inside(folder: str, above: Above, hidden: bool) -> tuple[list[tuple[str, bool]], Above]:
    """Returns a folder's sorted entries as (name, is folder) pairs, and `above` with this folder added."""
    with os.scandir(folder) as entries:
        found = sorted((each.name, _is_folder(each)) for each in entries if hidden or not each.name.startswith("."))
    return found, (*above, _number(folder))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or into a folder that cannot be read
        return False


def _leads_back(folder: str, above: Above) -> bool:
    """True if the folder is a link that leads back to one of the folders in `above`."""
    try:
        return _number(folder) in above
    except OSError:  # opening it will raise a better error
        return False


def _number(folder: str) -> tuple[int, int]:
    about = os.stat(folder)
    return about.st_dev, about.st_ino
