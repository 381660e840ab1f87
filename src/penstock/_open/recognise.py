"""Implements `penstock.open`, which recognises the format of files by their content and names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any

import penstock.formats as formats
from penstock import records
from penstock._files.access import Access
from penstock._files.local import AnyFile, File
from penstock._files.paths import FilePath, find_files, given_paths
from penstock._open import others
from penstock._remote.urls import is_url
from penstock.errors import FormatError
from penstock.formats._archive import HEADER
from penstock.formats._extents import refuse_compressed
from penstock.formats._megatron import idx_path
from penstock.formats._registry import load_entry_points, registered
from penstock.source._folders import PICTURES, folders_below

FormatClass = type[Any]
"""A class that reads one file format. `suffixes`, `companions` and `matches` describe its files (see `Format`)."""

# Formats are tried in this order. ImageFolder is chosen by the names of the files in a folder.
_OURS: tuple[FormatClass, ...] = (
    formats.Parquet,
    formats.Arrow,
    formats.Megatron,
    records.RecordFile,
    records.CaffeLMDB,
    formats.MDS,
    formats.LitData,
    formats.TFRecord,
    formats.Tar,
    formats.JsonLines,
    formats.TextLines,
    formats.Tokens,
)


def open_files(path: FilePath | Iterable[FilePath], settings: dict[str, Any]) -> Any:
    given: list[Any] = given_paths(path, "penstock.open")
    if len(given) == 1 and os.path.isdir(given[0]) and (whole := _folder(os.fspath(given[0]))):
        return _made(whole, given[0], settings)
    access = Access(**{name: settings[name] for name in Access._fields if name in settings})
    files = _paired(_all_files(given, access))
    found = _format(files)
    if found is formats.TextLines and len(given) == 1 and os.path.isdir(given[0]):
        others.refuse_beside_text(os.path.abspath(given[0]))
    if found is formats.Tokens and not {"dtype", "length"} <= settings.keys():
        raise FormatError(
            f"{files[0].path} looks like a file of token ids, which does not state its dtype. Pass the dtype and the "
            "length of a sample: penstock.open(path, dtype='uint16', length=1025, stride=1024), or in a terminal "
            "penstock inspect PATH --dtype uint16 --length 1025."
        )
    return _made(found, files, settings)


def _made(made: FormatClass, paths: Any, settings: dict[str, Any]) -> Any:
    known = list(signature(made).parameters)[1:]
    if unknown := sorted(settings.keys() - known):
        raise TypeError(
            f"these files are read by {made.__name__}, which has no argument {unknown[0]!r}. Its arguments are: "
            f"{', '.join(known)}."
        )
    return made(paths, **settings)


def _classes() -> Iterator[FormatClass]:
    yield from registered()
    yield from _OURS


def _ends() -> tuple[str, ...]:
    return tuple(dict.fromkeys(end for each in _classes() for end in each.suffixes))


def _all_files(given: list[Any], access: Access) -> list[AnyFile]:
    """Returns the given files, and the files of known formats in the given folders.

    A Megatron prefix, which is a path without `.bin` or `.idx`, is replaced by the path of its `.idx` file.
    """
    prefixes = [idx_path(one) for one in given]
    # A path that does not exist may be a Megatron prefix, whose .idx stands for both files.
    meant = [one if is_url(os.fspath(one)) or os.path.exists(one) else idx_path(one) for one in given]
    try:
        return find_files(meant, _ends(), "penstock.open", access)
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            if prefixes != meant:
                return find_files(prefixes, _ends(), "penstock.open", access)
        if load_entry_points():
            return _all_files(given, access)
        folders = [os.path.abspath(one) for one in given if os.path.isdir(one)]
        for said in filter(None, map(others.of_folder, folders)):
            raise FormatError(said) from None
        raise


def _folder(folder: str) -> Any:
    """Returns the class that reads this folder as a whole, or None if each file must be examined."""
    if os.path.isfile(os.path.join(folder, "data.mdb")):
        return records.CaffeLMDB
    others = tuple(end for each in _classes() for end in _own_ends(each))
    for _, names in folders_below(folder):
        some = [name.lower() for name in names]
        if any(name.endswith(others) for name in some):
            return None
        if any(os.path.splitext(name)[1] in PICTURES for name in some):
            from penstock.image import ImageFolder  # late, because it needs libraries

            return ImageFolder
    return None


def _paired(files: list[AnyFile]) -> list[AnyFile]:
    """Returns the list with each Megatron `.bin` replaced by its `.idx`, and without files that accompany others."""
    by_path = {file.path: file for file in files}
    found: dict[str, AnyFile] = {}
    for file in files:
        index = _own_index(file, by_path)
        if index is not None or not file.path.endswith(".idx"):
            file = index or file
            found[file.identity.name] = file
    kept = _without_companions(list(found.values()))
    return sorted(kept, key=lambda file: (file.path, file.identity.name)) or files


def _without_companions(files: list[AnyFile]) -> list[AnyFile]:
    """Leaves out every unrecognised index.json, and files that belong to a recognised one, such as chunks."""
    others: set[str] = set()
    names = tuple(end for end in _ends() if not end.startswith("."))
    for file in files if len(files) > 1 else ():
        folder, _, name = file.path.rpartition("/")
        if not name.lower().endswith(names):
            continue
        own = _by_content(_begin(file))
        if own is None:
            others.add(file.identity.name)
            continue
        for one in files:
            beside, _, named = one.path.rpartition("/")
            if beside == folder and any(fnmatchcase(named, pattern) for pattern in own.companions):
                others.add(one.identity.name)
    return [file for file in files if file.identity.name not in others] or files


def _own_index(file: AnyFile, by_path: Mapping[str, AnyFile]) -> AnyFile | None:
    """Returns the Megatron index that belongs to a `.bin` or `.idx` file, or None if the file is not Megatron's."""
    stem, end = os.path.splitext(file.path)
    if end not in (".bin", ".idx"):
        return None
    index = by_path.get(f"{stem}.idx")
    if index is None:
        if not isinstance(file, File) or not os.path.isfile(f"{stem}.idx"):
            return None
        index = File(f"{stem}.idx")
    return index if formats.Megatron.matches(_begin(index)) else None


def _format(files: list[AnyFile]) -> FormatClass:
    by_end: dict[str, AnyFile] = {}
    for file in files:
        by_end.setdefault(os.path.splitext(file.path)[1].lower(), file)
    found = {end: _format_of(file) for end, file in by_end.items()}
    if len(set(found.values())) > 1:
        kinds = ", ".join(f"{end} ({one.__name__})" for end, one in sorted(found.items()))
        raise FormatError(
            f"the files are of several formats: {kinds}. Name those that are meant, such as 'folder/*.tar'."
        )
    return next(iter(found.values()))


def _begin(file: AnyFile) -> bytes:
    return bytes(file.peek(0, min(file.size, HEADER)))


def _by_content(begin: bytes) -> FormatClass | None:
    return next((each for each in _classes() if each.matches(begin)), None)


def _by_name(path: str) -> FormatClass | None:
    name = path.lower()
    return next((each for each in _classes() if name.endswith(_own_ends(each))), None)


def _own_ends(found: FormatClass) -> tuple[str, ...]:
    """Returns the suffixes of a format, except index.json and .idx, which are not specific to one format."""
    return tuple(end for end in found.suffixes if end.startswith(".") and end != ".idx")


def _format_of(file: AnyFile) -> FormatClass:
    begin = _begin(file)
    found, named = _by_content(begin), _by_name(file.path)
    if found is None and named is None and load_entry_points():
        found, named = _by_content(begin), _by_name(file.path)
    if found is not None:
        return found
    if named is None and (said := others.advice(file)):
        raise FormatError(said)
    refuse_compressed(file)
    if named is None:
        raise FormatError(others.unknown(file))
    return named
