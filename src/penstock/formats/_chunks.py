"""Finds the columns of a Parquet file, and divides a remote file into pieces that are aligned with them.

The footer is not parsed by pyarrow, because pyarrow's `RowGroupMetaData.column` crashes on a damaged footer. The
footer uses Thrift's compact protocol:

    struct:  fields, each with a byte (difference to the previous field's number << 4 | type); 0 is the end
    list:    a byte (length << 4 | type; 15 if the length follows), then the values
    number:  seven bits in each byte, the lowest first; signed numbers are encoded as 0, -1, 1, -2, ...
    bytes:   the length as a number, then the bytes
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._files.local import AnyFile
from penstock._files.remote import PIECE, RemoteFile

_GAP = 1 << 20  # bytes: reading a smaller gap takes 10 ms at 100 MB/s, and saves a request

ByteRange = tuple[int, int]
"""The offset of the first byte, and the offset after the last byte."""


class ColumnChunk(NamedTuple):
    """The footer's description of a column in a row group. A nested column has one chunk for each leaf."""

    path: str
    type: str
    values: int
    nbytes: int  # uncompressed
    has_dictionary: bool
    extent: ByteRange


def chunks(footer: bytes, columns: Sequence[str]) -> list[list[ColumnChunk]]:
    """Returns, for each row group, the chunks of the given columns. Raises ValueError if the footer is damaged."""
    names = {name.encode() for name in columns}
    try:
        groups = _struct(footer, 0, _OF_FILE)[0][_ROW_GROUPS]
        abouts = [[chunk[_ABOUT] for chunk in group[_COLUMNS]] for group in groups]
        return [[_chunk(about) for about in group if about[_PATH][0] in names] for group in abouts]
    except (IndexError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"the footer is damaged: {error!r}") from error


def _chunk(about: dict[int, Any]) -> ColumnChunk:
    pages, dictionary = about[_PAGES], about.get(_DICTIONARY)
    start = min(pages, dictionary or pages)
    return ColumnChunk(
        b".".join(about[_PATH]).decode(),
        _TYPES[about[_TYPE]],
        about[_VALUES],
        about[_UNCOMPRESSED],
        dictionary is not None,
        (start, start + about[_SIZE]),
    )


def places(chunks: Sequence[Sequence[ColumnChunk]]) -> NDArray[np.int64]:
    """Returns the chunks' byte ranges as rows (row group, start, end). Ranges with a small gap between are joined."""
    found: list[tuple[int, int, int]] = []
    for number, group in enumerate(chunks):
        found += [(number, *extent) for extent in joined((chunk.extent for chunk in group), _GAP)]
    return np.array(found, np.int64).reshape(-1, 3)  # OverflowError: an offset is too large for any file


def joined(extents: Iterable[ByteRange], gap: int, most: int = sys.maxsize) -> list[ByteRange]:
    """Joins byte ranges with fewer than `gap` bytes between them, if the joined range has fewer than `most` bytes."""
    found: list[ByteRange] = []
    for start, stop in sorted(extents):
        if found and start - found[-1][1] < gap and stop - found[-1][0] < most:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def edges(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns offsets that divide a file into pieces of at most `PIECE` bytes, aligned with the ranges `places`."""
    cuts = {0, size, *places[:, 1:].reshape(-1).tolist()}
    inside = sorted(cut for cut in cuts if 0 <= cut <= size)
    parts = [np.arange(first, last, PIECE) for first, last in pairwise(inside)]
    return np.concatenate([*parts, [size]]).astype(np.int64)


class Fetched(AnyFile):
    """A remote file that reads the given byte ranges in advance, all at once. Other bytes are read when needed."""

    def __init__(self, file: RemoteFile, extents: Sequence[ByteRange]) -> None:
        self._file, self.path, self.size = file, file.path, file.size
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


ReadValue = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value at an offset, and the offset after the value."""

Wanted = tuple[int, ReadValue]
"""The type of a Thrift field, and the function that reads its value."""


def _number(footer: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while (byte := footer[at]) > 127:
        found |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
    return found | byte << shift, at + 1


def _signed(footer: bytes, at: int) -> tuple[int, int]:
    found, at = _number(footer, at)
    return found >> 1 ^ -(found & 1), at


def _bytes(footer: bytes, at: int) -> tuple[bytes, int]:
    length, at = _number(footer, at)
    return footer[at : at + length], at + length


def _list(footer: bytes, at: int, read: ReadValue) -> tuple[list[Any], int]:
    _, length, at = _head(footer, at)
    found = []
    for _ in range(length):
        value, at = read(footer, at)
        found.append(value)
    return found, at


def _struct(footer: bytes, at: int, wanted: Mapping[int, Wanted]) -> tuple[dict[int, Any], int]:
    """Reads the wanted fields of a struct. Returns a dict keyed by field number, and the offset after the struct."""
    found: dict[int, Any] = {}
    number = 0
    while head := footer[at]:
        at += 1
        if head > 15:
            number += head >> 4
        else:
            number, at = _signed(footer, at)
        kind = head & 15
        if number in wanted and wanted[number][0] == kind:  # pyarrow also skips a field of another type
            found[number], at = wanted[number][1](footer, at)
        elif 4 <= kind <= 6:  # integers, the most frequent fields, are skipped without a function call
            while footer[at] > 127:
                at += 1
            at += 1
        elif kind > 2:  # true and false are types, and have no bytes
            at = _skipped(footer, at, kind)
    return found, at + 1


def _skipped(footer: bytes, at: int, kind: int) -> int:
    if kind == 8:
        length, at = _number(footer, at)
        return at + length
    if kind == 12:
        return _struct(footer, at, {})[1]
    if kind in (9, 10):
        inner, length, at = _head(footer, at)
        for _ in range(length):
            at = _skipped(footer, at, inner)
        return at
    if kind in (4, 5, 6):
        return _number(footer, at)[1]
    return at + _FIXED[kind]


def _head(footer: bytes, at: int) -> tuple[int, int, int]:
    """Returns the type of a list's values, their number, and the offset of the first one."""
    head = footer[at]
    length, at = (head >> 4, at + 1) if head >> 4 < 15 else _number(footer, at + 1)
    if length > len(footer):
        raise ValueError(f"a list of {length:,} values at byte {at:,}")
    return head & 15, length, at


_FIXED = {1: 1, 2: 1, 3: 1, 7: 8}
"""The size in bytes of each type with a fixed size: true and false (in a list), byte, double."""

_I32, _I64, _LIST, _STRUCT = 5, 6, 9, 12

# The parts of parquet.thrift that are read: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData.
_ROW_GROUPS, _COLUMNS, _ABOUT = 4, 1, 3
_TYPE, _PATH, _VALUES, _UNCOMPRESSED, _SIZE, _PAGES, _DICTIONARY = 1, 3, 5, 6, 7, 9, 11
_NUMBERS = _VALUES, _UNCOMPRESSED, _SIZE, _PAGES, _DICTIONARY
_TYPES = "BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"
_OF_ABOUT: dict[int, Wanted] = dict.fromkeys(_NUMBERS, (_I64, _signed))
_OF_ABOUT |= {_TYPE: (_I32, _signed), _PATH: (_LIST, partial(_list, read=_bytes))}
_OF_CHUNK: dict[int, Wanted] = {_ABOUT: (_STRUCT, partial(_struct, wanted=_OF_ABOUT))}
_OF_GROUP: dict[int, Wanted] = {_COLUMNS: (_LIST, partial(_list, read=partial(_struct, wanted=_OF_CHUNK)))}
_OF_FILE: dict[int, Wanted] = {_ROW_GROUPS: (_LIST, partial(_list, read=partial(_struct, wanted=_OF_GROUP)))}
