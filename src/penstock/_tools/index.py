"""The command `penstock index`, which writes an index next to tar files. With an index, loading needs no scan."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock._cache.pieces import write_all
from penstock._files.access import Access
from penstock._files.identity import Identity
from penstock._files.index import Index, cached_each, for_each
from penstock._files.local import AnyFile
from penstock._files.paths import find_files
from penstock._files.remote import RemoteFile
from penstock._printable import counted, printable
from penstock._system import trust
from penstock.errors import FormatError, RemoteError
from penstock.formats._beside import NAME, Beside, Entry, entry_of, folder_of, neighbour, packed, unpacked
from penstock.formats._samples import KIND, find_samples
from penstock.formats._tar import BadRows, Tar
from penstock.stats._units import size


def run(paths: Sequence[str], out: str | None, storage: dict[str, Any] | None = None) -> int:
    try:
        files = find_files(list(paths), Tar.suffixes, "penstock index", Access(storage, cache=False))
        folders: dict[str, list[AnyFile]] = {}
        for file in files:
            folders.setdefault(folder_of(file), []).append(file)
        if out is not None and len(folders) > 1:
            some = " and ".join(list(folders)[:2])
            raise ValueError(f"--out is for the tars of one folder, but these are in {some}. Index them one by one.")
        there = Beside(files, None, KIND, warns=False)
        found = cached_each(files, KIND, find_samples, there)
        indexes = dict(zip((file.identity for file in files), found, strict=True))
        return max(_index(some, indexes, out) for some in folders.values())
    except (OSError, ValueError, ImportError, TypeError) as error:
        print(printable(f"penstock index: {error}", lines=True), file=sys.stderr)
        return 1


def _index(files: Sequence[AnyFile], indexes: Mapping[Identity, Index], out: str | None) -> int:
    """Writes the index of one folder's tar files.

    If `out` is None, the folder's existing index is updated, and keeps its entries for tars that are not in `files`.
    """
    entries = {} if out is not None else _present(files[0])
    made = for_each(lambda file: entry_of(file, indexes[file.identity]), files)
    entries.update(zip((os.path.basename(file.path) for file in files), made, strict=True))
    content = packed(entries, KIND)
    where, code = _written(files[0], content, out)
    samples = sum(len(indexes[file.identity]["starts"]) - 1 for file in files)
    tars = f"{counted(len(files), 'tar')} with {counted(samples, 'sample')}"
    print(printable(f"{where}: {tars}, {size(len(content))}"))
    for file in files:
        index = indexes[file.identity]
        bad = BadRows.of(index)
        if "fault" in index:
            what = f"byte {bad.byte:,}: the tar is cut off or damaged here, and the rest cannot be read"
            print(f"{printable(file.path)}, {what}")
        if bad.others:
            have = f"{counted(len(bad.others), 'sample')} {'has' if len(bad.others) == 1 else 'have'}"
            print(f"{printable(file.path)}: {have} members that are not beside each other")
    return code


def _present(file: AnyFile) -> dict[str, Entry]:
    """Returns the entries of the index in the folder of `file`, or {} if the index is missing or damaged."""
    index = neighbour(file, NAME)
    try:
        return {} if index is None else unpacked(index.peek(0, index.size), KIND)
    except (ValueError, FormatError):
        return {}


def _written(file: AnyFile, content: bytes, out: str | None) -> tuple[str, int]:
    """Writes the index. Returns its path and the exit code: 1 if the folder is remote and cannot be written to."""
    if out is None and isinstance(file, RemoteFile):
        where = f"{folder_of(file)}/{NAME}"
        try:
            file.write_neighbour(NAME, content)
        except RemoteError as error:
            path = Path(NAME).absolute()
            _replace(path, content)
            remedy = f"It was written to {path}: copy it to {where}, or pass Tar(..., index={str(path)!r})"
            print(printable(f"penstock index: {error} {remedy}."), file=sys.stderr)
            return str(path), 1
        return where, 0
    path = Path(out).absolute() if out is not None else Path(file.path).with_name(NAME)
    _replace(path, content)
    return str(path), 0


def _replace(path: Path, content: bytes) -> None:
    trust.replace(os.fspath(path), lambda fd: write_all(fd, memoryview(content)))
