"""`penstock.open`: finds the format of files by their content and their names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any

import penstock.formats as formats
from penstock._remote.urls import is_url
from penstock.errors import FormatError
from penstock.formats import _others
from penstock.formats._access import Access
from penstock.formats._archive import HEADER, is_archive
from penstock.formats._extents import refuse_compressed
from penstock.formats._files import AnyFile, File
from penstock.formats._megatron import MAGIC as MEGATRON
from penstock.formats._megatron import idx_path
from penstock.formats._paths import FilePath, expand, find_files
from penstock.source._folders import PICTURES, folders_below

# The format of a file by its first bytes, and by the end of its name.
_BEGINNINGS = (
    (b"PAR1", "Parquet"),
    (b"ARROW1", "Arrow"),
    (MEGATRON, "Megatron"),
    (b"\x0a\x23\xd7\xce", "RecordFile"),
)
_LMDB = b"\xde\xc0\xef\xbe"  # at byte 16
_BY_END = (formats.Parquet, formats.Arrow, formats.Tar, formats.JsonLines, formats.TextLines, formats.Tokens)
_ENDS = {end: each.__name__ for each in _BY_END for end in each.suffixes}
_ENDS |= {".rec": "RecordFile", ".mdb": "CaffeLMDB"}


def open_files(path: FilePath | Iterable[FilePath], settings: dict[str, Any]) -> Any:
    """The dataset of these files; `settings` are the arguments of its class."""
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if len(given) == 1 and os.path.isdir(given[0]) and (name := _folder(os.fspath(given[0]))):
        return _made(name, given[0], settings)
    files = _paired(_all_files(given, Access(*map(settings.get, Access._fields))))
    name = _name(files)
    if name == "TextLines" and len(given) == 1 and os.path.isdir(given[0]):
        _others.refuse_beside_text(os.path.abspath(given[0]), PICTURES)
    if name == "Tokens" and not {"dtype", "length"} <= settings.keys():
        raise FormatError(
            f"{files[0].path} looks like a file of token ids, which do not say their dtype: pass it, and the length "
            "of a sample: penstock.open(path, dtype='uint16', length=1025, stride=1024), or in a terminal penstock "
            "inspect PATH --dtype uint16 --length 1025."
        )
    if name in ("RecordFile", "CaffeLMDB"):
        if len(files) > 1:
            raise ValueError(f"{name} reads one file, but there are {len(files)}. Join them with ConcatDataset.")
        return _made(name, expand(files, (), name)[0], settings)
    return _made(name, files, settings)


def _made(name: str, paths: Any, settings: dict[str, Any]) -> Any:
    made = _class(name)
    known = list(signature(made).parameters)[1:]
    if unknown := sorted(settings.keys() - known):
        raise TypeError(
            f"these files are read by {name}, which has no argument {unknown[0]!r}. Its arguments are: "
            f"{', '.join(known)}."
        )
    return made(paths, **settings)


def _all_files(given: list[Any], access: Access) -> list[AnyFile]:
    """The files that are meant, of all formats; a prefix of Megatron's means its `.idx`."""
    ends, prefixes = (*_ENDS, ".idx"), [idx_path(one) for one in given]
    # Of a .bin that has an .idx both are named once, by the .idx.
    meant = [one if is_url(os.fspath(one)) or os.path.exists(one) else idx_path(one) for one in given]
    try:
        return find_files(meant, ends, "penstock.open", access)
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            if prefixes != meant:
                return find_files(prefixes, ends, "penstock.open", access)
        folders = [os.path.abspath(one) for one in given if os.path.isdir(one)]
        for said in filter(None, (_others.of_folder(folder, PICTURES) for folder in folders)):
            raise FormatError(said) from None
        raise


def _folder(folder: str) -> str | None:
    """The format of a folder that is one dataset as a whole; None if its files are to be looked at."""
    if os.path.isfile(os.path.join(folder, "data.mdb")):
        return "CaffeLMDB"
    for _, names in folders_below(folder):
        ends = {os.path.splitext(name)[1].lower() for name in names}
        if ends & _ENDS.keys():
            return None
        if ends & PICTURES:
            return "ImageFolder"
    return None


def _paired(files: list[AnyFile]) -> list[AnyFile]:
    """The files without those that are read with another: the `.bin` of Megatron's `.idx`, the `.idx` of a `.rec`."""
    by_path = {file.path: file for file in files}
    found: dict[str, AnyFile] = {}
    for file in files:
        index = _own_index(file, by_path)
        if index is not None or not file.path.endswith(".idx"):
            file = index or file
            found[file.identity.name] = file
    return sorted(found.values(), key=lambda file: (file.path, file.identity.name)) or files


def _own_index(file: AnyFile, by_path: Mapping[str, AnyFile]) -> AnyFile | None:
    """Megatron's `.idx` of a file, which may be that `.idx` itself. Those of remote files are looked for by name."""
    stem, end = os.path.splitext(file.path)
    if end not in (".bin", ".idx"):
        return None
    index = by_path.get(f"{stem}.idx")
    if index is None:
        if not isinstance(file, File) or not os.path.isfile(f"{stem}.idx"):
            return None
        index = File(f"{stem}.idx")
    return index if index.peek(0, min(index.size, len(MEGATRON))) == MEGATRON else None


def _name(files: list[AnyFile]) -> str:
    """The name of the class that reads the files, which all must be of one format."""
    by_end: dict[str, AnyFile] = {}
    for file in files:
        by_end.setdefault(os.path.splitext(file.path)[1].lower(), file)
    names = {end: _name_of(file) for end, file in by_end.items()}
    if len(set(names.values())) > 1:
        kinds = ", ".join(f"{end} ({name})" for end, name in sorted(names.items()))
        raise FormatError(
            f"the files are of several formats: {kinds}. Name those that are meant, such as 'folder/*.tar'."
        )
    return next(iter(names.values()))


def _name_of(file: AnyFile) -> str:
    begin = file.peek(0, min(file.size, HEADER))
    for magic, name in _BEGINNINGS:
        if begin.startswith(magic):
            return name
    if begin[16:20] == _LMDB:
        return "CaffeLMDB"
    if is_archive(begin):
        return "Tar"
    end = os.path.splitext(file.path)[1].lower()
    if end not in _ENDS and (said := _others.advice(file)):
        raise FormatError(said)
    refuse_compressed(file)
    if end not in _ENDS:
        raise FormatError(_others.unknown(file, PICTURES))
    return _ENDS[end]


def _class(name: str) -> Any:
    if name in ("RecordFile", "CaffeLMDB"):
        from penstock import records

        return getattr(records, name)
    if name == "ImageFolder":
        from penstock.image import ImageFolder

        return ImageFolder
    return getattr(formats, name)
