"""Finds the samples of a tar file, and the offset at which a damaged file becomes unreadable."""

from __future__ import annotations

import sys
from array import array
from typing import NoReturn

import numpy as np

from penstock._files.index import Arrays
from penstock._files.local import AnyFile
from penstock.errors import FormatError
from penstock.formats._archive import Member, check_complete, member_at
from penstock.formats._extents import compact, refuse_compressed

KIND = "tar-2"
"""Name and version of the index that `find_samples` builds. Change the version whenever the index changes."""

_PIECE = 1 << 20


def split_name(member: Member) -> tuple[str, str] | None:
    """Returns the sample key and the field name of a tar member, or None if the member belongs to no sample."""
    folder, slash, file = member.name.rpartition("/")
    stem, _, field = file.partition(".")
    first = member.name.partition("/")[0]
    if member.is_folder or not stem or not field or (first[:2] == first[-2:] == "__" and len(first) > 3):
        return None
    return folder + slash + stem, field.lower()


class TarFault(FormatError):
    """Raised if the content of a tar file is damaged. Disk and network failures raise other errors."""


class FaultRaisingFile(AnyFile):
    """A file that reports damaged content by raising `TarFault`."""

    def __init__(self, file: AnyFile) -> None:
        self.path, self.size = file.path, file.size
        self.read = file.read  # type: ignore[method-assign]

    def refused(self, place: int, what: str) -> NoReturn:
        try:
            super().refused(place, what)
        except FormatError as error:
            raise TarFault(str(error)) from None


def find_samples(file: AnyFile) -> Arrays:
    """Returns the index of a tar file. Adjacent members with the same sample key form a row.

    - `starts` holds the offset of each row, followed by the end of the last row.
    - `apart` holds pairs of rows with the same key. The first row of each pair cannot be read.
    - `fault` is present if the tar is damaged. It holds the offset of the damage, and the index of the last row.
      That row stands for everything that cannot be read.
    """
    refuse_compressed(file)
    archive, samples = FaultRaisingFile(file), TarSamples()
    at, fault = 0, False
    try:
        while (member := member_at(archive, at)) is not None:
            samples.add(member)
            check_complete(archive, member)
            at = member.stop
        samples.close()
        _check_rest(archive, at)
    except TarFault:
        fault = True
    return samples.index(at, fault, file.size)


class TarSamples:
    """Groups the members of a tar file into samples. Members are added one by one."""

    def __init__(self) -> None:
        self._starts, self._apart = array("q"), array("q")
        self._key: str | None = None
        self._fields: list[str] = []
        self._known: dict[str, tuple[int, str]] = {}  # by key: the first row, and its fields

    def add(self, member: Member) -> None:
        split = split_name(member)
        if split is None:
            return
        if split[0] != self._key:
            self.close()
            self._key = split[0]
            self._starts.append(member.start)
        self._fields.append(split[1])

    def close(self) -> None:
        key, fields, row = self._key, self._fields, len(self._starts) - 1
        self._key, self._fields = None, []
        if key is None:
            return
        if key not in self._known:
            self._known[key] = row, sys.intern("/".join(fields))  # no field has a slash
            return
        other, others = self._known[key]
        self._apart.extend((row, other))
        if not set(others.split("/")).intersection(fields):  # two parts of one sample, not two samples of one name
            self._apart.extend((other, row))

    def index(self, end: int, fault: bool, size: int) -> Arrays:
        starts = self._starts
        if fault and self._key is None:  # the fault is not in a sample, so it gets its own row
            starts.append(end)
        self.close()
        starts.append(starts[-1] if fault else end)  # a row that cannot be read has no bytes
        found = {"starts": compact(np.array(starts, np.int64), size)}
        if self._apart:
            found["apart"] = np.array(self._apart, np.int64).reshape(-1, 2)
        if fault:
            found["fault"] = np.array([end, len(starts) - 2], np.int64)
        return found


def follow(archive: AnyFile, at: int) -> None:
    """Reads a damaged tar at the offset `at`, to raise the error that describes the damage."""
    member = member_at(archive, at)
    if member is None:
        _check_rest(archive, at)
    else:
        check_complete(archive, member)


def _check_rest(archive: AnyFile, end: int) -> None:
    """Raises FormatError unless only zeros follow the end of the archive."""
    for at in range(end, archive.size, _PIECE):
        piece = archive.read(at, min(_PIECE, archive.size - at))
        if piece.count(0) != len(piece):
            remedy = "If tar files were joined by cat, join them by tar --concatenate"
            archive.refused(end, f"the archive ends here, but more follows. {remedy}")
