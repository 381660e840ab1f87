"""Where the columns of a Parquet file are, and which pieces of a remote file hold them.

The footer is read here, and not by pyarrow: its `RowGroupMetaData.column` ends the process if the footer is damaged.
The footer is in Thrift's compact protocol:

    struct:  fields, each with a byte (distance to the number of the field before << 4 | type); 0 is the end
    list:    a byte (length << 4 | type; 15 if the length follows), then the values
    number:  seven bits in each byte, the lowest first; signed ones as 0, -1, 1, -2, ...
    bytes:   the length as a number, then the bytes
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.formats._remotefile import PIECE, RemoteFile

_GAP = 1 << 20  # bytes between two extents that are read rather than asked around: 10 ms at 100 MB/s
# Numbers of fields in parquet.thrift.
_ROW_GROUPS, _COLUMNS, _ABOUT = 4, 1, 3
_PATH, _SIZE, _PAGES, _DICTIONARY = 3, 7, 9, 11

Extent = tuple[int, int]
"""The first byte, and the end."""


def extents(footer: bytes, columns: Sequence[str]) -> list[list[Extent]]:
    """The bytes of some columns in each row group. Extents with a small gap between them are joined.

    Raises ValueError for a footer that cannot be read.
    """
    names = {name.encode() for name in columns}
    try:
        groups = [
            [chunk[_ABOUT] for chunk in group[_COLUMNS]] for group in _Thrift(footer).struct().get(_ROW_GROUPS, [])
        ]
        return [_joined([_extent(about) for about in group if about[_PATH][0] in names]) for group in groups]
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the footer is damaged: {error!r}") from error


def _extent(about: dict[int, Any]) -> Extent:
    start = min(about[_PAGES], about.get(_DICTIONARY) or about[_PAGES])
    return start, start + about[_SIZE]


def _joined(found: list[Extent]) -> list[Extent]:
    joined: list[Extent] = []
    for start, stop in sorted(found):
        if joined and start - joined[-1][1] < _GAP:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


def edges(groups: Sequence[Sequence[Extent]], size: int) -> NDArray[np.int64]:
    """The edges of pieces that begin and end with the extents of a row group, and are not longer than others."""
    cuts = {0, size, *(cut for group in groups for extent in group for cut in extent)}
    inside = sorted(cut for cut in cuts if 0 <= cut <= size)
    parts = [np.arange(first, last, PIECE) for first, last in pairwise(inside)]
    return np.concatenate([*parts, [size]]).astype(np.int64)


class Fetched:
    """Extents of a remote file, read at once; other bytes are read when they are asked for."""

    def __init__(self, file: RemoteFile, extents: Sequence[Extent]) -> None:
        self._file, self.size = file, file.size
        inside = [(start, stop) for start, stop in extents if 0 <= start <= stop <= file.size]
        self._starts = [start for start, _ in inside]
        self._raws = file.read_each(self._starts, [stop - start for start, stop in inside])

    def read(self, start: int, length: int) -> bytes:
        number = bisect_right(self._starts, start) - 1
        if number >= 0:
            at = start - self._starts[number]
            if at + length <= len(self._raws[number]):
                return self._raws[number][at : at + length]
        return self._file.read(start, length)


class _Thrift:
    """Values of the compact protocol, one after another. Raises IndexError or others beyond the end."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def struct(self) -> dict[int, Any]:
        """The fields of a struct by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, in_struct=True)
        return fields

    def _value(self, kind: int, in_struct: bool = False) -> Any:
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 8:
            return self._bytes(self._number())
        if kind == 12:
            return self.struct()
        if kind in (9, 10):
            return self._list()
        if kind in (1, 2):  # true and false: the type is the value, but not in lists
            return kind == 1 if in_struct else self._byte()
        if kind in (3, 7):
            return self._bytes(1 if kind == 3 else 8)
        raise ValueError(f"a value of type {kind} at byte {self._at:,} of the footer")

    def _list(self) -> list[Any]:
        head = self._byte()
        length = head >> 4 if head >> 4 < 15 else self._number()
        if length > len(self._content):
            raise ValueError(f"a list of {length:,} values in a footer of {len(self._content):,} bytes")
        return [self._value(head & 15) for _ in range(length)]

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _bytes(self, length: int) -> bytes:
        if length > len(self._content) - self._at:
            raise IndexError(f"{length:,} bytes at byte {self._at:,}")
        self._at += length
        return self._content[self._at - length : self._at]

    def _number(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7

    def _signed(self) -> int:
        found = self._number()
        return found >> 1 ^ -(found & 1)
